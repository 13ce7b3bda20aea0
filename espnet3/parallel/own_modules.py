"""Find the user's own modules and their imports.

Nothing is imported to find out: what happens to be loaded already must make no difference.
"""

import functools
import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from espnet3.parallel.module_source import Import, ModuleText, read_module

_INSTALLED = {"site-packages", "dist-packages"}


@dataclass(frozen=True)
class OwnModule:
    """A module whose text counts."""

    name: str
    """By which Python knows it."""
    shown: str
    """By which a user knows it, the same wherever the folder is."""
    file: str
    is_package: bool

    def text(self) -> ModuleText:
        """Return what it says."""
        return read_module(self.file)

    @property
    def package(self) -> str:
        """What its relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


def is_own_file(file: str) -> bool:
    """Tell whether a file is the user's: not ESPnet3's, Python's, or that of an installed package.

    By where it is, not by its name: `token.py` beside a script is not Python's.
    """
    return bool(file) and _is_own_folder(os.path.dirname(file))


@functools.cache
def _is_own_folder(folder: str) -> bool:
    real = os.path.realpath(folder)
    if any(_INSTALLED.intersection(each.split(os.sep)) for each in (folder, real)):
        return False
    return not any(f"{real}{os.sep}".startswith(each) for each in _foreign_folders())


@functools.cache
def _foreign_folders() -> tuple[str, ...]:
    import espnet3

    ours = [os.path.dirname(str(espnet3.__file__))]
    pythons = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    # A virtual environment has its own, and uses that of the Python it was made from.
    pythons += [os.path.dirname(str(os.__file__))]
    return tuple({f"{os.path.realpath(each)}{os.sep}" for each in (*ours, *pythons)})


def file_of(module: Any) -> str:
    """Return the file of a loaded module; empty if it has none."""
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and not file.startswith("<") else ""  # <stdin>


def find_module(name: str) -> OwnModule | None:
    """Return a module by its name, if it is one of the user's own."""
    found = _locate(name)
    if found is None or not is_own_file(found[0]) or not os.path.isfile(found[0]):
        return None
    file, is_package = found
    return OwnModule(name, shown_name(name, file), file, is_package)


def shown_name(name: str, file: str) -> str:
    """Return the name of a module as its folder has it.

    A recipe's `dataset/` is loaded under a name that has a digest of where it is.
    """
    first, dot, rest = name.partition(".")
    top: Any = sys.modules.get(first)
    path = file_of(top) if top is not None else ("" if dot else file)
    stem = os.path.basename(os.path.dirname(path) if _is_init(path) else path).partition(".")[0]
    return f"{stem}{dot}{rest}" if stem else name


def _is_init(file: str) -> bool:
    return os.path.basename(file).partition(".")[0] == "__init__"


def _locate(name: str) -> tuple[str, bool] | None:
    """Return the file of a module and whether it is a package; the file is empty if it has none."""
    module = sys.modules.get(name)
    if isinstance(module, ModuleType):
        return file_of(module), hasattr(module, "__path__")
    parent, _, last = name.rpartition(".")
    path: Any = None
    if parent:
        path = _search_path(parent)
        if path is None or not last:
            return None
    spec = _find_spec(name, path)
    if spec is None:
        return None
    return spec.origin if spec.has_location else "", spec.submodule_search_locations is not None


def _search_path(package: str) -> list[str] | None:
    """Return where the modules of a package are looked for; None if it is no package of ours."""
    module = sys.modules.get(package)
    if isinstance(module, ModuleType):
        path = getattr(module, "__path__", None)
        return None if path is None else list(path)
    parent = package.rpartition(".")[0]
    above = _search_path(parent) if parent else None
    if parent and above is None:
        return None
    spec = _find_spec(package, above)
    locations = None if spec is None else spec.submodule_search_locations
    return None if locations is None else list(locations)


def _find_spec(name: str, path: list[str] | None) -> Any:
    # Not importlib.util.find_spec, which imports the packages above.
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            spec = find(name, path, None) if find else None
        except KeyError:  # a namespace in a namespace whose parent is not loaded
            folders = [os.path.join(each, name.rpartition(".")[2]) for each in path or ()]
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = list(filter(os.path.isdir, folders))
        except Exception:  # finders of others may do anything with a name that is none
            continue
        if spec is not None:
            return spec
    return None


def follow_imports(start: Iterable[OwnModule]) -> dict[str, OwnModule]:
    """Return these modules and all of the user's own that they import, by file."""
    found: dict[str, OwnModule] = {}
    todo = list(start)
    while todo:
        module = todo.pop()
        real = os.path.realpath(module.file)
        if real in found:
            continue
        found[real] = module
        names = _with_parents(module.name) if "." in module.name else []
        names = [*names, *imported_names(module.text().imports, module.package)]
        todo += filter(None, map(find_module, names))
    return found


def imported_names(imports: Iterable[Import], package: str) -> list[str]:
    """Return the names of modules that may be meant; some are not modules but what they hold."""
    names: dict[str, None] = {}
    own: dict[str, bool] = {}
    for each in imports:
        candidates = _candidates(each, package)
        for top in {name.partition(".")[0] for name in candidates} - own.keys():
            own[top] = _may_be_own(top)
        candidates = [name for name in candidates if own[name.partition(".")[0]]]
        if candidates and (not each.is_guess or names_something(each.module)):
            names |= dict.fromkeys(candidates)
    return list(names)


def names_something(dotted: str) -> bool:
    """Tell whether a text like `pack.module.Thing` is the name of something.

    `notes.txt` is not, though there may be a notes.py.
    """
    parts = dotted.split(".")
    for i in range(len(parts), 0, -1):
        if (found := find_module(".".join(parts[:i]))) is not None:
            return i == len(parts) or _may_have(found, parts[i])
    return True  # in a namespace without files, as far as one can tell


def _may_have(module: OwnModule, name: str) -> bool:
    """Tell whether a module has a name, or gets its names in ways that its text does not tell."""
    said = module.text()
    if not said.text or said.bound & {name, "*", "__getattr__"}:
        return True
    return any(word in said.text for word in ("globals", "setattr", "exec", "sys.modules"))


def _candidates(each: Import, package: str) -> list[str]:
    base = absolute_name(each, package)
    return [*_with_parents(base), *(f"{base}.{name}" for name in each.names)]


def absolute_name(each: Import, package: str) -> str:
    """Return the full name of the module that an import names."""
    if not each.level:
        return each.module
    parts = package.split(".")
    above = parts[: len(parts) - each.level + 1]
    return ".".join([*above, *filter(None, [each.module])])


def _may_be_own(top: str) -> bool:
    """Tell whether a package can have modules of the user's own."""
    found = _locate(top)
    # A namespace package has no file of its own.
    return found is not None and (is_own_file(found[0]) if found[0] else found[1])


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))] if name else []

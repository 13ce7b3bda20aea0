"""Find the module that `data_src` names: the recipe's own, another recipe's, ours, or any other."""

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from espnet3.config.targets import find_bad_argument, install_hint, signature_of
from espnet3.errors import ConfigError, EspnetError, suggest

SOURCES = {
    name: f"espnet3.components.data.sources.{name}"
    for name in ("kaldi", "jsonl", "tsv", "huggingface", "lhotse", "tar", "parquet", "text")
}
"""The modules of our own sources by their short names."""


@dataclass(frozen=True)
class DataSource:
    """A `data_src` and all that is needed to find it and to say where it was set."""

    data_src: str | None = None
    recipe_dir: str | os.PathLike[str] | None = None
    """Where `dataset/` is, and from where up `egs3/` is looked for; None for the current folder."""
    key: str = "data_src"

    def load_module(self) -> ModuleType:
        """Import the module; a second call returns the same one.

        Raises:
            ConfigError: There is no such module. An error inside the module is passed on.
        """
        if not self.data_src:
            return self._load_own()
        if self.data_src in SOURCES:
            return importlib.import_module(SOURCES[self.data_src])
        if "/" in self.data_src:
            return self._load_tag(*self.data_src.split("/"))
        return self._load_dotted(self.data_src)

    def load(self, export: str = "Dataset") -> Any:
        """Return what the module calls `Dataset` or `DatasetBuilder`.

        Raises:
            ConfigError: There is no such module, or it has no such name.
        """
        module = self.load_module()
        found = getattr(module, export, None)
        if callable(found):
            return found
        has = [name for name in vars(module) if name[:1].isupper()]
        raise self.error(
            f"its module {module.__file__} has no class {export!r}.{suggest(export, has)} "
            f"Define it there, or import it under that name: from .dataset import X as {export}"
        )

    def check_module(self) -> None:
        """Import the module, and raise whatever it raises as a `ConfigError`."""
        try:
            self.load_module()
        except EspnetError:
            raise
        except Exception as error:
            problem = (
                f"cannot be imported: {type(error).__name__}: {error}{install_hint(error)}. Mend "
                f"it, then see: python -c 'import {self._module_name}'"
            )
            if self.data_src:
                raise self.error(f"its module {problem}") from error
            raise ConfigError(f"{self._own_file} {problem}") from error

    def check_arguments(self, dataset: Any, arguments: Mapping[str, Any]) -> None:
        """Raise a `ConfigError` if the class does not take arguments of these names."""
        signature = signature_of(dataset)
        bad = find_bad_argument(signature, arguments) if signature else None
        if bad is None:
            return
        key = f"{self.key.removesuffix('data_src')}data_src_args"
        raise ConfigError(
            f"{key} does not fit {dataset.__qualname__} of {self.name}: {bad.reason}",
            key=f"{key}.{bad.name}" if bad.name else key,
            fix=lambda loaded: bad.hint_at(key, arguments, loaded),
        )

    @property
    def name(self) -> str:
        """How messages call the source."""
        return self.data_src or str(self._own_file.parent)

    @property
    def has_own_module(self) -> bool:
        """Whether the recipe has a `dataset/` of its own."""
        return self._own_file.is_file()

    def error(self, problem: str) -> ConfigError:
        """Return an error that starts with key and value."""
        value = f"is {self.data_src!r}" if self.data_src else "is not set"
        return ConfigError(f"{self.key} {value}", key=self.key, problem=f"but {problem}")

    @property
    def _module_name(self) -> str:
        """How the module is imported in the folder of the recipe."""
        if not self.data_src:
            return "dataset"
        is_tag = "/" in self.data_src
        return f"egs3.{self.data_src.replace('/', '.')}.dataset" if is_tag else self.data_src

    @property
    def _folder(self) -> Path:
        return Path(self.recipe_dir or ".").absolute()

    @property
    def _own_file(self) -> Path:
        return self._folder / "dataset" / "__init__.py"

    def _load_own(self) -> ModuleType:
        if self.has_own_module:
            return load_package(self._own_file)
        raise self.error(
            f"the recipe has no {self._own_file}. Write that file with a class Dataset in it, or "
            f"name a source, such as {self.key.rpartition('.')[2]}: kaldi. "
            f"Known: {', '.join(SOURCES)}."
        )

    def _load_tag(self, *parts: str) -> ModuleType:
        if len(parts) != 2 or not all(parts):
            raise self.error("a tag has two parts. Write: data_src: CORPUS/TASK")
        file = Path("egs3", *parts, "dataset", "__init__.py")
        roots = list(dict.fromkeys(self._roots()))
        root = next((root for root in roots if (root / file).is_file()), None)
        if root is None:
            raise self._unknown_tag(file, [root for root in roots if (root / "egs3").is_dir()])
        if str(root) not in sys.path:
            sys.path.append(str(root))  # for what the recipe itself imports from egs3
        module = _import_from(".".join(["egs3", *parts, "dataset"]), root / file)
        return module or load_package(root / file)

    def _roots(self) -> Iterator[Path]:
        for start in (self._folder.resolve(), Path.cwd()):
            yield from (start, *start.parents)
        yield from (Path(entry).absolute() for entry in sys.path)

    def _unknown_tag(self, file: Path, roots: list[Path]) -> ConfigError:
        if not roots:
            return self.error(
                f"neither {self._folder} nor {Path.cwd()} nor a folder above them has an egs3/. "
                "Run in your clone of ESPnet3, or write a dotted module: data_src: package.module"
            )
        found = [f for root in roots for f in root.glob("egs3/*/*/dataset/__init__.py")]
        known = sorted({"/".join(f.parts[-4:-2]) for f in found})
        return self.error(
            f"there is no {file} in {', '.join(map(str, roots))}."
            f"{suggest(str(self.data_src), known)} Known: {', '.join(known) or 'none'}."
        )

    def _load_dotted(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if not f"{name}.".startswith(f"{missing}."):
                raise  # an import inside the module
        except (ValueError, TypeError) as error:  # such as "a..b" or ".a"
            raise self.error(f"that is no name of a module: {error}") from error
        raise self.error(_why_missing(name, missing))


def _why_missing(name: str, missing: str) -> str:
    parent, _, last = missing.rpartition(".")
    if not parent:
        known = {*SOURCES, *(module.name for module in pkgutil.iter_modules())}
        return (
            f"there is no module {missing!r}.{suggest(missing, known)} Write one of "
            f"{', '.join(SOURCES)}, a tag CORPUS/TASK, or a module on the path: "
            "export PYTHONPATH=FOLDER:$PYTHONPATH"
        )
    package = importlib.import_module(parent)
    if hasattr(package, last) and missing == name:
        return f"that is no module. Name the module, which exports Dataset: data_src: {parent}"
    known = {module.name for module in pkgutil.iter_modules(getattr(package, "__path__", []))}
    return (
        f"{parent!r} has no module {last!r}.{suggest(last, known)} "
        f"It has: {', '.join(sorted(known)) or 'none'}."
    )


def _import_from(name: str, file: Path) -> ModuleType | None:
    """Import by name, or return None if that name belongs to another file."""
    importlib.invalidate_caches()  # the folder may be newer than what the finders remember
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        return None
    found = getattr(module, "__file__", None)
    return module if found and Path(found).resolve() == file.resolve() else None


RECIPE_PREFIX = "recipe_dataset_"


def load_package(file: Path) -> ModuleType:
    """Load a package from its `__init__.py`.

    Its name is unique to the file, since every recipe calls its package `dataset`, and the same in
    every process.
    """
    file = file.resolve()
    name = f"{RECIPE_PREFIX}{hashlib.sha256(os.fsencode(file)).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(file.parent)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

"""Find the user's own modules, their imports, and the values that code uses of them.

Nothing is imported to find modules: what happens to be loaded already must make no difference.
Values are described in a form that is stable across processes: the text of a module does not tell
what `BEAM = int(os.environ["BEAM"])` is, or a table that is read from a file.
"""

import collections
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import marshal
import os
import random
import re
import sys
import sysconfig
import types
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import PurePath
from types import ModuleType
from typing import Any

from espnet3.parallel.module_source import Import, ModuleText, can_be_shown, read_module

_INSTALLED = {"site-packages", "dist-packages"}
_TEXT_TYPES = (
    complex, range, slice, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo,
    decimal.Decimal, fractions.Fraction, uuid.UUID,
)  # fmt: skip
_MARSHALLED = {int, float, bool, bytes, type(None)}
_REFERENCES = (
    type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodType,
    types.MethodDescriptorType, types.WrapperDescriptorType,
)  # fmt: skip
_MAX_DEPTH = 60
_MAX_BYTES = 256 * 2**20
_SAMPLED = 2**20
"""Numbers that are looked at of a mapped file beyond that size, spread over all of it."""
Reader = Callable[[], Any]


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
        """Package from which its relative imports start."""
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


class Value:
    """A description of a value."""

    def __init__(self, value: Any, home: "Home") -> None:
        """Describe `value`; `home` says which paths depend on where things are."""
        self._hash = hashlib.sha256()
        self._home = home
        self._open: list[int] = []
        self.is_complete = True
        """Whether it says all that can be known, so that no text need be looked at."""
        self.is_known = True
        """Whether it says anything at all, beyond the type."""
        self.references: list[Any] = []
        """Functions, classes and instances in it, whose code counts as well."""
        self._shown: Any = None
        self._is_plain = type(value) in (str, int, float, bool, type(None))
        if self._is_plain:
            self._shown = home.portable(value) if isinstance(value, str) else value
        self._encode(value)

    def described(self, key: str) -> Any:
        """Return the value itself, if it is short and no secret, else a digest."""
        if self._is_plain and can_be_shown(key, self._shown):
            return self._shown
        return f"value {self._hash.hexdigest()[:16]}"

    def _put(self, kind: str, data: bytes | str = b"") -> None:
        raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        # With its length: two texts in a row must not give the bytes of a single one.
        self._hash.update(f"{kind}:{len(raw)}:".encode())
        self._hash.update(raw)

    def _encode(self, value: Any) -> None:
        kind = type(value)
        if kind is str:
            self._put("str", self._home.portable(value))
        elif kind in _MARSHALLED:
            # Later formats mark what is shared, so that equal values may have different bytes.
            self._put("plain", marshal.dumps(value, 2))
        elif isinstance(value, enum.Enum):
            self._put("enum", f"{_name(kind)}.{value.name}")
        elif id(value) in self._open or len(self._open) > _MAX_DEPTH:
            self._put("again", _name(kind))
        else:
            self._open.append(id(value))
            self._encode_parts(value, kind)
            self._open.pop()

    def _encode_parts(self, value: Any, kind: type) -> None:
        if isinstance(value, _REFERENCES):
            self._refer(value)
        elif kind in (list, tuple, collections.deque) or _is_namedtuple(value):
            self._put(_name(kind), str(len(value)))
            self._encode_all(value)
        elif isinstance(value, set | frozenset):
            # The order of a set changes from process to process.
            self._put(_name(kind), b"".join(sorted(map(self._digest_of, value))))
        elif isinstance(value, Mapping) and value is not os.environ:
            self._encode_mapping(value, kind)
        elif isinstance(value, PurePath):
            self._put("path", self._home.portable(str(value)))
        elif isinstance(value, re.Pattern):
            self._put("pattern", f"{value.pattern!r} {value.flags}")
        elif isinstance(value, _TEXT_TYPES):
            self._put(_name(kind), repr(value))
        elif isinstance(value, bytearray | memoryview):
            self._put(_name(kind), bytes(value))
        elif not self._encode_array(value, kind):
            self._encode_object(value, kind)

    def _encode_all(self, values: Iterable[Any]) -> None:
        values = list(values)
        kinds = set(map(type, values))
        if kinds <= _MARSHALLED:
            self._put("plain", marshal.dumps(values, 2))  # fast, for long tables
        elif kinds <= _MARSHALLED | {str} and not self._home.mentions(values):
            self._put("plain", marshal.dumps(values, 2))
        else:
            for value in values:
                self._encode(value)

    def _encode_mapping(self, value: Mapping[Any, Any], kind: type) -> None:
        # Sorted: one that was made from a set has another order in each process.
        self._put(_name(kind), str(len(value)))
        items = list(value.items())
        if all(type(key) is str for key, _ in items):
            items.sort(key=lambda item: item[0])
        else:
            items.sort(key=lambda item: self._digest_of(item[0]))
        self._encode_all([key for key, _ in items])
        self._encode_all([each for _, each in items])
        if kind is collections.defaultdict:
            self._encode(getattr(value, "default_factory", None))
        if kind.__module__ not in ("builtins", "collections", "types"):
            self._encode_state(getattr(value, "__dict__", {}))

    def _digest_of(self, value: Any) -> bytes:
        inner = Value(value, self._home)
        self.is_complete &= inner.is_complete
        self.references += inner.references
        return inner._hash.digest()

    def _refer(self, value: Any) -> None:
        self.is_complete &= isinstance(value, types.BuiltinFunctionType)
        self.is_known &= len(self._open) > 1  # by itself, it is followed by the caller
        self.references.append(value)
        self._put("reference", _name(value))

    def _encode_array(self, value: Any, kind: type) -> bool:
        # Not imported: a value can be one of theirs only if they are loaded already.
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            value = _as_bytes_of(torch, value)
            if value is None:
                return False
        if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic | numpy.dtype):
            return False
        if isinstance(value, numpy.dtype):
            self._put("dtype", value.str)
            return True
        array = numpy.asarray(value)
        self._put(_name(kind), f"{array.dtype.descr} {array.shape}")
        if array.dtype.hasobject:
            self._encode_all(array.ravel().tolist())
        elif isinstance(value, numpy.memmap) and array.nbytes > _MAX_BYTES:
            self._put("parts", array.ravel()[:: array.size // _SAMPLED].tobytes())
        else:
            self._put("data", str(array.nbytes))
            self._hash.update(numpy.ascontiguousarray(array).reshape(-1).view("u1"))
        return True

    def _encode_object(self, value: Any, kind: type) -> None:
        self._put("object", _name(kind))
        self.references.append(kind)
        if isinstance(value, functools.partial):
            self._encode_all([value.func, value.args, value.keywords])
        elif kind is types.SimpleNamespace:
            self._encode_mapping(vars(value), dict)
        elif hasattr(value, "__wrapped__") and callable(value):
            self.is_known &= len(self._open) > 1  # what lru_cache keeps is no value
            self._encode(value.__wrapped__)
        else:
            self._encode_reduced(value)

    def _encode_reduced(self, value: Any) -> None:
        """Describe an object as `copy` and `pickle` would take it apart."""
        self.is_complete = False  # what its class does with it is in the text
        torch = sys.modules.get("torch")
        is_device = torch is not None and isinstance(value, torch.device | torch.Generator)
        if is_device or _is_random(value):  # where it runs is no result, and seeds are in the text
            self.is_known &= len(self._open) > 1
            return
        try:
            reduced = None if value is os.environ else value.__reduce_ex__(4)
        except Exception:  # an open file, a lock, a connection; or whatever a class of others does
            self._encode_state(getattr(value, "__dict__", None))
            return
        if not isinstance(reduced, tuple):
            self._put("global", str(reduced))
            return
        self._encode_all(reduced[1])
        self._encode_state(reduced[2] if len(reduced) > 2 else {})
        self._encode_all((reduced[3] or ()) if len(reduced) > 3 else ())
        pairs = (reduced[4] or ()) if len(reduced) > 4 else ()
        self._encode_mapping(dict(pairs), dict)

    def _encode_state(self, state: Any) -> None:
        if state is None:
            self.is_known &= len(self._open) > 1
        elif isinstance(state, dict):
            # What a cached property computed is no setting.
            self._encode_mapping(state, dict)
        else:
            self._encode(state)


def _as_bytes_of(torch: Any, tensor: Any) -> Any:
    """Return a tensor as an array of numpy; None if it has no content."""
    dense = tensor.detach()
    dense = dense.to_dense() if dense.layout is not torch.strided else dense
    if dense.is_meta:
        return None
    flat = dense.cpu().contiguous()
    data = flat.reshape(-1).view(torch.uint8).numpy()  # numpy has no bfloat16
    shape = (*flat.shape, flat.element_size())
    return data.reshape(shape).view([(str(flat.dtype), "u1")])


def _is_random(value: Any) -> bool:
    numpy = sys.modules.get("numpy.random")
    kinds = () if numpy is None else (numpy.Generator, numpy.RandomState, numpy.BitGenerator)
    return isinstance(value, (random.Random, *kinds))


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _name(thing: Any) -> str:
    if isinstance(thing, types.ModuleType):
        return _shown(thing.__name__)
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    module = getattr(thing, "__module__", None) or ""
    # A script is `__main__` here, and something else where it is imported.
    return name if module == "__main__" else f"{_shown(module)}.{name}"


def _shown(module: str) -> str:
    return shown_name(module, file_of(sys.modules.get(module)))


class Home:
    """The folders that a value may name only because things are there today."""

    def __init__(self, folders: Iterable[str]) -> None:
        """Take folders of the user's modules, and the current one if they ask for it."""
        own = {os.path.abspath(folder) for folder in folders}
        both = own | {os.path.realpath(folder) for folder in own}
        # The longest first, so that a path is named relative to the innermost folder.
        self._folders = tuple(sorted(both - {os.sep}, key=len, reverse=True))

    def mentions(self, values: Iterable[Any]) -> bool:
        """Tell whether one of the texts is a path that `portable` changes."""
        return any(self.portable(value) != value for value in values if type(value) is str)

    def portable(self, text: str) -> str:
        """Return a path in one of the folders, or above one, relative to it; others as they are."""
        if not text.startswith(os.sep):
            return text
        for folder in self._folders:
            if text == folder or text.startswith(folder + os.sep):
                return f"<here>{text[len(folder) :]}"
            if folder.startswith(text.rstrip(os.sep) + os.sep):
                return f"<above {folder[len(text) :].strip(os.sep).count(os.sep) + 1}>"
        return text


_described: dict[tuple[int, str], tuple[Any, Reader, Home, Any]] = {}
_changed_by_runs: dict[tuple[int, str], tuple[Any, Any, Any]] = {}


def settle(owner: Any, name: str, read: Reader, home: Home, described: Any) -> Any:
    """Return a value as it was before runs in this process changed it, if nothing else did.

    A cache that `forward` fills is no change of the code. `owner` is what holds the value; it is
    kept, so that nothing else gets its id.
    """
    key = (id(owner), name)
    if key in _changed_by_runs:
        _, before, after = _changed_by_runs[key]
        if described == after:
            return before
    _described[key] = (owner, read, home, described)
    return described


def note_changes_of_run() -> None:
    """Note which of the values that were described a run in this process has changed."""
    for key, (owner, read, home, before) in list(_described.items()):
        try:
            after = describe_value(read(), home, key[1])
        except Exception:  # gone, or not readable any more
            continue
        if after != before:
            _changed_by_runs[key] = (owner, before, after)


def describe_value(value: Any, home: Home | None = None, key: str = "") -> Any:
    """Return a plain short value as it is, a digest of any other."""
    return Value(value, home or Home([])).described(key)

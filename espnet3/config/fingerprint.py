"""Fingerprints of what a result depends on, and readable differences between two of them.

Nothing here depends on the process, on the order of keys or on memory addresses. OmegaConf,
pydantic, numpy and torch are recognised only where the caller has already imported them.

Files that a value names are part of it. A value names what is there under it: relative to the
current folder, as `open` would take it, or to the `recipe_dir` that stands in the config, as our
data sources do; `~`, `$VARIABLES` and `file://` are understood. If the whole value is no path, its
parts may be: of `--lm exp/lm.arpa`, of `a.pt,b.pt`, of `data/*.tar`, and a key of a dict such as
`exp/a.pt`. A name on the Hugging Face Hub stands for what the hub's cache on this machine has of
it. Weights of a training bring the `config.yaml` that lies beside them, and what the `model` in it
names.

Not seen are paths that code builds from parts, those in texts of more than 4,096 characters, and
those in keys without a slash.
"""

import dataclasses
import datetime
import decimal
import enum
import errno
import fractions
import functools
import glob
import hashlib
import itertools
import json
import logging
import math
import os
import re
import stat
import sys
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from espnet3.config.content import WEIGHTS, identify, is_same
from espnet3.errors import ConfigError

logger = logging.getLogger(__name__)

Scalar = str | int | float | bool | None

_DEEPEST = 40
# Their attributes are about this process, and not about results.
_MACHINERY = frozenset(
    {"_io", "_thread", "asyncio", "concurrent", "io", "logging", "multiprocessing", "socket"}
    | {"subprocess", "threading", "weakref", "_weakref", "contextvars", "_contextvars"}
)

_TEXT_TYPES = (
    complex,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    range,
    uuid.UUID,
)


PLACES = frozenset({"data_dir", "dataset_dir", "exp_dir", "stats_dir", "inference_dir", "exp_tag"})
"""Keys that at the top of a recipe's config say where things are, and whose folders change by
running it; as an argument of a model or dataset they count."""

WRITTEN = frozenset(
    {"recipe_dir", "output_dir", "output_path", "output_file", "out_dir", "save_dir", "dump_dir"}
    | {"log_dir", "log_directory", "log_file", "log_path", "work_dir", "cache_dir"}
    | {"tmp_dir", "temp_dir"}
)
"""Keys that do so everywhere."""

_LONGEST, _MOST_MATCHES = 4096, 1000
_NOT_A_PATH = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
_BETWEEN = re.compile(r"""[\s,;:=|"'(){}]+""")
_HAS_SUFFIX = re.compile(r"[^/]\.\w{1,11}$")
_ONLY_DOTS = re.compile(r"[./~\s]*")
# Files of the kernel, which have no content to compare; users do put models into /dev/shm.
_OF_THE_KERNEL = re.compile(r"/(?:proc|sys|dev(?!/shm/))(?:/|$)")
_HUB_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")


def flatten(value: Any, prefix: str = "", *, with_state: bool = False) -> dict[str, Scalar]:
    """Flatten nested values to `{"params.beam_size": 5, ...}`, sorted by key and JSON-safe.

    Arrays, tensors and bytes become a digest with type and shape, functions and classes their
    qualified name, sets sorted lists, and other objects the name of their type. Flattening twice
    changes nothing.

    Args:
        value: anything.
        prefix: what each key begins with.
        with_state: take other objects for what their attributes are, as pickle does: a namespace of
            argparse, or a decoder with its settings.

    Raises:
        ConfigError: An interpolation in a DictConfig leads nowhere.
    """
    if not prefix and _is_flat(value):
        return dict(sorted(value.items()))
    flat: dict[str, Scalar] = {}
    for key, scalar in _leaves(value, prefix, [] if with_state else None):
        flat[_unused(key, flat)] = scalar
    return dict(sorted(flat.items()))


def digest(mapping: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the flattened mapping, in hex."""
    return hashlib.sha256(_canonical(flatten(mapping)).encode()).hexdigest()


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line per key that differs, such as `params.beam_size: 5 -> 8`, ordered by key."""
    before, after = flatten(old), flatten(new)
    changed = [
        key
        for key in sorted(before.keys() | after.keys())
        # As JSON, since 1 == True in Python.
        if (key in before) != (key in after) or _canonical(before[key]) != _canonical(after[key])
    ]
    return [f"{key}: {_change(_shown(key, before), _shown(key, after))}" for key in changed]


def file_identity(
    path: str | PathLike[str], *, outputs: Sequence[str | PathLike[str]] = ()
) -> dict[str, Any]:
    """Return what identifies the content of a file or folder; see `content.identify`.

    Of a file: `size`, `mtime_ns` and `sha256`.
    """
    return identify(path, outputs=outputs)


def same_file(old: Mapping[str, Any], new_path: str | PathLike[str]) -> bool:
    """Tell whether a file or folder still has the content that `old` (a `file_identity`) describes.

    Times do not count, neither equal ones nor other ones.

    Raises:
        OSError: It cannot be read; that it is not there is an answer.
    """
    try:
        return is_same(dict(old), identify(new_path), new_path)
    except (FileNotFoundError, NotADirectoryError):
        return False


def files_in(
    flat: Mapping[str, Any],
    *,
    outputs: Sequence[str | PathLike[str]] = (),
    with_parts: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return the identity of every file and folder that a value names, by key.

    See the module for what counts as a name.

    Args:
        flat: as `flatten` returns it.
        outputs: folders that the run writes: what holds them changes by running.
        with_parts: also what is named by a part of a value, what belongs to it, and what a hub's
            cache has of it. Those have a key such as `command#1`, or no path: `same_file` cannot
            compare them, but `is_same` can, with a second call of this.

    Raises:
        ConfigError: Something cannot be read.
    """
    return {
        named.key: _identity_of(named, outputs)
        for named in named_paths(flat)
        if with_parts or named.is_whole
    }


def _identity_of(named: "NamedPath", outputs: Sequence[str | PathLike[str]]) -> dict[str, Any]:
    try:
        identity = file_identity(named.path, outputs=outputs)
    except OSError as error:
        where = error.filename or named.path
        raise ConfigError(
            f"{named.setting} names {named.path}, but {where} cannot be read: "
            f"{error.strerror or error}. Results depend on its content.",
            fix=f"Make it readable (chmod u+r {where}), or name another path.",
        ) from error
    if named.commit:
        return {"kind": "hub", "commit": named.commit, "files": identity.get("files", {})}
    return identity if named.is_whole else {**identity, "path": named.text}


def _is_flat(value: Any) -> bool:
    """Tell whether nothing would change, as with what was flattened before."""
    return type(value) is dict and all(
        type(k) is str and k and (type(v) in (str, int, bool) or v is None)
        for k, v in value.items()
    )


def _leaves(value: Any, key: str, around: list[Any] | None) -> Iterator[tuple[str, Scalar]]:
    """Yield what a value consists of; `around`: the objects that it is in, or None."""
    if _is_kind(value, "omegaconf", "Container"):
        from espnet3.config.resolve import resolved

        value = resolved(value, prefix=key)
    children = _children(value)
    if children is None and around is not None:
        if any(value is one for one in around) or len(around) > _DEEPEST:
            yield key, f"object of {_name(type(value))} around it"
            return
        if children := _attributes(value):
            around = [*around, value]
    if children is None:
        yield key, _scalar(value)
        return
    # An empty container must differ from a key that is not set.
    if not children and key:
        yield key, "{}" if isinstance(value, Mapping) else "[]"
    for name, child in children:
        yield from _leaves(child, f"{key}.{name}" if key else name, around)


def _attributes(value: Any) -> list[tuple[str, Any]] | None:
    """Return the state of an object by name; None for what is no mere holder of values."""
    if isinstance(value, re.Pattern):
        return [("flags", value.flags), ("pattern", value.pattern)]
    kinds = (("numpy", "ndarray"), ("numpy", "generic"), ("numpy", "dtype"), ("torch", "Tensor"))
    if hasattr(value, "__qualname__") or any(_is_kind(value, *kind) for kind in kinds):
        return None
    if isinstance(value, str | PathLike | enum.Enum | ModuleType):
        return None
    if type(value).__module__.partition(".")[0] in _MACHINERY:
        return None
    slots = [name for cls in type(value).__mro__ for name in _slots(cls)]
    state = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    state |= getattr(value, "__dict__", {})
    named = [(str(name), state[name]) for name in sorted(state, key=str)]
    # What a call leaves in a cache is no setting: in a notebook the same object is used again.
    named = [(n, v) for n, v in named if "cache" not in n.lower() or _children(v) is None]
    return [("__class__", type(value)), *named] if named else None


def _slots(cls: type) -> list[str]:
    slots = cls.__dict__.get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """Return the named parts of a container in a stable order, or None for a leaf."""
    if isinstance(value, Mapping):
        named = [(_key_name(k), k) for k in value]
        # The keys 1 and "1" get the same name, and their types keep the order stable.
        named.sort(key=lambda pair: (pair[0], _name(type(pair[1]))))
        return [(name, value[k]) for name, k in named]
    if isinstance(value, set | frozenset):
        # By content: the order of a set differs from process to process.
        value = sorted(value, key=lambda item: _canonical(flatten(item)))
    if isinstance(value, list | tuple | deque):
        return [(str(i), item) for i, item in enumerate(value)]
    if isinstance(value, functools.partial):
        return _children({"func": value.func, "args": value.args, "keywords": value.keywords})
    if _is_object_array(value):
        return _children({"shape": value.shape, "items": value.ravel().tolist()})
    return _fields(value)


def _key_name(key: Any) -> str:
    return _canonical(flatten(key)) if isinstance(key, tuple | frozenset) else str(_scalar(key))


def _fields(value: Any) -> list[tuple[str, Any]] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    elif _is_kind(value, "pydantic", "BaseModel"):
        fields = dict(value)
    else:
        return None
    # Two classes with equal fields may still behave differently.
    return _children({"__class__": type(value), **fields})


def _scalar(value: Any) -> Scalar:
    if isinstance(value, enum.Enum):
        return f"{_name(type(value))}.{value.name}"
    if value is None or isinstance(value, bool | str):
        return value if value is None or isinstance(value, bool) else str(value)
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, PathLike):
        return _scalar(os.fspath(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return _data_digest(bytes(value), f"bytes[{len(bytes(value))}]")
    if isinstance(value, _TEXT_TYPES):
        return f"{_name(type(value))}:{value}"
    return _array_or_name(value)


def _number(value: int | float) -> Scalar:
    if isinstance(value, int):
        return int(value)
    # JSON has no nan and inf, and nan differs from itself.
    return float(value) if math.isfinite(value) else f"float:{float(value)}"


def _array_or_name(value: Any) -> Scalar:
    if _is_kind(value, "numpy", "ndarray") or _is_kind(value, "numpy", "generic"):
        if not value.shape and type(value.item()) in (bool, int, float, str):
            return _scalar(value.item())
        return _data_digest(value.tobytes(), f"{value.dtype.str}{list(value.shape)}")
    if _is_kind(value, "torch", "Tensor"):
        return _tensor_digest(value)
    if any(_is_kind(value, "torch", name) for name in ("dtype", "device")):
        return str(value)
    if _is_kind(value, "numpy", "dtype"):
        return f"numpy.dtype:{value.str}"
    if hasattr(value, "__qualname__"):
        return _name(value)
    return f"object of {_name(type(value))}"


def _tensor_digest(tensor: Any) -> str:
    torch = sys.modules["torch"]
    kind = f"{tensor.dtype}{list(tensor.shape)}"
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    if dense.is_meta:
        return f"meta {kind}"
    # As bytes, because numpy has no bfloat16.
    data = dense.cpu().contiguous().reshape(-1).view(torch.uint8)
    return _data_digest(data.numpy().tobytes(), kind)


def _data_digest(data: bytes, kind: str) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()} {kind}"


def _is_kind(value: Any, module: str, name: str) -> bool:
    """Tell whether `value` is an instance of a class of a module that may not be imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _is_object_array(value: Any) -> bool:
    # The bytes of such an array are memory addresses.
    return _is_kind(value, "numpy", "ndarray") and bool(value.dtype.hasobject)


def _name(thing: Any) -> str:
    module = getattr(thing, "__module__", None) or "builtins"
    return f"{module}.{thing.__qualname__}"


def _unused(key: str, flat: Mapping[str, Scalar]) -> str:
    """Keep both of `{"a.b": 1, "a": {"b": 2}}`."""
    n, unused = 1, key
    while unused in flat:
        n += 1
        unused = f"{key}~{n}"
    return unused


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _shown(key: str, flat: Mapping[str, Scalar]) -> str:
    return repr(flat[key]) if key in flat else "(not set)"


def _change(old: str, new: str, limit: int = 60) -> str:
    start = 0
    if max(len(old), len(new)) > limit:
        pairs = enumerate(zip(old, new, strict=False))
        first_change = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
        start = max(0, first_change - limit // 3)
    return " -> ".join(_window(text, start, limit) for text in (old, new))


def _window(text: str, start: int, limit: int) -> str:
    if len(text) <= limit:
        return text
    before, after = ("..." if start else ""), ("..." if start + limit < len(text) else "")
    return f"{before}{text[start : start + limit]}{after}"


@dataclasses.dataclass(frozen=True)
class NamedPath:
    """A path, and which value it stands in."""

    key: str
    """Its own: that of the value, with a number if it is a part of it."""
    setting: str
    """The key of the value."""
    path: str
    """Where it is."""
    text: str
    """How the value spells it."""
    commit: str = ""
    """Of a name on the hub: which version the cache has."""

    @property
    def is_whole(self) -> bool:
        """Tell whether the value is a path, and no more."""
        return self.key == self.setting and not self.commit


def named_paths(flat: Mapping[str, Any]) -> Iterator[NamedPath]:
    """Yield what flat values name that exists, by key; see the module for what is looked for."""
    finder = _Finder([str(v) for k, v in flat.items() if _last(k) == "recipe_dir" and v])
    cache = _hub_cache()
    has_hub = _is_folder(cache)
    for key, value in flat.items():
        for i, (path, text) in enumerate(finder.in_key(key), start=1):
            yield NamedPath(f"{key}#key{i}", key, path, text)
        if not isinstance(value, str | os.PathLike) or _is_place(key, flat):
            continue
        text = os.fspath(value)
        if not isinstance(text, str) or _ONLY_DOTS.fullmatch(text):
            continue
        if path := finder.find(text):
            yield NamedPath(key, key, path, text)
            for i, beside in enumerate(finder.beside(path), start=1):
                yield NamedPath(f"{key}#beside{i}", key, beside, beside)
        elif has_hub and (snapshot := _hub_snapshot(text, _revision(key, flat), cache)):
            yield NamedPath(key, key, str(snapshot), text, snapshot.name)
        else:
            for i, (path, part) in enumerate(finder.in_text(text), start=1):
                yield NamedPath(f"{key}#{i}", key, path, part)


def setting_of(key: str) -> str:
    """Return the key of the value that a path with this key stands in."""
    return re.sub(r"#(key|beside)?\d+$", "", key)


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _is_place(key: str, flat: Mapping[str, Any]) -> bool:
    block, _, last = key.rpartition(".")
    if last in WRITTEN:
        return True
    recipe_dir = f"{block}.recipe_dir" if block else "recipe_dir"
    return last in PLACES and block in ("", "config") and recipe_dir in flat


def _revision(key: str, flat: Mapping[str, Any]) -> str:
    block = key.rpartition(".")[0]
    revision = flat.get(f"{block}.revision" if block else "revision")
    return revision if isinstance(revision, str) and revision else "main"


class _Finder:
    """Looks for paths in text."""

    def __init__(self, folders: Sequence[str]) -> None:
        """Take the folders that relative paths may count from, beside the current one."""
        self._folders = ["", *dict.fromkeys(folders)]

    def find(self, text: str) -> str:
        """Return the path that a text is as a whole, empty if none.

        One that may be there, but cannot be looked at, is returned: reading it will say why.
        """
        return self._first(text, unclear=True)

    def in_text(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield the paths that are parts of a text, and how it spells them."""
        if len(text) > _LONGEST:
            return
        if glob.has_magic(text) and _may_be_path(text):
            yield from self._matches(text)
        for part in dict.fromkeys(_BETWEEN.split(text)):
            if part == text or not _may_be_path(part) or not (path := self._first(part)):
                continue
            # Of a bare word only a file is meant, and not a folder that has that name too.
            if "/" in part or os.path.isfile(path):
                yield path, part

    def beside(self, path: str) -> Iterator[str]:
        """Yield what weights of a training go with: the config beside them, and what it names."""
        config = os.path.join(os.path.dirname(path), "config.yaml")
        if not path.endswith(WEIGHTS) or not os.path.isfile(config):
            return
        yield config
        # The lines that `train` writes; to load YAML would take longer than all the rest.
        lines = Path(config).read_text(encoding="utf-8", errors="replace").splitlines()
        for line in itertools.takewhile(_is_inside, itertools.dropwhile(_is_before_model, lines)):
            value = re.sub(r"^.*?(: |- )", "", line.strip()).strip("'\"")
            if "/" in value and (found := self._first(value)):
                yield found

    def in_key(self, key: str) -> Iterator[tuple[str, str]]:
        """Yield the path that the last part of a key is; that part may have dots in it."""
        if "/" not in key or len(key) > _LONGEST:
            return
        for match in re.finditer(r"\.", key):
            part = key[match.end() :]
            if "/" in part and not _ONLY_DOTS.fullmatch(part) and (path := self._first(part)):
                yield path, part
                return

    def _first(self, text: str, *, unclear: bool = False) -> str:
        if len(text) > _LONGEST or _OF_THE_KERNEL.match(text):
            return ""
        for spelled in _spellings(text):
            for folder in self._folders:
                path = os.path.join(folder, spelled)
                if _exists(path, unclear=unclear and spelled == text and "/" in text):
                    return path
        return ""

    def _matches(self, pattern: str) -> Iterator[tuple[str, str]]:
        # A recursive pattern may walk a whole file system.
        if "**" in pattern:
            return
        paths = (os.path.join(folder, pattern) for folder in self._folders)
        found = itertools.chain.from_iterable(glob.iglob(path) for path in paths)
        listed = sorted(itertools.islice(found, _MOST_MATCHES + 1))
        if len(listed) > _MOST_MATCHES:
            logger.warning(
                "%s matches more than %d files: only their names are compared",
                pattern, _MOST_MATCHES,
            )  # fmt: skip
            return
        yield from ((path, path) for path in listed)


def _is_before_model(line: str) -> bool:
    return line.rstrip() != "model:"


def _is_inside(line: str) -> bool:
    return line.startswith((" ", "-")) or not _is_before_model(line)


def _may_be_path(text: str) -> bool:
    return not _ONLY_DOTS.fullmatch(text) and ("/" in text or bool(_HAS_SUFFIX.search(text)))


def _spellings(text: str) -> Iterator[str]:
    yield text
    if text.startswith("~") or "$" in text:
        expanded = os.path.expandvars(os.path.expanduser(text))
        if expanded != text and not _ONLY_DOTS.fullmatch(expanded):
            yield expanded
    if text.startswith("file:"):
        yield unquote(urlsplit(text).path) or text


def _exists(path: str, *, unclear: bool) -> bool:
    try:
        os.stat(path)
    except ValueError:  # a null byte
        return False
    except OSError as error:
        return unclear and error.errno not in _NOT_A_PATH
    return True


def _hub_snapshot(text: str, revision: str, cache: Path) -> Path | None:
    """Return the folder that the hub's cache has of a name, if it says which version is used."""
    # The cache spells a slash as two dashes, and could mean another repository.
    if not _HUB_NAME.fullmatch(text) or "--" in text:
        return None
    for kind in ("models", "datasets"):
        folder = cache / f"{kind}--{text.replace('/', '--')}"
        if not _is_folder(folder):  # most words are no names of models
            continue
        try:
            commit = (folder / "refs" / revision).read_text().strip()
        except (OSError, ValueError):
            # A revision that is a full commit has no file in `refs`.
            commit = revision
        snapshot = folder / "snapshots" / commit
        if commit and _is_folder(snapshot):
            return snapshot
    return None


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _hub_cache() -> Path:
    """Return where `huggingface_hub` keeps what it downloads, without importing it."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(os.path.expanduser(given or os.path.join(home, "hub"))))

"""Cached digests of the content of files and folders.

Only content decides. `touch`, `cp -p`, `rsync -t` and archives with the time 0 change nothing, or
hide nothing: a digest is taken from memory only if inode, size, mtime and ctime are those of the
file that was read, and no program can set a ctime.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

Identity = dict[str, Any]

MOST_FILES, MOST_BYTES, MOST_ENTRIES = 10_000, 64 * 2**30, 100_000
"""A folder counts with its content up to so many files and bytes; above, with names, sizes and
times, up to so many entries; above that, with those of its first level."""

WEIGHTS = (
    *(".safetensors", ".ckpt", ".pt", ".pth", ".bin", ".onnx", ".gguf", ".npz", ".npy", ".h5"),
    *(".tflite", ".model", ".arpa"),
)
"""Files that are a model wherever they are."""

MODEL_FILES = frozenset(
    {"config.yaml", "config.json", "best.json", "tokens.json", "tokenizer.json", "vocab.json"}
    | {"generation_config.json", "preprocessor_config.json", "tokenizer.model"}
)
"""Files that belong to weights. Of a folder that the run writes its results into, and so changes by
itself, only weights and these count."""

IGNORED = frozenset({"__pycache__", ".git", ".cache", ".locks", ".ipynb_checkpoints", ".DS_Store"})
"""Files that tools leave in a folder, whose content does not change what is read from it."""

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_REMEMBERED_BYTES = 2 * 2**20
_SHA256_BYTES = 64 * 2**20
_SAMPLED_BLOCKS, _BLOCK_BYTES = 16, 2**20
_NAMED_FILES = 200
_MANY_BYTES = 2**30
_TICK_SECONDS, _RECENT_SECONDS = 0.02, 2.0
_MEMORY_VERSION, _MOST_MEMORIES = 1, 4_000


@dataclass(frozen=True)
class _Entry:
    """Something below a folder, or a file itself, then without a name."""

    name: str
    path: str
    stat: os.stat_result | None
    """None for what is not looked at: a link to nothing or around in circles."""
    is_file: bool = True

    @property
    def size(self) -> int:
        return self.stat.st_size if self.stat and self.is_file else 0

    @property
    def is_folder(self) -> bool:
        return self.stat is not None and stat.S_ISDIR(self.stat.st_mode)

    def what(self) -> str:
        """Say what it is, if no file: those are not opened."""
        if self.stat is not None:
            return f"special file {stat.S_IFMT(self.stat.st_mode):o}"
        with contextlib.suppress(OSError):
            return f"link to {os.readlink(self.path)}"
        return "a folder around it"  # mounted a second time

    def state(self) -> str:
        """Say what is known without reading it."""
        if self.stat is None:
            return self.what()
        return f"{stat.S_IFMT(self.stat.st_mode):o} {self.size} {self.stat.st_mtime_ns}"


def identify(path: str | PathLike[str], *, outputs: Sequence[str | PathLike[str]] = ()) -> Identity:
    """Return what identifies the content of a file or folder.

    Of a file that is `size`, `mtime_ns` and `sha256`, a digest of its whole content, which for more
    than 64 MB goes through the faster xxh3 (`"hash": "xxh3_128"`). Of a folder, `kind: folder`, how
    its digest was made (`rule`), and short digests of its files, if they are few.

    Links are followed. Pipes, sockets and devices are not opened.

    Args:
        path: of something that exists.
        outputs: folders that are being written. If one of them is inside of `path`, or is `path`,
            only the files of a model directly in `path` count; likewise with the current folder,
            the user's home and that of temporary files.

    Raises:
        OSError: Something cannot be read, which must not count as unchanged.
    """
    path = os.fspath(path)
    found = os.stat(path)
    outputs = [*outputs, os.getcwd(), os.path.expanduser("~"), os.environ.get("TMPDIR", "/tmp")]
    if stat.S_ISDIR(found.st_mode):
        return _identify_folder(path, is_written=_is_written(path, outputs))
    entry = _Entry("", path, found, is_file=stat.S_ISREG(found.st_mode))
    if not entry.is_file:
        return {"kind": entry.what()}
    # A list may name a hundred thousand recordings, and a note of each would cost more than it.
    is_small = entry.size < _REMEMBERED_BYTES
    digest = _read(path)[0] if is_small else _Reader(path).digests([entry])[""]
    identity = {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": digest}
    return {**identity, "hash": "xxh3_128"} if found.st_size > _SHA256_BYTES else identity


def is_same(old: Identity, new: Identity, path: str | PathLike[str]) -> bool:
    """Tell whether two identities of what is at `path` are of the same content."""
    if old.get("kind") != new.get("kind"):
        return False
    if old.get("kind") == "hub":
        # Files that are not needed at first are downloaded during a run.
        lost = [line for line in changed_files(old, new) if not line.endswith(" is new")]
        return old.get("commit") == new.get("commit") and not lost
    if old.get("kind", "folder") != "folder":
        return True
    if any(old.get(key) != new.get(key) for key in ("rule", "size")):
        return False
    if "hash" in new and "hash" not in old:
        # Written by an earlier version, which looked at 16 places of large files.
        return bool(old.get("sha256") == _sampled(path, new["size"]))
    return bool(old.get("sha256") == new["sha256"])


def changed_files(old: Identity, new: Identity) -> list[str]:
    """Return what differs between two identities of a folder, if its files are known by name."""
    before, after = old.get("files"), new.get("files")
    if before is None or after is None:
        return []
    lines = [f"{name} is gone" for name in sorted(before.keys() - after.keys())]
    lines += [f"{name} is new" for name in sorted(after.keys() - before.keys())]
    both = sorted(before.keys() & after.keys())
    return [f"{name} changed" for name in both if before[name] != after[name]] + lines


def _is_written(folder: str, outputs: Sequence[str | PathLike[str]]) -> bool:
    real = Path(os.path.realpath(folder))
    return any(Path(os.path.realpath(output)).is_relative_to(real) for output in outputs)


def _identify_folder(folder: str, *, is_written: bool) -> Identity:
    entries = _first_level(folder) if is_written else _walk(folder)
    rule = "weights" if is_written else "content"
    if is_written:
        entries = [entry for entry in entries or () if _is_of_model(entry)]
    elif entries is None:
        rule, entries = "first level", _first_level(folder)
    elif len(entries) > MOST_FILES or sum(entry.size for entry in entries) > MOST_BYTES:
        rule = "names, sizes and times"
    if rule not in ("weights", "content"):
        logger.warning(
            "%s is too large to be read (more than %d files, or %.0f GB): of its content only %s "
            "is compared",
            folder, MOST_FILES, MOST_BYTES / 2**30,
            rule if "," in rule else "names, sizes and times of its first level",
        )  # fmt: skip
    return _describe_folder(folder, rule, entries)


def _is_of_model(entry: _Entry) -> bool:
    return entry.is_file and (entry.name.endswith(WEIGHTS) or entry.name in MODEL_FILES)


def _describe_folder(folder: str, rule: str, entries: list[_Entry] | None) -> Identity:
    if entries is None:  # even the first level is too long: what is left is when it last changed
        return {"kind": "folder", "rule": rule, "size": 0, "sha256": os.stat(folder).st_mtime_ns}
    if rule in ("weights", "content"):
        digests = _Reader(folder).digests(entries)
    else:
        digests = {entry.name: entry.state() for entry in entries}
    text = json.dumps(sorted(digests.items()))
    identity = {
        "kind": "folder",
        "rule": rule,
        "n_files": len(entries),
        "size": sum(entry.size for entry in entries),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    few = len(entries) <= _NAMED_FILES
    return {**identity, "files": {n: d[:16] for n, d in digests.items()}} if few else identity


def _walk(folder: str) -> list[_Entry] | None:
    """Return all below a folder; None if that is too much to go through."""
    found = list[_Entry]()
    todo = [(folder, "", [os.stat(folder)])]
    n_entries = 0
    while todo:
        parent, prefix, around = todo.pop()
        for entry in _list(parent, prefix):
            n_entries += 1
            if n_entries > MOST_ENTRIES:
                return None
            if entry.stat is None or not entry.is_folder:
                found.append(entry)
            # Compared by inode, since a bind mount leads back up without any link.
            elif any(os.path.samestat(entry.stat, one) for one in around):
                found.append(_Entry(entry.name, entry.path, None, is_file=False))
            else:
                todo.append((entry.path, f"{entry.name}/", [*around, entry.stat]))
    return found


def _first_level(folder: str) -> list[_Entry] | None:
    found = list(itertools.islice(_list(folder, ""), MOST_ENTRIES + 1))
    return None if len(found) > MOST_ENTRIES else found


def _list(folder: str, prefix: str) -> Iterator[_Entry]:
    with os.scandir(folder) as listed:
        for entry in listed:
            # NFS keeps a file that was deleted while open under such a name.
            if entry.name in IGNORED or entry.name.startswith(".nfs"):
                continue
            name = prefix + entry.name
            try:
                found = os.stat(entry.path)
            except OSError as error:
                # What cannot be looked at for another reason must not count as not there.
                if error.errno not in _NOT_THERE:
                    raise
                if entry.is_symlink():
                    yield _Entry(name, entry.path, None, is_file=False)
                continue  # or it is gone since it was listed
            yield _Entry(name, entry.path, found, is_file=stat.S_ISREG(found.st_mode))


class _Reader:
    """Reads files below one path, and remembers their digests in the user's cache folder."""

    def __init__(self, root: str) -> None:
        self._memory = _Memory(os.path.realpath(root))
        self._read = dict[tuple[int, int], str]()

    def digests(self, entries: Sequence[_Entry]) -> dict[str, str]:
        """Return a digest of each file's content by name; of others, what they are."""
        known = {entry.name: self._known(entry) for entry in entries}
        unread = [entry for entry in entries if known[entry.name] is None]
        can_remember = _let_settle(unread)
        n_bytes = sum(entry.size for entry in unread)
        if n_bytes >= _MANY_BYTES:
            text = "Reading %s (%.1f GB), because results depend on its content; this is done once"
            logger.info(text, self._memory.root, n_bytes / 2**30)
        for entry in unread:
            known[entry.name] = self._digest(entry, can_remember=can_remember)
        if unread:
            self._memory.save(known)
        return {name: digest for name, digest in known.items() if digest is not None}

    def _known(self, entry: _Entry) -> str | None:
        if not entry.is_file or entry.stat is None:
            return entry.what()
        return self._memory.get(entry.name, entry.stat)

    def _digest(self, entry: _Entry, *, can_remember: bool) -> str:
        assert entry.stat is not None
        inode = (entry.stat.st_dev, entry.stat.st_ino)
        if inode not in self._read:  # several links of a hub's folder lead to one file
            digest, after = _read(entry.path)
            self._read[inode] = digest
        else:
            digest, after = self._read[inode], os.stat(entry.path)
        # If it changed while it was read, the digest may be that of neither state.
        if can_remember and _key(after) == _key(entry.stat):
            self._memory.put(entry.name, after, digest)
        return digest


def _let_settle(entries: Sequence[_Entry]) -> bool:
    """Wait until a further write would have another ctime; False if that would take too long.

    A file that is written twice within one tick of the file system's clock has the same times
    before and after. Where times have fractions of a second a tick is some milliseconds.
    """
    now = time.time()
    times = [entry.stat.st_ctime_ns for entry in entries if entry.stat is not None]
    recent = [ns for ns in times if ns / 1e9 > now - _RECENT_SECONDS]
    if any(ns % 10**9 == 0 for ns in recent):
        return False
    if recent:
        time.sleep(_TICK_SECONDS)
    return True


def _read(path: str) -> tuple[str, os.stat_result]:
    """Return the digest of a file's content, and its state after it was read."""
    # The hash reads large blocks, so a buffer would only be one more copy.
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _SHA256_BYTES:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            digest = _fast_digest(file, size)
        return digest, os.fstat(file.fileno())


def _fast_digest(file: Any, size: int) -> str:
    import xxhash

    hasher = xxhash.xxh3_128()
    block = memoryview(bytearray(_BLOCK_BYTES))
    while n := file.readinto(block):
        hasher.update(block[:n])
    # Wrapped, so that digests of all kinds have the same 64 digits.
    return hashlib.sha256(f"{size}:xxh3_128:{hasher.hexdigest()}".encode()).hexdigest()


def _sampled(path: str | PathLike[str], size: int) -> str:
    hasher = hashlib.sha256(f"{size}:".encode())
    with open(path, "rb") as file:
        for i in range(_SAMPLED_BLOCKS):
            file.seek(i * (size - _BLOCK_BYTES) // (_SAMPLED_BLOCKS - 1))
            hasher.update(file.read(_BLOCK_BYTES))
    return hasher.hexdigest()


def _key(found: os.stat_result) -> list[int]:
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


class _Memory:
    """The digests of what is below one path, in a file that may be lost at any time."""

    def __init__(self, root: str) -> None:
        self.root = root
        name = hashlib.sha256(root.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        self._file = _memory_folder() / f"{name}.json"
        self._rows = self._load()
        self._new = dict[str, list[Any]]()

    def _load(self) -> dict[str, Any]:
        try:
            values = json.loads(self._file.read_bytes())
            is_ours = values["version"] == _MEMORY_VERSION and values["path"] == self.root
            return dict(values["rows"]) if is_ours else {}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return {}  # none yet, or damaged: what it held is read again

    def get(self, name: str, found: os.stat_result) -> str | None:
        """Return the digest, if the file is still the one that was read."""
        row = self._rows.get(name)
        if not isinstance(row, list) or row[:-1] != _key(found):
            return None
        digest = row[-1]
        return digest if isinstance(digest, str) and len(digest) == 64 else None

    def put(self, name: str, found: os.stat_result, digest: str) -> None:
        """Remember a digest; `save` writes it down."""
        self._new[name] = [*_key(found), digest]

    def save(self, names: Collection[str]) -> None:
        """Write what is new, and what is still there.

        A home that is full or read-only only makes the next run slower.
        """
        if not self._new:
            return
        kept = {name: row for name, row in self._rows.items() if name in names}
        rows = {**kept, **self._new}
        values = {"version": _MEMORY_VERSION, "path": self.root, "rows": rows}
        with contextlib.suppress(OSError):
            _write(self._file, json.dumps(values).encode())


def _memory_folder() -> Path:
    if own := os.environ.get("ESPNET3_CACHE"):
        return Path(own) / "content"
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification wants relative paths to be ignored.
    base = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~/.cache"))
    return base / "espnet3" / "content"


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _make_room(file.parent)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".")
    try:
        with open(handle, "wb") as temporary:
            temporary.write(data)
        os.replace(name, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _make_room(folder: Path) -> None:
    """Remove the older half, if many paths are remembered."""
    if len(os.listdir(folder)) < _MOST_MEMORIES:
        return
    files = [(entry.stat().st_mtime, entry.path) for entry in os.scandir(folder)]
    for _, path in sorted(files)[: len(files) // 2]:
        with contextlib.suppress(OSError):
            os.unlink(path)

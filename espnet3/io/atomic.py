"""Write files that are seen whole or not at all: a temp file, fsync, then one rename or link.

And JSON: on one line unless indented, NumPy is converted, and errors name the key. This is on the
start-up path of every worker, so it imports next to nothing.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache

from espnet3.errors import RecordError

TYPE_CHECKING = False  # what `typing.TYPE_CHECKING` is, without the import of `typing`
if TYPE_CHECKING:
    from json import JSONEncoder
    from typing import IO, Any

StrPath = str | os.PathLike[str]
PRIVATE = 0o600
"""Permissions of a file that only its owner may read."""

# Some network and FUSE file systems cannot sync a folder, and one may write to a folder without
# being allowed to read it; the rename is atomic there all the same.
_NO_DIR_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EACCES}
_FOLDER_TROUBLE = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
    errno.ESTALE, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG,
}  # fmt: skip
# File systems without hard links (exFAT, some FUSE) say so in one of these ways.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_MAX_SWEPT = 3
_IN_THE_WAY = (errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_TEMP_NAME = re.compile(r"\..*\.tmp-([0-9]+)-[0-9a-f]{8}", re.DOTALL)
_MAX_NAME_BYTES = 200  # leaves room for the ending below the usual limit of 255


@contextmanager
def open_atomic(
    path: StrPath,
    mode: str = "w",
    *,
    sync: bool = True,
    permissions: int | None = None,
) -> Iterator[IO[Any]]:
    r"""Open a file that replaces `path` when the block ends, and only if it ends well.

    Until then the data is in `.<name>.tmp-<pid>-<random>` beside it. After an exception, also one
    at the last flush (disk full), the temp file is gone and `path` is as it was; after a SIGKILL
    the temp file stays behind (see `is_temp_name`). Text is written with "\n" line ends. The file
    gets the permissions that `open` would give it. A symbolic link is replaced, not followed.

    Args:
        path: The file to create or replace; its folder must exist.
        mode: "w" for UTF-8 text, "wb" for bytes.
        sync: Wait until the data is on the disk. Pass False for a file that a later commit syncs;
            it is then still whole for readers, but may be empty after a power cut.
        permissions: What it has from its first moment on, whatever the umask, and the file that it
            replaces, say; `PRIVATE` for what may hold a secret.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f'open_atomic got mode={mode!r} for {path}. Use mode="w" or mode="wb".')
    target = os.path.abspath(path)  # the block may change the working directory
    temp = temp_path(target)
    file = _create(temp, mode, permissions)
    try:
        with file:
            if permissions is None:
                _copy_permissions(target, file.fileno())
            else:
                # `os.open` was asked for as much, but the umask took its share.
                os.fchmod(file.fileno(), permissions)
            yield file
            # fsync covers only what has left Python's own buffer.
            file.flush()
            if sync:
                os.fsync(file.fileno())
        # Not before it is closed: some network file systems report a full disk only then.
        os.replace(temp, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temp)
        raise
    if sync:
        # A rename is durable only once the folder that holds the name is.
        fsync_dir(os.path.dirname(target))


def write_bytes(
    path: StrPath, data: bytes, *, sync: bool = True, permissions: int | None = None
) -> None:
    """Create or replace a file atomically; see `open_atomic`."""
    with open_atomic(path, "wb", sync=sync, permissions=permissions) as file:
        file.write(data)


def write_text(path: StrPath, text: str) -> None:
    """Create or replace a UTF-8 file atomically, the text as it is; see `open_atomic`."""
    write_bytes(path, text.encode("utf-8"))


def write_json(
    path: StrPath,
    value: Any,
    indent: int | None = 2,
    *,
    sync: bool = True,
    permissions: int | None = None,
) -> None:
    """Create or replace a JSON file atomically, keys in their order, with a newline at the end.

    Raises:
        RecordError: A value is NaN, infinite, or of a type unknown to JSON; `path` is as it was.
    """
    text = dump_json(value, indent=indent, where=path) + "\n"
    write_bytes(path, text.encode("utf-8"), sync=sync, permissions=permissions)


def create_bytes(
    path: StrPath, data: bytes, *, sync: bool = True, permissions: int | None = None
) -> bool:
    """Create a file with this content, unless it exists: one of several processes is the first.

    With `permissions` it has them whatever the umask is.

    Readers see nothing or all of it. Where there are no hard links, a process that is killed
    between creating and writing leaves an empty file.

    Returns:
        False if the file was there already; it is then as it was.
    """
    for _ in range(_MAX_SWEPT):
        with suppress(FileNotFoundError):  # another machine swept it, taking its writer for dead
            return _create_by_link(path, data, sync, permissions)
    return _create_by_link(path, data, sync, permissions)


def _create_by_link(path: StrPath, data: bytes, sync: bool, permissions: int | None) -> bool:
    temp = temp_path(os.path.abspath(path))
    try:
        with open(temp, "xb") as file:
            _fill(file, data, sync, permissions)
        try:
            os.link(temp, path)
        except FileExistsError:
            # NFS sends a request again when the answer is lost, and then finds its own link.
            if _n_links(temp) < 2:
                return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not _create_plainly(path, data, sync, permissions):
                return False
    finally:
        with suppress(FileNotFoundError):
            # After a link this is a spare name of the file; after a failure it would be litter.
            os.unlink(temp)
    if sync:
        fsync_dir(os.path.dirname(os.path.abspath(path)))
    return True


def _n_links(path: str) -> int:
    # Opening a file makes NFS ask the server; a mere `stat` may be answered from its memory.
    with open(path, "rb", buffering=0) as file:
        return os.fstat(file.fileno()).st_nlink


def _fill(file: IO[bytes], data: bytes, sync: bool, permissions: int | None) -> None:
    if permissions is not None:
        os.fchmod(file.fileno(), permissions)
    file.write(data)
    file.flush()
    if sync:
        os.fsync(file.fileno())


def _create_plainly(path: StrPath, data: bytes, sync: bool, permissions: int | None) -> bool:
    try:
        # "x" is O_EXCL, which has to be atomic where hard links are missing (docs/file-systems.md).
        with open(path, "xb") as file:
            try:
                _fill(file, data, sync, permissions)
            except OSError:  # such as a full disk: half a file must not count as the first one's
                os.unlink(path)
                raise
    except FileExistsError:
        return False
    return True


def fsync_file(path: StrPath) -> None:
    """Wait until what was written to a file, by whichever process, is on the disk."""
    # Enough for fsync, and it also opens a file that a runner made read-only.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_dir(path: StrPath) -> None:
    """Wait until the names in a folder are on the disk; does nothing where that is unsupported."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIR_SYNC:
            raise


def is_temp_name(name: str) -> bool:
    """Tell whether a file name is that of a write under way, or of one that was killed."""
    return _TEMP_NAME.fullmatch(name) is not None


def temp_pid(name: str) -> int | None:
    """Return which process made a temp file, on which machine is not in the name."""
    match = _TEMP_NAME.fullmatch(name)
    return int(match[1]) if match else None


def temp_path(target: str) -> str:
    """Return a name beside `target` for a write under way; see `is_temp_name`."""
    folder, name = os.path.split(target)
    # File systems limit bytes; "ignore" drops a character that the cut went through.
    name = os.fsencode(name)[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
    # Machines that share the folder may have equal pids, and threads of a process have the same.
    return os.path.join(folder, f".{name}.tmp-{os.getpid()}-{os.urandom(4).hex()}")


def _create(temp: str, mode: str, permissions: int | None) -> IO[Any]:
    # "x" and not mkstemp, whose files only their owner may read. Permissions from the first moment
    # on: a reader that opens it before they are set could read all that is written later.
    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 if permissions is None else permissions)

    try:
        if mode == "wb":
            return open(temp, "xb", opener=opener)
        return open(temp, "x", encoding="utf-8", newline="\n", opener=opener)
    except FileNotFoundError as error:
        folder = os.path.dirname(temp)
        message = "Cannot write into a folder that does not exist; create it first: mkdir -p"
        raise FileNotFoundError(errno.ENOENT, message, folder) from error


def _copy_permissions(target: str, descriptor: int) -> None:
    # A private file must stay private when it is replaced.
    with suppress(OSError):  # there is no such file yet, or there are no permissions here
        os.fchmod(descriptor, stat.S_IMODE(os.stat(target).st_mode))


def is_folder_trouble(error: BaseException, folder: StrPath | None = None) -> bool:
    """Tell whether an error means that one cannot write here, or that `folder` is gone.

    Others, such as a missing file, are about what the caller's code opens.
    """
    if not isinstance(error, OSError):
        return False
    return error.errno in _FOLDER_TROUBLE or (folder is not None and not os.path.isdir(folder))


def folder_trouble(error: OSError, path: StrPath | None = None) -> str:
    """Return why the system refuses a path, with what is in the way where that can be seen.

    `File exists` may mean a link whose target is not there, and `Not a directory` a file far above.

    Args:
        error: what the system said.
        path: what was to be made; that of the error if None.
    """
    if error.errno in _IN_THE_WAY:
        for each in (path, error.filename):
            found = in_the_way(each) if isinstance(each, str | os.PathLike) else ""
            if found:
                return found
    return error.strerror or str(error)


def in_the_way(path: StrPath) -> str:
    """Say which link or file keeps a path from being a folder; empty if there is none."""
    from shlex import quote  # only after a failure

    # Downwards: whatever is wrong above makes everything below it look wrong as well.
    for place in _from_the_root(os.path.abspath(os.fspath(path))):
        if os.path.islink(place) and not os.path.exists(place):
            target = os.path.join(os.path.dirname(place), os.readlink(place))
            return (
                f"{place} is a symbolic link to {target}, which does not exist (make it: mkdir -p "
                f"{quote(target)} ; or remove the link: rm {quote(place)})"
            )
        if os.path.exists(place) and not os.path.isdir(place):
            return f"{place} is a file, not a folder"
    return ""


def _from_the_root(path: str) -> Iterator[str]:
    parent = os.path.dirname(path)
    if parent != path:
        yield from _from_the_root(parent)
    yield path


class JsonlWriter:
    """Write records to a file, opened at once and buffered.

    A crash leaves what was flushed so far, perhaps with half a line at the end.

    Example:
        >>> import tempfile
        >>> from espnet3.io.tables import read_jsonl
        >>> path = tempfile.mkdtemp() + "/items.jsonl"
        >>> with JsonlWriter(path) as writer:
        ...     writer.write({"id": "utt1", "frames": 310})
        >>> list(read_jsonl(path))
        [{'id': 'utt1', 'frames': 310}]
    """

    def __init__(self, path: StrPath, *, allow_nan: bool = False) -> None:
        """Create or empty the file; its folder must exist. For `allow_nan` see `dump_json`."""
        self._path = path
        self._allow_nan = allow_nan
        self._file = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115

    def write(self, record: Any) -> None:
        """Add a record, or raise a `RecordError` and leave the file as it is."""
        self._file.write(dump_json(record, allow_nan=self._allow_nan, where=self._path) + "\n")

    def flush(self) -> None:
        """Show other processes what was written so far."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# JSON may hold these as they are, but `str.splitlines` breaks at the first three, and surrogates
# cannot be written as UTF-8.
_TO_ESCAPE = re.compile("[\x85\u2028\u2029\ud800-\udfff]")
_NOT_JSON = "which JSON cannot hold."


def dump_json(
    value: Any,
    *,
    indent: int | None = None,
    allow_nan: bool = False,
    where: str | os.PathLike[str] = "",
) -> str:
    r"""Return the value as JSON, without a newline at the end.

    Plain values go straight through the C encoder; only what it does not know is converted, as in
    `to_jsonable`. Letters stay readable; a lone surrogate becomes `\udXXX`. (JSON cannot tell two
    lone surrogates that happen to form a pair from the character: they come back as that.)

    Args:
        value: Plain or NumPy values in dicts, lists and tuples; tuples come back as lists, keys
            that are numbers as text.
        indent: Blanks per level; None for one line.
        allow_nan: Write NaN and infinities as `NaN` and `Infinity`, which Python reads and strict
            parsers refuse.
        where: The file that it is for, named in errors.

    Raises:
        RecordError: A value has no form in JSON; the message has its key and what to do.
    """
    try:
        text = _encoder(indent, allow_nan).encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        place = f"{os.fspath(where)}: " if where else ""
        raise RecordError(place + _explain(value, allow_nan, error)) from None
    # CPython keeps `isascii` as a flag, whereas the regex reads the whole text.
    return text if text.isascii() else _TO_ESCAPE.sub(_escape_match, text)


def to_jsonable(value: Any) -> Any:
    """Return the value in plain JSON types, at all depths.

    NumPy scalars and arrays and tensors become numbers and lists, paths become text.

    Raises:
        RecordError: The type has no natural form in JSON: bytes, sets, objects of your own.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {key: to_jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_jsonable(item) for item in value]
    return to_jsonable(_convert(value))


def _convert(value: Any) -> Any:
    # The encoder calls this for what it does not know; it may return what again needs converting.
    if isinstance(value, bytes | bytearray | memoryview):
        raise _refusal(value, "decode text with value.decode(), or store the data with type: npy")
    if isinstance(value, set | frozenset):
        raise _refusal(value, "a set has no order; write sorted(value)")
    if hasattr(value, "tolist"):
        plain = value.tolist()
        # longdouble and clongdouble return themselves
        return plain if type(plain) is not type(value) else float(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):  # such as OmegaConf's, which are no dicts
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise _refusal(value, "convert it to numbers, text, lists or dicts first, such as vars(value)")


def _refusal(value: Any, advice: str) -> RecordError:
    what = f"is {value!r:.80}, of type {type(value).__name__}"
    return RecordError(f"{what}, {_NOT_JSON} Fix: {advice}.")


def _explain(value: Any, allow_nan: bool, error: Exception) -> str:
    if isinstance(error, RecursionError) or "Circular" in str(error):
        return "The value holds itself or is nested too deeply for JSON. Fix: write a flat dict."
    for key, problem in _problems(value, "value", allow_nan):
        return f"{key} {problem}"
    return (
        f"The value cannot be written as JSON: {error}. Fix: write numbers, text, lists and dicts."
    )


def _problems(value: Any, key: str, allow_nan: bool) -> Iterator[tuple[str, str]]:
    """Yield each place and what is wrong there; slow, and so only called after a failure."""
    if isinstance(value, dict):
        for name, item in value.items():
            if not (name is None or isinstance(name, str | int | float)):
                yield key, f"has the key {name!r}, {_NOT_JSON} Fix: use str(key)."
            yield from _problems(item, f"{key}[{name!r}]", allow_nan)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _problems(item, f"{key}[{index}]", allow_nan)
    elif isinstance(value, float):
        if not (allow_nan or math.isfinite(value)):
            yield key, f"is {float(value)}, {_NOT_JSON} Fix: write None, or leave the key out."
    elif not (value is None or isinstance(value, str | int)):
        try:
            converted = _convert(value)
        except (TypeError, ValueError) as error:
            yield key, str(error)
        else:
            yield from _problems(converted, key, allow_nan)


# `json.dumps` caches only the encoder of its defaults; any other is built again at each call.
@lru_cache(maxsize=8)
def _encoder(indent: int | None, allow_nan: bool) -> JSONEncoder:
    from json import JSONEncoder  # not on the start-up path

    return JSONEncoder(ensure_ascii=False, allow_nan=allow_nan, indent=indent, default=_convert)


def _escape_match(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"

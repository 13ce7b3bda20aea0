"""Archives of packed models: reproducible bytes, safe extraction."""

import gzip
import shutil
import stat
import tarfile
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from espnet3.config.trust import PackedModelError, leads_out
from espnet3.io.atomic import open_atomic

META = "meta.yaml"
WEIGHTS = "weights.safetensors"
TRAINING = "conf/training.yaml"
INFERENCE = "conf/inference.yaml"
TOKENIZER = "tokenizer"
FILES = "files"
"""Folder of what the decoder reads, such as a language model."""
METRICS = "metrics.json"
CARD = "README.md"
FORMAT_VERSION = 1


_ENDINGS = (".tar.gz", ".tgz", ".zip")
_MOST_COMPRESSED = 50
"""Weights shrink to a half at best, and a language model in text to a fifth."""
_ALWAYS_ALLOWED = 100_000_000
"""Bytes of the files together."""
_MOST_ENTRIES = 10_000
"""Files and folders; a packed model has tens."""
_MOST_DEPTH = 32
_LONGEST_NAME = 1_000
_LARGEST_HEADER = 65_536
"""Bytes of what comes before a file in a tar: its name, mostly."""
_LARGEST_INDEX = 2_000_000
"""Bytes of the list at the end of a zip, which is read at once."""
_PIECE = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_NOT_TO_USE = "Do not use it; get the model from elsewhere."
_PLAIN_ZIP = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1


def is_archive(path: Path) -> bool:
    """Tell whether a path is that of an archive, by its ending."""
    return path.name.endswith(_ENDINGS) and not path.is_dir()


def write_archive(folder: Path, archive: Path, name: str) -> None:
    """Write a folder as `.tar.gz`, under this name; the same files give the same bytes."""
    # Neither the name of the file nor the time goes into the header.
    with (
        open_atomic(archive, "wb") as stream,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=stream, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        # Sorted, because the order of `rglob` depends on the file system.
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            inside = f"{name}/{file.relative_to(folder).as_posix()}"
            with file.open("rb") as content:
                tar.addfile(_entry(inside, file.stat().st_size), content)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    # No owner and no time: the archive must not tell who packed it, nor differ between two runs.
    entry.size, entry.mode, entry.mtime = size, 0o644, 0
    return entry


def extract(archive: Path) -> "tempfile.TemporaryDirectory[str]":
    """Extract an archive to a temporary folder, which is removed with the object that is returned.

    It is read once, from front to back, and what it says of itself is not believed: what comes out
    is counted. So neither memory nor disk can be exhausted.

    Raises:
        PackedModelError: It is missing or damaged, a name in it leads out of the folder, or it has
            more or larger entries than a packed model can have. The folder is then gone.
    """
    if not archive.is_file():
        raise PackedModelError(f"{archive} does not exist.", fix="Check the path.")
    folder = tempfile.TemporaryDirectory(prefix="espnet3-packed-", ignore_cleanup_errors=True)
    try:
        into = _Extraction(archive, Path(folder.name))
        if archive.suffix == ".zip":
            _extract_zip(archive, into)
        else:
            _extract_tar(archive, into)
    except _DAMAGED as error:
        folder.cleanup()
        raise PackedModelError(
            f"{archive} cannot be extracted: {type(error).__name__}: {error!s:.200}. Get it again "
            "from those who packed it."
        ) from error
    except BaseException:
        # Also on Ctrl-C: an archive may be large, and /tmp small.
        folder.cleanup()
        raise
    return folder


_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,  # of zipfile, for what it cannot read
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
    zlib.error,
)


def model_in(folder: Path) -> Path:
    """Return the folder itself, or the only one in it."""
    if (folder / META).is_file():
        return folder
    inner = [path for path in folder.iterdir() if path.is_dir()]
    # `write_archive` puts all into one folder; an archive that was made by hand may not.
    return inner[0] if len(inner) == 1 else folder


class _Readable(Protocol):
    def read(self, n: int, /) -> bytes: ...


class _Extraction:
    """Writes files into a folder, within the limits of a packed model.

    Args:
        archive: That they come from.
        folder: To write to.
    """

    def __init__(self, archive: Path, folder: Path) -> None:
        self._archive = archive
        self._folder = folder
        # The larger of the two, as a tiny archive of text legitimately compresses well.
        self._limit = max(_ALWAYS_ALLOWED, _MOST_COMPRESSED * archive.stat().st_size)
        self._free = shutil.disk_usage(folder).free
        self._n_bytes = self._n_entries = 0
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def add_folder(self, name: str) -> None:
        """Make a folder, and those around it."""
        self._make(self._checked(name))

    def add_file(self, name: str, size: int, content: _Readable) -> None:
        """Write a file of a size that is said; more never comes out of `content`.

        Raises:
            EOFError: There is less in it.
        """
        path = self._checked(name)
        # Some file systems take these for one name, and the last one would win.
        known = unicodedata.normalize("NFC", str(path)).casefold()
        if known in self._files:
            raise self._refused(f"holds {name!r:.80} twice", "Which one counts is not known.")
        self._files.add(known)
        self._make(path.parent)
        # By the size that is said, before a byte is written: a full disk harms other users too.
        self._check_room(size)
        # "x", so that a name which the check above let through still cannot overwrite a file.
        with (self._folder / path).open("xb") as file:
            while size > 0:
                piece = content.read(min(size, _PIECE))
                if not piece:
                    raise EOFError(f"{name!r:.80} ends too early")
                self._n_bytes += len(piece)
                size -= len(piece)
                file.write(piece)

    def refuse_kind(self, name: str) -> PackedModelError:
        """Return the error for what is neither a file nor a folder."""
        return PackedModelError(
            f"{self._archive} holds {name!r:.80}, which is a link or a device. A packed model has "
            "plain files only; get it again from its author."
        )

    def refuse_header(self, n_bytes: int) -> PackedModelError:
        """Return the error for too much text about a file."""
        return self._refused(
            f"says {n_bytes:,} bytes about one of its files, where a name would do",
            "It is made to fill the memory.",
        )

    def _checked(self, name: str) -> PurePosixPath:
        path = PurePosixPath(name)
        self._n_entries += 1
        if leads_out(name):
            raise self._refused(f"holds {name!r:.80}, a path that leads out of its folder")
        if len(name) > _LONGEST_NAME or len(path.parts) > _MOST_DEPTH:
            raise self._refused(
                f"holds {name!r:.80}..., a path of {len(name):,} characters in "
                f"{len(path.parts):,} folders"
            )
        # They could forge lines in logs, or hide a name in a terminal.
        if any(ord(character) < 32 or ord(character) == 127 for character in name):
            raise self._refused(f"holds {name!r:.80}, a name with control characters")
        return path

    def _make(self, path: PurePosixPath) -> None:
        # A single entry can create many folders, each of which takes an inode.
        for folder in (*reversed(path.parents), path):
            self._folders.add(str(folder))
        if max(self._n_entries, len(self._files) + len(self._folders)) > _MOST_ENTRIES:
            raise self._refused(
                f"has more than {_MOST_ENTRIES:,} files and folders, and a packed model has tens",
                "It is made to fill a disk.",
            )
        (self._folder / path).mkdir(parents=True, exist_ok=True)

    def _check_room(self, size: int) -> None:
        total = self._n_bytes + size
        if size < 0 or total > self._limit:
            raise self._refused(
                f"would take {total / 1e9:.1f} GB, more than {_MOST_COMPRESSED} times its own "
                "size, as weights never do",
                "It is made to fill a disk.",
            )
        if total > self._free:
            raise PackedModelError(
                f"{self._archive} takes {total / 1e9:.1f} GB, but {self._folder.parent} has "
                f"{self._free / 1e9:.1f} GB left.",
                fix="Make room, or name another folder: export TMPDIR=FOLDER",
            )

    def _refused(self, problem: str, why: str = "") -> PackedModelError:
        message = " ".join(filter(None, (f"{self._archive} {problem}.", why, _NOT_TO_USE)))
        return PackedModelError(message)


class _NoLargeReads:
    """A file for `zipfile`, which reads the list of entries at once, however long it is."""

    def __init__(self, file: IO[bytes], into: _Extraction) -> None:
        self._file = file
        self._into = into
        # Besides `read`, these are what `zipfile` calls on a file.
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, n: int = -1) -> bytes:
        if n > _LARGEST_INDEX:
            raise self._into.refuse_header(n)
        data = self._file.read(n if n >= 0 else _LARGEST_INDEX + 1)
        if len(data) > _LARGEST_INDEX:
            raise self._into.refuse_header(len(data))
        return data


def _extract_zip(archive: Path, into: _Extraction) -> None:
    with archive.open("rb") as file:
        source: Any = _NoLargeReads(file, into)
        with zipfile.ZipFile(source) as opened:
            for entry in opened.infolist():
                _add_zip_entry(opened, entry, into)


def _add_zip_entry(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, into: _Extraction) -> None:
    # Unix keeps the kind of a file in the upper half; it is 0 for archives made elsewhere.
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise into.refuse_kind(entry.filename)
    if entry.is_dir():
        into.add_folder(entry.filename)
        return
    # BZIP2 and LZMA allow far larger bombs than deflate does.
    if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _PLAIN_ZIP:
        raise zipfile.BadZipFile(
            f"{entry.filename!r:.80} is encrypted, or compressed in an unusual way"
        )
    with opened.open(entry) as content:
        into.add_file(entry.filename, entry.file_size, content)
        if content.read(1):  # also compares the checksum
            raise zipfile.BadZipFile(f"{entry.filename!r:.80} is longer than it says")


def _extract_tar(archive: Path, into: _Extraction) -> None:
    with gzip.open(archive, "rb") as source:
        for entry in _tar_entries(source, into):
            if entry.isdir():
                into.add_folder(entry.name)
                continue
            # Not isfile(), for which a sparse file of ten bytes may be as large as it likes.
            if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE):
                raise into.refuse_kind(entry.name)
            into.add_file(entry.name, entry.size, source)
            _read_exactly(source, -entry.size % _BLOCK)


def _tar_entries(source: _Readable, into: _Extraction) -> Iterator[tarfile.TarInfo]:
    """Yield the entries of a tar; whoever takes one reads its content before the next.

    Not by `tarfile`, which reads what comes before an entry at once, whatever its size.
    """
    said: dict[str, str] = {}
    # A block of zeros, or the end of the file, ends the archive; nothing behind it is read.
    while (block := source.read(_BLOCK)).strip(b"\0"):
        entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if entry.type not in _SAYS_MORE:
            entry.name = said.get("path", entry.name)
            entry.size = int(said.get("size", entry.size))
            if any(key.startswith("GNU.sparse") for key in said):
                raise into.refuse_kind(entry.name)
            said = {}
            yield entry
            continue
        if not 0 <= entry.size <= _LARGEST_HEADER or len(said) > _MOST_SAID:
            raise into.refuse_header(entry.size)
        text = _read_exactly(source, entry.size)
        _read_exactly(source, -entry.size % _BLOCK)
        if entry.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            said.update(_pax_records(text))
        elif entry.type == tarfile.GNUTYPE_LONGNAME:
            said["path"] = text.rstrip(b"\0").decode("utf-8", "surrogateescape")
        # One more for each, so that they do not continue for ever.
        said[f"header {len(said)}"] = ""


_SAYS_MORE = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
_MOST_SAID = 100


def _pax_records(text: bytes) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of a pax header, each `LENGTH KEY=VALUE` and a newline."""
    while text.strip(b"\0"):
        length, _, _ = text.partition(b" ")
        # The shortest possible record is "5 a=\n"; a smaller length would not move forward.
        if not length.isdigit() or not 5 <= int(length) <= len(text):
            raise tarfile.ReadError("a pax header is malformed")
        record, text = text[: int(length)], text[int(length) :]
        key, _, value = record[len(length) + 1 : -1].partition(b"=")
        yield key.decode("utf-8", "replace"), value.decode("utf-8", "surrogateescape")


def _read_exactly(source: _Readable, n: int) -> bytes:
    data = source.read(n)
    if len(data) != n:
        raise EOFError("it ends too early")
    return data

"""Archives of packed models: written with the same bytes each time, extracted without surprises."""

import gzip
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

from espnet3.io.atomic import open_atomic
from espnet3.systems.asr.packed_layout import META
from espnet3.systems.asr.trusted_targets import PackedModelError

_ENDINGS = (".tar.gz", ".tgz", ".zip")
_MOST_COMPRESSED = 50
"""Weights shrink to a half at best, and a language model in text to a fifth."""
_ALWAYS_ALLOWED = 100_000_000
"""Bytes of the files together."""


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
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            inside = f"{name}/{file.relative_to(folder).as_posix()}"
            with file.open("rb") as content:
                tar.addfile(_entry(inside, file.stat().st_size), content)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o644, 0
    return entry


def extract(archive: Path) -> "tempfile.TemporaryDirectory[str]":
    """Extract an archive to a temporary folder, which is removed with the object that is returned.

    Raises:
        PackedModelError: It is missing or damaged, or a name in it leads out of the folder.
    """
    folder = tempfile.TemporaryDirectory(prefix="espnet3-packed-", ignore_cleanup_errors=True)
    try:
        _extract(archive, Path(folder.name))
    except FileNotFoundError as error:
        raise PackedModelError(f"{archive} does not exist. Check the path.") from error
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error) as error:
        raise PackedModelError(
            f"{archive} cannot be extracted: {type(error).__name__}: {error}. Get it anew from "
            "those who packed it."
        ) from error
    return folder


def model_in(folder: Path) -> Path:
    """Return the folder itself, or the only one in it."""
    if (folder / META).is_file():
        return folder
    inner = [path for path in folder.iterdir() if path.is_dir()]
    return inner[0] if len(inner) == 1 else folder


def _extract(archive: Path, folder: Path) -> None:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                _check_name(name, archive)
            _check_size(sum(entry.file_size for entry in opened.infolist()), archive)
            opened.extractall(folder)
        return
    with tarfile.open(archive, "r:gz") as tar:
        n_bytes = 0
        for entry in tar:  # one by one, as a list of them would read through all that is packed
            _check_entry(entry, archive)
            n_bytes += entry.size
            _check_size(n_bytes, archive)
        tar.extractall(folder, filter="data")


def _check_size(n_bytes: int, archive: Path) -> None:
    allowed = max(_ALWAYS_ALLOWED, _MOST_COMPRESSED * archive.stat().st_size)
    if n_bytes > allowed:
        raise PackedModelError(
            f"{archive} would take {n_bytes / 1e9:.1f} GB, more than {_MOST_COMPRESSED} times its "
            "own size, as weights never do: it is made to fill a disk. Do not use it; get the "
            "model from elsewhere."
        )


def _check_entry(entry: Any, archive: Path) -> None:
    _check_name(entry.name, archive)
    if not (entry.isfile() or entry.isdir()):
        raise PackedModelError(
            f"{archive} holds {entry.name!r:.80}, which is a link or a device. A packed model has "
            "plain files only; get it anew from those who packed it."
        )


def _check_name(name: str, archive: Path) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise PackedModelError(
            f"{archive} holds {name!r:.80}, a path that leads out of its folder. Do not use it; "
            "get the model from elsewhere."
        )

"""Fetch an archive of openslr.org, check it, and unpack it."""

import hashlib
import logging
import shutil
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

from espnet3.components.data.errors import DataError

logger = logging.getLogger(__name__)

URL = "https://www.openslr.org/resources/12"
_BLOCK = 1 << 20


def fetch_subset(name: str, md5: str, folder: Path, url: str = URL) -> None:
    """Make `<folder>/<name>/` from `<url>/<name>.tar.gz`; an interrupted download goes on.

    Raises:
        DataError: The server does not answer, or the archive is not the one that was published.
    """
    archive = folder / f"{name}.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    if not archive.exists():
        _download(f"{url}/{archive.name}", archive, md5)
    unpacked = folder / f".{name}.unpacking"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(unpacked, filter="data")
    (unpacked / "LibriSpeech" / name).rename(folder / name)
    shutil.rmtree(unpacked)
    archive.unlink()


def _download(url: str, archive: Path, md5: str) -> None:
    part = archive.with_suffix(".part")
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    logger.info("Downloading %s%s", url, f", from byte {done} on" if done else "")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            goes_on = answer.status == 206
            with part.open("ab" if goes_on else "wb") as file:
                shutil.copyfileobj(answer, file, _BLOCK)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # there is nothing behind what we have
            raise _unreachable(url, error) from error
    except OSError as error:
        raise _unreachable(url, error) from error
    found = _md5_of(part)
    if found != md5:
        part.unlink()
        raise DataError(
            f"{url} has the MD5 checksum {found}, but {md5} was published. It was removed; run the "
            "stage again, or name another mirror: create_dataset.url=URL"
        )
    part.rename(archive)


def _unreachable(url: str, error: Exception) -> DataError:
    return DataError(
        f"{url} cannot be fetched: {error}. Run the stage again, which goes on where it stopped; "
        "or unpack the archive by hand, and name the folder: create_dataset.source=FOLDER"
    )


def _md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

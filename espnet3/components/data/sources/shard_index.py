"""The index of a shard: made once, kept beside it, made anew when the shard has changed."""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.components.data.errors import DataError
from espnet3.components.data.sources.column_file import (
    Array,
    ColumnFile,
    ColumnFileError,
    write_columns,
)
from espnet3.io.atomic import StrPath, is_folder_trouble

logger = logging.getLogger(__name__)

# Many small reads of files that may be on a network: more than one shard at a time.
_N_THREADS = 8


@dataclass(frozen=True)
class ShardIndex:
    """What is known of a shard: plain facts, and columns with an entry per item or member."""

    facts: Mapping[str, Any]
    columns: Mapping[str, Array]


@dataclass(frozen=True)
class IndexKind:
    """How the index of a shard is made, and where it is kept.

    Args:
        name: Of this kind and version; an index of another one is made anew.
        build: Reads a shard.
        index_dir: A folder for the files; None for beside the shards or, where that cannot be
            written, the user's cache.
    """

    name: str
    build: Callable[[Path], ShardIndex]
    index_dir: StrPath | None = None

    def file_of(self, shard: Path) -> Path:
        """Return the file with the index of a shard as it is now; it is made if need be.

        Raises:
            DataError: The shard is damaged, is being written, or the index cannot be kept.
        """
        return self._find_fresh(shard) or self._make(shard)

    def files_of(self, shards: Sequence[Path]) -> list[Path]:
        """Return `file_of` of each shard, and tell how many had to be made."""
        start = time.monotonic()
        with ThreadPoolExecutor(_N_THREADS) as threads:
            files = list(threads.map(self._find_fresh, shards))
            stale = [i for i, file in enumerate(files) if file is None]
            if stale:
                logger.info("Indexing %d of %d shards, once.", len(stale), len(shards))
            try:
                made = list(threads.map(self.file_of, [shards[i] for i in stale]))
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        for i, file in zip(stale, made, strict=True):
            files[i] = file
        if made:
            seconds = time.monotonic() - start
            logger.info("Indexed %d shards in %.1f s: %s", len(made), seconds, made[0].parent)
        return [file for file in files if file is not None]

    def _find_fresh(self, shard: Path) -> Path | None:
        identity = identity_of(shard)
        places = self._places(shard)
        return next((place for place in places if self._is_fresh(place, identity)), None)

    def _make(self, shard: Path) -> Path:
        identity = identity_of(shard)
        index = self.build(shard)
        if identity_of(shard) != identity:
            raise DataError(f"{shard} changed while it was read. Wait until it is written whole.")
        facts = {**index.facts, "kind": self.name, "shard": identity}
        return _write_first(self._places(shard), facts, index.columns)

    def _places(self, shard: Path) -> list[Path]:
        """Return where the index may be; the first place that can be written gets it."""
        digest = hashlib.sha256(f"{self.name}\0{shard}".encode(errors="surrogateescape"))
        # Two shards of one name may be in two folders.
        unique = f"{shard.name[:100]}.{digest.hexdigest()[:16]}.index"
        if self.index_dir is not None:
            return [Path(self.index_dir, unique).absolute()]
        suffix = self.name.partition(":")[2]
        beside = shard.with_name(f"{shard.name}{'.' if suffix else ''}{suffix}.index")
        return [beside, *([cache / unique] if (cache := _cache_dir()) else [])]

    def _is_fresh(self, file: Path, identity: Mapping[str, int]) -> bool:
        try:
            facts = ColumnFile(file).facts
        except (OSError, ColumnFileError):
            return False
        return bool(facts.get("kind") == self.name and facts.get("shard") == identity)


def identity_of(shard: StrPath) -> dict[str, int]:
    """Return size and time of change of a shard.

    Raises:
        DataError: It is not there, or cannot be read.
    """
    try:
        status = os.stat(shard)
    except OSError as error:
        raise DataError(f"The shard {shard} cannot be read: {error.strerror}.") from error
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _cache_dir() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "espnet3", "shard_index") if os.path.isabs(base) else None


def _write_first(
    places: Sequence[Path], facts: Mapping[str, Any], columns: Mapping[str, Array]
) -> Path:
    problem = None
    for place in places:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_columns(place, facts, columns)
        except OSError as error:
            if not is_folder_trouble(error, place.parent):
                raise
            problem = error
        else:
            return place
    tried = " or ".join(str(place.parent) for place in places)
    raise DataError(
        f"The index of a shard cannot be written to {tried} ({problem}). Name a folder that can: "
        "data_src_args: {index_dir: FOLDER}"
    )

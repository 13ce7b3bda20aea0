"""Join SCP files of shards, in which each id may appear once."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path

from espnet3.errors import IncompleteRunError
from espnet3.shards.file_access import read_in_order
from espnet3.shards.join import join_files
from espnet3.shards.merge import content_at_hand


def join_scp(shard_dirs: Sequence[Path], name: str, target: Path) -> int:
    """Join the SCP file `name` of all shards into `target`, like `join_files`.

    Returns:
        The number of lines written.

    Raises:
        IncompleteRunError: also if an id appears twice, with the places; nothing is written then.
    """
    _check_ids([shard_dir / name for shard_dir in shard_dirs])
    return join_files(shard_dirs, name, target)


def _check_ids(parts: Sequence[Path]) -> None:
    # Eight bytes an id, so that ten million fit anywhere; a hash met twice is looked at closely.
    import numpy as np

    # These hashes differ from process to process, and so are never stored.
    hashes = array("q")
    for found in read_in_order(_hashes, [(part, content_at_hand(part)) for part in parts]):
        hashes.extend(found)
    values = np.sort(np.frombuffer(hashes, dtype=np.int64))
    suspects = set(values[1:][values[1:] == values[:-1]].tolist())
    if suspects:
        _refuse_twice(parts, suspects)


def _refuse_twice(parts: Sequence[Path], suspects: set[int]) -> None:
    seen: dict[bytes, str] = {}
    for part in parts:
        for line, id in enumerate(_ids(part, None), 1):
            if hash(id) not in suspects:
                continue
            place = f"{part}:{line}"
            if id in seen:
                raise IncompleteRunError(
                    f"The id {id.decode(errors='replace')!r} appears twice, in {seen[id]} and "
                    f"{place}.",
                    fix="Give each item an id of its own, such as speaker and utterance.",
                )
            seen[id] = place


def _hashes(part: tuple[Path, bytes | None]) -> "array[int]":
    return array("q", map(hash, _ids(*part)))


def _ids(part: Path, content: bytes | None) -> Iterator[bytes]:
    with suppress(FileNotFoundError):  # a shard without results
        with part.open("rb") if content is None else BytesIO(content) as file:
            for line in file:
                yield line.partition(b" ")[0].rstrip(b"\n")

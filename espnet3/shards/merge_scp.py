"""Join SCP files of shards, in which each id may appear once."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from espnet3.errors import IncompleteRunError
from espnet3.shards.join import join_files


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

    hashes = array("q", (hash(id) for _, _, id in _ids(parts)))
    values = np.sort(np.frombuffer(hashes, dtype=np.int64))
    suspects = set(values[1:][values[1:] == values[:-1]].tolist())
    if suspects:
        _refuse_twice(parts, suspects)


def _refuse_twice(parts: Sequence[Path], suspects: set[int]) -> None:
    seen: dict[bytes, str] = {}
    for part, line, id in _ids(parts):
        if hash(id) not in suspects:
            continue
        place = f"{part}:{line}"
        if id in seen:
            raise IncompleteRunError(
                f"The id {id.decode(errors='replace')!r} appears twice, in {seen[id]} and {place}.",
                fix="Give each item an id of its own, such as speaker and utterance.",
            )
        seen[id] = place


def _ids(parts: Sequence[Path]) -> Iterator[tuple[Path, int, bytes]]:
    for part in parts:
        with suppress(FileNotFoundError), part.open("rb") as file:  # a shard without results
            for number, line in enumerate(file, 1):
                yield part, number, line.partition(b" ")[0].rstrip(b"\n")

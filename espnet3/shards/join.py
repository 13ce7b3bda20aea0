"""Join a file of all shards in dataset order, whatever the order in which the items were run."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.io.tables import read_jsonl
from espnet3.shards.commit import Done
from espnet3.shards.layout import FAILED, run_folder_of
from espnet3.shards.manifest import load_manifest
from espnet3.shards.merge import (
    check_lines,
    concat_files,
    read_part,
    read_parts,
    require_done,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BLOCK = 1 << 18


def join_files(shard_dirs: Sequence[Path], name: str, target: Path) -> int:
    """Join the file `name` of all shards of a run into `target`, one line per result.

    Where items were sorted into batches by length, their lines are put back into dataset order;
    else this is `concat_files`.

    Returns:
        The number of lines written.

    Raises:
        IncompleteRunError: naming the part that was changed since its commit or lacks lines.
    """
    root = run_folder_of(shard_dirs[0]) if shard_dirs else None
    manifest = load_manifest(root) if root else None
    order = manifest.load_order(root) if manifest and root else None
    if order is None:
        return concat_files(shard_dirs, name, target)
    from espnet3.shards.reorder import restore_lines  # needs numpy

    shards = [(shard_dir / name, require_done(shard_dir)) for shard_dir in shard_dirs]
    restore_lines(
        _verified(shard_dirs, name, _line_ranks(shards, order)),
        target,
        n_lines=sum(done.n_written for _, done in shards),
        n_bytes=sum(done.files.get(name, {}).get("bytes", 0) for _, done in shards),
    )
    return sum(done.n_written for _, done in shards)


def _verified(
    shard_dirs: Sequence[Path], name: str, ranks: "Iterator[NDArray[np.int64]]"
) -> "Iterator[tuple[Path, NDArray[np.int64], bytes | None]]":
    buffer = memoryview(bytearray(_BLOCK))
    for (folder, done, content), own in zip(read_parts(shard_dirs, name), ranks, strict=True):
        if content is not None:
            check_lines(folder / name, done, done.files[name]["lines"])
        # `bool` drops each block: this pass only proves the content, and `restore_lines` reads it.
        elif not read_part(folder / name, done, buffer, bool):
            continue
        yield folder / name, own, content


def _line_ranks(shards: Sequence[tuple[Path, Done]], order: Any) -> "Iterator[NDArray[np.int64]]":
    """Yield, for each shard, which line of the joined file each of its lines is."""
    import numpy as np

    items = np.asarray(order, dtype=np.int64)
    has_line = np.ones(len(items), dtype=bool)
    for part, done in shards:
        if done.n_failed:
            failed = [record["position"] for record in read_jsonl(part.parent / FAILED)]
            has_line[failed] = False
    item_has_line = np.zeros(len(items), dtype=bool)
    item_has_line[items[has_line]] = True
    rank_of_item = np.cumsum(item_has_line) - 1
    for _, done in shards:
        own = slice(done.start, done.stop)
        yield rank_of_item[items[own][has_line[own]]]

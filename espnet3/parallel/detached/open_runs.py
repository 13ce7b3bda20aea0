"""Count open shards of run folders from one listing."""

import os
from collections.abc import Sequence
from pathlib import Path

from espnet3.parallel.detached.bad_nodes import bad_nodes
from espnet3.shards.layout import shard_of
from espnet3.shards.manifest import load_manifest
from espnet3.shards.records import RecordPaths, read_stop


def is_open(root: Path) -> bool:
    """Tell whether workers have something to do in a folder, and may."""
    manifest = load_manifest(root)
    if manifest is None or read_stop(RecordPaths(root)) is not None:
        return False
    return not manifest.layout(root).success.exists()


def count_open_shards(roots: Sequence[Path]) -> int:
    """Return how many shards are not done in all; a merge that is left counts as one."""
    return sum(map(_count_open, roots))


def _count_open(root: Path) -> int:
    manifest = load_manifest(root)
    if manifest is None:
        return 0
    n_done = sum(shard_of(entry.name) is not None for entry in os.scandir(root))
    return max(manifest.n_shards - n_done, 1)


def nodes_to_avoid(roots: Sequence[Path]) -> list[str]:
    """Return the nodes on which work for any of the folders dies."""
    found: dict[str, str] = {}
    for root in roots:
        manifest = load_manifest(root)
        found |= bad_nodes(root, manifest) if manifest else {}
    return sorted(found)

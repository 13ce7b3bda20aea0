"""What killed workers, from what they left behind: notes that all workers of a run share."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from espnet3.shards.records import RecordPaths, read_deaths

_FORGOTTEN = ".forgotten"


def forget_deaths(root: Path, shards: Collection[int] | None = None) -> None:
    """Let items that killed their workers be tried again, in some shards or in all.

    What is known of the walltime stays: it is as true as before.
    """
    paths = RecordPaths(root)
    for note in read_deaths(paths):
        if note.kind != "walltime" and (shards is None or note.shard in shards):
            path = paths.deaths / f"{note.key}.json"
            with suppress(FileNotFoundError):
                os.rename(path, path.with_name(path.name + _FORGOTTEN))

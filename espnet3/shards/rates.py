"""Speed of a run, finished or not, from its folder."""

from dataclasses import dataclass
from pathlib import Path

from espnet3.shards.commit import Done
from espnet3.shards.manifest import Manifest, load_manifest
from espnet3.shards.merge import read_coverage
from espnet3.shards.success import read_success


@dataclass(frozen=True)
class Rate:
    """What items took of a worker's time, loading apart."""

    seconds_per_item: float
    real_time_factor: float | None = None
    """Seconds of a worker for a second of audio; None where durations are not known."""
    load_seconds: float | None = None
    """Start-up time of one worker; None if unknown."""
    n_items: int = 0
    hosts: tuple[str, ...] = ()
    finished: float = 0.0
    """When the last of these items was done, in seconds since 1970."""


def read_rate(run_dir: Path) -> Rate | None:
    """Return how fast the shards went that are done in a folder; None if there are none.

    Raises:
        RunFolderError: if the manifest is damaged.
    """
    manifest = load_manifest(run_dir)
    if manifest is None or manifest.n_items == 0:
        return None
    done = list(read_coverage(run_dir, manifest).committed.values())
    return _of_shards(manifest, done) if done else _of_success(run_dir, manifest)


def _of_shards(manifest: Manifest, done: list[Done]) -> Rate:
    n_items = sum(shard.n_items for shard in done)
    seconds = sum(shard.seconds for shard in done)
    cost = sum(manifest.costs[shard.shard] for shard in done)
    # Only the first shard of a worker waits for the model.
    loads = [shard.load_seconds for shard in done if shard.load_seconds > 0]
    total = sum(manifest.costs)
    share = cost / total if total > 0 else n_items / manifest.n_items
    return Rate(
        seconds / n_items,
        _factor(seconds, manifest.audio_seconds, share),
        sum(loads) / len(loads) if loads else None,
        n_items,
        tuple(sorted({shard.host for shard in done})),
        max(shard.finished for shard in done),
    )


def _of_success(run_dir: Path, manifest: Manifest) -> Rate | None:
    """Return the rate of a run whose shards were removed after the merge to save room."""
    success = read_success(manifest.layout(run_dir), manifest.run_id)
    if success is None:
        return None
    seconds = success["worker_seconds"]
    return Rate(
        seconds / manifest.n_items,
        _factor(seconds, manifest.audio_seconds),
        n_items=manifest.n_items,
        hosts=tuple(success["hosts"]),
        finished=success["finished"],
    )


def _factor(seconds: float, audio_seconds: float | None, share: float = 1.0) -> float | None:
    return seconds / (audio_seconds * share) if audio_seconds and share > 0 else None

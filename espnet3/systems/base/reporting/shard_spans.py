"""When each shard of a run was worked on, and by whom."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet3.shards.commit import Done
from espnet3.shards.manifest import load_manifest
from espnet3.shards.merge import read_coverage
from espnet3.shards.status import read_failures
from espnet3.shards.success import read_success


@dataclass(frozen=True)
class ShardSpan:
    """The work on one shard, in seconds since 1970."""

    shard: int
    worker: tuple[str, int]
    """Host and process id."""
    start: float
    load_end: float
    end: float
    n_items: int
    n_failed: int = 0
    n_deaths: int = 0

    @classmethod
    def of(cls, done: Done) -> "ShardSpan":
        """Take it from what a shard says of itself; older ones do not tell when they began."""
        start = done.started or done.finished - done.seconds - done.load_seconds
        return cls(
            done.shard,
            (done.host, done.pid),
            start,
            min(start + done.load_seconds, done.finished),
            max(done.finished, start),
            done.n_items,
            done.n_failed,
            done.n_deaths,
        )


@dataclass(frozen=True)
class RunFacts:
    """What a run of `infer` left in the folder of a test set."""

    test_set: str
    success: Mapping[str, Any]
    """The content of `_SUCCESS.json`; empty if the run is not complete."""
    spans: list[ShardSpan] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work for a second of audio, over all workers; loading does not count."""
        audio, work = self.success.get("audio_seconds"), self.success.get("worker_seconds")
        return work / audio if audio and work is not None else None


def read_run(inference_dir: Path, test_set: str) -> RunFacts | None:
    """Read the folder of a test set; None if no run of ours wrote it."""
    folder = inference_dir / test_set
    manifest = load_manifest(folder) if folder.is_dir() else None
    if manifest is None:
        return None
    committed = read_coverage(folder, manifest).committed
    success = read_success(manifest.layout(folder), manifest.run_id) or {}
    spans = [ShardSpan.of(done) for done in committed.values()]
    return RunFacts(test_set, success, spans, read_failures(folder))

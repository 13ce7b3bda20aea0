"""How a run stands, from its folder alone: no driver, worker or scheduler is asked."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from espnet3.errors import RunFolderError
from espnet3.io.tables import read_jsonl
from espnet3.shards.commit import Done, attempts
from espnet3.shards.layout import FAILED
from espnet3.shards.lease import claims, living_owners
from espnet3.shards.manifest import Manifest, load_manifest
from espnet3.shards.merge import read_coverage
from espnet3.shards.position import read_position
from espnet3.shards.success import read_success

_RECENT_SHARDS = 64
_GAP_SECONDS = 1.0


@dataclass(frozen=True)
class RunningShard:
    """A shard that somebody is working on."""

    shard: int
    owner: str
    n_done: int
    n_items: int


@dataclass(frozen=True)
class RunStatus:
    """How far a run is. Rates are over the most recent shards; None where nothing is known."""

    run_dir: str
    name: str
    state: str
    n_items: int
    n_done: int
    n_failed: int
    n_shards: int
    n_shards_done: int
    running: list[RunningShard]
    items_per_second: float | None
    eta_seconds: float | None
    seconds: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        return asdict(self)


def require_manifest(run_dir: Path) -> Manifest:
    """Return the manifest of a run folder, or say that this is none.

    Raises:
        RunFolderError: with the run folders that were found below, if any.
    """
    manifest = load_manifest(run_dir)
    if manifest is not None:
        return manifest
    below = sorted(str(path.parent) for path in run_dir.glob("*/manifest.json"))[:5]
    hint = f"Did you mean {' or '.join(below)}?" if below else "Give the output_dir of a runner."
    raise RunFolderError(f"{run_dir} holds no run: there is no manifest.json in it. {hint}")


def read_status(run_dir: Path) -> RunStatus:
    """Count what is done, running and failed, and estimate the time left."""
    manifest = require_manifest(run_dir)
    coverage = read_coverage(run_dir, manifest)
    done = list(coverage.committed.values())
    success = read_success(manifest.layout(run_dir), manifest.run_id)
    owners = {
        owner.owner_id: str(owner) for owner in living_owners(manifest.layout(run_dir).leases)
    }
    running = _running_shards(run_dir, manifest, owners) if owners and coverage.missing else []
    # Once merged, the shards may have been removed to save room.
    n_done = manifest.n_items if success else sum(shard.n_items for shard in done)
    n_failed = success["n_failed"] if success else sum(shard.n_failed for shard in done)
    rate = _recent_rate(done, len(running))
    left = manifest.n_items - n_done - sum(shard.n_done for shard in running)
    return RunStatus(
        run_dir=str(run_dir),
        name=manifest.name,
        state=_state(success is not None, bool(owners), not coverage.missing),
        n_items=manifest.n_items,
        n_done=n_done,
        n_failed=n_failed,
        n_shards=manifest.n_shards,
        n_shards_done=manifest.n_shards if success else len(done),
        running=running,
        items_per_second=rate,
        eta_seconds=left / rate if rate and owners else None,
        seconds=success["seconds"] if success else _end(done, bool(owners)) - manifest.created,
    )


def _end(done: list[Done], has_owner: bool) -> float:
    """Return until when somebody worked: a run that stopped last week did not take a week."""
    return time.time() if has_owner or not done else max(shard.finished for shard in done)


def _state(is_merged: bool, has_owner: bool, is_complete: bool) -> str:
    if is_merged:
        return "complete"
    if has_owner:
        return "running"
    return "not merged" if is_complete else "stopped"


def _running_shards(
    run_dir: Path, manifest: Manifest, owners: dict[str, str]
) -> list[RunningShard]:
    layout = manifest.layout(run_dir)
    claimed = claims(layout.leases)
    working = attempts(run_dir)
    running = []
    for shard, folders in sorted(working.items()):
        owner = owners.get(claimed.get(layout.shard_name(shard), ""))
        if owner is None or shard >= manifest.n_shards:
            continue
        start, stop = manifest.bounds[shard : shard + 2]
        positions = [position for folder in folders if (position := read_position(folder))]
        # An attempt that is left over from another run of this folder may be anywhere.
        n_done = max((p[0] - start for p in positions if start <= p[0] <= stop), default=0)
        running.append(RunningShard(shard, owner, n_done, stop - start))
    return running


def _recent_rate(done: list[Done], n_running: int) -> float | None:
    """Return items per second over the shards that finished last.

    The time between a stop and the resume does not count: while shards run, it is their number
    times the rate of one; afterwards, it goes back only as far as there is no gap.
    """
    recent = sorted(done, key=lambda shard: shard.finished)[-_RECENT_SHARDS:]
    if not n_running:
        recent = _last_burst(recent)
    n_items = sum(shard.n_items for shard in recent)
    seconds = sum(shard.seconds for shard in recent)
    elapsed = seconds / n_running if n_running else _wall_time(recent)
    return n_items / elapsed if elapsed > 0 else None


def _last_burst(shards: list[Done]) -> list[Done]:
    """Return the last of the shards between which somebody was always at work."""
    burst: list[Done] = []
    for shard in reversed(shards):
        if burst and shard.finished < min(s.finished - s.seconds for s in burst) - _GAP_SECONDS:
            break
        burst.append(shard)
    return burst


def _wall_time(shards: list[Done]) -> float:
    begun = min((shard.finished - shard.seconds for shard in shards), default=0.0)
    return max((shard.finished for shard in shards), default=0.0) - begun


def read_failures(run_dir: Path) -> list[dict[str, Any]]:
    """Return what failed: skipped items of committed shards, and the error that stopped the run."""
    manifest = require_manifest(run_dir)
    layout = manifest.layout(run_dir)
    committed = read_coverage(run_dir, manifest).committed
    # What stopped an earlier try is over once its shard is committed; that shard's own list counts.
    failures = {f["position"]: f for f in _records(layout.failed) if f["shard"] not in committed}
    for shard, done in committed.items():
        if done.n_failed:
            failures.update({f["position"]: f for f in _records(layout.shard(shard) / FAILED)})
    return [failures[position] for position in sorted(failures)]


def _records(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path, tolerate_truncated=True)) if path.exists() else []

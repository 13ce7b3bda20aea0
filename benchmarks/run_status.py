"""How long it takes to say how a run with 10,000 shards stands."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.figures import Figure, best_of
from espnet3.shards.commit import Done, Position
from espnet3.shards.layout import DONE
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import Manifest, publish_manifest
from espnet3.shards.status import read_status

N_SHARDS = 10_000
N_RUNNING = 64
ITEMS_PER_SHARD = 1_000
LIMIT_SECONDS = 1.0


def make_run(root: Path) -> Manifest:
    """Lay out a run in which all but the last shards are committed."""
    n_items = N_SHARDS * ITEMS_PER_SHARD
    bounds = list(range(0, n_items + 1, ITEMS_PER_SHARD))
    costs = [float(ITEMS_PER_SHARD)] * N_SHARDS
    manifest = Manifest({}, n_items, bounds, costs, None, {"items": "range"})
    manifest = publish_manifest(root, manifest, range(n_items))
    layout = manifest.layout(root)
    files = {"text": {"files": 1, "bytes": 200_000, "crc32": 1234567890, "lines": 1_000}}
    for shard in range(N_SHARDS - N_RUNNING):
        done = Done(
            manifest.run_id, shard, bounds[shard], bounds[shard + 1],
            seconds=10.0, host="node1", pid=shard, files=files,
        )  # fmt: skip
        layout.shard(shard).mkdir()
        (layout.shard(shard) / DONE).write_text(json.dumps(asdict(done), indent=2))
    return manifest


def measure() -> Iterator[Figure]:
    """Read the status while the last shards run. The folder is in the file system's cache."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        manifest = make_run(root)
        layout = manifest.layout(root)
        with Lease(root) as lease:
            for shard in range(N_SHARDS - N_RUNNING, N_SHARDS):
                lease.claim(layout.shard_name(shard))
                attempt = layout.new_attempt(shard)
                attempt.mkdir()
                Position(attempt).close()
            status = read_status(root)
            assert (status.n_shards_done, len(status.running)) == (N_SHARDS - N_RUNNING, N_RUNNING)
            (ours,) = best_of(3, lambda: read_status(root))
    yield Figure(f"status of a run with {N_SHARDS:,} shards", ours, "s", limit=LIMIT_SECONDS)

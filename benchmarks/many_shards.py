"""What ten times the shards cost the driver of a Dask cluster: seconds of its CPU per shard."""

import time
from collections.abc import Iterator

from benchmarks.figures import Figure
from espnet3.parallel import BaseRunner, get_client, use_parallel

N_SHARDS = 10_000
N_WORKERS = 2
LIMIT = 1.5
LIMIT_SECONDS = 0.030


class Nothing:
    """A provider of nothing."""

    def build_env_local(self) -> dict[str, object]:
        """Return no environment."""
        return {}

    build_worker_setup_fn = lambda self: dict  # noqa: E731 - as short as what it provides


class Same(BaseRunner):
    """Does nothing, so that all that is measured is handing it out."""

    @staticmethod
    def forward(idx):
        """Return the item."""
        return idx


def run(n_shards: int) -> float:
    """Run as many shards of one item, in memory; return the CPU seconds of this process."""
    config = {
        "env": "local",
        "n_workers": N_WORKERS,
        "shards_per_worker": n_shards // N_WORKERS,
    }
    with use_parallel(config), get_client() as client:
        client.wait_for_workers(N_WORKERS, timeout=300)
        begin = time.process_time()
        assert Same(Nothing())(range(n_shards), client=client) == list(range(n_shards))
        return time.process_time() - begin


def measure() -> Iterator[Figure]:
    """Run 1,000 shards, then 10,000. The scheduler is in the driver's process, as on a cluster."""
    few = run(N_SHARDS // 10)
    many = run(N_SHARDS)
    what = f"CPU of the driver for {N_SHARDS:,} shards through Dask"
    yield Figure(f"{what}; against 10 times a tenth", many, "s", 10 * few, LIMIT)
    yield Figure("the same: for a shard", 1000 * many / N_SHARDS, "ms", limit=1000 * LIMIT_SECONDS)

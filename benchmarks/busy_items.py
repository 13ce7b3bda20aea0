"""Items of a few milliseconds of computing: what `whole_call` runs. Light to import."""

from typing import Any

from espnet3.parallel.base_runner import BaseRunner

N_ITEMS = 400
_N_STEPS = 70_000


def compute(idx: int) -> int:
    """Keep a core busy for about 4 ms."""
    total = idx
    for step in range(_N_STEPS):
        total += step * step
    return total


class NothingProvider:
    """A provider of nothing."""

    def build_env_local(self) -> dict[str, Any]:
        """Return no environment."""
        return {}

    def build_worker_setup_fn(self) -> Any:
        """Return what builds none."""
        return dict


class ComputeRunner(BaseRunner):
    """Computes."""

    @staticmethod
    def forward(idx):
        """Compute one item."""
        return compute(idx)

"""Measure how a `parallel` block scales: the same items on more and more workers.

Workers import this module, so it is light.
"""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from espnet3.errors import EspnetError
from espnet3.parallel.base_runner import BaseRunner

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig
    from espnet3.parallel.detached.handle import DetachedRun

_CALIBRATION_STEPS = 200_000
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Scaling:
    """Measured time of one number of workers."""

    env: str
    mode: str
    n_workers: int
    n_used: int
    """Workers that got an item; fewer than `n_workers` where jobs still waited in the queue."""
    n_items: int
    item_seconds: float
    """Median of what an item took on its worker."""
    start_seconds: float
    """From the call to the begin of the first item, by the clocks of both machines."""
    wall_seconds: float
    """From the call until all results are merged, the start of the workers included."""

    def efficiency(self, first: "Scaling") -> float:
        """Return the share of the time of all workers that was of use, against another run."""
        return first.wall_seconds * first.n_workers / (self.wall_seconds * self.n_workers)


def measure_scaling(
    config: "ParallelConfig",
    numbers: Sequence[int],
    folder: Path,
    *,
    n_items: int,
    seconds: float,
    compute: bool = False,
) -> Iterator[Scaling]:
    """Run the items once for each number of workers, as `infer` would: in shards, in a folder.

    Args:
        config: where the workers run; its `n_workers` and `adaptive` do not count.
        numbers: of workers.
        folder: for the runs; all workers must see it.
        n_items: in each run.
        seconds: that an item takes.
        compute: items keep a core busy, with as many operations as take `seconds` here and now;
            else they sleep.

    Raises:
        ResourceError: there are fewer GPUs than workers, before the first run starts.
    """
    from espnet3.parallel.clusters.registry import check_resources

    configs = [config.model_copy(update={"n_workers": n, "adaptive": None}) for n in numbers]
    for each in configs:
        check_resources(each)
    items = _Items(seconds, _steps_in(seconds) if compute else 0)
    for each in configs:
        yield _measure(each, items, n_items, folder / f"workers_{each.n_workers}")


def _measure(config: "ParallelConfig", items: "_Items", n_items: int, folder: Path) -> Scaling:
    from espnet3.io.tables import read_jsonl
    from espnet3.parallel.detached.handle import DetachedRun
    from espnet3.parallel.parallel import use_parallel

    begin = time.time()
    with use_parallel(config):
        merged = _ItemRunner(items, output_dir=folder)(range(n_items))
    run = merged if isinstance(merged, DetachedRun) else None
    if run is not None:
        merged = _wait_for(run)
    wall = time.time() - begin
    if run is not None:
        _wait_for_the_end_of_jobs(run.run_dir)
    spans = list(read_jsonl(merged))
    return Scaling(
        env=config.env,
        mode=config.mode,
        n_workers=config.n_workers,
        n_used=len({span["worker"] for span in spans}),
        n_items=n_items,
        item_seconds=median(span["end"] - span["begin"] for span in spans),
        start_seconds=max(0.0, min(span["begin"] for span in spans) - begin),
        wall_seconds=wall,
    )


def _wait_for(run: "DetachedRun") -> Any:
    """Wait for a run, and take its workers along if this program ends: their folder goes too."""
    try:
        return run.wait()
    except BaseException:
        with suppress(EspnetError, OSError):
            run.cancel("espnet3 scaling was interrupted")
        raise


def _wait_for_the_end_of_jobs(run_dir: Path) -> None:
    """Let the workers of a finished run end, so that they are not in the way of the next."""
    from espnet3.parallel.detached.workforce import read_workforce

    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and any(job.is_there for job in read_workforce(run_dir).jobs):
        time.sleep(_POLL_SECONDS)


class _Items:
    """A provider of items that take a known time."""

    def __init__(self, seconds: float, n_steps: int) -> None:
        self.seconds, self.n_steps = seconds, n_steps

    def build_env_local(self) -> dict[str, Any]:
        """Return how long an item sleeps, or how much it computes."""
        return {"seconds": self.seconds, "n_steps": self.n_steps}

    def build_worker_setup_fn(self) -> Any:
        """Return the same for workers."""
        return self.build_env_local


class _ItemRunner(BaseRunner):
    """Works through the items, and records which worker ran them, from when to when."""

    @staticmethod
    def forward(idx: int, seconds: float, n_steps: int) -> dict[str, Any]:  # type: ignore[override]
        """Sleep, or compute."""
        begin = time.time()
        if n_steps:
            _compute(n_steps)
        else:
            time.sleep(seconds)
        # Not the pid alone: nodes number their processes alike.
        worker = f"{socket.gethostname()}:{os.getpid()}"
        return {"worker": worker, "begin": begin, "end": time.time()}


def _compute(n_steps: int) -> int:
    value = 1
    for _ in range(n_steps):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
    return value


def _steps_in(seconds: float) -> int:
    """Return how many steps take so long on a core of this machine; the best of three tries."""
    tries = []
    for _ in range(3):
        begin = time.perf_counter()
        _compute(_CALIBRATION_STEPS)
        tries.append(time.perf_counter() - begin)
    # The shortest, because other programs can only add to it.
    return max(1, round(_CALIBRATION_STEPS * seconds / min(tries)))

"""What Dask, Ray and a real Slurm cost: time to the first item, idle workers, and how evenly work
is spread; and whole programs on Slurm beside submitit, see `beside_submitit`.

Items sleep, because all workers share the cores of this machine. Of a run with `n` jobs:

- *first item*: seconds from the call, before anything is submitted, to the begin of the first item.
- *idle*: 1 - work / (n x seconds), where the work is what the items really took, and the seconds
  are those from the first item to the end of the last one; jobs that start later are idle until
  then. *With the start*: from the call on.
- *once workers are up*: seconds from the first item to the end of the last one, against the ideal
  of `spread`: the time at which these workers could have ended this work, each from its own first
  item on. Its inverse is the efficiency; 0.95 of it is a ratio of 1.053. Of several rounds the one
  that was disturbed least counts. Driver and workers have real-time priority meanwhile, as far as
  that is allowed: nodes of a cluster would not share their cores with what else runs here.

A Dask cluster and Ray need no Slurm: workers of this machine, without that priority.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.beside_submitit import measure_beside_submitit, private_slurm
from benchmarks.figures import Figure, Skipped
from benchmarks.sleeping_items import N_ITEMS, EvenWorkers, SleepRunner, Span, draw_costs
from benchmarks.spread import SEED, figure_of
from espnet3.io.tables import read_jsonl
from espnet3.parallel import get_client, use_parallel
from espnet3.parallel.open_pool import SharedCluster

JOBS = (1, 2, 4, 8)
N_WORKERS = 4
LIMITED = (4, 8)
N_ROUNDS = 5
LIMIT = 1 / 0.95
_ITEMS_PER_JOB = 1_000  # 20 s for each job
_PATIENCE = 300


def measure() -> Iterator[Figure | Skipped]:
    """Run on a Dask cluster, on Ray, and on a private Slurm."""
    yield from measure_dask()
    yield from measure_ray()
    yield from _measure_slurm()


def measure_dask() -> Iterator[Figure]:
    """Run on the workers of a Dask cluster that is there already."""
    from distributed import Client, LocalCluster

    with LocalCluster(
        n_workers=N_WORKERS, threads_per_worker=1, dashboard_address="127.0.0.1:0"
    ) as cluster:
        with Client(cluster) as client, use_parallel({"n_workers": N_WORKERS}):
            yield from _measure_engine("Dask", client)


def measure_ray() -> Iterator[Figure | Skipped]:
    """Run on actors of one Ray; each run starts its own."""
    if find_spec("ray") is None:
        yield Skipped("runs on Ray", "Ray is not installed")
        return
    with use_parallel({"env": "ray", "n_workers": N_WORKERS}) as config:
        with SharedCluster(config, n_tasks=N_ITEMS) as cluster:
            begin = time.time()
            spans = run_in_memory(cluster)
            first = min(span.begin for span in spans) - begin
            yield Figure("Ray on this machine: from its start to the first item", first, "s")
            yield from _measure_engine("Ray", cluster)


def _measure_engine(name: str, client: Any) -> Iterator[Figure]:
    what = f"{N_ITEMS:,} lognormal items on {N_WORKERS} workers of {name} once they are up; against"
    runs = (run_in_memory(client) for _ in range(N_ROUNDS))
    yield figure_of(f"{what} the ideal", runs, LIMIT)
    runs = (run_in_folder(N_ITEMS, client) for _ in range(N_ROUNDS))
    yield figure_of("beside: the same into a folder, each shard on the disk", runs)


def _measure_slurm() -> Iterator[Figure | Skipped]:
    """Start a private Slurm, and run on 1, 2, 4 and 8 of its jobs."""
    import pytest

    try:
        with private_slurm() as folder:
            yield from measure_beside_submitit(folder)
            for n_jobs in JOBS:
                yield from _measure_jobs(n_jobs, folder)
    except pytest.skip.Exception as reason:
        yield Skipped("runs on Slurm", str(reason))


def _measure_jobs(n_jobs: int, folder: Path) -> Iterator[Figure]:
    begin = time.time()
    with use_parallel(_block(n_jobs, folder)), get_client() as client:
        spans = run_in_folder(n_jobs * _ITEMS_PER_JOB, client)
        jobs = f"{n_jobs} job{'s' if n_jobs > 1 else ''} of {_slurm_version()}"
        first = min(span.begin for span in spans)
        yield Figure(f"{jobs}: from submit to the first item", first - begin, "s")
        yield Figure("the same: idle, from the first item on", _idle(spans, n_jobs, first), "%")
        yield Figure("the same: idle, with the start", _idle(spans, n_jobs, begin), "%")
        if n_jobs in LIMITED:
            client.wait_for_workers(n_jobs, timeout=_PATIENCE)
            client.run(_hurry)
            _hurry()
            try:
                yield from _measure_spread(n_jobs, client)
            finally:
                _hurry(os.SCHED_OTHER, 0)


def _measure_spread(n_jobs: int, client: Any) -> Iterator[Figure]:
    what = f"{N_ITEMS:,} lognormal items on {n_jobs} jobs once they are up; against the ideal"
    yield figure_of(what, (run_in_memory(client) for _ in range(N_ROUNDS)), LIMIT)
    runs = (run_in_folder(N_ITEMS, client) for _ in range(N_ROUNDS))
    yield figure_of("beside: the same into a folder, each shard on the disk", runs)


def run_in_memory(client: Any) -> list[Span]:
    """Run the items of `spread`."""
    runner = SleepRunner(EvenWorkers(SEED))
    return list(runner(range(N_ITEMS), costs=draw_costs(SEED), client=client))


def run_in_folder(n_items: int, client: Any) -> list[Span]:
    """Run that many of them with all that `infer` does: leases, commits, the merge."""
    with tempfile.TemporaryDirectory() as folder:
        runner = SleepRunner(EvenWorkers(SEED, n_items), output_dir=folder)
        file = runner(range(n_items), costs=draw_costs(SEED, n_items), client=client)
        return [Span(*line) for line in read_jsonl(file)]


def _hurry(policy: int = os.SCHED_RR, priority: int = 1) -> None:
    """Give all threads of this process, and those that they will start, another priority."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def _idle(spans: list[Span], n_jobs: int, begin: float) -> float:
    """Return the idle share of the jobs' time since `begin`, in percent."""
    work = sum(span.end - span.begin for span in spans)
    return 100 * (1 - work / (n_jobs * (max(span.end for span in spans) - begin)))


def _block(n_jobs: int, folder: Path) -> dict[str, Any]:
    options = {
        "queue": "cpu",
        "cores": 8,  # one shard at a time all the same
        "processes": 1,
        "memory": "1GB",
        "walltime": "00:30:00",
        "log_directory": str(folder / "jobs"),
        "local_directory": str(folder / "local"),
        "interface": "lo",
    }
    return {"env": "slurm", "n_workers": n_jobs, "options": options}


def _slurm_version() -> str:
    told = subprocess.run(["sinfo", "--version"], capture_output=True, text=True, check=True)
    return told.stdout.strip().replace("slurm-wlm", "Slurm")

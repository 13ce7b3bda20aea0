"""The same work on four Slurm jobs by ESPnet3 and by submitit: whole programs, start to exit.

submitit submits one array of four jobs (`map_array`) and is asked for results every 0.05 s
(`poll_interval`; by itself it looks once a second, which is beside). Ours commits shards to the
disk and merges.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Skipped, best_of
from espnet3.parallel import BaseRunner, use_parallel

N_JOBS = 4
N_TRIVIAL, N_UTTERANCES = 10, 300
SYNC_LIMIT, DETACHED_LIMIT, SPEECH_LIMIT = 2.0, 1.3, 1.3
N_ROUNDS = 3
_RATE = 16_000
_PATIENCE = 300


def build_nothing() -> Callable[[int], int]:
    """Return what squares a number."""
    return lambda idx: idx * idx


def build_recognizer() -> Callable[[int], int]:
    """Return what recognises a synthetic utterance, with a small Wav2Vec2 of random weights."""
    import numpy as np
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
    config = Wav2Vec2Config(num_attention_heads=4, conv_dim=(64,) * 7, **sizes)
    model = Wav2Vec2ForCTC(config).eval()

    def recognize(idx: int) -> int:
        seconds = 0.5 + idx % 10 / 10
        speech = np.random.default_rng(idx).normal(size=int(seconds * _RATE))
        with torch.inference_mode():
            logits = model(torch.from_numpy(speech).float()[None]).logits
        return len(logits[0].argmax(-1))

    return recognize


WORK: dict[str, tuple[int, Callable[[], Callable[[int], int]]]] = {
    "trivial": (N_TRIVIAL, build_nothing),
    "speech": (N_UTTERANCES, build_recognizer),
}


class WorkProvider:
    """Builds a function in each worker."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build_env_local(self) -> dict[str, Any]:
        """Return the function."""
        return {"work": WORK[self.name][1]()}

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return the same for workers."""
        return self.build_env_local


class WorkRunner(BaseRunner):
    """Calls that function with each item."""

    @staticmethod
    def forward(idx, work):
        """Work on one item."""
        return work(idx)


def run_ours(name: str, mode: str, folder: str) -> None:
    """Run on four jobs; a detached run is waited for."""
    options = {"queue": "cpu", "cores": 1, "memory": "1GB", "walltime": "00:10:00"}
    # Not on all networks of this machine; detached workers need none.
    options |= {"interface": "lo"} if mode == "sync" else {}
    block = {"env": "slurm", "n_workers": N_JOBS, "mode": mode, "options": options}
    with use_parallel(block):
        merged = WorkRunner(WorkProvider(name), output_dir=folder)(range(WORK[name][0]))
        merged = merged.wait() if mode == "async" else merged
    assert len(Path(merged).read_text().splitlines()) == WORK[name][0]


def run_submitit(name: str, poll_seconds: str, folder: str) -> None:
    """Run a quarter of the items on each job of an array."""
    import asyncio  # here: ours needs none, and it takes 50 ms

    import submitit

    executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
    executor.update_parameters(
        timeout_min=10, slurm_partition="cpu", cpus_per_task=1, mem_gb=1, name="submitit"
    )
    n_items = WORK[name][0]
    parts = [range(first, n_items, N_JOBS) for first in range(N_JOBS)]
    jobs = executor.map_array(partial(_work_on, name), parts)

    async def results() -> list[list[int]]:
        return await asyncio.gather(*(job.awaitable().result(float(poll_seconds)) for job in jobs))

    assert sum(map(len, asyncio.run(results()))) == n_items


def _work_on(name: str, items: Sequence[int]) -> list[int]:
    work = WORK[name][1]()
    return [work(idx) for idx in items]


def measure() -> Iterator[Figure | Skipped]:
    """Compare on a private Slurm."""
    import pytest

    try:
        with private_slurm() as folder:
            yield from measure_beside_submitit(folder)
    except pytest.skip.Exception as reason:
        yield Skipped("runs on Slurm", str(reason))


@contextmanager
def private_slurm() -> Iterator[Path]:
    """Start a Slurm whose clients this process may be, and yield a folder that its nodes see."""
    from tests.cluster.harness import start_slurm

    # Removed at the end, with what nodes that are being ended may still write.
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name:
        with start_slurm(Path(name)) as slurm:
            os.environ.update(slurm.variables)
            yield Path(name)


def measure_beside_submitit(folder: Path) -> Iterator[Figure | Skipped]:
    """Compare on the Slurm whose clients this process may be, with files in a folder."""
    what = f"{N_TRIVIAL} trivial items on {N_JOBS} jobs, program start to exit; against submitit"
    if find_spec("submitit") is None:
        yield Skipped(what, "submitit is not installed")
        return
    sync, detached, baseline, as_it_comes = _best(folder, "trivial", ("0.05", "1"))
    yield Figure(what, sync, "s", baseline, SYNC_LIMIT)
    yield Figure("the same, detached and waited for", detached, "s", baseline, DETACHED_LIMIT)
    yield Figure(
        "beside: the first against submitit that looks once a second", sync, "s", as_it_comes
    )
    yield Figure("beside: the second against that", detached, "s", as_it_comes)
    yield Figure("beside: seconds of submitit", baseline, "s")
    if find_spec("transformers") is None:
        yield Skipped(f"{N_UTTERANCES} utterances", "transformers is not installed")
        return
    sync, detached, baseline = _best(folder, "speech", ("0.05",))
    what = f"{N_UTTERANCES} short utterances with a model of transformers; against submitit"
    yield Figure(what, sync, "s", baseline, SPEECH_LIMIT)
    yield Figure("beside: the same, detached and waited for", detached, "s", baseline)
    yield Figure("beside: seconds of submitit", baseline, "s")


def _best(folder: Path, name: str, polls: Sequence[str]) -> list[float]:
    ours = [("run_ours", name, mode) for mode in ("sync", "async")]
    theirs = [("run_submitit", name, seconds) for seconds in polls]
    programs = (partial(_run_program, folder, *words) for words in (*ours, *theirs))
    return best_of(N_ROUNDS, *programs)


def _run_program(folder: Path, function: str, *arguments: str) -> None:
    code = f"import sys; from benchmarks.beside_submitit import *; {function}(*sys.argv[1:])"
    new = tempfile.mkdtemp(dir=folder)
    told = subprocess.run(
        [sys.executable, "-c", code, *arguments, os.path.join(new, "run")],
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
    )
    if told.returncode:
        raise RuntimeError(f"{function} {arguments} failed:\n{told.stderr[-4000:]}")

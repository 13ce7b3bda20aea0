"""What a second worker brings to the stage `infer`, on a set that takes one worker a while."""

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.digits_recipe import BATCH_SECONDS, RECIPE, DigitsRecipe, digits_recipe
from benchmarks.figures import Figure, seconds

WORK_SECONDS = 60
MAX_TIME = 0.556  # 1.8 times as fast
MAX_COST = 1.1
MODEL, DECODER = "default", "greedy"  # as conf/inference.yaml has it
_N_TRIED = 120


@dataclass(frozen=True)
class Work:
    """A set to decode, by commands as a user would give them: start and imports count."""

    recipe: DigitsRecipe
    manifest: str

    def infer(self, n_workers: int) -> None:
        """Run the stage `infer`."""
        shutil.rmtree(self.recipe.results, ignore_errors=True)
        overrides = self.recipe.decoding_overrides(MODEL, DECODER, self.manifest)
        more = [f"batch_seconds={BATCH_SECONDS}", f"parallel.n_workers={n_workers}"]
        command = [str(RECIPE / "run.py"), "--stages", "infer", "--inference_config"]
        _wait_for([[*command, str(RECIPE / "conf/inference.yaml"), *overrides, *more]])

    def decode_without_us(self, n_processes: int) -> None:
        """Run a plain loop in each of several processes, each with its share of the batches."""
        weights = self.recipe.weights(MODEL)
        command = ["-m", "benchmarks.bare_decoding", weights, DECODER, self.manifest]
        _wait_for([[*command, str(i), str(n_processes)] for i in range(n_processes)])


def _wait_for(commands: list[list[str]]) -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, *words], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for words in commands
    ]
    for process in started:
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(output.decode())


def measure_work(work_seconds: float) -> Iterator[Figure]:
    """Compare 1 worker, 2 workers, and 2 processes that share nothing."""
    with digits_recipe(n_test=200) as recipe:
        work = Work(recipe, recipe.repeat(_n_utterances(recipe, work_seconds))[0])
        two, bare, one = (
            _clocks(lambda: work.infer(2)),
            _clocks(lambda: work.decode_without_us(2)),
            _clocks(lambda: work.infer(1)),
        )
    what = f"infer, {work_seconds:.0f} s of work, 2 workers"
    yield Figure(f"{what}; against 1", two[0], "s", one[0], MAX_TIME)
    yield Figure("beside: the same, time of the CPU", two[1], "s", one[1])
    yield Figure("beside: 2 processes without a runner; against 1 worker", bare[0], "s", one[0])
    yield Figure("beside: the same, time of the CPU", bare[1], "s", one[1])
    yield Figure(f"{what}; against 2 processes without a runner", two[0], "s", bare[0], MAX_COST)


def _clocks(function: Callable[[], object]) -> tuple[float, float]:
    """Return seconds by the clock, and of the CPU in all processes that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = seconds(function)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _n_utterances(recipe: DigitsRecipe, work_seconds: float) -> int:
    import torch

    torch.set_num_threads(1)
    batching = f"batch_seconds={BATCH_SECONDS}"
    costs = []
    for n_utterances in (_N_TRIED, 2 * _N_TRIED):
        decode = recipe.decoding(MODEL, DECODER, recipe.repeat(n_utterances)[0], batching)
        begin = time.process_time()
        decode()
        costs.append(time.process_time() - begin)
    return max(_N_TRIED, int(_N_TRIED * work_seconds / (costs[1] - costs[0])))


def measure() -> Iterator[Figure]:
    """Compare on a minute's work; `five_minutes` does so on five."""
    yield from measure_work(WORK_SECONDS)

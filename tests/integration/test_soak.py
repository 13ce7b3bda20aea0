"""Kill anything at random moments, for as long as `make test-soak` says: no item is lost.

`test_kill_matrix.py` kills at each step of the protocol that we know of; this looks for steps that
we do not. A round is a run in a folder of its own; it is disturbed until it is complete. What
fails names its seed: `make test-soak SEED=...` begins with that round.
"""

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from tests.helpers.waiting import is_alive, wait_for_end, wait_until, worker_pids

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MAX_KILLS = 12
"""Of a round; then it may end in peace."""


class Round:
    """A run that is killed, and started again, until it is complete."""

    def __init__(self, make_job, seed: int) -> None:
        self.random = random.Random(seed)
        n_workers = self.random.choice([1, 2, 4])
        self.job = make_job(
            f"round {seed}",
            n_workers=n_workers,
            seconds=0.01,
            batch_size=self.random.choice([None, 8]),
            parallel={"retries": 100},  # each death of a worker is one that we caused
        )
        self.n_kills = 0
        self._drivers = []

    def play(self) -> None:
        try:
            while not (self.job.out / "_SUCCESS.json").exists():
                self._staff(self.random.choice([1, 1, 2]))
                if self.n_kills < MAX_KILLS:
                    time.sleep(self.random.uniform(0.0, 0.6))
                    self._strike()
                else:
                    self._let_end()
            self._let_end()
        finally:
            self._end_all()

    def _staff(self, n_drivers: int) -> None:
        self._drivers = [driver for driver in self._drivers if driver.poll() is None]
        while len(self._drivers) < n_drivers:
            self._drivers.append(self.job.start())

    def _strike(self) -> None:
        driver = self.random.choice(self._drivers)
        victims = [driver.pid, *worker_pids(driver.pid)]
        with suppress(ProcessLookupError):
            os.kill(self.random.choice(victims), self.random.choice(SIGNALS))
            self.n_kills += 1

    def _let_end(self) -> None:
        for driver in self._drivers:
            driver.communicate(timeout=60)

    def _end_all(self) -> None:
        for driver in self._drivers:
            workers = worker_pids(driver.pid) if driver.poll() is None else []
            driver.kill()
            driver.communicate()
            wait_for_end(workers, seconds=30)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_kills_at_random_moments_lose_nothing(job, reference):
    seconds = float(os.environ.get("ESPNET3_SOAK_SECONDS", "600"))
    seed = int(os.environ.get("SEED") or random.randrange(1_000_000))
    end, n_rounds, n_kills = time.monotonic() + seconds, 0, 0
    while n_rounds == 0 or time.monotonic() < end:
        one = Round(job, seed)
        where = f"SEED={seed}, after {n_rounds} rounds"
        try:
            one.play()
            assert one.job.text == reference
            one.job.succeed()  # a finished run is recognized as one
            one.job.assert_tidy()
        except BaseException as error:
            error.add_note(where)
            raise
        seed, n_rounds, n_kills = seed + 1, n_rounds + 1, n_kills + one.n_kills
    print(f"{n_rounds} rounds, {n_kills} kills, nothing lost")
    wait_until(lambda: not [pid for pid in worker_pids(os.getpid()) if is_alive(pid)])

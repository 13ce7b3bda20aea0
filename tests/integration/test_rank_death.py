"""Two real ranks, disturbed: none hangs, all say the same, and nothing is lost."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.waiting import wait_for_end, wait_until

JOB = Path(__file__).parent / "rank_job.py"
ENV = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(JOB.parents[2])}
SECONDS = 100  # for machines under load; on an idle one a run takes one or two


class Server:
    """`rank_job.py serve`, which forks ranks as srun would start them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(JOB), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ENV},
        )

    def ask(self, request: dict):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


class Ranks:
    """Two ranks of one training."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.pids: list[int] = []
        self.codes: dict[int, int | None] = {}

    def start(self, n_ranks: int = 2, **settings) -> "Ranks":
        settings["devices"] = n_ranks
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self.pids = []
        for rank in range(n_ranks):
            env = {**common, "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_ranks)}
            arguments = [str(self.folder), settings]
            log = str(self.folder / "log")
            self.pids.append(self.server.ask({"env": env, "arguments": arguments, "log": log}))
        self.codes = dict.fromkeys(self.pids)
        return self

    def start_by_lightning(self, **settings) -> "Ranks":
        """Start rank 0, which starts rank 1 by its own command line."""
        for file in self.folder.glob("steps.*"):
            file.unlink()
        arguments, log = [str(self.folder), settings], str(self.folder / "log")
        self.pids = [self.server.ask({"env": {}, "arguments": arguments, "log": log})]
        self.codes = dict.fromkeys(self.pids)
        return self

    def wait(self) -> list[int | None]:
        wait_until(lambda: all(self.code(pid) is not None for pid in self.pids), SECONDS)
        return [self.codes[pid] for pid in self.pids]

    def code(self, pid: int) -> int | None:
        if self.codes[pid] is None:
            self.codes[pid] = self.server.ask({"pid": pid})
        return self.codes[pid]

    def run(self, **settings) -> list[int | None]:
        return self.start(**settings).wait()

    def kill(self, rank: int, number: int) -> None:
        os.kill(self.pids[rank], number)

    def close(self) -> None:
        for pid in self.pids:
            if self.code(pid) is None:
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda pid=pid: self.code(pid) is not None)

    def steps(self, rank: int, what: str = "step") -> list[int]:
        file = self.folder / f"steps.{rank}"
        lines = file.read_text().splitlines() if file.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(what)]

    def wait_for_steps(self, n: int, what: str = "step") -> None:
        wait_until(lambda: min(len(self.steps(r, what)) for r in (0, 1)) >= n, SECONDS)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def weights(self) -> str:
        return (self.folder / "weights.0").read_text()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def ranks(server, tmp_path):
    started = []

    def make(name: str = "run") -> Ranks:
        (tmp_path / name).mkdir()
        started.append(Ranks(server, tmp_path / name))
        return started[-1]

    yield make
    for one in started:
        one.close()


def last_line(text: str) -> str:
    return text.rstrip().splitlines()[-1]


def test_a_normal_end_is_silent(ranks):
    run = ranks()
    codes = run.run(n_batches=1, slow=2.5, silence=1.0, slow_end={"0": 1.5})
    assert codes == [0, 0]
    assert "Rank" not in run.log
    assert "c10d" not in run.log


def test_rank_0_may_end_long_before_the_others_leave(ranks):
    run = ranks()
    assert run.run(n_batches=3, silence=1.0, slow_end={"1": 1.5}) == [0, 0]
    assert "Rank" not in run.log


def test_the_traceback_of_a_rank_is_the_last_thing_printed(ranks):
    run = ranks()
    assert run.run(fail=("raise", 1, 3)) == [1, 1]
    assert last_line(run.log) == "KeyError: 'the vocabulary has no such token'"
    assert "Rank 1 (" in run.log


def test_rank_0_fails(ranks):
    run = ranks()
    assert run.run(fail=("raise", 0, 3)) == [1, 1]
    assert last_line(run.log) == "KeyError: 'the vocabulary has no such token'"


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_a_rank_that_goes_without_a_word_ends_the_other(ranks, how):
    run = ranks()
    assert run.run(fail=(how, 1, 3)) == [1, -9 if how == "kill" else 3]
    assert f"Rank 1 ({socket.gethostname()}, process {run.pids[1]}) has given no sign of" in run.log
    assert "out of memory" in last_line(run.log)
    assert "same command resumes" in last_line(run.log)


def test_rank_0_with_the_store_is_killed(ranks):
    run = ranks()
    assert run.run(fail=("kill", 0, 3)) == [-9, 1]
    assert "out of memory" in last_line(run.log)
    assert f"process {run.pids[0]}" in run.log


@pytest.mark.parametrize("rank", [0, 1])
def test_a_machine_that_stops_answering_ends_the_other(ranks, rank):
    run = ranks().start(fail=("hang", rank, 3), silence=2.0)
    other = run.pids[1 - rank]
    wait_until(lambda: run.code(other) is not None, SECONDS)
    assert run.code(other) == 1
    assert f"Rank {rank} (" in run.log
    assert "process" in run.log
    assert run.code(run.pids[rank]) is None  # it hangs still


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGUSR1, 75), (signal.SIGUSR2, 75), (signal.SIGTERM, 143), (signal.SIGINT, 130)],
)
def test_a_signal_to_one_rank_saves_the_same_step_on_all(ranks, number, code):
    run = ranks().start(n_batches=100_000)
    run.wait_for_steps(5)
    run.kill(1, number)
    assert run.wait() == [code, code]
    assert run.steps(0)[-1] == run.steps(1)[-1] >= 5
    assert (run.folder / "last.ckpt").exists()
    assert "Traceback" not in run.log


def test_a_run_that_goes_on_after_a_signal_ends_as_an_undisturbed_one(ranks):
    whole, run = ranks("whole"), ranks("run")
    settings = {"n_batches": 40, "n_epochs": 2, "slow": 0.02}
    assert whole.run(**settings) == [0, 0]
    run.start(**settings)
    run.wait_for_steps(10)
    run.kill(0, signal.SIGUSR1)
    assert run.wait() == [75, 75]
    assert run.run(**settings) == [0, 0]
    assert run.steps(0) == run.steps(1) == list(range(1, 81))
    assert run.steps(0, "valid") == whole.steps(0, "valid")
    assert run.weights == whole.weights


def test_a_signal_in_a_validation_does_not_wait_for_its_end(ranks):
    run = ranks()
    settings = {"n_batches": 3, "n_epochs": 2}
    run.start(**settings, n_valid=600, slow_validation=0.2)
    run.wait_for_steps(2, "valid")
    run.kill(0, signal.SIGUSR1)
    assert run.wait() == [75, 75]
    n_before = len(run.steps(0, "valid"))
    assert n_before < 100
    assert run.run(**settings, n_valid=4) == [0, 0]
    assert run.steps(0) == list(range(1, 7))
    assert run.steps(0, "valid")[n_before:] == [3] * 4 + [6] * 4


def test_signals_while_it_ends_do_no_harm(ranks):
    run = ranks().start(n_batches=100_000)
    run.wait_for_steps(5)
    while run.code(run.pids[0]) is None or run.code(run.pids[1]) is None:
        for rank in (0, 1):
            if run.code(run.pids[rank]) is None:
                run.kill(rank, signal.SIGUSR1)
    assert run.wait() == [75, 75]
    n_steps = run.steps(0)[-1]
    assert run.run(n_batches=n_steps + 5) == [0, 0]
    assert run.steps(0) == list(range(1, n_steps + 6))


def test_one_process_alone_needs_no_others(ranks):
    run = ranks().start(n_ranks=1, n_batches=100_000)
    wait_until(lambda: len(run.steps(0)) > 5, SECONDS)
    run.kill(0, signal.SIGUSR1)
    assert run.wait() == [75]


def pid_of(run: Ranks, rank: int) -> int:
    return int((run.folder / f"steps.{rank}").read_text().split()[2])


def test_ranks_of_lightning_stop_together_and_a_killed_one_is_named(ranks):
    run = ranks().start_by_lightning(n_batches=100_000)
    run.wait_for_steps(5)
    run.kill(0, signal.SIGUSR1)
    assert run.wait() == [75], run.log
    n_steps = run.steps(0)[-1]

    run.start_by_lightning(n_batches=100_000)
    run.wait_for_steps(5)
    assert run.steps(0)[0] == n_steps + 1
    pid = pid_of(run, 1)
    os.kill(pid, signal.SIGKILL)
    assert run.wait() == [1], run.log  # and not 137: Lightning would kill rank 0 as well
    assert f"process {pid}) was killed by SIGKILL." in run.log
    assert "same command resumes" in last_line(run.log)


def test_what_lightning_started_does_not_outlive_rank_0(ranks):
    run = ranks().start_by_lightning(n_batches=100_000)
    run.wait_for_steps(5)
    run.kill(0, signal.SIGKILL)
    pid = pid_of(run, 1)
    wait_for_end([pid], SECONDS)
    assert f"Rank 0 ({socket.gethostname()}, process {run.pids[0]}) is" in run.log


def test_torchrun_reports_the_traceback_of_the_rank_that_failed(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    settings = json.dumps({"fail": ("raise", 1, 3)})
    done = subprocess.run(
        [*torchrun, str(JOB), str(tmp_path), settings],
        env={**os.environ, **ENV},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 1
    report = done.stderr[done.stderr.index("Root Cause") :]
    assert "rank      : 1" in report
    assert "KeyError: 'the vocabulary has no such token'" in report

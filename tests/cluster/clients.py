"""What a test does with a running scheduler: submit, look, cancel, break its nodes."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from tests.cluster.harness import Cluster
from tests.helpers.job_runs import Job
from tests.helpers.waiting import wait_until

PAUSE = 0.5
"""Between two questions to a scheduler; each is a process, and jobs need the cores more."""


class Clients:
    """Commands of a scheduler, seen by the jobs of one test."""

    env_name: ClassVar[str]
    """What `parallel.env` is."""
    is_ending: ClassVar[set[str]]
    """The states of active jobs that somebody has ended already."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.env = cluster.env
        self._started: list[subprocess.Popen[str]] = []
        self._before = set(self._all())

    def parallel(self, n_workers: int = 2, **options) -> dict:
        """Return a `parallel` block for jobs with a GPU each."""
        common = {
            "queue": "gpu",
            "cores": 8,
            "processes": 1,
            "memory": "1GB",
            "walltime": "00:10:00",
            "log_directory": str(self.folder / "jobs"),
            "local_directory": str(self.folder / "local"),
        }
        chosen = {**common, **self._options(), **options}
        return {"env": self.env_name, "n_workers": n_workers, "options": chosen}

    def start(self, *command: str | Path, **kwargs) -> "subprocess.Popen[str]":
        """Start a program where jobs can reach it, in a session of its own."""
        settings = {
            "env": self.env,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "start_new_session": True,
            **kwargs,
        }
        words = [*self.cluster.where, *map(str, command)]
        return self.watch(subprocess.Popen(words, **settings))

    def watch(self, process: "subprocess.Popen[str]") -> "subprocess.Popen[str]":
        """Make sure that a process with a session of its own does not outlive the test."""
        self._started.append(process)
        return process

    def run(self, *command: str | Path, seconds: float = 120.0, **kwargs) -> tuple[int, str]:
        """Run a program to its end; return its code, and what it told on stdout and stderr."""
        process = self.start(*command, **{"stderr": subprocess.STDOUT, **kwargs})
        try:
            told, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"still runs: {command}: {process.communicate()[0]}") from None
        return process.returncode, told

    def tell(self, *command: str) -> str:
        """Run a command of the scheduler, which must succeed, and return its stdout."""
        process = self.start(*command)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return out

    def active(self) -> dict[str, str]:
        """Return the state of each job that waits, runs or ends."""
        raise NotImplementedError

    def submitted(self) -> dict[str, str]:
        """Return the state of each job of this test, ended or not."""
        return {job: state for job, state in self._all().items() if job not in self._before}

    def left_behind(self) -> dict[str, str]:
        """Return the jobs that wait or run, and that nobody has ended."""
        active = self.active().items()
        return {job: state for job, state in active if state not in self.is_ending}

    def cancel(self, *jobs: str) -> None:
        """Cancel jobs."""
        raise NotImplementedError

    def wait_until_empty(self, seconds: float = 60.0) -> None:
        """Wait for the end of all jobs."""
        wait_until(lambda: not self.active(), seconds, PAUSE)

    def hasten(self) -> None:
        """Let jobs begin that the scheduler holds back for a while."""

    def tidy(self) -> None:
        """Leave no process and no job to the next test."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        left = self.active()
        if left:
            with suppress(AssertionError):  # a job that ended in the meantime is unknown to qdel
                self.cancel(*left)
            self.wait_until_empty()

    def _all(self) -> dict[str, str]:
        raise NotImplementedError

    def _options(self) -> dict:
        raise NotImplementedError


class Slurm(Clients):
    """Clients of Slurm, on loopback or in a network of its own."""

    env_name = "slurm"
    is_ending: ClassVar = {"COMPLETING"}

    def active(self) -> dict[str, str]:
        return self._squeue()

    def cancel(self, *jobs: str) -> None:
        self.tell("scancel", *jobs)

    def hasten(self) -> None:
        # A job that a node could not start is put back into the queue, and waits two minutes.
        told = self.tell("squeue", "--noheader", "--states", "PD", "--format", "%i %r")
        for job, reason in map(str.split, told.splitlines()):
            if reason == "BeginTime":
                self.run("scontrol", "update", f"JobId={job}", "StartTime=now")

    def _all(self) -> dict[str, str]:
        return self._squeue("--states", "all")

    def _squeue(self, *more: str) -> dict[str, str]:
        told = self.tell("squeue", "--noheader", "--format", "%i %T", *more)
        return dict(line.split() for line in told.splitlines())

    def _options(self) -> dict:
        return {"job_extra_directives": ["--gres=gpu:1"]}


class GridEngine(Clients):
    """Clients of Grid Engine; run on the head of its network."""

    env_name = "sge"
    is_ending: ClassVar = {"dr", "dt", "dRr", "dRt", "dqw"}

    def active(self) -> dict[str, str]:
        lines = self.tell("qstat", "-u", "*").splitlines()[2:]
        return {words[0]: words[4] for words in map(str.split, lines)}

    def cancel(self, *jobs: str) -> None:
        self.tell("qdel", *jobs)

    def ended(self) -> dict[str, str]:
        """Return the exit status of each job that ran and ended."""
        file = self.cluster.folder / "sge_root/default/common/accounting"
        lines = file.read_text().splitlines() if file.exists() else []
        records = [line.split(":") for line in lines if not line.startswith("#")]
        return {record[5]: f"exit status {record[12]}" for record in records}

    def _all(self) -> dict[str, str]:
        # Jobs that were cancelled before they began are in neither.
        return {**self.ended(), **self.active()}

    def _options(self) -> dict:
        return {"queue": "gpu.q", "job_extra_directives": ["-l gpu=1"]}


class ClusterJob(Job):
    """`job.py` with its workers on a scheduler."""

    has_own_session = True

    def __init__(self, out: Path, clients: Clients, n_workers: int = 2, **settings) -> None:
        super().__init__(out, **{"parallel": clients.parallel(n_workers), **settings})
        self.clients = clients
        self.where = clients.cluster.where
        self.env = clients.env

    def start(self, **more) -> "subprocess.Popen[str]":
        return self.clients.watch(super().start(**more))

    def interrupt(self, process: "subprocess.Popen[str]") -> None:
        """Press Ctrl-C."""
        os.killpg(process.pid, signal.SIGINT)

    @property
    def n_running(self) -> int:
        """How many attempts have begun and not ended."""
        return len(list(self.out.glob("split.*.part-*/.position")))


def wait_for(driver: subprocess.Popen, condition, seconds: float = 120.0) -> None:
    """Wait until a condition holds while a driver runs."""
    wait_until(lambda: condition() or driver.poll() is not None, seconds, 0.1)
    assert driver.poll() is None, driver.stderr.read()

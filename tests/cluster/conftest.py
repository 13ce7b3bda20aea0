"""A real Slurm for the tests of this folder, which only `make test-clusters` runs."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.integration.conftest import Job, reference  # noqa: F401 - a fixture

collect_ignore_glob = [] if os.environ.get("ESPNET3_CLUSTERS") == "1" else ["*"]

HERE = Path(__file__).parent
N_NODES = 4
N_GPUS = 2
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "squeue", "unshare")
NAMESPACES = ["--mount", "--uts", "--pid", "--fork"]


class Slurm:
    """Clients of a running Slurm, seen by the jobs of one test."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.env = env
        self._before = set(self._squeue("all"))

    def parallel(self, n_workers: int = 2, **options) -> dict:
        """Return a `parallel` block; all that Dask opens listens on loopback only."""
        return {
            "env": "slurm",
            "n_workers": n_workers,
            "options": {
                "queue": "gpu",
                "cores": 8,
                "processes": 1,
                "memory": "1GB",
                "walltime": "00:10:00",
                "job_extra_directives": ["--gres=gpu:1"],
                "log_directory": str(self.folder / "jobs"),
                "local_directory": str(self.folder / "local"),
                "interface": "lo",
                "scheduler_options": {"dashboard_address": "127.0.0.1:0"},
                "worker_extra_args": ["--dashboard-address", "127.0.0.1:0"],
                **options,
            },
        }

    def active(self) -> dict[str, str]:
        """Return the state of each job that waits, runs or ends."""
        return self._squeue()

    def submitted(self) -> dict[str, str]:
        """Return the state of each job of this test, ended or not."""
        jobs = self._squeue("all")
        return {job: state for job, state in jobs.items() if job not in self._before}

    def cancel(self, *jobs: str) -> None:
        subprocess.run(["scancel", *jobs], env=self.env, check=True, timeout=30)

    def wait_until_empty(self, seconds: float = 60.0) -> None:
        wait_until(lambda: not self.active(), seconds)

    def _squeue(self, *states: str) -> dict[str, str]:
        chosen = ["--states", *states] if states else []
        command = ["squeue", "--noheader", "--format", "%i %T", *chosen]
        told = subprocess.run(
            command, env=self.env, check=True, timeout=30, capture_output=True, text=True
        )
        return dict(line.split() for line in told.stdout.splitlines())


class SlurmJob(Job):
    """`job.py` with its workers on Slurm."""

    has_own_session = True

    def interrupt(self, process: subprocess.Popen) -> None:
        os.killpg(process.pid, signal.SIGINT)

    @property
    def n_running(self) -> int:
        """How many attempts have begun and not ended."""
        return len(list(self.out.glob("split.*.part-*/.position")))


@pytest.fixture(scope="session")
def slurm_env(tmp_path_factory):
    """Start Slurm and yield the environment of its clients."""
    _skip_unless_possible()
    folder = tmp_path_factory.mktemp("slurm")
    start = [HERE / "slurm/start.sh", folder, _free_ports(N_NODES + 1), N_NODES, N_GPUS]
    try:
        subprocess.run([str(word) for word in start], check=True, timeout=120)
        yield {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    finally:
        subprocess.run([str(HERE / "slurm/stop.sh"), str(folder)], check=True, timeout=30)


@pytest.fixture
def slurm(slurm_env, tmp_path, monkeypatch):
    """Make this test a client of Slurm, and leave no job of it to the next."""
    monkeypatch.setenv("SLURM_CONF", slurm_env["SLURM_CONF"])
    clients = Slurm(tmp_path, slurm_env)
    yield clients
    left = clients.active()
    if left:
        clients.cancel(*left)
        clients.wait_until_empty()


@pytest.fixture
def slurm_job(slurm, awkward):
    """Return a function that makes a job whose workers run on Slurm."""

    def make(n_workers: int = 2, **settings) -> SlurmJob:
        return SlurmJob(awkward / "out", parallel=slurm.parallel(n_workers), **settings)

    return make


def _skip_unless_possible() -> None:
    release = Path("/etc/os-release")
    is_debian = release.exists() and "ID=debian" in release.read_text().splitlines()
    if sys.platform != "linux" or os.geteuid() != 0 or not is_debian:
        pytest.skip("starting Slurm needs root on Debian")
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed; run tests/cluster/install.sh")
    if subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True).returncode:
        pytest.skip("this container may not make namespaces (it needs CAP_SYS_ADMIN)")


def _free_ports(n_ports: int) -> int:
    """Return the first of several free ports in a row."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = probe.getsockname()[1]
        if first + n_ports < 65536 and all(_is_free(first + i) for i in range(n_ports)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0

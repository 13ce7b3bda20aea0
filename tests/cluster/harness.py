"""Private schedulers of a test session: where they run, and how they are started and stopped."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NETWORK = HERE / "network/network.sh"
LOCKS = Path("/run/lock")
HTCONDOR = Path(os.environ.get("ESPNET3_HTCONDOR", "/var/lib/espnet3-htcondor"))
N_NODES = 4
N_GPUS = 2
COMMANDS = {
    "slurm": ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "squeue"),
    "sge": ("qsub", "qstat", "qdel", "qconf", "/usr/lib/gridengine/sge_qmaster"),
    "htcondor": (),
    "network": ("ip", "unshare", "nsenter", "pgrep"),
}


@dataclass(frozen=True)
class Cluster:
    """A running scheduler, and how to get at it."""

    kind: str
    folder: Path
    variables: dict[str, str]
    prefix: str = ""
    """Of `network.sh`; empty if all its nodes are on loopback."""

    @property
    def env(self) -> dict[str, str]:
        """Return the environment of its clients."""
        return {**os.environ, **self.variables}

    @property
    def where(self) -> list[str]:
        """Return the words before a command that make it run where clients must."""
        return [str(NETWORK), self.prefix, "exec", "0"] if self.prefix else []

    def node(self, verb: str, number: int) -> None:
        """Break or mend a node: kill, kill-daemon, up, drain, resume, fill, free; see `node.sh`."""
        script = str(HERE / self.kind / "node.sh")
        _run(script, str(self.folder), verb, f"node{number}")

    @property
    def scratch(self) -> Path:
        """Return where each node has a small disk of its own; all have it at the same place."""
        return self.folder / "scratch"

    def cable(self, verb: str, number: int) -> None:
        """Pull the cable of a node, or put it back: cut or heal."""
        _run(str(NETWORK), self.prefix, verb, str(number))


@contextmanager
def start_slurm(folder: Path, *, networked: bool = False, memory: str = "") -> Iterator[Cluster]:
    """Start Slurm on loopback, or with a network between head and nodes; see `start.sh`."""
    skip_unless_possible("slurm")
    with _slot("slurm", folder) as prefix:
        port = _free_ports(N_NODES + 1)
        words = [folder, port, N_NODES, N_GPUS, prefix if networked else "", memory]
        _run(str(HERE / "slurm/start.sh"), *map(str, words))
        variables = {"SLURM_CONF": str(folder / "slurm.conf")}
        yield Cluster("slurm", folder, variables, prefix if networked else "")


@contextmanager
def start_sge(folder: Path) -> Iterator[Cluster]:
    """Start Grid Engine, which needs a network between head and nodes."""
    skip_unless_possible("sge")
    with _slot("sge", folder) as prefix:
        _run(str(HERE / "sge/start.sh"), str(folder), prefix, str(N_NODES), str(N_GPUS))
        lines = (folder / "env").read_text().split()
        yield Cluster("sge", folder, dict(line.split("=", 1) for line in lines), prefix)


@contextmanager
def start_htcondor(folder: Path) -> Iterator[list[str]]:
    """Start HTCondor, and yield the words before a command that make it run there."""
    skip_unless_possible("htcondor")
    if not (HTCONDOR / ".ready").exists():
        pytest.skip("HTCondor is not set up; run tests/cluster/htcondor/setup.sh (some minutes)")
    with _slot("htcondor", folder) as prefix:
        _run(str(HERE / "htcondor/start.sh"), str(folder), prefix)
        yield [str(HERE / "htcondor/enter.sh"), str(folder)]


def skip_unless_possible(kind: str) -> None:
    """Skip a test, with the reason, where a scheduler cannot be started."""
    release = Path("/etc/os-release")
    is_debian = release.exists() and "ID=debian" in release.read_text().splitlines()
    if sys.platform != "linux" or os.geteuid() != 0 or not is_debian:
        pytest.skip("starting a scheduler needs root on Debian")
    for command in (*COMMANDS[kind], *COMMANDS["network"]):
        if shutil.which(command) is None:
            pytest.skip(f"{command} is not installed; run tests/cluster/install.sh")
    namespaces = ["--mount", "--uts", "--pid", "--net", "--fork"]
    if subprocess.run(["unshare", *namespaces, "true"], capture_output=True).returncode:
        pytest.skip("this container may not make namespaces (it needs CAP_SYS_ADMIN)")


@contextmanager
def _slot(kind: str, folder: Path) -> Iterator[str]:
    """Yield a prefix for `network.sh` that no other session has, and stop what uses it.

    A lock ends with its session, however that ends. So who gets a slot first stops the scheduler
    that a killed session left in it.
    """
    for letter in "abcdefghijklmnopqrstuvwxyz":
        with (LOCKS / f"espnet3-{kind}-{letter}").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            lock.seek(0)
            _stop(kind, Path(lock.read() or "/nonexistent"))
            lock.truncate(0)
            lock.write(str(folder))
            lock.flush()
            try:
                yield f"{kind}{letter}"
            finally:
                _stop(kind, folder)
                lock.truncate(0)
            return
    pytest.skip(f"too many sessions run {kind} already; see {LOCKS}")


def _stop(kind: str, folder: Path) -> None:
    if (folder / "prefix").exists():
        _run(str(HERE / kind / "stop.sh"), str(folder))


def _run(*words: str) -> None:
    told = subprocess.run(words, timeout=120, capture_output=True, text=True)
    assert told.returncode == 0, f"{words}: {told.stdout}{told.stderr}"


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

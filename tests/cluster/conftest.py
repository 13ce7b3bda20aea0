"""Real schedulers for the tests of this folder, which only `make test-clusters` runs."""

import os

import pytest

from tests.cluster.clients import ClusterJob, GridEngine, Slurm
from tests.cluster.harness import start_sge, start_slurm
from tests.helpers.job_runs import undisturbed_output

collect_ignore_glob = [] if os.environ.get("ESPNET3_CLUSTERS") == "1" else ["*"]


@pytest.fixture(scope="session")
def reference(tmp_path_factory) -> bytes:
    """Return the output of an undisturbed run."""
    return undisturbed_output(tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory):
    """Start Slurm on loopback."""
    with start_slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def strict_slurm_cluster(tmp_path_factory):
    """Start Slurm on loopback that kills jobs that take more memory than they asked for."""
    with start_slurm(tmp_path_factory.mktemp("strict"), memory="strict") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def slurm_net_cluster(tmp_path_factory):
    """Start Slurm with a network between its machines."""
    with start_slurm(tmp_path_factory.mktemp("slurm-net"), networked=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def sge_cluster(tmp_path_factory):
    """Start Grid Engine."""
    with start_sge(tmp_path_factory.mktemp("sge")) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_cluster, tmp_path, monkeypatch):
    """Make this test a client of Slurm, and leave no job of it to the next."""
    monkeypatch.setenv("SLURM_CONF", slurm_cluster.variables["SLURM_CONF"])
    clients = Slurm(slurm_cluster, tmp_path)
    yield clients
    clients.tidy()


@pytest.fixture
def strict_slurm(strict_slurm_cluster, tmp_path):
    """Clients of a Slurm that watches the memory of jobs."""
    clients = Slurm(strict_slurm_cluster, tmp_path)
    yield clients
    clients.tidy()


@pytest.fixture
def slurm_net(slurm_net_cluster, tmp_path):
    """Clients of a Slurm whose nodes have cables; drivers run on its head, by `start` or `run`."""
    clients = Slurm(slurm_net_cluster, tmp_path)
    yield clients
    clients.tidy()


@pytest.fixture
def sge(sge_cluster, tmp_path):
    """Clients of Grid Engine; drivers run on its head, by `start` or `run`."""
    clients = GridEngine(sge_cluster, tmp_path)
    yield clients
    clients.tidy()


@pytest.fixture
def slurm_job(slurm, awkward):
    """Return a function that makes a job whose workers run on Slurm."""
    return lambda **settings: ClusterJob(awkward / "out", slurm, **settings)


@pytest.fixture
def slurm_net_job(slurm_net, awkward):
    """Return a function that makes a job whose workers run on Slurm, across a network."""
    return lambda **settings: ClusterJob(awkward / "out", slurm_net, **settings)


@pytest.fixture
def sge_job(sge, awkward):
    """Return a function that makes a job whose workers run on Grid Engine."""
    return lambda **settings: ClusterJob(awkward / "out", sge, **settings)

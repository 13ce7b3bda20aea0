import socket

import pytest

from espnet3.parallel.checkup import backend
from espnet3.parallel.checkup.backend import check_network, check_reach
from espnet3.parallel.config import ParallelConfig


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def ssh(*ports: int) -> ParallelConfig:
    options = {"hosts": ["127.0.0.1"] * len(ports), "connect_options": [{"port": p} for p in ports]}
    return ParallelConfig(env="ssh", options=options)


def test_hosts_that_answer_are_ok(port):
    (finding,) = check_reach(ssh(port, port))
    assert finding.level == "ok"


def test_a_host_that_does_not_answer_is_named(port):
    (finding,) = check_reach(ssh(port, free_port()))
    assert finding.level == "problem"
    assert "127.0.0.1 does not answer" in finding.told
    assert finding.fix == "Mend it: ssh 127.0.0.1 true"


def test_a_dask_scheduler_that_answers_is_ok(dask_address):
    (finding,) = check_reach(ParallelConfig(env="dask", options={"address": dask_address}))
    assert finding.level == "ok", finding


def test_a_dask_scheduler_that_is_not_there_is_a_problem():
    address = f"tcp://127.0.0.1:{free_port()}"
    options = {"address": address, "timeout": 1}
    (finding,) = check_reach(ParallelConfig(env="dask", options=options))
    assert finding.level == "problem"
    assert address in finding.told


def test_kubernetes_needs_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "_IN_POD", tmp_path / "token")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    (finding,) = check_reach(ParallelConfig(env="kube"))
    assert finding.level == "problem"
    assert "export KUBECONFIG=FILE" in finding.fix
    (tmp_path / "config").touch()
    monkeypatch.setattr(backend, "_ask_kube", lambda config: [])  # there is no API server here
    (finding,) = check_reach(ParallelConfig(env="kube"))
    assert finding.level == "ok"


def test_the_address_for_workers_is_told_with_its_reason(commands, slurm):
    (finding,) = check_network(slurm())
    assert finding.told == "workers connect to 127.0.0.1, of the interface lo"
    commands(sinfo="echo localhost")
    (finding,) = check_network(slurm(interface=None))
    assert finding.level == "ok"
    assert finding.told == "workers connect to 127.0.0.1 (all nodes are this machine)"


def test_an_address_that_is_guessed_is_a_warning(commands, slurm):
    commands(sinfo="exit 1")
    (finding,) = check_network(slurm(interface=None))
    assert finding.level == "warning"
    assert "which is a guess" in finding.told
    assert "interface: NAME, one of lo (127.0.0.1)" in finding.fix


def test_an_interface_that_is_not_here_is_a_problem(slurm):
    (finding,) = check_network(slurm(interface="ib7"))
    assert finding.level == "problem"
    assert "this machine has lo (127.0.0.1)" in finding.told


def test_the_users_own_host_is_taken(slurm):
    (finding,) = check_network(slurm(scheduler_options={"host": "10.0.0.1"}))
    assert "10.0.0.1, as scheduler_options.host says" in finding.told

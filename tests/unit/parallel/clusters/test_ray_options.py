"""The block of `env: ray` is looked at before Ray is imported or anything starts."""

import socket

import pytest

from espnet3.errors import ConfigError, MissingExtraError, ResourceError
from espnet3.parallel.checkup.backend import check_reach
from espnet3.parallel.clusters import ray as backend
from espnet3.parallel.parallel import as_parallel_config


@pytest.fixture(autouse=True)
def _machine(monkeypatch, tmp_path):
    monkeypatch.setattr(backend, "find_spec", lambda name: name)  # whether or not it is installed
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))


def block(n_workers=2, **options):
    return as_parallel_config({"env": "ray", "n_workers": n_workers, "options": options})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_cpu": 2}, "Did you mean 'num_cpus'?"),
        ({"num_cpus": "two"}, "num_cpus is 'two'"),
        ({"num_gpus": -1}, "num_gpus is -1"),
        ({"num_gpus": 1.5}, "num_gpus: 2"),
        ({"resources": ["big"]}, "resources: {big_disk: 1}"),
        ({"resources": {"big_disk": "all"}}, "resources.big_disk is 'all'"),
        ({"resources": {"GPU": 1}}, "Write: num_gpus: 1"),
        ({"runtime_env": "conda"}, "runtime_env: {env_vars"),
        ({"address": "ray://head:10001"}, "address: auto"),
        ({"address": "head"}, "address: 'head:6379'"),
    ],
)
def test_a_wrong_option_is_told_with_what_to_write(options, told):
    with pytest.raises(ConfigError) as error:
        backend.check(block(**options))
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("runtime_env", "told"),
    [
        ({"env_var": {"A": "b"}}, "Did you mean 'env_vars'?"),
        ({"env_vars": {"A": True}}, "refused by Ray: .*env_vars"),
        ({"env_vars": ["A=b"]}, "refused by Ray: .*env_vars"),
        ({"pip": 3}, "refused by Ray: "),
    ],
)
def test_a_runtime_env_that_ray_would_refuse_or_drop_is_told_at_once(runtime_env, told):
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=told):
        backend.check(block(runtime_env=runtime_env))


def test_numbers_in_variables_become_texts():
    pytest.importorskip("ray")
    given = block(runtime_env={"env_vars": {"OMP_NUM_THREADS": 4, "A": "b"}})
    backend.check(given)
    assert backend.runtime_env(given) == {"env_vars": {"OMP_NUM_THREADS": "4", "A": "b"}}


def test_without_ray_the_line_that_installs_it_is_told(monkeypatch):
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    monkeypatch.delitem(backend.sys.modules, "ray", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install -c constraints.txt -e '\.\[ray\]'"):
        backend.check(block())


@pytest.mark.parametrize(
    ("each", "n_workers", "room"), [(1, 3, 2), (2, 2, 1), (0.5, 5, 4), (0.4, 5, 4), (4, 1, 0)]
)
def test_gpus_that_this_machine_lacks_are_told_before_a_ray_is_started(
    monkeypatch, each, n_workers, room
):
    monkeypatch.setattr("espnet3.parallel.clusters.gpus.visible_gpus", lambda _: ["0", "1"])
    with pytest.raises(ResourceError, match=f"room for {room} worker") as error:
        backend.check(block(n_workers, num_gpus=each))
    assert (f"n_workers: {room}" if room else "Delete num_gpus") in str(error.value)
    if room:
        backend.check(block(room, num_gpus=each))


def test_an_address_where_nobody_listens_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ResourceError, match="ray start --head"):
        backend.meet(block(address=address))
    (finding,) = check_reach(block(address=address))
    assert finding.level == "problem"


def test_a_port_of_something_else_is_told_after_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ResourceError, match=r"within 0\.2 s"):
            backend.meet(block(address=address, timeout=0.2))


def test_auto_without_a_ray_on_this_machine_is_told():
    with pytest.raises(ResourceError, match="ray start --head"):
        backend.meet(block(address="auto"))


def test_auto_finds_where_the_ray_of_this_machine_was(tmp_path):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1\n")
    with pytest.raises(ResourceError, match=r"127\.0\.0\.1:1"):
        backend.meet(block(address="auto"))


def test_the_variable_of_ray_names_the_cluster_as_it_does_for_ray(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    for options in ({}, {"address": "auto"}):
        with pytest.raises(ResourceError, match=r"127\.0\.0\.1:1"):
            backend.meet(block(**options))


def test_without_an_address_one_is_started_here():
    assert backend.meet(block()) == ""
    (finding,) = check_reach(block())
    assert finding.level == "ok"


def test_a_worker_asks_for_one_cpu_unless_told_otherwise():
    assert backend.worker_resources(block()) == {"CPU": 1}
    asked = backend.worker_resources(block(num_cpus=0, num_gpus=0.25, resources={"disk": 2}))
    assert asked == {"GPU": 0.25, "disk": 2}

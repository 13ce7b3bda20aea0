"""Backends by name, and those that a user adds."""

import pytest
from distributed import LocalCluster

from espnet3.errors import ConfigError, ResourceError
from espnet3.parallel import BaseRunner, get_client, register_backend, set_parallel, use_parallel
from espnet3.parallel.clusters.registry import BACKENDS, check_resources, render_job_script
from espnet3.parallel.parallel import get_parallel_config
from tests.helpers.providers import Provider


@pytest.fixture(autouse=True)
def _restored():
    before = dict(BACKENDS)
    yield
    BACKENDS.clear()
    BACKENDS.update(before)


class Square(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx**2


def start(config):
    return LocalCluster(
        n_workers=config.n_workers, processes=False, dashboard_address="127.0.0.1:0"
    )


def test_a_backend_of_the_user_runs_runners_and_clients():
    register_backend("threads", start)
    set_parallel({"env": "threads", "n_workers": 2})
    assert Square(Provider())(range(20)) == [i**2 for i in range(20)]
    with get_client() as client:
        assert len(client.nthreads()) == 2
    assert render_job_script(get_parallel_config()) is None
    check_resources(get_parallel_config())


def test_an_address_will_do(dask_address):
    register_backend("there", lambda config: dask_address)
    with use_parallel({"env": "there"}):
        assert Square(Provider())(range(5)) == [0, 1, 4, 9, 16]


def test_its_check_and_job_script_are_used():
    def refuse(config):
        raise ResourceError(f"no room for {config.n_workers}")

    register_backend("mine", start, refuse, lambda config: f"#!/bin/sh\n# {config.n_workers}\n")
    with use_parallel({"env": "mine", "n_workers": 3}) as config:
        with pytest.raises(ResourceError, match="no room for 3"):
            check_resources(config)
        assert render_job_script(config) == "#!/bin/sh\n# 3\n"


def test_its_name_is_known_to_the_did_you_mean():
    register_backend("flux", start)
    with pytest.raises(ConfigError, match=r"Did you mean 'flux'\?.*dask, ray, flux"):
        set_parallel({"env": "fluxx"})


def test_a_name_that_is_taken_is_refused_unless_it_is_to_be_replaced():
    with pytest.raises(ConfigError, match=r"register_backend\('slurm', \.\.\., replace=True\)"):
        register_backend("slurm", start)
    register_backend("slurm", start, replace=True)
    with get_client({"env": "slurm", "n_workers": 1}) as client:
        assert len(client.nthreads()) == 1

"""Each key of `parallel.options` is used, refused, or told not to be used."""

import logging

import pytest

from espnet3.errors import ConfigError
from espnet3.parallel import BaseRunner, get_client, parallel_map, use_parallel
from espnet3.parallel.clusters import registry
from espnet3.parallel.clusters.registry import BACKENDS, check_resources, render_job_script
from espnet3.parallel.detached import job_script
from espnet3.parallel.parallel import as_parallel_config
from tests.helpers.providers import Provider

NEEDED = {
    "local": {},
    "local_gpu": {},
    "ssh": {"hosts": ["a", "b"]},
    "kube": {"image": "mine"},
    "dask": {"address": "tcp://a:1"},
    "ray": {},
    "htcondor": {"cores": 1, "memory": "1GB", "disk": "1GB"},
}


@pytest.fixture(autouse=True)
def _told_anew(monkeypatch):
    monkeypatch.setattr("espnet3.parallel.clusters.gpus.visible_gpus", lambda _: ["0"])
    registry.warn_once.cache_clear()
    job_script._tell_of_unused.cache_clear()


def config_of(env, n_workers=1, **options):
    needed = NEEDED.get(env, {"cores": 1, "memory": "1GB"})
    block = {"env": env, "n_workers": n_workers, "options": {**needed, **options}}
    return as_parallel_config(block)


@pytest.mark.filterwarnings("ignore:OAR Job memory")
@pytest.mark.parametrize("env", BACKENDS)
def test_an_option_that_nobody_has_is_refused_everywhere(env):
    with pytest.raises(ConfigError, match=r"parallel\.options\.no_such_thing is no option of"):
        check_resources(config_of(env, no_such_thing=1))


@pytest.mark.parametrize("env", BACKENDS)
def test_what_stands_beside_the_options_is_refused_in_them(env):
    with pytest.raises(ConfigError, match=r"write: parallel: \{n_workers: 4,"):
        as_parallel_config({"env": env, "options": {"n_workers": 4}})


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_runner_here_tells_what_it_does_not_use(caplog, n_workers):
    config = config_of("local", n_workers=n_workers, interface="lo", memory_limit="1GB")
    with caplog.at_level(logging.WARNING):
        check_resources(config)
        with use_parallel(config):
            assert parallel_map(str, range(3)) == ["0", "1", "2"]
    told = [record.message for record in caplog.records]
    assert [line for line in told if "parallel.options.interface is used by get_client" in line]
    assert [line for line in told if "parallel.options.memory_limit is used by get_client" in line]
    assert len(told) == 2


def test_options_of_jobs_do_not_keep_one_from_trying_it_here(caplog):
    options = {"queue": "gpu", "cores": 4, "processes": 1, "memory": "1GB", "walltime": "1:00:00"}
    config = config_of("local", n_workers=2, **options)
    with caplog.at_level(logging.WARNING):
        check_resources(config)
    assert "cores, memory, queue, walltime, for jobs of a scheduler" in caplog.text
    with use_parallel(config), get_client() as client:
        assert len(client.nthreads()) == 2


def test_threads_of_this_machine_do_not_stop_jobs(caplog):
    with caplog.at_level(logging.WARNING):
        script = render_job_script(config_of("slurm", threads_per_worker=1, cores=4))
    assert "threads_per_worker is for env: local" in caplog.text
    assert "OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}" in script


class Threads(BaseRunner):
    @staticmethod
    def forward(idx):
        import os

        return os.environ.get("OMP_NUM_THREADS")


def test_threads_are_used_or_told(caplog, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with use_parallel(config_of("local", n_workers=2, threads_per_worker=3)):
        assert set(Threads(Provider())(range(4))) == {"3"}
    assert not caplog.records
    with use_parallel(config_of("local", threads_per_worker=3)):
        Threads(Provider())(range(4))
    assert "threads_per_worker is ignored: with n_workers: 1" in caplog.text


@pytest.mark.parametrize("value", ["2", 0, True, 1.5])
def test_a_number_of_threads_is_one(value):
    with pytest.raises(ConfigError, match="Write: threads_per_worker: 1"):
        check_resources(config_of("local", threads_per_worker=value))


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ("slurm", ("job_extra_directives", "job_extra")),
        ("slurm", ("account", "project")),
        ("pbs", ("account", "project")),
        ("sge", ("job_script_prologue", "env_extra")),
    ],
)
def test_an_option_under_two_names_is_refused(env, names):
    new = names[0]
    options = {name: ["x"] if "_" in name else "lab" for name in names}
    with pytest.raises(ConfigError, match=f"Write all of it under {new}"):
        check_resources(config_of(env, **options))
    check_resources(config_of("lsf", project="lab"))


def test_detached_workers_tell_what_only_dask_would_use(caplog):
    with caplog.at_level(logging.INFO):
        job_script.render_worker_script(config_of("slurm", interface="lo", nanny=False), [])
    assert "do not use parallel.options: interface, nanny" in caplog.text


def test_dask_cuda_is_named_where_its_options_need_it(monkeypatch):
    monkeypatch.setattr("espnet3.parallel.clusters.local_gpu.has_dask_cuda", lambda: False)
    with pytest.raises(ConfigError, match=r"-e '\.\[gpu\]'"):
        check_resources(config_of("local_gpu", rmm_pool_size="1GB"))


@pytest.mark.parametrize(
    ("env", "options", "fix"),
    [
        ("slurm", {}, "Write under options: cores: 4, memory: 16GB"),
        ("pbs", {"cores": 2}, "Write under options: memory: 16GB"),
        ("htcondor", {"cores": 1, "memory": "1GB"}, "Write under options: disk: 10GB"),
        ("slurm", {"cores": 1, "memory": 32}, "memory: 32GB"),
        ("sge", {"cores": 1, "memory": "32"}, "memory: 32GB"),
    ],
)
def test_what_a_job_needs_and_is_not_told_is_named(env, options, fix):
    with pytest.raises(ConfigError, match=fix):
        check_resources(as_parallel_config({"env": env, "options": options}))

"""Jobs that are submitted before Dask is imported: the same scripts, and none left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.errors import ResourceError
from espnet3.parallel.clusters import early_jobs, jobqueue
from espnet3.parallel.clusters.job_options import complete_options
from espnet3.parallel.clusters.jobqueue import patched_job_class
from espnet3.parallel.clusters.registry import BACKENDS, cluster_class, start_cluster
from espnet3.parallel.clusters.tls import RunSecurity
from espnet3.parallel.config import ParallelConfig
from espnet3.schedulers import known_scheduler
from tests.helpers.golden_scripts import (
    JOB_BACKENDS,
    config_of,
    elsewhere,  # noqa: F401 - a fixture
)
from tests.helpers.slurm_stand_in import write_command

PLAIN = [env for env in JOB_BACKENDS if known_scheduler(env).worker_options]
OPTIONS = {"cores": 1, "memory": "1GB", "walltime": "00:10:00", "interface": "lo"}


def slurm(**options):
    return ParallelConfig(env="slurm", n_workers=2, options={**OPTIONS, **options})


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Give a folder with an sbatch and a scancel that note what they were given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    write_command(folder / "sbatch", f'cp "$1" {folder}/$$.job; echo "Submitted batch job $$"')
    write_command(folder / "scancel", f'for job; do echo "$job" >> {folder}/cancelled; done')
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def submitted(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.job"))


def cancelled(folder: Path) -> list[str]:
    path = folder / "cancelled"
    return sorted(path.read_text().split()) if path.exists() else []


@pytest.mark.parametrize("env", PLAIN)
@pytest.mark.parametrize(
    "own",
    [
        {},
        {"local_directory": "/scratch/a user's", "worker_extra_args": ["--resources", "x=1"]},
        {"shared_temp_directory": "with space", "memory": "850MB", "death_timeout": 7},
        {"job_script_prologue": ["module load x"], "shebang": "#!/bin/bash -l"},
    ],
)
def test_a_script_is_the_one_that_dask_jobqueue_writes(env, own, tmp_path, monkeypatch):
    config = config_of(env)
    config = config.model_copy(update={"options": {**config.options, "interface": "lo", **own}})
    made = {}

    class Kept(early_jobs.EarlyJobs):
        def __init__(self, scheduler, scripts, security, port):
            made.update(scripts)
            port.close()

    monkeypatch.setattr(early_jobs, "EarlyJobs", Kept)
    options = complete_options(config)
    assert early_jobs.submit_early(config, BACKENDS[env], options) is not None
    assert len(made) == config.n_workers
    name, script = next(iter(made.items()))
    address = next(word for word in script.split() if word.startswith("tls://127"))

    job_class = cluster_class(env, BACKENDS[env]).job_cls
    security = RunSecurity(options["security"])
    given = {**options, "security": security, "protocol": "tls://"}
    for of_cluster in ("scheduler_options", "shared_temp_directory"):
        given.pop(of_cluster, None)
    job = patched_job_class(job_class, known_scheduler(env))(address, name=name, **given)
    assert script == job.job_script()


def test_dask_is_not_imported_before_they_are_submitted(commands, tmp_path):
    code = (
        "import sys\n"
        "from espnet3.parallel.config import ParallelConfig\n"
        "from espnet3.parallel.clusters import early_jobs, job_options, registry\n"
        f"config = ParallelConfig(env='slurm', n_workers=2, options={OPTIONS!r})\n"
        "options = job_options.complete_options(config)\n"
        "jobs = early_jobs.submit_early(config, registry.BACKENDS['slurm'], options)\n"
        "jobs.undo()\n"
        "print(sorted({'dask', 'distributed', 'dask_jobqueue'} & sys.modules.keys()))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[]"
    assert len(submitted(commands)) == 2
    assert cancelled(commands) == submitted(commands)
    assert not list(tmp_path.glob(".espnet3-tls*"))


@pytest.mark.parametrize(
    "own",
    [
        {"processes": 2},
        {"nanny": False},
        {"protocol": "tcp://"},
        {"scheduler_options": {"port": 4000}},
        {"scheduler_options": {"host": "head"}},
    ],
)
def test_what_only_dask_jobqueue_can_tell_is_left_to_it(own, commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = slurm(**own)
    options = complete_options(config, is_dry=True)
    assert early_jobs.submit_early(config, BACKENDS["slurm"], options) is None
    assert not submitted(commands)


@pytest.mark.parametrize("own", [{}, {"name": "mine"}])
def test_each_job_is_submitted_once_and_cancelled_at_the_end(own, commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cluster = start_cluster(slurm(**own))
    try:
        jobs = sorted(job.job_id for job in cluster.workers.values())
        assert jobs == submitted(commands)
        assert cluster.scheduler.address in next(commands.glob("*.job")).read_text()
        assert list(tmp_path.glob("**/.espnet3-tls*/key.pem"))
    finally:
        cluster.close()
    assert cancelled(commands) == submitted(commands)
    assert not list(tmp_path.glob("**/.espnet3-tls*"))


def test_a_job_with_another_script_is_cancelled_and_submitted_again(
    commands, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(early_jobs, "_UNITS", {})  # a size that Dask writes otherwise
    cluster = start_cluster(slurm())
    try:
        jobs = sorted(job.job_id for job in cluster.workers.values())
        assert len(submitted(commands)) == 4
        assert sorted([*cancelled(commands), *jobs]) == submitted(commands)
    finally:
        cluster.close()
    assert cancelled(commands) == submitted(commands)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ImportError])
def test_a_start_that_breaks_off_leaves_no_job(error, commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def broken(*_):
        raise error

    monkeypatch.setattr(jobqueue, "cluster_class", broken)
    with pytest.raises(error):
        start_cluster(slurm())
    assert len(submitted(commands)) == 2
    assert cancelled(commands) == submitted(commands)
    assert not list(tmp_path.glob("**/.espnet3-tls*"))


def test_a_refusal_is_told_as_ever(commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_command(commands / "sbatch", 'echo "QOS limit" >&2; exit 1')
    with pytest.raises(ResourceError, match=r"sbatch refused a job.*QOS limit"):
        start_cluster(slurm())
    assert not cancelled(commands)
    assert not list(tmp_path.glob("**/.espnet3-tls*"))

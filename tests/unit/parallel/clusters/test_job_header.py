"""Headers of detached workers' jobs are what dask-jobqueue would write, which is not imported."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import dask_jobqueue
import pytest
import yaml

from espnet3.parallel.clusters import dask_config
from espnet3.parallel.clusters.job_header import parse_bytes, plain_header
from espnet3.parallel.detached import job_script
from espnet3.parallel.detached.job_script import PlainJob, WorkerJob, make_job
from espnet3.parallel.parallel import as_parallel_config
from espnet3.schedulers import known_scheduler
from tests.helpers.golden_scripts import (
    JOB_BACKENDS,
    elsewhere,  # noqa: F401 - a fixture
)

PLAIN = [env for env in JOB_BACKENDS if known_scheduler(env).worker_options]
SHARED = {
    "cores": (1, 8),
    "memory": ("2000B", "20kB", "953.7 MB", "1GB", "16GiB"),
    "queue": (None, "long"),
    "walltime": (None, "02:00"),
    "log_directory": (None, "logs"),
    "job_directives_skip": (None, ["-q", "-p", "--mem", "walltime"]),
    "job_extra_directives": (None, ["-l gpu=1", "-M me@example.org"]),
}
OWN = {
    "account": "lab", "project": "lab", "resource_spec": "nodes=1:ppn=2", "job_cpu": 3,
    "job_mem": "5G", "use_stdin": False,
}  # fmt: skip
WORK = WorkerJob((Path("/data/run"),), tag="abc")


def blocks(env):
    """Yield blocks in which each value of each option meets each of every other twice, or so."""
    values = [[(name, value) for value in each] for name, each in SHARED.items()]
    own = known_scheduler(env).worker_options
    for number, chosen in enumerate(product(*values)):
        if number % 7 == 0:
            options = {name: value for name, value in chosen if value is not None}
            options |= {name: OWN[name] for i, name in enumerate(own) if number >> i & 1}
            yield as_parallel_config(
                {"env": env, "mode": "async", "n_workers": 2, "options": options}
            )


@pytest.mark.parametrize("env", PLAIN)
def test_it_is_the_header_of_dask_jobqueue(env, monkeypatch):
    configs = list(blocks(env))
    plain = [make_job(config, WORK, 0.0) for config in configs]
    assert all(isinstance(job, PlainJob) for job in plain)
    monkeypatch.setattr(job_script, "plain_header", lambda *_: None)
    for config, job in zip(configs, plain, strict=True):
        expected = make_job(config, WORK, 0.0)
        assert job.job_script() == expected.job_script(), config.options
        assert job.submit_command == expected.submit_command


@pytest.mark.parametrize("unit", ["", "LSF_UNIT_FOR_LIMITS=MB\n", "#\nLSF_UNIT_FOR_LIMITS=GB\n"])
def test_the_unit_of_lsf_is_that_of_the_cluster(unit, tmp_path, monkeypatch):
    (tmp_path / "lsf.conf").write_text(unit)
    monkeypatch.setenv("LSF_ENVDIR", str(tmp_path))
    test_it_is_the_header_of_dask_jobqueue("lsf", monkeypatch)


def test_the_account_of_pbs_may_be_a_variable(monkeypatch):
    monkeypatch.setenv("PBS_ACCOUNT", "from the shell")
    test_it_is_the_header_of_dask_jobqueue("pbs", monkeypatch)


@pytest.mark.parametrize(
    "changes",
    [{"cores": None}, {"cores": "4"}, {"memory": "4 sheep"}, {"shell": 1}, {"header_skip": ["-p"]}],
)
def test_what_is_rare_or_wrong_is_left_to_dask_jobqueue(changes):
    options = {"cores": 1, "memory": "1GB", "job_extra_directives": [], "processes": 1, **changes}
    assert plain_header(known_scheduler("slurm"), options) is None


@pytest.mark.parametrize("env", JOB_BACKENDS)
def test_the_defaults_are_those_of_dask_jobqueue(env):
    text = Path(dask_jobqueue.__file__).with_name("jobqueue.yaml").read_text()
    theirs = yaml.safe_load(text)["jobqueue"][env]
    ours = {**dask_config.DEFAULTS, **known_scheduler(env).dask_defaults}
    assert {name: ours[name] for name in theirs} == theirs
    assert all(ours[name] is None for name in ours.keys() - theirs.keys())


@pytest.mark.parametrize("size", ["900", "20kB", "5.4 kB", "1kiB", "1 MB", "16g", "2Ti", "3B", 77])
def test_sizes_are_read_as_dask_reads_them(size):
    from dask.utils import parse_bytes as of_dask

    assert parse_bytes(size) == of_dask(size)


SUBMIT = """
import sys
from pathlib import Path
from espnet3.parallel.clusters.registry import check_resources, left_out
from espnet3.parallel.detached.job_script import WorkerJob, make_job
from espnet3.parallel.parallel import as_parallel_config
options = {"cores": 1, "memory": "1GB"}
config = as_parallel_config({"env": "slurm", "mode": "async", "options": options})
check_resources(config)
left_out(config)
print(make_job(config, WorkerJob((Path("/run"),)), 0.0).job_script())
print("imported:", *sorted({"dask", "distributed", "dask_jobqueue", "asyncio"} & {*sys.modules}))
"""


def submit(tmp_path, **variables):
    env = {**os.environ, "HOME": str(tmp_path), "DASK_CONFIG": str(tmp_path / "dask"), **variables}
    words = [sys.executable, "-c", SUBMIT]
    return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout


def test_no_dask_is_imported(tmp_path):
    folder = tmp_path / "dask"
    folder.mkdir()
    # As dask-jobqueue itself leaves it.
    (folder / "jobqueue.yaml").write_text("# jobqueue:\n#   slurm:\n#     queue: none\n")
    (folder / "other.yaml").write_text("distributed:\n  worker: {}\n")
    assert submit(tmp_path).endswith("imported:\n")


def test_the_users_configuration_of_dask_counts(tmp_path):
    (tmp_path / "dask").mkdir()
    (tmp_path / "dask" / "mine.yaml").write_text("jobqueue:\n  slurm:\n    queue: from-a-file\n")
    assert "#SBATCH -p from-a-file\n" in submit(tmp_path)


def test_variables_of_dask_count(tmp_path):
    assert "#SBATCH -A lab\n" in submit(tmp_path, DASK_JOBQUEUE__SLURM__ACCOUNT="lab")

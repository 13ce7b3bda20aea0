"""GPUs and time, as the options of each scheduler ask for them."""

import pytest

from espnet3.parallel.clusters.registry import gpus_per_job, walltime_seconds
from espnet3.parallel.config import ParallelConfig


def config(env, **options):
    return ParallelConfig(env=env, options=options)


@pytest.mark.parametrize(
    ("env", "options", "n_gpus"),
    [
        ("local", {}, 0),
        ("local_gpu", {}, 1),
        ("slurm", {"queue": "gpu", "cores": 8}, 0),
        ("slurm", {"job_extra_directives": ["--gres=gpu:1"]}, 1),
        ("slurm", {"job_extra_directives": ["--exclusive", "--gres=gpu:a100:4"]}, 4),
        ("slurm", {"job_extra_directives": ["--gres=gpu"]}, 1),
        ("slurm", {"job_extra_directives": ["--gres=lustre:1,gpu:2"]}, 2),
        ("slurm", {"job_extra_directives": ["--gpus-per-node=2"]}, 2),
        ("slurm", {"job_extra_directives": ["-G 3"]}, 3),
        ("pbs", {"resource_spec": "select=1:ncpus=4:mem=8gb:ngpus=2"}, 2),
        ("sge", {"job_extra_directives": ["-l gpu=1"]}, 1),
        ("lsf", {"job_extra_directives": ['-gpu "num=2:mode=shared"']}, 2),
        ("oar", {"resource_spec": "/nodes=1/gpu=2,walltime=1"}, 2),
        ("htcondor", {"job_extra_directives": {"request_gpus": "1"}}, 1),
        ("moab", {"resource_spec": "nodes=1:ppn=4:gpus=2"}, 2),
        ("kube", {"resources": {"limits": {"nvidia.com/gpu": 1}}}, 1),
    ],
)
def test_gpus(env, options, n_gpus):
    assert gpus_per_job(config(env, **options)) == n_gpus


@pytest.mark.parametrize(
    ("env", "options", "seconds"),
    [
        ("local", {}, None),
        ("slurm", {"walltime": "01:30:00"}, 5400),
        ("slurm", {"walltime": "2-12"}, 216_000),
        ("slurm", {"walltime": "1-00:00:30"}, 86_430),
        ("slurm", {"walltime": "90"}, 5400),
        ("slurm", {"walltime": "10:30"}, 630),
        ("slurm", {"job_extra_directives": ["--time=00:10:00"]}, 600),
        ("lsf", {"walltime": "01:30"}, 5400),
        ("lsf", {"walltime": "90"}, 5400),
        ("pbs", {"walltime": "3600"}, 3600),
        ("sge", {"job_extra_directives": ["-l h_rt=3600"]}, 3600),
        ("sge", {"walltime": "a day"}, None),
    ],
)
def test_walltime(env, options, seconds):
    assert walltime_seconds(config(env, **options)) == seconds

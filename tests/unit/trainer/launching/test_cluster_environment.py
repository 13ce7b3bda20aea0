import pytest

from espnet3.trainer.trainer import cluster_environment

SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "SLURM_NTASKS": "4"}


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, "LightningEnvironment"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, "LightningEnvironment"),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}, "LightningEnvironment"),
        ({**SRUN, "SLURM_JOB_NAME": "interactive"}, "SLURMEnvironment"),
        ({**SRUN, "TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4"}, "TorchElasticEnvironment"),
    ],
)
def test_the_environment_is_that_of_the_launcher(environ, name):
    assert type(cluster_environment(environ)).__name__ == name


def test_slurm_does_not_requeue_behind_our_back():
    assert cluster_environment(SRUN).auto_requeue is False

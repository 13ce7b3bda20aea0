"""Jobs of trainings, as `espnet3 launch` renders them."""

from espnet3.trainer.launching.job_script import LaunchConfig, TrainingJob

FULL = {
    "queue": "gpu",
    "account": "my-lab",
    "time": "24:00:00",
    "cpus_per_task": 8,
    "memory": "64G",
    "setup": ["module load cuda"],
    "environment": {"NCCL_DEBUG": "INFO"},
}


def make_job(scheduler, n_nodes=2, n_processes=4, folder="/lab/asr", stages=("train",), **block):
    config = LaunchConfig(scheduler=scheduler, **block)
    return TrainingJob(
        config=config,
        name="train_small",
        n_nodes=n_nodes,
        n_processes=n_processes,
        n_gpus=0 if n_nodes * n_processes == 1 else n_processes,
        n_threads=4,
        recipe_dir=folder,
        script=f"{folder}/exp/train_small/launch/20240131-120000.sh",
        log=f"{folder}/exp/train_small/launch/20240131-120000.log",
        python="/opt/venv/bin/python",
        arguments=("--training_config", "conf/training.yaml", "trainer.max_epochs=3"),
        stages=stages,
    )

import os
import stat
from pathlib import Path

import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError, ResourceError, RunFolderError
from espnet3.trainer.launching.launch import follow, plan_job, submit, write_script


@pytest.fixture
def recipe(tmp_path) -> Path:
    folder = tmp_path / 'it\'s "a" recipe'
    folder.mkdir()
    (folder / "run.py").touch()
    return folder


def plan(recipe, trainer, *overrides, scheduler="slurm", **kwargs):
    below = {"exp_dir": "exp/small", "trainer": trainer, "launch": {"scheduler": scheduler}}
    loaded = load_config([], overrides, below=below)
    return plan_job(loaded, ("--training_config", "conf/a.yaml"), recipe_dir=recipe, **kwargs)


def stand_in(folder: Path, monkeypatch, name: str, text: str) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    command = folder / "bin" / name
    command.write_text(f"#!/bin/bash\n{text}\n")
    command.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")


def test_numbers_come_from_the_trainer_block(recipe):
    job = plan(
        recipe,
        {"accelerator": "gpu", "devices": 4, "num_nodes": 2},
        "launch.cpus_per_task=8",
        "dataloader.train.num_workers=3",
    )
    assert (job.n_nodes, job.n_processes, job.n_gpus, job.n_cpus) == (2, 4, 4, 32)
    assert job.n_threads == 5
    assert job.name == "small"
    assert job.script.startswith(f"{recipe}/exp/small/launch/2")
    assert job.log == job.script.removesuffix(".sh") + ".log"
    assert os.path.isabs(job.python)


@pytest.mark.parametrize(
    ("trainer", "overrides", "numbers"),
    [
        ({"accelerator": "cpu", "devices": 2}, [], (2, 0)),
        ({"accelerator": "cpu"}, [], (1, 0)),
        ({"devices": 2}, [], (2, 2)),
        ({"accelerator": "auto", "devices": 2}, ["launch.gpus=0"], (2, 0)),
        ({"accelerator": "gpu", "devices": "auto"}, ["launch.gpus=4"], (4, 4)),
        ({"accelerator": "gpu", "devices": [0, 1]}, [], (2, 2)),
    ],
)
def test_processes_and_gpus_of_a_node(recipe, trainer, overrides, numbers):
    job = plan(recipe, trainer, *overrides)
    assert (job.n_processes, job.n_gpus) == numbers


@pytest.mark.parametrize(
    ("trainer", "overrides", "advice"),
    [
        ({"accelerator": "gpu"}, [], "Write under trainer: devices: 4"),
        ({"accelerator": "gpu", "devices": [2, 3]}, [], "Write: devices: 2"),
        ({"accelerator": "gpu", "devices": 4}, ["launch.gpus=2"], "Delete launch.gpus"),
        ({"devices": 1, "num_nodes": "two"}, [], "num_nodes: 1"),
        ({"devices": 1}, ["launch.timee=1"], "Did you mean 'time'?"),
    ],
)
def test_a_block_without_clear_numbers_is_refused(recipe, trainer, overrides, advice):
    with pytest.raises(ConfigError) as refused:
        plan(recipe, trainer, *overrides)
    assert advice in str(refused.value)


def test_a_folder_that_other_nodes_cannot_be_told_is_refused(recipe):
    two_nodes = {"accelerator": "cpu", "devices": 1, "num_nodes": 2}
    plan(recipe, two_nodes)
    with pytest.raises(ConfigError, match="exp_dir=FOLDER"):
        plan(recipe, two_nodes, scheduler="pbs")


def test_scripts_are_private_and_never_overwritten(recipe, tmp_path):
    job = plan(recipe, {"devices": 1}, f"launch.log_dir={tmp_path}/logs")
    first, second = write_script(job), write_script(job)
    assert first.script == job.script
    assert second.script == job.script.replace(".sh", "-2.sh")
    assert second.log.endswith("-2.log")
    assert stat.S_IMODE(os.stat(first.script).st_mode) == 0o700
    assert f"script='{recipe}".replace("'s", "'\"'\"'s") in Path(second.script).read_text()
    assert (tmp_path / "logs").is_dir()


def test_a_folder_that_cannot_be_written_is_told(recipe):
    (recipe / "exp").write_text("no folder")
    with pytest.raises(RunFolderError, match="choose another folder: exp_dir=FOLDER"):
        write_script(plan(recipe, {"devices": 1}))


@pytest.mark.parametrize(
    ("scheduler", "command", "told", "job_id", "cancel"),
    [
        ("slurm", "sbatch", "[ $1 = --parsable ] && echo '123;cluster'", "123", "scancel 123"),
        ("pbs", "qsub", "echo 123.head", "123", "qdel 123"),
        ("sge", "qsub", "[ $1 = -terse ] && echo 123", "123", "qdel 123"),
        ("lsf", "bsub", "grep -q '^#BSUB' && echo 'Job <123> is submitted'", "123", "bkill 123"),
    ],
)
def test_the_id_is_read_from_what_each_scheduler_says(
    recipe, tmp_path, monkeypatch, scheduler, command, told, job_id, cancel
):
    job = write_script(plan(recipe, {"accelerator": "cpu"}, scheduler=scheduler))
    stand_in(tmp_path, monkeypatch, command, told)
    assert submit(job) == job_id
    assert follow(job, job_id).cancel == cancel


def test_a_refusal_is_shown_in_the_words_of_the_scheduler(recipe, tmp_path, monkeypatch):
    job = write_script(plan(recipe, {"devices": 1}))
    stand_in(tmp_path, monkeypatch, "sbatch", "echo 'invalid partition: gpu' >&2; exit 1")
    with pytest.raises(ResourceError) as refused:
        submit(job)
    assert "sbatch refused a job or could not be run: invalid partition: gpu" in str(refused.value)
    assert "edit the script and type: sbatch '" in str(refused.value)


def test_without_the_scheduler_the_line_to_type_elsewhere_is_told(recipe, tmp_path, monkeypatch):
    job = write_script(plan(recipe, {"devices": 1}, scheduler="lsf"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ResourceError, match="where bsub works, type: bsub < '"):
        submit(job)

"""The scripts are in golden/; to accept a change, run this file itself with Python."""

import subprocess
from pathlib import Path

import pytest

from espnet3.errors import ConfigError
from espnet3.trainer.launching.job_script import render
from tests.helpers.launch_jobs import FULL, make_job

GOLDEN = Path(__file__).parent / "golden"


def make_jobs():
    no_memory = {key: value for key, value in FULL.items() if key != "memory"}
    return {
        "slurm_srun": make_job("slurm", **FULL, directives=["--constraint=a100"]),
        "slurm_torchrun": make_job(
            "slurm", launcher="torchrun", **FULL, stages=("collect_stats", "train", "average")
        ),
        "slurm_least": make_job("slurm", 1, 1),
        "slurm_odd_folder": make_job("slurm", 1, 2, folder="""/lab/it's "my" 100% folder"""),
        "pbs": make_job("pbs", **FULL),
        "pbs_one_node": make_job("pbs", 1, 4, **FULL),
        "sge": make_job("sge", parallel_environment="mpi", **no_memory),
        "sge_least": make_job("sge", 1, 1),
        "lsf": make_job("lsf", **FULL, directives=["-x"]),
    }


@pytest.mark.parametrize("name", make_jobs())
def test_the_script_is_as_reviewed_and_is_bash(name):
    text = render(make_jobs()[name])
    assert text == (GOLDEN / f"{name}.sh").read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_no_script_of_another_time_is_kept():
    assert {path.stem for path in GOLDEN.glob("*.sh")} == set(make_jobs())


def test_a_directive_replaces_what_would_be_written():
    own = ["--gpus-per-node=a100:4", "-p debug", "--time=1-0"]
    text = render(make_job("slurm", **FULL, directives=own))
    assert all(f"#SBATCH {line}\n" in text for line in own)
    assert not any(word in text for word in ("--gres", "--partition", "24:00:00"))
    text = render(make_job("pbs", **FULL, directives=["-l select=2:ncpus=9"]))
    assert text.count("-l select") == 1
    assert "-l walltime=24:00:00" in text
    text = render(make_job("sge", 1, 1, directives=["-l h_rt=99"], time="01:00:00"))
    assert text.count("h_rt") == 1
    text = render(make_job("lsf", **FULL, directives=['-R "rusage[mem=1]"']))
    assert text.count("rusage") == 1
    assert "span[ptile=32]" in text


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("--nodes=3", "trainer.num_nodes=N"),
        ("-N 3", "trainer.num_nodes=N"),
        ("--ntasks-per-node=1", "trainer.devices=N"),
        ("-c 4", "launch.cpus_per_task=N"),
    ],
)
def test_a_directive_may_not_repeat_the_trainer_block(option, key):
    with pytest.raises(ConfigError, match=f"write the number once: {key}"):
        render(make_job("slurm", directives=[option]))


def test_sge_needs_a_parallel_environment_for_more_than_one_slot():
    with pytest.raises(ConfigError, match="parallel_environment: NAME"):
        render(make_job("sge", 1, 2))
    assert "#$ -pe smp 2\n" in render(make_job("sge", 1, 2, directives=["-pe smp 2"]))


def test_paths_that_cannot_stand_in_an_option_are_refused():
    with pytest.raises(ConfigError, match=r"launch\.log_dir=FOLDER"):
        render(make_job("slurm", folder="/lab/a\nfolder"))
    with pytest.raises(ConfigError, match=r"launch\.log_dir=FOLDER"):
        render(make_job("pbs", folder="/lab/12:30"))


def test_names_of_jobs_are_made_fit():
    from dataclasses import replace

    job = replace(make_job("pbs"), name="1 très-long-name-of-a-job")
    assert "#PBS -N j1_tr_s-long-na\n" in render(job)


if __name__ == "__main__":
    for path in GOLDEN.glob("*.sh"):
        path.unlink()
    for name, job in make_jobs().items():
        (GOLDEN / f"{name}.sh").write_text(render(job))

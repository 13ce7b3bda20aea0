from espnet3.parallel.checkup.backend import check_commands
from espnet3.parallel.config import ParallelConfig


def test_commands_that_are_not_here_are_named(commands, slurm, monkeypatch):
    monkeypatch.setenv("PATH", str(commands.folder))
    commands(sbatch="exit 0")
    (finding,) = check_commands(slurm())
    assert finding.level == "problem"
    assert "scancel, squeue cannot be found" in finding.told
    assert "login node" in finding.fix


def test_a_scheduler_that_answers_is_ok(commands, slurm):
    commands(sbatch="", scancel="", squeue="", sinfo="echo cpu")
    (finding,) = check_commands(slurm())
    assert finding.level == "ok", finding


def test_what_a_broken_scheduler_says_is_told(commands, slurm):
    body = 'echo "Unable to contact slurm controller" >&2; exit 1'
    commands(sbatch="", scancel="", squeue="", sinfo=body)
    (finding,) = check_commands(slurm())
    assert finding.level == "problem"
    assert "Unable to contact slurm controller" in finding.told


def test_backends_without_a_scheduler_need_no_commands():
    assert check_commands(ParallelConfig(env="local")) == []

"""`espnet3 doctor` as it is typed, with stand-ins for the commands of Slurm."""

import json
import sys
from pathlib import Path

import pytest

from espnet3.cli.main import main

SLURM = """
parallel:
  env: slurm
  n_workers: 2
  options:
    queue: gpu
    cores: 1
    memory: 1GB
    walltime: 01:00:00
    interface: lo
    log_directory: logs
    job_extra_directives: ["--gres=gpu:1"]
"""
COMMANDS = {
    "sbatch": 'cat >/dev/null; echo "sbatch: Job 7 to start at 12:00 on nodes n1" >&2',
    "scancel": "",
    "squeue": "",
    "sinfo": """case "$*" in *%G*) echo 'n1|gpu:2|gpu' ;; *) printf 'cpu\\ngpu\\n' ;; esac""",
}


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "my recipe"
    for name in ("conf", "src"):
        (folder / name).mkdir(parents=True)
    (folder / "run.py").touch()
    (folder / "conf/slurm.yaml").write_text(SLURM)
    (folder / "conf/local.yaml").write_text("parallel: {env: local, n_workers: 1}\n")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, body in COMMANDS.items():
        (binaries / name).write_text(f"#!/bin/sh\n{body}\n")
        (binaries / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{binaries}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def doctor(capsys):
    """Return a function that runs it: its exit code, and the findings by what they are about."""

    def run(*words: str) -> tuple[int, dict[str, dict]]:
        capsys.readouterr()
        code = main(["doctor", *words, "--json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        return code, {finding["what"]: finding for finding in findings}

    return run


def test_this_machine_is_well(recipe, doctor):
    code, found = doctor("conf/local.yaml", "--submit")
    assert code == 0
    assert {finding["level"] for finding in found.values()} == {"ok"}, found
    assert {"config", "packages", "workers", "exp_dir", "job", "job: exp_dir"} <= set(found)
    assert sorted(path.name for path in recipe.iterdir()) == ["conf", "run.py", "src"]


@pytest.mark.parametrize("options", [{}, {"address": "127.0.0.1:1"}])
def test_folders_are_to_be_shared_with_a_ray_elsewhere_only(recipe, doctor, options, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    block = {"parallel": {"env": "ray", "n_workers": 2, "options": options}}
    (recipe / "conf" / "ray.yaml").write_text(json.dumps(block))
    _, found = doctor("conf/ray.yaml")
    assert ("shared folders" in found) == bool(options)


def test_a_block_for_slurm_is_well_but_for_its_folder(recipe, doctor):
    code, found = doctor("conf/slurm.yaml")
    assert code == 0, found
    levels = {what: finding["level"] for what, finding in found.items()}
    assert levels.pop("shared folders") == "warning"  # it is below /tmp
    assert set(levels.values()) == {"ok"}, found
    assert found["scheduler"]["told"].endswith("Job 7 to start at 12:00 on nodes n1")
    assert {"commands", "queue", "GPUs", "options", "network", "log_directory"} <= set(levels)


@pytest.mark.parametrize(
    ("override", "what", "fix"),
    [
        ("parallel.options.queue=gpuu", "queue", "queue: gpu"),
        ("parallel.options.quue=gpu", "options", "Did you mean 'queue'?"),
        ("parallel.options.job_extra_directives=[--gres=gpu:3]", "GPUs", "--gres=gpu:2"),
        ("parallel.options.interface=ib9", "network", "interface: lo"),
        ("exp_dir=${nowhere}/exp", "config", ""),
        ("parallel.n_wokers=3", "config", "Did you mean 'n_workers'?"),
        ("model._target_=src.nothing.Model", "recipe", ""),
        ("trainer.strategy=dpp", "trainer", "Did you mean 'ddp'?"),
    ],
)
def test_a_mistake_is_a_problem_with_its_fix(recipe, doctor, override, what, fix):
    code, found = doctor("conf/slurm.yaml", override)
    assert code == 1
    problems = {name: f for name, f in found.items() if f["level"] == "problem"}
    assert list(problems) == [what]
    assert fix in problems[what]["fix"]


def test_yaml_that_is_broken_is_a_problem(recipe, doctor):
    (recipe / "conf/broken.yaml").write_text("parallel: {env: slurm\n")
    code, found = doctor("conf/broken.yaml")
    assert code == 1
    assert "conf/broken.yaml" in found["config"]["told"]


def test_a_scheduler_that_is_not_here_is_a_problem(recipe, doctor, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, found = doctor("conf/slurm.yaml")
    assert code == 1
    assert found["commands"]["level"] == "problem"


def test_a_missing_package_is_a_problem(recipe, doctor, monkeypatch):
    from espnet3.parallel.checkup import backend

    find = backend.installed
    monkeypatch.setattr(
        backend, "installed", lambda name: None if name == "dask-jobqueue" else find(name)
    )
    code, found = doctor("conf/slurm.yaml")
    assert code == 1
    assert found["packages"]["fix"].endswith("pip install -c constraints.txt dask-jobqueue")


def test_problems_keep_the_job_from_being_submitted(recipe, doctor):
    code, found = doctor("conf/slurm.yaml", "parallel.options.queue=gpuu", "--submit")
    assert code == 1
    assert "not submitted" in found["job"]["told"]


@pytest.mark.parametrize("files", [("slurm", "local"), ("local", "slurm")])
def test_the_block_that_names_a_cluster_is_checked_wherever_it_stands(recipe, doctor, files):
    code, found = doctor(*(f"conf/{name}.yaml" for name in files))
    assert code == 0, found
    assert found["config"]["level"] == "ok"
    assert "parallel.env is 'slurm'" in found["config"]["told"]
    assert "conf/slurm.yaml" in found["config"]["told"]


def test_a_config_without_a_recipe_is_checked_too(recipe, doctor, monkeypatch, tmp_path):
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "parallel.yaml").write_text("parallel: {env: local}\n")
    monkeypatch.chdir(alone)
    code, found = doctor("parallel.yaml")
    assert code == 0, found
    assert found["config"]["level"] == "ok"


def test_piped_output_is_a_line_each(recipe, capsys):
    assert main(["doctor", "conf/slurm.yaml", "parallel.options.queue=gpuu"]) == 1
    shown = capsys.readouterr().out
    assert "problem  queue: parallel.options.queue is 'gpuu', which does not exist." in shown
    assert "\n         fix: Write under options: queue: gpu\n" in shown
    assert shown.endswith(" ok\n")
    assert "\x1b" not in shown
    assert "1 problem, " in shown


def test_a_terminal_gets_a_table(recipe, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["doctor", "conf/slurm.yaml", "parallel.options.queue=gpuu"]) == 1
    shown = capsys.readouterr().out
    assert "Check" in shown
    assert "fix: Write under options: queue: gpu" in shown


JOB = {"cores": 1, "memory": "1GB"}
OPTIONS = {
    **dict.fromkeys(("slurm", "pbs", "sge", "lsf", "oar", "moab"), JOB),
    "htcondor": {**JOB, "disk": "1GB"},
    "ssh": {"hosts": ["127.0.0.1", "127.0.0.1"], "connect_options": {"port": 1}},
    "dask": {"address": "tcp://127.0.0.1:1", "timeout": 1},
    "kube": {},
    "local_gpu": {"CUDA_VISIBLE_DEVICES": ""},
}


@pytest.mark.parametrize("env", OPTIONS)
def test_every_backend_is_checked_and_none_is_here(recipe, doctor, monkeypatch, tmp_path, env):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    block = {"env": env, "options": OPTIONS[env]}
    (recipe / "conf/block.yaml").write_text(json.dumps({"parallel": block}))
    code, found = doctor("conf/block.yaml")
    assert code == 1
    problems = [finding for finding in found.values() if finding["level"] == "problem"]
    assert len(problems) == 1, problems
    assert problems[0]["fix"]
    assert not any("could not be checked" in finding["told"] for finding in found.values())

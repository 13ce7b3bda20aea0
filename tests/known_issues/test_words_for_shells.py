"""What goes through a shell stays one word, whatever letters a path has."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.errors import ConfigError
from espnet3.parallel.clusters import ssh
from espnet3.parallel.clusters.job_options import complete_options, shell_folder
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.description import decode_folder, encode_folders
from espnet3.parallel.detached.job_script import WorkerJob, make_job
from tests.helpers.exhaustive import pairs

NAMES = [
    "a b", "it's", 'a"b', "$HOME", "${x}", "`touch x`", "$(touch x)", "a;b", "a&b", "a|b", "a*?",
    "back\\slash", "a#b", "(x)", "!x", "~", "line\nbreak", "é ü", "-n", "a'\"$`\\ \nb",
]  # fmt: skip
SCHEDULERS = {
    "slurm": {},
    "pbs": {},
    "sge": {},
    "lsf": {},
    "moab": {},
    "oar": {},
    "htcondor": {"disk": "1GB"},
}


def odd_python(tmp_path: Path, name: str) -> Path:
    """Return a program under an odd path that tells its words, a line each."""
    folder = tmp_path / name
    folder.mkdir()
    python = folder / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$LOCAL_RANK" "$PWD" "$@"\n')
    python.chmod(0o755)
    return python


def run_remotely(command: str) -> list[str]:
    """Run a command as sshd would: as text for a shell, its input open."""
    with subprocess.Popen(
        ["sh", "-c", f"{command} -m module 'the words'"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        found = process.stdout.read()
        process.stdin.close()
    return found.splitlines()


@pytest.mark.parametrize(("name", "is_given"), pairs(NAMES, [False, True]))
def test_ssh_finds_a_python_under_any_path(tmp_path, monkeypatch, name, is_given):
    python = odd_python(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(python))
    options = {"hosts": ["head", "node1"]}
    options |= {"remote_python": str(python)} if is_given else {}
    config = ParallelConfig(env="ssh", options=options)
    for command in ssh.complete_options(config)["remote_python"]:
        assert run_remotely(command) == ["0", str(tmp_path), "-m", "module", "the words"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize("name", NAMES)
def test_ssh_enters_any_folder(tmp_path, monkeypatch, name):
    python = odd_python(tmp_path, "plain")
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    monkeypatch.setattr(sys, "executable", str(python))
    config = ParallelConfig(env="ssh", options={"hosts": ["head", "node1"]})
    command = ssh.complete_options(config)["remote_python"][0]
    told = "\n".join(run_remotely(command))
    assert told == f"0\n{tmp_path / name}\n-m\nmodule\nthe words"


def test_ssh_still_takes_a_command(tmp_path, monkeypatch):
    python = odd_python(tmp_path, "plain")
    monkeypatch.setenv("MY_ENV", str(python.parent))
    given = ["env LOCAL_RANK=7 $MY_ENV/python"] * 2
    options = {"hosts": ["head", "node1"], "remote_python": given}
    command = ssh.complete_options(ParallelConfig(env="ssh", options=options))["remote_python"][0]
    assert run_remotely(command)[0] == "7"


def test_options_of_ssh_workers_may_have_an_apostrophe():
    from distributed.deploy import ssh as dasks

    before, options = dasks.dumps, {"local_directory": "/tmp/it's"}
    with ssh._quoted_specs():
        text = dasks.dumps(options)
    assert dasks.dumps is before
    (found,) = shlex.split(f"'{text}'")
    assert json.loads(found) == options


@pytest.mark.parametrize(("name", "shell"), pairs(NAMES, ["sh", "bash"]))
def test_a_folder_is_one_word_on_one_line(tmp_path, name, shell):
    folder = tmp_path / name
    folder.mkdir()
    word = shell_folder(str(folder))
    assert len(word.splitlines()) == 1
    told = subprocess.run([shell, "-c", f"cd {word} && pwd"], capture_output=True, check=True)
    assert told.stdout.decode() == f"{folder}\n"


@pytest.mark.parametrize(("name", "env"), pairs(NAMES, SCHEDULERS))
def test_no_folder_of_a_run_becomes_a_line_of_a_job_script(tmp_path, monkeypatch, env, name):
    root = tmp_path / f"{name}\n#$ -q other\n#SBATCH -p other\n#PBS -q x\n#BSUB -q x\n"
    root.mkdir()
    monkeypatch.chdir(root)
    options = {"cores": 1, "memory": "1GB", **SCHEDULERS[env]}
    config = ParallelConfig(env=env, mode="async", options=options)
    plain = make_job(config, WorkerJob((tmp_path,)), 0.0).job_script().splitlines()
    lines = make_job(config, WorkerJob((root,)), 0.0).job_script().splitlines()
    assert len(lines) == len(plain)
    marks = ("#$", "#SBATCH", "#PBS", "#BSUB", "#OAR")
    options_of = [line for line in lines if line.startswith(marks)]
    assert options_of == [line for line in plain if line.startswith(marks)]


@pytest.mark.parametrize("name", [*NAMES, "\r", "\x0b", "\x85", "\u2028", "a\udcffb"])
def test_folders_come_back_from_their_words(name):
    (word,) = encode_folders([Path("/x") / name])
    assert len(word.splitlines()) == 1
    assert decode_folder(word) == Path("/x") / name


@pytest.mark.parametrize("name", [n for n in NAMES if "\n" not in n and n != "~"])
def test_a_python_that_is_named_runs_whatever_its_path(tmp_path, name):
    python = odd_python(tmp_path, name)
    options = {"cores": 1, "memory": "1GB", "python": str(python)}
    config = ParallelConfig(env="slurm", options=options)
    word = complete_options(config, is_dry=True)["python"]
    told = subprocess.run(["bash", "-c", f"{word} there"], capture_output=True, text=True)
    assert told.stdout.splitlines()[-1] == "there"


@pytest.mark.parametrize("python", ["python3", "$HOME/env/bin/python", "singularity exec x python"])
def test_a_python_that_is_a_command_stays_as_it_is(python):
    options = {"cores": 1, "memory": "1GB", "python": python}
    config = ParallelConfig(env="slurm", options=options)
    assert complete_options(config, is_dry=True)["python"] == python


@pytest.mark.parametrize("name", ["my logs", "it's", 'a"b', "`x`", "a;b", "(x)"])
def test_a_folder_for_logs_that_no_directive_can_have_is_refused(tmp_path, name):
    options = {"cores": 1, "memory": "1GB", "log_directory": str(tmp_path / name)}
    config = ParallelConfig(env="slurm", options=options)
    with pytest.raises(ConfigError, match=r"parallel\.options\.log_directory.*logs/jobs"):
        complete_options(config, is_dry=True)
    assert not os.listdir(tmp_path)

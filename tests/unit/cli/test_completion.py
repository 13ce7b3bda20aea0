"""Tab in real shells completes commands, stages, files and keys, and imports nothing heavy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.cli.completion import SHELLS, answer
from espnet3.cli.main import VERBS, main

ROOT = Path(__file__).parents[3]
BASH = """
eval "$(espnet3 completion bash)"
complete -p espnet3 | grep -q -- '-F _espnet3' || exit 3
compopt() { :; }  # which is for use within a completion that readline started
COMP_LINE="$1" COMP_POINT=${#1}
COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'
_espnet3
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compdef() { :; }
compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -l -- "$@"; }
eval "$(espnet3 completion zsh)"
LBUFFER="$1"
_espnet3
"""
FISH = """
espnet3 completion fish | source
complete -C $argv[1]
"""
PROGRAMS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    folder = tmp_path / "it's mine"
    shutil.copytree(ROOT / "egs3/TEMPLATE/runner", folder, ignore=shutil.ignore_patterns("data"))
    shutil.copyfile(ROOT / "egs3/TEMPLATE/asr/conf/inference.yaml", folder / "conf/inference.yaml")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("espnet3 sta", ["status"]),
        ("espnet3 run --stages loud", ["loudness"]),
        ("espnet3 launch conf/infe", ["conf/inference.yaml"]),
        ("espnet3 run --stages infer parallel.env=sl", ["parallel.env=slurm"]),
    ],
)
def test_a_shell_completes(shell, line, expected, recipe, monkeypatch):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    script = recipe / "ask"
    script.write_text(PROGRAMS[shell])
    done = subprocess.run(
        [shell, script, line], capture_output=True, text=True, timeout=60, check=True
    )
    if shell == "bash" and "=" in line:  # which replaces only what stands behind =
        expected = ["slurm"]
    assert done.stdout.split() == expected, done.stderr


def test_the_stages_of_a_recipe_are_known(recipe):
    assert {"all", "infer", "train", "loudness"} <= set(answer("espnet3 run --stages "))


def test_files_of_other_kinds_are_left_out(recipe):
    found = answer("espnet3 run --inference_config conf/")
    assert "conf/inference.yaml" in found
    assert answer("espnet3 run --training_config conf/infe") == ["conf/inference.yaml"]  # a path


def test_keys_are_completed_block_by_block():
    assert answer("espnet3 run --stages infer paral") == ["parallel."]
    assert "parallel.n_workers=" in answer("espnet3 run --stages infer parallel.")
    assert answer("espnet3 run trainer.max_ep") == ["trainer.max_epochs="]
    assert answer("espnet3 run parallel.mode=") == ["parallel.mode=async", "parallel.mode=sync"]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "completion"])
def test_options_are_those_of_the_help(verb):
    assert "--help" in answer(f"espnet3 {verb} --")


def test_the_answer_imports_nothing_heavy(recipe):
    code = (
        "import sys; from espnet3.cli.completion import answer; answer('espnet3 run --stages in');"
        "answer('espnet3 run parallel.n'); answer('espnet3 run --config c'); answer('espnet3 s');"
        "heavy = ('torch', 'dask', 'lightning', 'pydantic', 'numpy');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_unknown_shell_is_answered_with_a_line(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert 'eval "$(espnet3 completion bash)"' in capsys.readouterr().err

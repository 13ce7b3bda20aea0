import sys
from pathlib import Path

import pytest

from espnet3.cli.main import main

RUN_PY = """
import sys
assert "--dry-run" in sys.argv
if any(word.startswith("model.broken") for word in sys.argv):
    sys.exit("espnet3: model._target_ is wrong. Write: _target_: src.model.Model")
"""
TRAINING = "trainer: {accelerator: cpu, devices: 2, num_nodes: 2}\n"


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "my recipe"
    (folder / "conf").mkdir(parents=True)
    (folder / "run.py").write_text(RUN_PY)
    (folder / "conf/training.yaml").write_text(TRAINING)
    (folder / "conf/launch.yaml").write_text('launch: {scheduler: slurm, time: "01:00:00"}\n')
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "sbatch").write_text(f'#!/bin/bash\necho "$@" >>{tmp_path}/called\necho 123\n')
    (binaries / "sbatch").chmod(0o700)
    monkeypatch.setenv("PATH", f"{binaries}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(folder)
    return folder


def launch(*words: str) -> int:
    return main(["launch", "conf/training.yaml", "conf/launch.yaml", *words])


def test_the_script_is_shown_and_nothing_is_written_by_a_dry_run(recipe, capsys):
    assert launch("--dry-run", "trainer.max_epochs=3") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("#!/bin/bash\n#SBATCH --job-name=training\n")
    arguments = "--training_config conf/training.yaml conf/launch.yaml trainer.max_epochs=3"
    assert f"arguments=({arguments})\n" in captured.out
    assert f"Would be written to {recipe}/exp/training/launch/" in captured.err
    assert not (recipe / "exp").exists()
    assert not (recipe.parent / "called").exists()


def test_a_job_is_submitted_and_can_be_followed(recipe, capsys):
    assert launch() == 0
    (script,) = recipe.glob("exp/training/launch/*.sh")
    assert (recipe.parent / "called").read_text() == f"--parsable {script}\n"
    shown = capsys.readouterr().out
    assert "Submitted job 123: 2 nodes x 2 processes, 0 GPUs on each node" in shown
    assert f"  follow: tail -F '{script.with_suffix('.log')}'\n" in shown
    assert "  state:  squeue --job 123\n  stop:   scancel 123\n" in shown


def test_a_recipe_is_found_from_elsewhere_by_its_config(recipe, monkeypatch, capsys):
    monkeypatch.chdir(recipe.parent)
    files = [f"{recipe}/conf/training.yaml", "my recipe/conf/launch.yaml"]
    assert main(["launch", *files, "--dry-run"]) == 0
    assert "--training_config conf/training.yaml conf/launch.yaml)" in capsys.readouterr().out


def test_what_the_recipe_refuses_is_not_submitted(recipe, capsys):
    assert launch("model.broken=1") == 1
    shown = capsys.readouterr().err
    assert "espnet3: model._target_ is wrong. Write: _target_: src.model.Model\n" in shown
    assert "Nothing was submitted. To see it again: python run.py --stages train" in shown
    assert not (recipe / "exp").exists()
    assert launch("model.broken=1", "--no-check") == 0


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--stages", "infer"], "It runs train, and around it: create_dataset, train_tokenizer,"),
        (["--stages", "trainn"], "Did you mean 'train'?"),
        (["--stages", "3"], "python run.py --stages collect_stats --training_config FILE"),
    ],
)
def test_other_stages_are_refused(recipe, capsys, words, advice):
    assert launch(*words) == 2
    assert advice in capsys.readouterr().err


def test_stages_of_the_training_config_run_around_it_in_their_order(recipe, capsys):
    assert launch("--stages", "average", "4", "collect_stats", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    positions = [lines.index(f"alone {stage}") for stage in ("collect_stats", "average")]
    assert positions[0] < lines.index("code=$?") < positions[1]


def test_a_folder_without_a_recipe_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "conf/a.yaml"]) == 2
    assert "cd egs3/CORPUS/TASK" in capsys.readouterr().err


def test_a_mistake_in_the_block_is_one_line(recipe, capsys):
    assert launch("launch.time=3600") == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert 'quote it: time: "01:00:00"' in shown

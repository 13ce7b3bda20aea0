"""`espnet3 plan` on a small recipe: what it tells, and that it leaves no trace."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from espnet3.cli.main import main
from espnet3.shards.plan import OPERATIONS_PER_SHARD, OPERATIONS_PER_WORKER
from espnet3.systems.base.inference import infer
from espnet3.text import duration
from tests.helpers.inference_parts import Dataset

PARTS = "tests.helpers.inference_parts"
RUN_PY = """
import sys
from espnet3.cli.recipe import run_recipe
from espnet3.systems.base.system import BaseSystem

if __name__ == "__main__":
    sys.exit(run_recipe(BaseSystem))
"""
OWN_SYSTEM = """
from espnet3.cli.recipe import run_recipe
from espnet3.systems.base.system import BaseSystem

class Mine(BaseSystem):
    def infer(self):
        open("ran", "w")

if __name__ == "__main__":
    raise SystemExit(run_recipe(Mine))
"""
INFERENCE = f"""
dataset:
  test:
    - {{name: clean, data_src: {PARTS}, data_src_args: {{n: 200}}}}
    - {{name: other, data_src: {PARTS}, data_src_args: {{n: 100}}}}
model: {{_target_: {PARTS}.Speller}}
parallel: {{n_workers: 2}}
batch_seconds: 20
"""
SLURM = """
parallel:
  env: slurm
  n_workers: 8
  options:
    queue: gpu
    cores: 4
    memory: 8GB
    walltime: "01:00:00"
    log_directory: logs/dask
    interface: lo
    job_extra_directives: ["--gres=gpu:1"]
"""
TRAINING = """
dataset:
  train: [{name: train, data_src: tests.helpers.statistics_parts, data_src_args: {n: 40}}]
trainer: {max_epochs: 1}
"""
AUDIO = sum(Dataset(200).durations()) + sum(Dataset(100).durations())


@pytest.fixture
def recipe(awkward, monkeypatch) -> Path:
    (awkward / "conf").mkdir()
    (awkward / "run.py").write_text(RUN_PY)
    (awkward / "conf/inference.yaml").write_text(INFERENCE)
    (awkward / "conf/slurm.yaml").write_text(SLURM)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(awkward)
    return awkward


def plan(capsys, *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def rows(text: str) -> dict[int, list[str]]:
    """Return the cells of the table by the number of workers."""
    lines = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    return {int(cells[0]): cells[1:] for cells in lines if cells[0].isdigit()}


def everything(folder: Path) -> dict[str, float]:
    return {str(path): path.lstat().st_mtime_ns for path in folder.rglob("*")}


def decode(recipe: Path, *overrides: str) -> None:
    from espnet3.systems.base.context import load_configs

    files = {"inference": [recipe / "conf/inference.yaml"]}
    loaded = load_configs(files, overrides, recipe_dir=recipe).inference
    infer(loaded)


def test_times_for_numbers_of_workers_follow_from_a_stated_rate(recipe, capsys):
    text = plan(capsys, "conf/inference.yaml", "conf/slurm.yaml", "--rtf", "36")
    assert "workers: 8 on env: slurm, 1 GPU each" in text
    assert "clean: 200 items, 9 min " in text
    assert "sorted by length" in text
    assert "rate: real-time factor 36, as stated" in text
    found = rows(text)
    assert list(found) == [1, 2, 4, 8, 16]
    shards, time, efficiency, worker_hours, gpu_hours = found[1]
    assert time == duration(36 * AUDIO)
    assert (efficiency, worker_hours, gpu_hours) == ("100%", f"{AUDIO / 100:.3g}", worker_hours)
    assert int(found[8][0]) > int(shards)  # cut finer for more workers
    assert AUDIO / 100 - 0.01 <= float(found[8][3]) < AUDIO / 100 / 0.8
    assert "walltime: 1 h 00 min; the longest shard takes" in text
    assert "but the run does not: jobs whose time is up are replaced" in text
    once = int(found[8][0]) * OPERATIONS_PER_SHARD + 8 * OPERATIONS_PER_WORKER
    rate = re.search(r"files: 8 workers: about (\d+) operations a second\n", text)
    assert int(rate[1]) == pytest.approx(once * 8 / (36 * AUDIO) + 2, abs=1)
    assert "#SBATCH --gres=gpu:1" in text


def test_workers_that_ask_too_much_of_a_file_server_are_told(recipe, capsys):
    many = ("parallel.n_workers=20000", "parallel.shards_per_worker=16")
    text = plan(capsys, "conf/inference.yaml", "conf/slurm.yaml", *many, "--rtf", "0.001")
    assert "more than 30% of what a file server with 10,000 can do" in text
    assert "fewer and longer shards: parallel.shards_per_worker" in text


def test_a_shard_that_cannot_end_within_the_walltime_is_told(recipe, capsys):
    text = plan(capsys, "conf/inference.yaml", "conf/slurm.yaml", "--rtf", "3600")
    assert "so it could never end. Cut it finer, parallel.shards_per_worker=" in text


def test_what_fits_is_said_to_fit(recipe, capsys):
    words = ("--seconds-per-item", "0.1", "--load-seconds", "5")
    text = plan(capsys, "conf/inference.yaml", "conf/slurm.yaml", *words)
    assert "rate: 0.1 s per item, 5 s to load, as stated" in text
    assert "so it fits, and so does the run" in text
    assert rows(text)[1][1] == "40 s"  # 300 items, and two loads


def test_without_a_rate_it_says_how_to_state_one(recipe, capsys):
    text = plan(capsys, "conf/inference.yaml")
    assert "exp holds no earlier run of InferenceRunner. State one: --rtf 0.05 or " in text
    assert "2 workers busy " in text
    assert not rows(text)
    data = "dataset.test.0.data_src_args.knows_durations=false"
    text = plan(capsys, "conf/inference.yaml", data, "test_set=clean", "batch_seconds=null")
    assert "State one: --seconds-per-item 0.2" in text


def test_a_factor_for_items_without_durations_is_refused(recipe, capsys):
    words = ["dataset.test.0.data_src_args.knows_durations=false", "batch_seconds=null"]
    assert main(["plan", "conf/inference.yaml", *words, "--rtf", "0.1"]) == 1
    assert "Write --seconds-per-item 0.2 instead" in capsys.readouterr().err


def test_an_earlier_run_tells_the_rate_and_what_is_left(recipe, capsys):
    decode(recipe)
    complete = plan(capsys, "conf/inference.yaml")
    assert "nothing is left to do; to do all of it again: runner.resume=false" in complete
    folder = recipe / "exp/inference/clean"
    (folder / "_SUCCESS.json").unlink()
    for shard in ("split.00", "split.05"):
        shutil.rmtree(folder / shard)
    text = plan(capsys, "conf/inference.yaml")
    n_shards = len(list(folder.glob("split.*")))
    assert f"{n_shards} of {n_shards + 2} shards are done" in text
    assert re.search(r"left: \d+ items in 2 shards", text)
    assert re.search(r"measured on \d+ items in .*clean, .* on this machine", text)
    assert rows(text)[2][0] == "2"


def test_a_rate_comes_from_beside_and_differences_are_named(recipe, capsys):
    decode(recipe, "test_set=clean")
    text = plan(capsys, "conf/inference.yaml", "test_set=other")
    assert re.search(r"measured on 200 items in \S+/inference/clean, .* on this machine\n", text)
    text = plan(capsys, "conf/inference.yaml", "exp_tag=new", "model.beam_size=8")
    assert "but that run had another config.model.beam_size" in text


def test_another_run_in_the_folder_would_be_refused_and_is_planned_whole(recipe, capsys):
    decode(recipe, "test_set=clean")
    text = plan(capsys, "conf/inference.yaml", "test_set=clean", "model.beam_size=8")
    assert "would be refused, results of another run are there: config.model.beam_size" in text
    assert "left:" not in text
    assert rows(text)


def test_nothing_is_written_or_started(recipe, capsys, monkeypatch):
    decode(recipe)
    capsys.readouterr()
    before = everything(recipe)
    monkeypatch.setattr("subprocess.Popen.__init__", _refuse)
    plan(capsys, "conf/inference.yaml", "conf/slurm.yaml", "runner.resume=false")
    assert everything(recipe) == before


def _refuse(self, command, *args, **kwargs):
    raise FileNotFoundError(command)


def test_a_recipe_is_found_from_elsewhere(recipe, capsys, monkeypatch):
    monkeypatch.chdir(recipe.parent)
    for words in (
        [str(recipe), "conf/inference.yaml"],
        ["--recipe", recipe.name, "conf/inference.yaml"],
        [f"{recipe.name}/conf/inference.yaml"],
    ):
        os.chdir(recipe.parent)
        assert "Stage infer (6)" in plan(capsys, *words)


def test_a_training_config_has_the_runs_of_collect_stats(recipe, capsys):
    training = TRAINING.replace("tests.helpers.statistics_parts", PARTS)
    (recipe / "conf/training.yaml").write_text(training)
    text = plan(capsys, "conf/training.yaml", "--seconds-per-item", "1")
    assert "Stage collect_stats (3)" in text
    assert "Stage infer" not in text
    assert "train: 40 items" in text
    assert "set batch_seconds" not in text
    words = ("conf/inference.yaml", "--training_config", "conf/training.yaml")
    both = plan(capsys, *words, "--rtf", "1")
    assert both.index("Stage collect_stats (3)") < both.index("Stage infer (6)")
    assert "exp/training/inference/clean" in both  # the experiment is that of the training
    assert "collect_stats" not in plan(capsys, *words, "--stages", "infer", "--rtf", "1")


def test_a_stage_of_the_recipes_own_is_not_taken_for_ours(recipe, capsys):
    (recipe / "run.py").write_text(OWN_SYSTEM)
    text = plan(capsys, "conf/inference.yaml")
    assert "note: Mine.infer() is the recipe's own" in text
    assert not (recipe / "ran").exists()


def test_a_script_without_a_guard_runs_nothing(recipe, capsys):
    (recipe / "run.py").write_text(OWN_SYSTEM.replace('__name__ == "__main__"', "True"))
    assert "Stage infer (6)" in plan(capsys, "conf/inference.yaml")
    assert not (recipe / "ran").exists()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "Write: espnet3 plan conf/inference.yaml"),
        (["conf/inference.yaml", "--stages", "train"], "It plans collect_stats and infer"),
        (["conf/inference.yaml", "--stages", "collect_stats"], "needs --training_config FILE"),
        (["--recipe", "conf", "conf/inference.yaml"], "holds no run.py"),
        (["conf/inference.yaml", "--rtf", "-1"], "is not above 0"),
    ],
)
def test_wrong_calls_say_what_to_write(recipe, capsys, words, hint):
    try:
        code = main(["plan", *words])
    except SystemExit as end:  # of argparse
        code = end.code
    assert code == 2
    assert hint in " ".join(capsys.readouterr().err.split())


def test_files_are_counted_and_too_many_are_told_with_what_to_write(recipe, capsys, monkeypatch):
    assert main(["plan", "conf/inference.yaml"]) == 0
    text = capsys.readouterr().out
    n_shards = int(re.search(r"shards: (\d+), of", text)[1])
    assert f"files: about {3 * n_shards + 4 * 2} in " in text
    assert "too many" not in text
    monkeypatch.setattr("espnet3.parallel.folder_run.count_free_files", lambda folder: 30)
    assert main(["plan", "conf/inference.yaml"]) == 0
    text = capsys.readouterr().out
    assert re.search(
        r"too many, the file system has room for 30 more. Larger shards: "
        r"parallel.shards_per_worker=[1-9]\b", text,
    )  # fmt: skip

"""Files that are merged although they do not go together, and files behind the wrong option."""

import re
import shlex

import pytest

from espnet3.cli.console import UsageError
from espnet3.cli.recipe_configs import check_kinds
from espnet3.cli.recipe_options import Options, parse_options
from espnet3.systems.base.stages import stages_of
from espnet3.systems.base.system import BaseSystem
from tests.helpers.recognizer_parts import make_experiment
from tests.helpers.shipped_recipes import HERE, ShippedRecipe

TRAINING, INFERENCE, METRICS = (f"conf/{k}.yaml" for k in ("training", "inference", "metrics"))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    recipe = ShippedRecipe("digits/asr", tmp_path_factory.mktemp("d") / "my asr")
    make_experiment(recipe.folder)
    return recipe


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (f"--stages train --config {TRAINING} {INFERENCE}",
         f"--stages train --training_config {TRAINING} --inference_config {INFERENCE}"),
        (f"--stages train infer --config {TRAINING} {INFERENCE} conf/parallel_local.yaml",
         f"--stages train infer --training_config {TRAINING} --inference_config {INFERENCE} "
         "conf/parallel_local.yaml"),
        (f"--config {INFERENCE} {TRAINING} seed=1 --stage 6",
         f"seed=1 --stage 6 --training_config {TRAINING} --inference_config {INFERENCE}"),
        (f"--stages train --training_config {TRAINING} {INFERENCE}",
         f"--stages train --training_config {TRAINING} --inference_config {INFERENCE}"),
        (f"--stages infer --inference_config {TRAINING}",
         f"--stages infer --training_config {TRAINING} --inference_config {INFERENCE}"),
        (f"--stages infer --inference-config {METRICS}",
         f"--stages infer --inference_config {INFERENCE} --metrics_config {METRICS}"),
        (f"--stage 6 --config {METRICS}",
         f"--stage 6 --inference_config {INFERENCE} --metrics_config {METRICS}"),
        (f"--stages train --training_config {INFERENCE}",
         f"--stages train --training_config {TRAINING} --inference_config {INFERENCE}"),
        (f"--stages measure --metrics_config {INFERENCE}",
         f"--stages measure --inference_config {INFERENCE} --metrics_config {METRICS}"),
        (f"--stages measure --metrics_config {TRAINING} --inference_config {INFERENCE}",
         f"--stages measure --inference_config {INFERENCE} --training_config {TRAINING} "
         f"--metrics_config {METRICS}"),
        (f"--stage 6 --training_config {INFERENCE} --inference_config {INFERENCE}",
         f"--stage 6 --inference_config {INFERENCE} --training_config {TRAINING}"),
        (f"--stages infer measure --config {INFERENCE}",
         f"--stages infer measure --inference_config {INFERENCE} --metrics_config {METRICS}"),
        (f"--stages train-measure --config {TRAINING}",
         f"--stages train-measure --training_config {TRAINING} --inference_config {INFERENCE} "
         f"--metrics_config {METRICS}"),
    ],
)  # fmt: skip
def test_the_line_to_type_is_told(digits, capfd, words, right):
    digits.run_here(digits.system, *shlex.split(words), code=2)
    line = re.search(r"Write: python run\.py (.*)", capfd.readouterr().err)[1]
    assert line == right
    # Pasted, it is right: what is told then, if anything, is about data that is not there.
    try:
        digits.run_here(digits.system, *shlex.split(line), "--dry-run")
    except AssertionError:
        assert "Write: python run.py" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("stages", "files"),
    [
        ("infer measure", f"{INFERENCE} {METRICS}"),
        ("infer", f"{INFERENCE} {METRICS} conf/parallel_local.yaml"),
    ],
)
def test_inference_and_metrics_may_be_one_config(digits, stages, files):
    words = ["--stages", *stages.split(), "--config", *files.split(), HERE[0]]
    digits.run_here(digits.system, *words)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("optimizer: {}\noutput_fn: a.b\n", "output_keys: [hyp]\n", "--stage 6"),  # all in one
        ("optimizer: {}\n", "trainer: {devices: 2}\nlaunch: {}\n", "--stage 4"),
        ("optimizer: {}\n", "dataset: {test: [{name: a}]}\n", "--stage 4"),
        ("dataset: {train: [], test: []}\nmodel: {}\n", "parallel: {}\n", "--stage 6"),
        ("output_fn: a.b\n", "optimizer: {}\noutput_keys: []\n", "--stage 6"),
        ("dataset: {test: []}\n", "metrics: []\n", "--stage 7"),
        ("output_fn: a.b\nmetrics: []\n", "{}\n", "--stage 7"),
        ("output_fn: a.b\n", "{}\n", "--stage 8"),
        ("output_fn: a.b\n", "{}\n", "--stage 1"),
        ("{}\n", "{}\n", "--stage 4"),
    ],
)
def test_what_may_be_meant_is_let_pass(tmp_path, first, second, words):
    files = (tmp_path / "first.yaml", tmp_path / "second.yaml")
    for file, text in zip(files, (first, second), strict=True):
        file.write_text(text)
    check(f"{words} --config {files[0]} {files[1]}", files)


def test_a_stage_of_ones_own_may_read_anything(tmp_path):
    class Mine(BaseSystem):
        def infer(self): ...

    file = tmp_path / "a.yaml"
    file.write_text("optimizer: {}\n")
    check(f"--stage 6 --config {file}", [file], Mine)
    with pytest.raises(UsageError, match="is a training config"):
        check(f"--stage 6 --config {file}", [file])


def check(words, files, system=BaseSystem):
    stages = stages_of(system)
    options: Options = parse_options(shlex.split(words), stages, prog="run.py")
    chosen = [s for s in stages if str(s.number) in options.stages]
    names = [str(file) for file in files]
    slots = {stage.configs[0]: names for stage in chosen}
    check_kinds(system, chosen, options, slots, slots)


def test_a_missing_file_of_data_is_no_bare_errno(tmp_path, capfd):
    template = ShippedRecipe("TEMPLATE/asr", tmp_path / "asr")
    template.run_here(template.system, "--stages", "train", "--config", TRAINING, code=1)
    told = capfd.readouterr().err
    assert "data/train/manifest.jsonl" in told
    assert "dataset.train.0" in told
    line = re.search(r"python run\.py (--stages create_dataset.*)", told)[1]
    template.run_here(template.system, *shlex.split(line), "create_dataset.n_training=2")
    assert (template.folder / "data/train/manifest.jsonl").exists()


def test_all_stages_of_a_recipe_that_only_decodes(tmp_path):
    template = ShippedRecipe("TEMPLATE/asr", tmp_path / "asr")
    words = ["--stages", "all", "--config", INFERENCE, METRICS, "--dry-run"]
    template.run_here(template.system, *words)

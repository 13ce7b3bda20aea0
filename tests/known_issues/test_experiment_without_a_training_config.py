"""`run.py --stage 6 --config conf/inference.yaml` as printed, after a training of the recipe.

Which experiment is meant is found if there is one, and asked for if there are several.
"""

import re
import shlex
import shutil

import pytest

from tests.helpers.recognizer_parts import WEIGHTS, make_experiment
from tests.helpers.shipped_recipes import DECODING, HERE, INFER, ShippedRecipe

LOCAL = HERE[:1]
MEASURE = ("--stage", "7", "--config", "conf/metrics.yaml")
# The experiment is that of one of our recognisers.
_OTHERS = ("TEMPLATE/asr", "TEMPLATE/classifier", "moonshine/asr", "librispeech/asr")
TRAINED = [name for name in DECODING if name not in _OTHERS]


@pytest.fixture
def digits(tmp_path):
    """Return the recipe after a training, and a function that runs it and returns what it said."""
    recipe = ShippedRecipe("digits/asr", tmp_path / "it's asr")
    make_experiment(recipe.folder)
    return recipe


def shown(capfd):
    captured = capfd.readouterr()
    return captured.out + captured.err


def pasted(recipe, text):
    """Return the arguments of the first line to type."""
    line = re.search(r"python run\.py (.*)", text)[1]
    return shlex.split(line)


@pytest.mark.parametrize("name", TRAINED)
def test_the_printed_line_decodes_with_the_one_experiment_that_fits(name, tmp_path):
    recipe = ShippedRecipe(name, tmp_path / "my asr")
    make_experiment(recipe.folder)
    other = recipe.folder / "exp" / "lm"  # one without such weights
    other.mkdir()
    (other / "config.yaml").write_text("{}")
    # The random model is of 8 kHz.
    rate = (
        "dataset.test.0.data_src_args.sample_rate=8000",
        "dataset.test.0.data_src_args.resample=true",
    )
    words = () if name in ("digits/asr", "commands/asr") else rate
    recipe.run_here(recipe.system, *INFER, *LOCAL, *words)
    assert len(recipe.hyps(tag="training")) == 2
    assert not (recipe.folder / "exp" / "inference").exists()


def test_what_was_found_is_told(digits, caplog):
    caplog.set_level("INFO", "espnet3")
    digits.run_here(digits.system, *INFER, "--dry-run")
    assert "exp_dir is exp/training, the only one with such weights" in caplog.text


def test_results_are_those_of_a_run_that_named_the_training(digits):
    """So the demo's results are found complete, and are not refused."""
    config = digits.folder / "exp/training/config.yaml"
    config.write_text(f"exp_tag: training\nseed: 0\ndata_dir: ./data\n{config.read_text()}")
    training = digits.folder / "conf/training.yaml"
    training.write_text("seed: 0\n")
    digits.run_here(digits.system, *INFER, *LOCAL, "--training_config", "conf/training.yaml")
    manifest = digits.folder / "exp/training/inference/test_seen/manifest.json"
    before = manifest.read_text()
    digits.run_here(digits.system, *INFER, *LOCAL)
    assert manifest.read_text() == before


def test_of_several_experiments_one_has_to_be_named(digits, capfd):
    shutil.copytree(digits.folder / "exp/training", digits.folder / "exp/other")
    digits.run_here(digits.system, *INFER, *LOCAL, code=1)
    text = shown(capfd)
    assert "exp/other, exp/training" in text
    assert "--stage 6 --config conf/inference.yaml" in text  # the words that were typed
    assert not (digits.folder / "exp/inference").exists()
    digits.run_here(digits.system, *pasted(digits, text))
    assert (digits.folder / "exp/other/inference/test_seen/hyp.scp").exists()


def test_the_config_of_the_training_is_named_where_the_recipe_has_it(digits, capfd):
    shutil.copytree(digits.folder / "exp/training", digits.folder / "exp/other")
    digits.run_here(digits.system, *INFER, code=1)
    assert "--config conf/inference.yaml --training_config conf/training.yaml\n" in shown(capfd)


def test_weights_of_another_name_are_named(digits, capfd):
    trained = digits.folder / "exp/training"
    (trained / WEIGHTS).rename(trained / "valid.loss.ave_1best.safetensors")
    digits.run_here(digits.system, *INFER, *LOCAL, code=1)
    text = shown(capfd)
    line = re.search(r"model\.weights=\S+", text)[0]
    assert line == "model.weights=exp/training/valid.loss.ave_1best.safetensors"
    digits.run_here(digits.system, *INFER, *LOCAL, line)


def test_without_any_training_it_says_to_train(tmp_path, capfd):
    recipe = ShippedRecipe("digits/asr", tmp_path / "asr")
    recipe.run_here(recipe.system, *INFER, code=1)
    files = "--inference_config conf/inference.yaml --training_config conf/training.yaml"
    assert f"python run.py --stages train {files}" in shown(capfd)


def test_a_folder_that_was_chosen_is_not_replaced(digits, capfd):
    digits.run_here(digits.system, *INFER, "exp_tag=mine", code=1)
    assert "exp/mine" in shown(capfd)


def test_a_model_that_is_not_trained_keeps_its_folder(tmp_path):
    recipe = ShippedRecipe("TEMPLATE/asr", tmp_path / "asr")
    make_experiment(recipe.folder)
    recipe.infer()
    assert len(recipe.hyps()) == 2


def test_measure_finds_the_only_results_of_a_model_that_is_not_trained(tmp_path, caplog):
    recipe = ShippedRecipe("TEMPLATE/asr", tmp_path / "asr")
    recipe.infer()
    caplog.set_level("INFO", "espnet3")
    recipe.run_here(recipe.system, *MEASURE, "metrics.0.metric.by=null")
    assert (recipe.folder / "exp/inference/metrics.json").exists()
    assert "inference_dir is exp/inference, the only one with results" in caplog.text


@pytest.mark.parametrize("is_old", [False, True])
def test_of_results_without_a_training_one_has_to_be_named_for_measure(tmp_path, capfd, is_old):
    recipe = ShippedRecipe("TEMPLATE/asr", tmp_path / "asr")
    recipe.infer()
    if is_old:  # as an earlier version left them
        (recipe.folder / "exp/inference/inference").mkdir()
        for name in ("clean", "noisy"):
            place = recipe.folder / "exp/inference" / name
            place.rename(place.parent / "inference" / name)
    recipe.run_here(recipe.system, *INFER, "inference_dir=exp/inference/beam")
    recipe.run_here(recipe.system, *MEASURE, code=1)
    text = shown(capfd)
    first = "exp/inference/beam" if is_old else "exp/inference"
    recipe.run_here(recipe.system, *pasted(recipe, text), "metrics.0.metric.by=null")
    assert (recipe.folder / first / "metrics.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        MEASURE,
        ("--stage", "7", "--inference_config", "conf/inference.yaml",
         "--metrics_config", "conf/metrics.yaml"),
    ],
)  # fmt: skip
def test_measure_finds_the_only_results(digits, words):
    digits.run_here(digits.system, *INFER, *LOCAL)
    digits.run_here(digits.system, *words, "metrics.0.metric.by=null", "metrics.1.metric.by=null")
    assert (digits.folder / "exp/training/inference/metrics.json").exists()
    assert {path.name for path in (digits.folder / "exp").iterdir()} == {"training"}


def test_of_several_results_one_has_to_be_named_for_measure(digits, capfd):
    digits.run_here(digits.system, *INFER, *LOCAL)
    results = digits.folder / "exp/training/inference"
    shutil.copytree(results, results.with_name("beam"))
    digits.run_here(digits.system, *MEASURE, code=1)
    text = shown(capfd)
    assert "exp/training/beam, exp/training/inference" in text
    digits.run_here(digits.system, *pasted(digits, text))
    assert (results.with_name("beam") / "metrics.json").exists()


def test_infer_and_measure_in_one_line(digits):
    files = ("--config", "conf/inference.yaml", "conf/metrics.yaml")
    digits.run_here(digits.system, "--stages", "infer", "measure", *files, *LOCAL)
    assert (digits.folder / "exp/training/inference/metrics.json").exists()


def test_making_data_asks_for_no_experiment(digits):
    shutil.copytree(digits.folder / "exp/training", digits.folder / "exp/other")
    words = ("--stage", "1", "--config", "conf/inference.yaml", "--dry-run")
    digits.run_here(digits.system, *words)


def test_a_folder_that_a_failed_call_left_behind_is_not_taken_for_an_experiment(digits):
    for name in ("inference", "publication"):
        (digits.folder / "exp" / name).mkdir()
    digits.run_here(digits.system, *INFER, *LOCAL)
    assert len(digits.hyps(tag="training")) == 2
    digits.run_here(
        digits.system, "--stages", "pack_model", "--publication_config", "conf/publication.yaml"
    )
    assert (digits.folder / "exp/training/packed/meta.yaml").exists()

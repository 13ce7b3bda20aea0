"""Lines that messages suggest: each is pasted as it stands, and works on the same experiment."""

import json
import os
import re
import shlex
import sys

import pytest

from espnet3.cli.main import main
from espnet3.cli.recipe import run_recipe
from espnet3.systems.base.system import BaseSystem

PARTS = "tests.helpers.inference_parts"
DECODING = f"""\
dataset:
  test:
    - {{name: digits, data_src: {PARTS}, data_src_args: {{n: 12}}}}
    - {{name: "more digits", data_src: {PARTS}, data_src_args: {{n: 3, prefix: more}}}}
model: {{_target_: {PARTS}.Speller, beam_size: 5}}
input_key: speech
"""
SCORING = """\
metrics:
  - metric: {_target_: espnet3.systems.asr.metrics.wer.WER}
"""
# Other names than those that a guess would take, and one that a shell would split.
INFERENCE, METRICS = "conf/decode all.yaml", "conf/score.yaml"
OWN = ("exp_tag=mine", "vars.note=it's 5")


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Return a recipe folder; running it leaves neither folder nor import path behind."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "a recipe"
    (folder / "conf").mkdir(parents=True)
    (folder / INFERENCE).write_text(DECODING)
    (folder / METRICS).write_text(SCORING)
    # What a guess would run.
    (folder / "conf/inference.yaml").write_text(DECODING.replace("beam_size: 5", "beam_size: 1"))
    (folder / "conf/metrics.yaml").write_text(SCORING)
    return folder


@pytest.fixture
def call(recipe, capfd):
    """Return a function that runs the recipe with words of a command line."""

    def run(*words):
        code = run_recipe(BaseSystem, words, recipe_dir=recipe)
        os.chdir(recipe.parent)
        said = "".join(capfd.readouterr())
        print(said)  # for the report of a test that fails
        return code, said

    return run


def lines_of(text):
    """Return the commands of a recipe in a message, as words."""
    found = re.findall(r"python run\.py (--.*?)(?: ; |\n|$)", text)
    return [shlex.split(line) for line in found]


INFER = ("--stages", "infer", "--inference_config", INFERENCE, *OWN)
MEASURE = ("--stages", "measure", "--inference_config", INFERENCE, "--metrics_config", METRICS)


def test_changed_decoding_settings_offer_another_folder_for_results(call, recipe):
    assert call(*INFER)[0] == 0
    code, said = call(*INFER, "model.beam_size=9")
    assert code == 1
    elsewhere, anew, accepting = lines_of(said)
    assert "inference_dir=exp/mine/decode all_2" in [os.path.normpath(w) for w in elsewhere]
    for words in (elsewhere, accepting, anew):
        assert [INFERENCE, *OWN] == [word for word in words if word in (INFERENCE, *OWN)]
        assert call(*words)[0] == 0
    assert (recipe / "exp/mine/decode all_2/digits/hyp.scp").is_file()
    assert [folder.name for folder in (recipe / "exp").iterdir()] == ["mine"]


def test_measure_without_results_offers_to_decode_with_the_same_configs(call, recipe):
    code, said = call(*MEASURE, "exp_tag=mine")
    assert code == 1
    [words] = lines_of(said)
    assert call(*words)[0] == 0
    assert (recipe / "exp/mine/decode all/metrics.json").is_file()
    assert not (recipe / "exp/mine/inference").exists()


def test_measure_alone_offers_a_config_of_the_recipe_and_keeps_the_folder(call, recipe):
    code, said = call("--stages", "measure", "--config", METRICS, "exp_tag=mine")
    assert code == 1
    [words] = lines_of(said)
    assert call(*words)[0] == 0
    assert (recipe / "exp/mine/inference/metrics.json").is_file()


def test_failed_items_are_run_again_by_the_line_of_measure(call, recipe):
    picky = (f"model._target_={PARTS}.Picky", "runner.on_error=skip", "parallel.n_workers=1")
    code, said = call("--stages", "infer", *MEASURE[1:], *OWN, *picky)
    assert code == 1
    words = lines_of(said)[0]
    assert {INFERENCE, *OWN, *picky, "runner.retry_failed=true"} <= {*words}
    assert call(*words)[0] == 0
    assert [folder.name for folder in (recipe / "exp").iterdir()] == ["mine"]


def test_a_missing_field_is_written_by_the_line_of_measure(call):
    assert call(*INFER)[0] == 0
    speaker = ("metrics.0.inputs={ref: ref, hyp: speaker}",)
    code, said = call(*MEASURE, *OWN, *speaker)
    assert code == 1
    [words] = lines_of(said)
    assert call(*words)[0] == 0
    assert call(*MEASURE, *OWN, *speaker)[0] == 0


def test_an_override_of_other_stages_is_left_out_by_the_line(call):
    assert call(*INFER)[0] == 0
    code, said = call(*MEASURE, *OWN, "parallel.n_workers=1")
    assert code == 1
    assert said.count("would") == 1
    [words] = lines_of(said)
    assert words == [*MEASURE, *OWN]
    assert call(*words)[0] == 0


def test_config_files_given_as_one_list_stay_one(call):
    assert call("--stages", "infer", "--config", INFERENCE)[0] == 0
    code, said = call("--stages", "infer", "--config", INFERENCE, "model.suffix=a b")
    assert code == 1
    words = lines_of(said)[0]
    assert words[:4] == ["--stages", "infer", "--config", INFERENCE]
    assert call(*words)[0] == 0


def test_failures_name_the_utterance(call, recipe, capfd):
    picky = (f"model._target_={PARTS}.Picky", "runner.on_error=skip")
    assert call(*INFER, *picky)[0] == 0
    log = (recipe / "exp/mine/infer.log").read_text()
    assert "Item 7 (utt7) failed and is skipped: ValueError: seven again" in log
    folder = recipe / "exp/mine/decode all/digits"
    assert json.loads(next(folder.glob("split*/failed.jsonl")).read_text())["ids"] == ["utt7"]
    assert main(["failed", str(folder)]) == 0
    assert "Item 7, utt7 (position" in capfd.readouterr().out
    assert main(["explain", str(folder)]) == 0
    assert "1 item (utt7) failed: ValueError: seven again" in capfd.readouterr().out


def test_a_failed_batch_shows_three_ids_and_a_count(call):
    batches = (f"model._target_={PARTS}.PickyInBatches", "batch_size=12", "test_set=digits")
    code, said = call(*INFER, *batches)
    assert code == 1
    assert re.search(r"The batch of 12 items \(utt\d+, utt\d+, utt\d+ and 9 more\)", said)
    words = lines_of(said)[0]
    assert words[-1] == "runner.on_error=skip"
    assert call(*words)[0] == 0


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (
            ["model.beam_sise=3", "parallel.n_wokers=1", "parallel.retry=2"],
            ["model.beam_size=3", "parallel.n_workers=1", "parallel.retries=2"],
        ),
        (["nj=1", "mine=3"], ["parallel.n_workers=1"]),
    ],
)
def test_several_mistakes_have_one_line_that_corrects_all(call, recipe, wrong, right):
    code, said = call(*INFER, *wrong)
    assert code == 1
    assert said.count("\n- ") == len(wrong), said
    words = lines_of(said)[-1]
    assert set(words[len(INFER) :]) == set(right)
    assert call(*words)[0] == 0
    assert (recipe / "exp/mine/decode all/digits/hyp.scp").is_file()


def test_several_wrong_arguments_of_one_block_are_told_at_once(call, recipe):
    path = recipe / INFERENCE
    path.write_text(DECODING.replace("beam_size: 5", "beam_sise: 5, bem: 3"))
    code, said = call(*INFER)
    assert code == 1
    assert re.search(r"model\.beam_sise .*\n- model\.bem ", said), said


BOTH = ("--stages", "infer", "measure", *MEASURE[2:])
WRONG = {
    "runner.on_eror=skip": "runner.on_error=skip",
    "runner.max_erors=3": "runner.max_errors=3",
    "parallel.n_worker=1": "parallel.n_workers=1",
    "hyp_key=[]": "hyp_key=hyp",
    "metrics.0.metric.ref_kee=ref": "metrics.0.metric.ref_key=ref",
}


def test_all_wrong_keys_of_a_line_are_told_at_once_with_the_line_that_has_none(call):
    code, said = call(*BOTH, *OWN, *WRONG, "beam=3")
    assert code == 1
    assert said.count("\n- ") == len(WRONG) + 1
    assert "With all of these corrected: " in said
    words = lines_of(said)[-1]
    assert {*OWN, *WRONG.values()} == {word for word in words if "=" in word}
    assert call(*words)[0] == 0


def test_wrong_keys_of_files_and_of_the_line_are_told_at_once(call, recipe):
    text = DECODING.replace("data_src_args: {n: 3", "transfrm: null, data_src_args: {n: 3")
    wrong = "runner: {on_eror: skip}\noutput_keys: hyp, ref\nbatch_secs: 3\n"
    (recipe / INFERENCE).write_text(f"{text}{wrong}")
    (recipe / METRICS).write_text(f"{SCORING}    metrc: 1\n")
    (recipe / "conf/more.yaml").write_text("parallel: {n_wrokers: 1}\n")
    files = ("--inference_config", INFERENCE, "conf/more.yaml", "--metrics_config", METRICS)
    code, said = call(
        "--stages", "infer", "measure", *files, *OWN, "hyp_key=[]", "runner.resum=true"
    )
    assert code == 1
    for key in (
        "runner.on_eror (set in conf/decode all.yaml:7)", "runner.resum", "batch_secs", "hyp_key",
        "output_keys is 'hyp, ref' (set in conf/decode all.yaml:8)", "dataset.test.1.transfrm",
        "parallel.n_wrokers is not a known key (set in conf/more.yaml:1)", "metrics.0.metrc",
    ):  # fmt: skip
        assert f"\n- {key}" in said, key
    assert "8 problems" in said
    assert "With those of the command line corrected: " in said
    (recipe / INFERENCE).write_text(f"{DECODING}runner: {{on_error: skip}}\n")
    (recipe / METRICS).write_text(SCORING)
    (recipe / "conf/more.yaml").write_text("parallel: {n_workers: 1}\n")
    assert call(*lines_of(said)[-1])[0] == 0


def test_a_misspelt_block_is_not_told_as_a_missing_one_as_well(call, recipe):
    (recipe / METRICS).write_text(SCORING.replace("metrics:", "metricss:"))
    (recipe / INFERENCE).write_text(DECODING.replace("model:", "modl:"))
    code, said = call(*BOTH, "runner.on_eror=skip")
    assert code == 1
    assert said.count("\n- ") == 3
    assert "nothing is measured" not in said


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (("infer,measure",), ("infer", "measure")),
        (("infer measure",), ("infer", "measure")),
        (("6,7",), ("6", "7")),
    ],
)
def test_stages_in_one_word_are_divided_by_the_line(call, wrong, right):
    code, said = call("--stages", *wrong, *MEASURE[2:], *OWN)
    assert code == 2
    [words] = lines_of(said)
    assert words == ["--stages", *right, *MEASURE[2:], *OWN]


def test_a_config_among_the_stages_gets_its_option(call):
    code, said = call("--stages", "infer", INFERENCE, *OWN)
    assert code == 2
    [words] = lines_of(said)
    assert call(*words)[0] == 0


def test_a_config_without_its_folder_is_found_in_conf(call):
    code, said = call("--stages", "infer", "--inference_config", "inference.yaml", *OWN)
    assert code == 1
    [words] = lines_of(said)
    assert words == ["--stages", "infer", "--inference_config", "conf/inference.yaml", *OWN]


def test_a_misspelt_test_set_is_corrected_by_the_line(call, recipe):
    code, said = call(*INFER, "test_set=more digit")
    assert code == 1
    [words] = lines_of(said)
    assert call(*words)[0] == 0
    assert (recipe / "exp/mine/decode all/more digits/hyp.scp").is_file()


def test_settings_below_a_misspelt_block_are_written_below_the_right_one(call):
    code, said = call(*INFER, "modle.beam_size=7", "modle.seconds=0")
    assert code == 1
    [words] = lines_of(said)
    assert words[-2:] == ["model.beam_size=7", "model.seconds=0"]
    assert not any(word.startswith("modle") for word in words)
    assert call(*words[:-1])[0] == 0

import json
import logging

import pytest
from omegaconf import OmegaConf

from espnet3.components.metrics.error_rate import ErrorRate, file_stem
from espnet3.errors import ConfigError
from espnet3.systems.asr.metrics.cer import CER
from espnet3.systems.asr.metrics.wer import WER

DATA = {
    "utt_id": ["u1", "u2", "u3", "u4"],
    "ref": ["hello world", "i like monthy python", "", ""],
    "hyp": ["hello duck", "i like python", "", "noise"],
    "speaker": ["s1", "s2", "s1", "s2"],
}


def test_numbers_of_a_set():
    numbers = WER().compute(DATA)
    expected = {
        "unit": "words",
        "rate": 50.0,
        "n_utterances": 4,
        "n_units": 6,
        "correct": 4,
        "substitutions": 1,
        "deletions": 1,
        "insertions": 1,
        "errors": 3,
        "sentence_errors": 3,
        "sentence_error_rate": 75.0,
        "confidence": 0.95,
    }
    assert {key: numbers[key] for key in expected} == expected
    low, high = numbers["interval"]
    assert low <= 50.0 <= high


def test_a_call_writes_the_files_of_the_test_set(awkward):
    numbers = WER(by=["length", "speaker"])(DATA, "test set", awkward)
    assert numbers == WER(by=["length", "speaker"]).compute(DATA)
    folder = awkward / "test set"
    assert sorted(path.name for path in folder.iterdir()) == [
        "WER.by_length.tsv", "WER.by_speaker.tsv", "WER.jsonl", "WER.txt",
    ]  # fmt: skip
    lines = [json.loads(line) for line in (folder / "WER.jsonl").read_text().splitlines()]
    assert sum(line["insertions"] for line in lines) == numbers["insertions"]
    lengths = (folder / "WER.by_length.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lengths] == ["length", "0", "1-4"]


def test_without_details_only_the_groups_are_written(tmp_path):
    CER(details=False, by="length", name="my CER (lm)")(DATA, "test", tmp_path)
    assert [path.name for path in (tmp_path / "test").iterdir()] == ["my_CER_lm.by_length.tsv"]


def test_all_empty_references_warn_and_give_no_rate(tmp_path, caplog):
    data = {"utt_id": ["a", "b"], "ref": ["", " \n"], "hyp": ["x y", ""]}
    with caplog.at_level(logging.WARNING):
        numbers = WER()(data, "silence", tmp_path)
    assert numbers["rate"] is None
    assert numbers["interval"] is None
    assert numbers["insertions"] == 2
    assert "WER of silence: all 2 references are empty" in caplog.text
    assert "look at the field 'ref'" in caplog.text


def test_two_empty_texts_are_no_correct_word():
    data = {"ref": ["", "a b"], "hyp": ["", "a c"]}
    numbers = WER().compute(data)
    assert numbers["n_units"] == 2
    assert numbers["correct"] == 1
    assert numbers["rate"] == 50.0
    assert numbers["sentence_error_rate"] == 50.0


def test_keys_say_where_the_texts_are_and_the_speakers():
    metric = WER(ref_key="text", hyp_key="hyp_lm", by=["speaker", "length", "accent"],
                 resample="speaker", speaker_key="spk")  # fmt: skip
    assert metric.input_keys == ("text", "hyp_lm", "spk", "accent")
    assert metric.group_keys == ("spk", "accent")
    data = {"text": ["a", "b"], "hyp_lm": ["a", "c"], "spk": ["x", "y"], "accent": ["g", "g"]}
    assert metric.compute(data)["rate"] == 50.0


def test_lists_of_a_config_become_plain():
    config = OmegaConf.create({"clean_types": ["lower", "no_tags"], "by": ["length"]})
    metric = WER(clean_types=config.clean_types, by=config.by)
    assert metric == WER(clean_types=["lower", "no_tags"], by="length")
    assert json.loads(json.dumps(metric.settings))["clean_types"] == ["lower", "no_tags"]


def test_a_new_name_changes_nothing_else():
    metric = WER(clean_types="lower").named("WER 2")
    assert metric.name == "WER 2"
    assert metric.settings == WER(clean_types="lower").settings
    assert metric.compute({"ref": ["A"], "hyp": ["a"]})["rate"] == 0.0


def test_clean_types_apply_to_both_texts_and_to_the_alignment(tmp_path):
    data = {"utt_id": ["u"], "ref": ["Hello, WORLD!"], "hyp": ["hello. word"]}
    numbers = WER(clean_types=["lower", "no_punctuation"])(data, "t", tmp_path)
    assert numbers["substitutions"] == 1
    assert "REF:  hello world\nHYP:  hello word" in (tmp_path / "t" / "WER.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"clean_types": ["lowr"]}, r"Did you mean 'lower'\?"),
        ({"by": ["lengths"]}, r"by has 'lengths'. Did you mean 'length'\? Write: by: length"),
        ({"resample": "utterances"}, r"Did you mean 'utterance'\?"),
        ({"resample": "length"}, "Write: resample: utterance, or resample: speaker"),
        ({"confidence": 95}, "Write: confidence: 0.95"),
        ({"confidence": "high"}, "Write: confidence: 0.95"),
        ({"n_bootstrap": -1}, "Write: n_bootstrap: 1000"),
        ({"n_bootstrap": 10.5}, "Write: n_bootstrap: 1000"),
        ({"ref_key": ""}, "Write: ref_key: FIELD"),
    ],
)
def test_a_wrong_argument_is_told_at_once(arguments, advice):
    with pytest.raises(ConfigError, match=advice):
        WER(**arguments)


def test_lists_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        WER().compute({"ref": ["a", "b"], "hyp": ["a"]})


def test_a_subclass_must_say_what_its_units_are():
    with pytest.raises(NotImplementedError, match=r"split\(\)"):
        ErrorRate().count(["a"], ["a"])


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("WER", "WER"),
        ("WER (hyp=hyp_lm)", "WER_hyp=hyp_lm"),
        ("../x", "%2E.%2Fx"),
        ("( )", "%28%20%29"),
    ],
)
def test_a_name_becomes_a_file_name_inside_its_folder(name, stem):
    assert file_stem(name) == stem

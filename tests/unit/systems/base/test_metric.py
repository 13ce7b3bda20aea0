"""The measure stage on real folders: what is read, joined and written, and what is refused."""

import json
import logging
import os
from pathlib import Path
from textwrap import dedent

import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError, EspnetError, IncompleteRunError, RecordError
from espnet3.io.scp import write_scp
from espnet3.systems.base.inference import infer
from espnet3.systems.base.metric import check_measure, describe_measure, measure
from espnet3.systems.base.results_table import stale_inputs
from tests.helpers.inference_parts import spell

PARTS = "tests.helpers.inference_parts"
WER = "espnet3.systems.asr.metrics.wer.WER"
CER = "espnet3.systems.asr.metrics.cer.CER"
REF = {"spk1-ü/1": "Hello world", "a:b|c": "two\nlines here", "發話": "東京 に 行く", "empty": ""}
HYP = {"發話": "東京 へ 行く", "empty": "", "spk1-ü/1": "hello duck", "a:b|c": "two lines hear"}
INFERENCE = f"""
dataset:
  _target_: espnet3.components.data.data_organizer.DataOrganizer
  test: [{{name: digits, data_src: {PARTS}, data_src_args: {{n: 12}}}}]
model: {{_target_: {PARTS}.Speller, suffix: " "}}
output_keys: [hyp, ref, speaker]
"""

MY_METRICS = """
from espnet3.components.metrics.base_metric import BaseMetric

class Longest:
    def __init__(self, ref_key="ref", hyp_key="hyp", scale=1):
        self.ref_key, self.hyp_key, self.scale = ref_key, hyp_key, scale

    def __call__(self, data, test_name, inference_dir):
        assert inference_dir.is_dir()
        return {"longest": self.scale * max(map(len, data[self.hyp_key])), "of": test_name}

class Broken(Longest):
    def __call__(self, data, test_name, inference_dir):
        return {"value": data["nothing"]}

class Secretive(Longest):
    def __init__(self, api_key):
        super().__init__()

class Bare:
    def __call__(self, data, test_name, inference_dir):
        return {"keys": sorted(data), "first": data["utt_id"][0]}

class NotANumber(Bare):
    def __call__(self, data, test_name, inference_dir):
        return {"score": float("nan")}

class OneNumber(Bare):
    def __call__(self, data, test_name, inference_dir):
        return 3.5

class NotCallable:
    ref_key, hyp_key = "ref", "hyp"

def count(data, test_name, inference_dir, key):
    return {"n": len(data[key])}

class Public(BaseMetric):
    def __init__(self, ref_key="ref", hyp_key="hyp"):
        self.ref_key, self.hyp_key = ref_key, hyp_key

    def __call__(self, data, test_name, output_dir):
        assert all(path.is_file() for path in data.values())
        rows = list(self.iter_inputs(data, self.ref_key, self.hyp_key))
        same = sum(row["ref"] == row["hyp"] for _, row in rows)
        return {"n": len(rows), "first": rows[0][0], "same": same}

class Opens(BaseMetric):
    def __call__(self, data, test_name, output_dir):
        paths = [row["enhanced"] for _, row in self.iter_inputs(data, "enhanced")]
        return {"n_bytes": sum(len(open(path, "rb").read()) for path in paths)}

class Unknown(BaseMetric):
    def __call__(self, data, test_name, output_dir):
        return {"n": len(list(self.iter_inputs(data, "prompt")))}
"""


@pytest.fixture
def folder(awkward, monkeypatch):
    """The current folder, with results of one test set."""
    monkeypatch.chdir(awkward)
    monkeypatch.syspath_prepend(awkward)
    (awkward / "my_metrics.py").write_text(MY_METRICS)
    write(awkward, "test", ref=REF, hyp=HYP)
    return awkward


def write(folder, test_set, **fields):
    path = folder / "exp" / test_set
    path.mkdir(parents=True, exist_ok=True)
    for name, records in fields.items():
        write_scp(path / f"{name}.scp", records)


def load(text, *overrides):
    path = "metrics's.yaml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(dedent(text))
    return load_config(path, overrides, below={"inference_dir": "exp"})


def one(target=WER, *overrides, **settings):
    """Load a config with one metric; settings of its entry, or, after `metric_`, of the metric."""
    entry = {key: value for key, value in settings.items() if not key.startswith("metric_")}
    arguments = {k.removeprefix("metric_"): v for k, v in settings.items() if k not in entry}
    entries = [{"metric": {"_target_": target, **arguments}, **entry}]
    return load(json.dumps({"metrics": entries}), *overrides)


def text_of(path):
    return Path(path).read_text(encoding="utf-8")


def results():
    return json.loads(text_of("exp/metrics.json"))


# What is measured


def test_texts_are_joined_by_id_and_not_by_line(folder):
    path = measure(one())
    assert path.samefile("exp/metrics.json")
    numbers = results()["WER"]["test"]
    assert (numbers["n_utterances"], numbers["n_units"], numbers["correct"]) == (4, 8, 4)
    assert numbers["rate"] == 50.0
    lines = [json.loads(line) for line in text_of("exp/test/WER.jsonl").splitlines()]
    assert [line["id"] for line in lines] == list(REF)
    text = text_of("exp/test/WER.txt")
    assert "id: a:b|c\nScores: (#C #S #D #I) 2 1 0 0\nREF:  two lines here\n" in text


def test_what_infer_wrote_is_measured_with_its_speed(folder, caplog):
    (folder / "inference.yaml").write_text(INFERENCE)
    below = {"recipe_dir": ".", "inference_dir": "decoded"}
    infer(load_config("inference.yaml", below=below))
    metric = {"_target_": WER, "by": ["speaker"], "resample": "speaker"}
    text = json.dumps({"metrics": [{"metric": metric}], "inference_dir": "decoded"})
    with caplog.at_level(logging.INFO):
        measure(load(text))
    numbers = json.loads((folder / "decoded" / "metrics.json").read_text())["WER"]["digits"]
    assert (numbers["rate"], numbers["n_utterances"]) == (0.0, 12)
    run = numbers["measured_from"]["run"]
    assert run["real_time_factor"] == run["worker_seconds"] / run["audio_seconds"]
    speakers = (folder / "decoded" / "digits" / "WER.by_speaker.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in speakers] == ["speaker", "spk0", "spk1", "spk2"]
    table = (folder / "decoded" / "RESULTS.md").read_text()
    assert "| audio | RTF |" in table
    assert "Err 0.00 [0.00, 0.00]" in caplog.text
    assert "RTF" in caplog.text


def test_measuring_does_not_disturb_the_run(folder):
    (folder / "inference.yaml").write_text(INFERENCE)
    config = load_config("inference.yaml", below={"recipe_dir": ".", "inference_dir": "decoded"})
    infer(config)
    text = json.dumps({"metrics": [{"metric": {"_target_": WER}}], "inference_dir": "decoded"})
    measure(load(text))
    before = (folder / "decoded" / "digits" / "_SUCCESS.json").read_bytes()
    infer(config)
    assert (folder / "decoded" / "digits" / "_SUCCESS.json").read_bytes() == before
    assert stale_inputs(folder / "decoded" / "metrics.json") == []


@pytest.fixture
def skipped_run(folder):
    """Decode 12 items, of which item 7 fails and is skipped."""
    (folder / "inference.yaml").write_text(INFERENCE.replace('Speller, suffix: " "', "Picky"))
    below = {"recipe_dir": ".", "inference_dir": "decoded"}
    infer(load_config("inference.yaml", ["runner.on_error=skip"], below=below))
    return folder


def measure_decoded(**entry):
    metric = {"metric": {"_target_": WER}, **entry}
    measure(load(json.dumps({"metrics": [metric], "inference_dir": "decoded"})))
    return json.loads(Path("decoded/metrics.json").read_text())["WER"]["digits"]


@pytest.mark.parametrize("on_missing", ["raise", "count_as_deletions"])
def test_a_run_that_skipped_items_is_not_measured_as_if_it_were_whole(skipped_run, on_missing):
    with pytest.raises(IncompleteRunError, match=r"1 of 12 items failed.*retry_failed=true"):
        measure_decoded(on_missing=on_missing)


def test_skipped_items_that_are_accepted_are_told_in_log_and_table(skipped_run, caplog):
    assert measure_decoded(on_missing="skip")["n_utterances"] == 11
    assert "1 of 12 items failed in inference and are not measured" in caplog.text
    assert "espnet3 failed decoded/digits" in caplog.text
    table = (skipped_run / "decoded" / "RESULTS.md").read_text()
    assert "digits: 1 utterance failed in inference, not counted." in table


def test_skipped_items_count_as_deletions_where_references_are_known(skipped_run):
    lines = [f"utt{i} {spell(i)}\n" for i in range(12)]
    (skipped_run / "data").mkdir()
    (skipped_run / "data" / "text").write_text("".join(lines))
    numbers = measure_decoded(on_missing="count_as_deletions", inputs={"ref": "data/text"})
    assert numbers["n_utterances"] == 12
    assert numbers["deletions"] == 1


def test_two_metrics_of_one_class_do_not_overwrite_each_other(folder):
    write(folder, "test", hyp_lm=REF)
    config = f"""
        metrics:
          - metric: {{_target_: {WER}}}
          - metric: {{_target_: {WER}, hyp_key: hyp_lm}}
          - metric: {{_target_: {WER}, clean_types: [lower, no_tags]}}
          - metric: {{_target_: {WER}, hyp_key: hyp_lm, clean_types: [lower]}}
          - metric: {{_target_: {CER}, name: mine}}
          - {{name: theirs, metric: {{_target_: {CER}}}}}
        """
    measure(load(config))
    rates = {name: numbers["test"]["rate"] for name, numbers in results().items()}
    assert list(rates) == [
        "WER", "WER (hyp=hyp_lm)", "WER (clean_types=lower+no_tags)",
        "WER (hyp=hyp_lm, clean_types=lower)", "mine", "theirs",
    ]  # fmt: skip
    assert list(rates.values())[:4] == [50.0, 0.0, 37.5, 0.0]
    names = set(os.listdir("exp/test"))
    assert {"WER.txt", "WER_hyp=hyp_lm.txt", "mine.jsonl", "theirs.jsonl"} <= names


def test_test_sets_are_the_folders_with_results(folder):
    write(folder, "other", ref=REF, hyp=REF)
    (folder / "exp" / "logs").mkdir()
    (folder / "exp" / "notes.scp").write_text("no folder\n")
    measure(one())
    assert list(results()["WER"]) == ["other", "test"]


def test_test_sets_are_those_of_the_config_in_their_order(folder):
    write(folder, "other", ref=REF, hyp=REF)
    write(folder, "left_out", ref=REF, hyp=REF)
    sets = "dataset.test=[{name: test}, {name: other}]"
    measure(one(WER, sets))
    assert list(results()["WER"]) == ["test", "other"]
    measure(one(WER, sets, "test_set=other"))
    assert list(results()["WER"]) == ["other"]


def test_inputs_may_be_other_fields_and_files_of_kaldi(folder):
    write(folder, "test", hyp_lm=REF)
    for name in ("text", "utt2spk"):
        (folder / "data" / "test").mkdir(parents=True, exist_ok=True)
        values = REF if name == "text" else {**dict.fromkeys(REF, "s1"), "unused": "s2"}
        write_scp(folder / "data" / "test" / name, values)
    inputs = {"ref": "data/{test_set}/text", "hyp": "hyp_lm", "speaker": "data/test/utt2spk"}
    measure(one(inputs=inputs, metric_by=["speaker"]))
    numbers = results()["WER"]["test"]
    assert (numbers["rate"], numbers["n_utterances"]) == (0.0, 4)
    recorded = numbers["measured_from"]["inputs"]
    assert recorded["hyp"]["path"] == "test/hyp_lm.scp"
    assert recorded["ref"]["path"] == str(folder / "data" / "test" / "text")


def test_any_callable_is_a_metric(folder):
    config = """
        metrics:
          - metric: {_target_: my_metrics.Longest, scale: 2}
          - {metric: {_target_: my_metrics.Bare}, inputs: [hyp, utt_id]}
          - {metric: {_target_: my_metrics.count, key: ref}, inputs: [ref]}
        """
    measure(load(config))
    found = {name: dict(sets["test"]) for name, sets in results().items()}
    for numbers in found.values():
        del numbers["measured_from"]
    assert found["Longest"] == {"longest": 28, "of": "test"}
    assert found["Bare"] == {"keys": ["hyp", "utt_id"], "first": "發話"}
    assert found["count"] == {"n": 4}
    assert "| test set | longest | of |" in text_of("exp/RESULTS.md")


def test_the_table_is_markdown(folder):
    measure(one(metric_clean_types=["lower"]))
    lines = text_of("exp/RESULTS.md").splitlines()
    assert lines[:3] == ["# Results", "", "## WER"]
    header = "| test set | utterances | words | Corr | Sub | Del | Ins | Err [95%] | S.Err [95%] |"
    assert lines[4] == header
    assert lines[6].startswith("| test | 4 | 8 | 62.50 | 37.50 | 0.00 | 0.00 | 37.50 [")
    assert lines[-1] == "Text normalisation: lower."


def test_all_empty_references_give_null_and_a_table(folder):
    write(folder, "test", ref=dict.fromkeys(REF, ""))
    measure(one())
    assert results()["WER"]["test"]["rate"] is None
    assert "| - |" in text_of("exp/RESULTS.md")


# What the numbers are of


def test_the_numbers_hold_what_they_were_computed_from(folder):
    measure(one(metric_clean_types=["lower"]))
    record = results()["WER"]["test"]["measured_from"]
    assert record["inputs"]["hyp"]["path"] == "test/hyp.scp"
    assert record["inputs"]["hyp"]["size"] == (folder / "exp" / "test" / "hyp.scp").stat().st_size
    assert record["settings"]["clean_types"] == ["lower"]
    assert record["settings"]["_target_"] == WER
    assert record["n_missing"] == 0


def test_stale_numbers_can_be_told_also_after_a_move(folder):
    measure(one())
    os.rename("exp", "moved")
    path = folder / "moved" / "metrics.json"
    assert stale_inputs(path) == []
    os.utime("moved/test/hyp.scp")
    assert stale_inputs(path) == []
    write_scp("moved/test/hyp.scp", REF)
    assert stale_inputs(path) == [f"{folder / 'moved' / 'test' / 'hyp.scp'} has other content"]
    os.remove("moved/test/ref.scp")
    assert any("ref.scp is gone" in line for line in stale_inputs(path))


def test_secrets_among_the_arguments_of_a_metric_are_not_written(folder):
    measure(one("my_metrics.Secretive", metric_api_key="abc-secret-123"))
    assert "abc-secret-123" not in text_of("exp/metrics.json")


def test_an_interrupted_measure_leaves_the_old_numbers(folder):
    measure(one())
    before = text_of("exp/metrics.json")
    with pytest.raises(KeyError) as caught:
        measure(one("my_metrics.Broken"))
    assert any("metrics.0.metric (Broken) on test" in note for note in caught.value.__notes__)
    assert text_of("exp/metrics.json") == before


# Dry run


def test_a_dry_run_tells_each_file_and_whether_it_is_there(folder):
    os.remove("exp/test/hyp.scp")
    lines = describe_measure(one())
    assert lines == [
        "WER of test reads exp/test/ref.scp (exists), exp/test/hyp.scp (missing: stage 6 writes "
        "it, if its config says so)",
        "writes exp/metrics.json and RESULTS.md",
    ]
    assert not os.path.exists("exp/metrics.json")


def test_a_dry_run_tells_whether_the_old_numbers_still_hold(folder):
    measure(one())
    assert describe_measure(one())[-1].endswith("(there already, up to date with its inputs)")
    write_scp("exp/test/hyp.scp", REF)
    assert "out of date: exp/test/hyp.scp has other content" in describe_measure(one())[-1]


def test_a_dry_run_before_infer_tells_what_will_be(folder):
    lines = describe_measure(one(WER, "inference_dir=later"))
    assert lines[0] == "WER of each test set that stage 6 will have written below later"


def test_a_check_needs_no_results_and_no_tokenizer(folder):
    ter = "espnet3.systems.asr.metrics.ter.TER"
    check_measure(one(ter, "inference_dir=later", metric_tokenizer="later/bpe.model"))
    with pytest.raises(ConfigError, match=r"metrics\.0\.metric: tokenizer is 'later/bpe\.model'"):
        measure(one(ter, metric_tokenizer="later/bpe.model"))


# Ids that do not match


def test_missing_ids_are_listed_per_side_with_their_count(folder):
    many = {f"utt{i}": "a" for i in range(25)}
    write(folder, "test", ref={**REF, **many}, hyp={**HYP, "extra": "b"})
    with pytest.raises(IncompleteRunError) as caught:
        measure(one())
    message = str(caught.value)
    listed = ", ".join(f"utt{i}" for i in range(10))
    assert f"25 of the 29 ids in ref are not in hyp: {listed} and 15 more (" in message
    assert "exp/test/ref.scp:5);" in message
    assert "1 of the 5 ids in hyp are not in ref: extra (exp/test/hyp.scp:5)." in message
    assert "--stages infer" in message
    assert "metrics.0: on_missing: skip leaves them out" in message
    assert not os.path.exists("exp/metrics.json")


def test_missing_ids_are_left_out_on_request_and_told(folder):
    hyp = {id: text for id, text in HYP.items() if id != "發話"}
    write(folder, "test", hyp={**hyp, "extra": "b"})
    measure(one(on_missing="skip"))
    numbers = results()["WER"]["test"]
    assert (numbers["n_utterances"], numbers["n_units"]) == (3, 5)
    assert numbers["measured_from"]["n_missing"] == 2
    assert "test: 2 utterances without reference or hypothesis, left out." in text_of(
        "exp/RESULTS.md"
    )


def test_missing_hypotheses_count_as_deletions_on_request(folder):
    write(folder, "test", hyp={id: text for id, text in HYP.items() if id != "發話"})
    measure(one(on_missing="count_as_deletions"))
    numbers = results()["WER"]["test"]
    assert (numbers["n_utterances"], numbers["deletions"]) == (4, 3)
    assert "counted as deletions" in text_of("exp/RESULTS.md")
    write(folder, "test", hyp={**HYP, "extra": "b"})
    with pytest.raises(IncompleteRunError, match="are not in ref: extra"):
        measure(one(on_missing="count_as_deletions"))


def test_ids_that_failed_on_purpose_are_told(folder):
    (folder / "inference.yaml").write_text(INFERENCE.replace('Speller, suffix: " "', "Picky"))
    below = {"recipe_dir": ".", "inference_dir": "decoded"}
    infer(load_config("inference.yaml", ["runner.on_error=skip"], below=below))
    write_scp(folder / "text", {f"utt{i}": "one" for i in range(12)})
    config = {"metric": {"_target_": WER}, "inputs": {"ref": "./text"}}
    text = json.dumps({"metrics": [config], "inference_dir": "decoded"})
    with pytest.raises(IncompleteRunError) as caught:
        measure(load(text))
    assert "not in hyp: utt7 (text:8)." in str(caught.value)
    assert "1 of them failed, which on_error: skip allows" in str(caught.value)
    assert "espnet3 failed decoded/digits" in str(caught.value)


def test_a_speaker_is_needed_for_each_utterance(folder):
    write(folder, "test", speaker={"empty": "s1"})
    with pytest.raises(IncompleteRunError) as caught:
        measure(one(metric_by=["speaker"]))
    assert "3 of 4 ids have no speaker: spk1-ü/1, a:b|c, 發話" in str(caught.value)
    assert 'inputs: {speaker: "data/{test_set}/utt2spk"}' in str(caught.value)


def test_an_id_that_is_there_twice_is_told_with_its_line(folder):
    with open("exp/test/hyp.scp", "a", encoding="utf-8") as file:
        file.write("empty again\n")
    with pytest.raises(RecordError, match=r"hyp\.scp:5: The id 'empty' is there twice"):
        measure(one())


def test_files_without_a_common_id_are_refused(folder):
    write(folder, "test", hyp={"x": "y"})
    with pytest.raises(IncompleteRunError, match=r"ref \(4 ids\) and hyp \(1 ids\) have no id in"):
        measure(one(on_missing="skip"))


# Results that are missing or not complete


def test_a_missing_field_fails_before_anything_is_computed(folder):
    write(folder, "zz", ref=REF)
    with pytest.raises(IncompleteRunError) as caught:
        measure(one())
    message = str(caught.value)
    assert "1 file is missing: exp/zz/hyp.scp." in message
    assert "--stages infer" in message
    assert not os.path.exists("exp/test/WER.jsonl")


def test_a_misspelt_field_gets_the_right_one(folder):
    with pytest.raises(IncompleteRunError) as caught:
        measure(one(metric_hyp_key="hypp"))
    assert "exp/test has the fields hyp, ref. Did you mean 'hyp'?" in str(caught.value)
    assert "metrics.0.inputs: {hypp: FIELD}" in str(caught.value)


def test_a_test_set_that_was_not_decoded_names_the_stage(folder):
    with pytest.raises(IncompleteRunError) as caught:
        measure(one(WER, "dataset.test=[{name: test}, {name: later}]"))
    assert "exp/later/ref.scp, exp/later/hyp.scp. Run the infer stage first:" in str(caught.value)
    assert "python run.py --stages infer measure" in str(caught.value)


def test_a_folder_without_results_names_the_stage(folder):
    with pytest.raises(
        IncompleteRunError, match=r"nowhere holds no results.*--stages infer measure"
    ):
        measure(one(WER, "inference_dir=nowhere"))


def test_a_missing_file_of_inputs_names_its_key(folder):
    with pytest.raises(ConfigError) as caught:
        measure(one(inputs={"ref": "data/{test_set}/text"}))
    assert "metrics.0.inputs.ref is 'data/{test_set}/text', but data/test/text is no file" in str(
        caught.value
    )


def test_a_run_that_is_not_complete_is_refused_with_the_command(folder):
    (folder / "inference.yaml").write_text(INFERENCE)
    below = {"recipe_dir": ".", "inference_dir": "decoded"}
    infer(load_config("inference.yaml", below=below))
    (folder / "decoded" / "digits" / "_SUCCESS.json").unlink()
    text = json.dumps({"metrics": [{"metric": {"_target_": WER}}], "inference_dir": "decoded"})
    with pytest.raises(
        IncompleteRunError, match=r"12 of 12 items are done.*run\.py --stages infer"
    ):
        measure(load(text))
    for path in (folder / "decoded" / "digits").glob("*.scp"):
        path.unlink()
    with pytest.raises(IncompleteRunError, match="not complete"):
        measure(load(text))


# Wrong configs


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        ({}, "lists no metrics, so nothing is measured. Write: metrics: [{metric: {_target_"),
        ({"metrics": []}, "lists no metrics"),
        ({"metrics": [{"metric": {"_target_": WER}, "input": ["ref"]}]}, "Did you mean 'inputs'?"),
        (
            {"metrics": [{"metric": {"_target_": WER}, "inputs": 3}]},
            "metrics.0.inputs is 3",
        ),
        (
            {"metrics": [{"metric": {"ref_key": "ref"}}]},
            "needs a _target_. Write: metric: {_target_: espnet3",
        ),
        (
            {"metrics": [{"_target_": WER}]},
            "has a _target_, which belongs one level below. Write: metrics: [{",
        ),
        (
            {"metrics": [{"metric": {"_target_": WER}, "on_missing": "skp"}]},
            "metrics.0.on_missing is 'skp'",
        ),
        (
            {"metrics": [{"metric": {"_target_": f"{WER}R"}}]},
            "metrics.0.metric._target_ is 'espnet3.systems.asr.metrics.wer.WERR'",
        ),
        (
            {"metrics": [{"metric": {"_target_": WER, "clean_type": ["lower"]}}]},
            "it takes no argument 'clean_type'",
        ),
        (
            {"metrics": [{"metric": {"_target_": WER, "clean_types": ["lowre"]}}]},
            "Did you mean 'lower'?",
        ),
        (
            {"metrics": [{"metric": {"_target_": WER}, "inputs": ["ref", "hpy"]}]},
            "metrics.0.inputs has 'hpy'",
        ),
        (
            {"metrics": [{"metric": {"_target_": WER}}, {"metric": {"_target_": WER}}]},
            "metrics.1 and metrics.0 are both called 'WER'",
        ),
        (
            {"metrics": [{"metric": {"_target_": "my_metrics.Bare"}}]},
            "metrics.0.inputs is not set",
        ),
        (
            {"metrics": [{"metric": {"_target_": "my_metrics.NotCallable"}}]},
            "def __call__(self, data, test_name, inference_dir)",
        ),
        (
            {"metrics": [{"metric": {"_target_": "my_metrics.OneNumber"}, "inputs": ["ref"]}]},
            'Let it return a dict of numbers, such as {"rate": 1.5}',
        ),
        (
            {"metrics": [{"metric": {"_target_": "my_metrics.NotANumber"}, "inputs": ["ref"]}]},
            "value['NotANumber']['test']['score'] is nan",
        ),
        (
            {"metrics": [{"metric": {"_target_": WER}}], "inference_dir": None},
            "Pass --inference_config conf/inference.yaml too",
        ),
        (
            {"metrics": [{"metric": {"_target_": WER}}], "inference_dir": "${nowhere}/x"},
            "inference_dir",
        ),
        (
            {
                "metrics": [{"metric": {"_target_": WER}}],
                "dataset": {"test": [{"name": "test"}]},
                "test_set": "tset",
            },
            "Write: test_set: test",
        ),
    ],
)
def test_a_wrong_config_is_told_with_what_to_write(folder, config, advice):
    with pytest.raises(EspnetError) as caught:
        measure(load(json.dumps(config)))
    assert advice in str(caught.value)
    assert not os.path.exists("exp/metrics.json")


def test_errors_of_a_metric_name_the_key_and_the_line(folder):
    config = f"""
        metrics:
          - metric:
              _target_: {WER}
              clean_types: [lowre]
        """
    with pytest.raises(ConfigError) as caught:
        check_measure(load(config))
    assert str(caught.value).startswith("metrics.0.metric (set in metrics's.yaml:3): clean_types")


# Scores of other tasks


def speech(folder):
    """Write references and estimates as wav, and embeddings as npy, of 6 utterances."""
    import numpy as np
    import soundfile

    generator, ids = np.random.default_rng(0), [f"s{n % 2}-{n}" for n in range(6)]
    results = folder / "exp/test/split.0"
    results.mkdir(parents=True)
    (folder / "data/test").mkdir(parents=True)
    for id in ids:
        clean = 0.1 * generator.normal(size=800)
        soundfile.write(folder / f"data/test/{id}.wav", clean, 8000)
        soundfile.write(results / f"{id}.wav", clean + 0.01 * generator.normal(size=800), 8000)
        np.save(results / f"{id}.npy", [1, int(id[1])] + 0.5 * generator.normal(size=2))
    write_scp(folder / "data/test/clean.scp", {id: f"data/test/{id}.wav" for id in ids})
    write(folder, "test", enhanced={id: f"split.0/{id}.wav" for id in ids})
    write(folder, "test", embedding={id: f"split.0/{id}.npy" for id in ids})
    trials = [f"{a} {b} {int(a[:2] == b[:2])}" for a in ids for b in ids if a < b]
    (folder / "data/test/trials").write_text("\n".join(trials))


SPEECH = """
metrics:
- metric: {_target_: espnet3.components.metrics.si_snr.SISNR, hyp_key: enhanced}
  inputs: {ref: "data/{test_set}/clean.scp"}
- metric: {_target_: espnet3.components.metrics.eer.EER, trials: "data/{test_set}/trials"}
"""


@pytest.fixture
def spoken(awkward, monkeypatch):
    monkeypatch.chdir(awkward)
    speech(awkward)
    return awkward


def test_ratios_and_equal_error_rates_have_intervals_in_the_table(spoken, caplog):
    with caplog.at_level(logging.INFO):
        measure(load(SPEECH))
    ratio, rate = results()["SISNR"]["test"], results()["EER"]["test"]
    assert 18 < ratio["si_snr"] < 22
    low, high = ratio["si_snr_interval"]
    table = text_of("exp/RESULTS.md")
    assert "| test set | si_snr [95%] | n_utterances |" in table
    assert f"| test | {ratio['si_snr']:.2f} [{low:.2f}, {high:.2f}] | 6 |" in table
    assert "eer [95%] | min_dcf [95%]" in table
    assert "only" not in table  # nothing is left to metrics.json
    assert rate["n_trials"] == 15
    assert "si_snr [95%]" in caplog.text
    assert (spoken / "exp/test/EER.scores").is_file()


def test_a_changed_list_of_trials_makes_the_numbers_stale(spoken):
    path = measure(load(SPEECH))
    assert stale_inputs(path) == []
    trials = spoken / "data/test/trials"
    trials.write_text(trials.read_text() + "\ns0-0 s1-1 0")
    assert stale_inputs(path) == [f"{trials} has other content"]


def test_what_a_later_metric_will_miss_is_told_before_the_first_computes(spoken):
    trials = spoken / "data/test/trials"
    trials.write_text(trials.read_text() + "\nnobody s1-1 0")
    with pytest.raises(RecordError, match="data/test/trials:16: 'nobody' has no embedding"):
        measure(load(SPEECH))
    assert not (spoken / "exp/test/SISNR.jsonl").exists()


def test_files_that_no_stage_writes_are_looked_for_before_decoding(folder):
    (folder / "inference.yaml").write_text(INFERENCE)
    inference = load_config("inference.yaml", below={"recipe_dir": ".", "inference_dir": "exp"})
    metrics = one("espnet3.components.metrics.eer.EER", metric_embedding_key="hyp")
    with pytest.raises(ConfigError, match=r"metrics.0.metric.trials is 'data/digits/trials', but"):
        check_measure(metrics, inference, decodes_first=True)
    check_measure(metrics, inference, decodes_first=True, makes_data=True)


def test_a_dry_run_names_the_list_of_trials(spoken):
    (spoken / "data/test/trials").unlink()
    assert "data/test/trials (missing)" in " ".join(describe_measure(load(SPEECH)))


def test_bleu_is_measured_with_its_signature(folder):
    measure(one("espnet3.components.metrics.bleu.BLEU"))
    numbers = results()["BLEU"]["test"]
    assert numbers["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert "bleu [95%]" in text_of("exp/RESULTS.md")


def test_artifacts_that_infer_wrote_are_measured(awkward, monkeypatch):
    import numpy as np
    import soundfile

    from tests.helpers.inference_parts import Dataset

    monkeypatch.chdir(awkward)
    monkeypatch.syspath_prepend(awkward)
    Path("enhancing.py").write_text(
        "import numpy as np\n"
        "class Model:\n"
        "    def __init__(self, device): pass\n"
        "    def __call__(self, speech):\n"
        "        wave = np.sin(np.arange(len(speech)) * (1 + speech[0]))\n"
        "        return {'wav': wave / 2, 'embedding': np.array([1.0, speech[0] % 3])}\n"
    )
    Path("inference.yaml").write_text(
        f"dataset: {{test: [{{name: a, data_src: {PARTS}, data_src_args: {{n: 9}}}}]}}\n"
        "model: {_target_: enhancing.Model}\n"
        "output_artifacts: {wav: {type: wav, sample_rate: 8000}, embedding: {type: npy}}\n"
    )
    infer(load_config("inference.yaml", below={"recipe_dir": ".", "inference_dir": "exp"}))
    Path("data").mkdir()
    samples = [Dataset(9)[i] for i in range(9)]
    generator, ids = np.random.default_rng(0), [sample["utt_id"] for sample in samples]
    for id, sample in zip(ids, samples, strict=True):
        speech = sample["speech"]
        clean = np.sin(np.arange(len(speech)) * (1 + speech[0])) / 4
        soundfile.write(f"data/{id}.wav", clean + 0.01 * generator.normal(size=len(speech)), 8000)
    write_scp("data/clean.scp", {id: f"data/{id}.wav" for id in ids})
    trials = [
        f"{a} {b} {int(i % 3 == j % 3)}" for i, a in enumerate(ids) for j, b in enumerate(ids)
    ]
    Path("data/trials").write_text("\n".join(trials))
    measure(
        load(
            """
            metrics:
            - metric: {_target_: espnet3.components.metrics.si_snr.SISNR, hyp_key: wav}
              inputs: {ref: data/clean.scp}
            - metric: {_target_: espnet3.components.metrics.eer.EER, trials: data/trials}
            """
        )
    )
    assert 20 < results()["SISNR"]["a"]["si_snr"] < 30
    assert results()["EER"]["a"]["eer"] == 0


# Metrics of the public ESPnet3, which read SCP files


def test_a_metric_that_reads_scp_files_gets_their_paths(folder):
    measure(one("my_metrics.Public"))
    numbers = results()["Public"]["test"]
    assert (numbers["n"], numbers["first"], numbers["same"]) == (4, "spk1-ü/1", 1)
    measure(one("my_metrics.Public", inputs={"ref": "hyp", "hyp": "hyp"}))
    assert results()["Public"]["test"]["same"] == 4


def test_paths_of_artifacts_can_be_opened_by_it(spoken, monkeypatch):
    monkeypatch.syspath_prepend(spoken)
    (spoken / "my_metrics.py").write_text(MY_METRICS)
    measure(one("my_metrics.Opens", inputs=["enhanced"]))
    assert results()["Opens"]["test"]["n_bytes"] > 6 * 1600


def test_it_is_told_about_inputs_and_ids_that_are_missing(folder):
    with pytest.raises(ConfigError, match=r"asked for 'prompt', but the inputs are ref.*Name one"):
        measure(one("my_metrics.Unknown", inputs=["ref"]))
    write(folder, "test", hyp={id: text for id, text in HYP.items() if id != "empty"})
    message = r"1 of the 4 ids in ref are not in hyp: empty \(exp/test/ref.scp:4\)"
    with pytest.raises(IncompleteRunError, match=message):
        measure(one("my_metrics.Public"))
    with pytest.raises(ConfigError, match=r"on_missing is 'skip', but Public reads the files"):
        measure(one("my_metrics.Public", on_missing="skip"))

"""`espnet3 init --data`: what it writes for each format, and what it refuses before it writes."""

import json
import shlex

import jsonschema
import numpy as np
import pytest
import soundfile
import yaml

from espnet3.cli.init import FORMATS
from espnet3.cli.main import main
from espnet3.components.data.data_organizer import DataOrganizer
from espnet3.components.data.dataset import fields_of
from espnet3.components.data.survey import Survey, spread
from espnet3.systems.asr.new_recipe import choose, find_cleaners, hold_out
from tests.helpers.small_corpora import RATE, write_corpus, write_rows


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("it's a corpus")
    sizes = {"train": 24, "valid": 4, "test": 4}
    return {name: (folder / name, write_rows(folder / name, n)) for name, n in sizes.items()}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(name="training", folder="new"):
    with open(f"{folder}/conf/{name}.yaml") as file:
        return yaml.safe_load(file)


def ids(entries):
    dataset = DataOrganizer("new", train=entries).train
    return [fields_of(dataset, i)["utt_id"] for i in range(len(dataset))]


@pytest.mark.parametrize("data", FORMATS)
def test_a_recipe_is_written_for_each_format(data, rows, here, capsys):
    paths = {name: str(write_corpus(data, folder, of)) for name, (folder, of) in rows.items()}
    options = [word for name, path in paths.items() for word in (f"--{name}", path)]
    assert main(["init", "new", "--data", data, *options]) == 0
    told = capsys.readouterr().out
    assert "train: 24 utterances" in told
    assert "2 speakers" in told
    training, inference = config(), config("inference")
    (entry,) = training["dataset"]["train"]
    assert entry["data_src"] == data
    assert entry["data_src_args"]["sample_rate"] == RATE
    assert len(ids([entry])) == 24
    assert len(ids(training["dataset"]["valid"])) == 4
    assert training["model"]["frontend"]["sample_rate"] == RATE
    assert inference["output_keys"] == ["hyp", "ref", "speaker"]
    (test,) = inference["dataset"]["test"]
    sample = DataOrganizer("new", test=[test]).test[test["name"]][0]
    assert sample["sample_rate"] == RATE
    assert sample["text"] == rows["test"][1][0]["text"]
    assert config("metrics")["metrics"][0]["metric"]["by"] == ["speaker", "length"]
    for path in (here / "new" / "conf").glob("*.yaml"):
        named = path.read_text().partition("\n")[0].partition("$schema=")[2]
        schema = json.loads((path.parent / named).read_text())
        jsonschema.validate(yaml.safe_load(path.read_text()), schema)


@pytest.fixture
def manifests(rows):
    return {name: str(write_corpus("jsonl", folder, of)) for name, (folder, of) in rows.items()}


def test_the_line_that_is_printed_is_accepted(manifests, here, capsys):
    line = ["--data", "jsonl", "--train", manifests["train"], "--test", manifests["test"]]
    assert main(["init", "it's mine/asr", *line]) == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    words = shlex.split(printed)
    assert words[:3] == ["espnet3", "run", "it's mine/asr"]
    assert main([*words[1:], "--dry-run"]) == 0
    assert not (here / "it's mine" / "asr" / "exp").exists()


def test_without_a_validation_set_utterances_are_held_out_and_it_is_said(manifests, here, capsys):
    assert main(["init", "new", "--data", "jsonl", "--train", manifests["train"]]) == 0
    told = capsys.readouterr().out
    assert "is held out for validation: 1 utterance, listed in conf/held_out.txt" in told
    assert "No --test was given: the validation set is decoded" in told
    sets = config()["dataset"]
    train, valid = ids(sets["train"]), ids(sets["valid"])
    assert (here / "new" / "conf" / "held_out.txt").read_text().split() == valid
    assert len(train) == 23
    assert not set(train) & set(valid)
    assert config("inference")["dataset"]["test"][0]["only"] == sets["valid"][0]["only"]
    assert "# No --valid was given, so part of" in (here / "new/conf/training.yaml").read_text()


def test_speakers_are_held_out_where_there_are_enough(tmp_path, here):
    folder = tmp_path / "many"
    path = write_corpus("kaldi", folder, write_rows(folder, 30, n_speakers=15))
    assert main(["init", "new", "--data", "kaldi", "--train", str(path)]) == 0
    (train,), (valid,) = config()["dataset"]["train"], config()["dataset"]["valid"]
    assert train["leave_out"] == valid["only"]
    assert len(valid["only"]["speaker"]) == 2
    assert len(ids([valid])) == 4
    assert not set(ids([train])) & set(ids([valid]))


def test_two_test_sets_of_one_name_and_columns_of_other_names(rows, here, tmp_path):
    paths = []
    for name, size in (("train", "train"), ("a", "test"), ("b", "test")):
        (tmp_path / name).mkdir()
        renamed = [{("said" if k == "text" else k): v for k, v in r.items()} for r in rows[size][1]]
        paths.append(str(write_corpus("tsv", tmp_path / name, renamed)))
    options = ["--train", paths[0], "--test", *paths[1:]]
    assert main(["init", "new", "--data", "tsv", *options, "--columns", "text=said"]) == 0
    names = [test["name"] for test in config("inference")["dataset"]["test"]]
    assert names == ["manifest", "manifest_2"]
    assert config()["dataset"]["train"][0]["data_src_args"]["columns"] == {"text": "said"}
    assert len(ids(config()["dataset"]["train"])) == 23


@pytest.fixture
def mixed(rows, tmp_path):
    """Return a manifest with a file of another rate, and of two channels."""
    other = tmp_path / "other.wav"
    soundfile.write(other, np.zeros((4000, 2)), 16000)
    row = {"id": "odd", "audio_filepath": str(other), "text": "one", "speaker": "speaker00"}
    folder = tmp_path / "mixed"
    folder.mkdir()
    return str(write_corpus("jsonl", folder, [*rows["train"][1], row]))


def test_mixed_rates_are_refused_with_the_option_that_resamples(mixed, here, capsys):
    before = sorted(here.rglob("*"))
    assert main(["init", "new", "--data", "jsonl", "--train", mixed]) == 2
    told = capsys.readouterr().err
    assert "8000 Hz (24 utterances) and 16000 Hz (1 utterance)" in told
    assert told.endswith("--sample-rate 8000\n")
    assert sorted(here.rglob("*")) == before
    assert main(["init", "new", "--data", "jsonl", "--train", mixed, "--sample-rate", "8000"]) == 0
    arguments = config()["dataset"]["train"][0]["data_src_args"]
    assert arguments["resample"] is True
    assert arguments["channel"] == "mix"
    entry = {key: config()["dataset"]["train"][0][key] for key in ("data_src", "data_src_args")}
    assert DataOrganizer(train=[entry]).train[-1]["speech"].shape == (2000,)


def broken_row(**changes):
    return lambda rows: [*rows[:5], {**rows[5], **changes}, *rows[6:]]


def without_texts(rows):
    return [{key: value for key, value in row.items() if key != "text"} for row in rows]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (broken_row(audio_filepath="/gone/a.wav"), "1 audio file of 24 that were looked for"),
        (broken_row(text="  "), "1 utterance of 24 have no text"),
        (broken_row(text="..."), "nothing is left without punctuation and tags"),
        (lambda rows: [], "There is no utterance in it"),
        (without_texts, "--columns text="),
    ],
    ids=["missing audio", "empty text", "only punctuation", "empty set", "no texts"],
)
def test_data_that_cannot_be_learned_from_is_refused(change, told, rows, here, capsys):
    (here / "data").mkdir()
    path = write_corpus("jsonl", here / "data", change(rows["train"][1]))
    before = sorted(here.rglob("*"))
    assert main(["init", "new", "--data", "jsonl", "--train", str(path)]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert sorted(here.rglob("*")) == before


def test_texts_without_audio_are_refused(rows, here, capsys):
    path = write_corpus("kaldi", *rows["train"])
    with (path / "text").open("a") as file:
        file.write("nobody hello\n")
    assert main(["init", "new", "--data", "kaldi", "--train", str(path)]) == 1
    error = capsys.readouterr().err
    assert f"--train {path}" in error
    assert "1 id (nobody)" in error
    assert not (here / "new").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--data kadli --train {train}", "Write: espnet3 init new --data kaldi --train "),
        (
            "--data jsonl --train {train}x",
            "which does not exist. Write: espnet3 init new --data jsonl",
        ),
        ("--train {train}", "Write: espnet3 init new --train {train} --data jsonl"),
        ("--data=lhotze --train {train}", "Write: espnet3 init new --data=lhotse --train"),
        ("--data kaldi --train {train}", "Write: espnet3 init new --data jsonl --train"),
        ("--data jsonl --train .", "a folder, but --data jsonl reads a manifest"),
        ("--data jsonl --test {test}", "--train is not set"),
        ("--data jsonl --train {train} --valid {train}", "which --train is as well"),
        ("--data kaldi --train {train} --columns text=a", "kaldi data has no columns"),
        ("--data jsonl --train {train} --columns text", "--columns text=sentence"),
        ("--data jsonl --train {train} --template runner", "two kinds of recipes"),
        ("--data jsonl --train {train} --sample-rate 16k", "'16k' is not a number"),
    ],
)
def test_a_wrong_line_is_refused_before_anything_is_written(options, told, manifests, here, capsys):
    quoted = {name: shlex.quote(path) for name, path in manifests.items()}
    assert main(["init", "new", *shlex.split(options.format(**quoted))]) == 2
    assert told.format(**quoted) in capsys.readouterr().err
    assert not list(here.iterdir())


def test_the_folder_above_data_directories_is_told_with_the_line_to_type(rows, here, capsys):
    folder = write_corpus("kaldi", *rows["train"])
    (here / "data").mkdir()
    (here / "data" / "train a").symlink_to(folder)
    assert main(["init", "new", "--data", "kaldi", "--train", "data", "--sample-rate", "8000"]) == 2
    line = capsys.readouterr().err.strip().partition("Write: ")[2]
    assert main(shlex.split(line)[1:]) == 0


def test_a_folder_that_is_in_use_is_left_alone(manifests, here, capsys):
    (here / "new").mkdir()
    (here / "new" / "mine.txt").write_text("mine")
    line = ["--data", "jsonl", "--train", manifests["train"]]
    assert main(["init", "new", *line]) == 2
    assert f"espnet3 init new_2 {shlex.join(line)}" in capsys.readouterr().err
    assert [path.name for path in (here / "new").iterdir()] == ["mine.txt"]


def test_a_split_that_is_not_there_is_told_with_the_line_to_type(rows, here, capsys):
    path = str(write_corpus("huggingface", *rows["valid"])).removesuffix(":train")
    for given in (path, f"{path}:tarin"):
        assert main(["init", "new", "--data", "huggingface", "--train", given]) == 2
        told = capsys.readouterr().err
        assert "has train and other" in told
        assert told.endswith(f"Write: --train {shlex.quote(path + ':train')}\n")
    assert not list(here.iterdir())


def seen(n_utterances, seconds, texts=("one", "two three"), n_speakers=0):
    """Return the survey of an imagined corpus."""
    n = min(n_utterances, 100)
    return Survey(
        n_utterances=n_utterances,
        ids=[f"u{i}" for i in range(n)],
        texts=[texts[i % len(texts)] for i in range(n)],
        speakers=[f"s{i % n_speakers}" if n_speakers else None for i in range(n)],
        seconds=[seconds] * n,
        sample_rates={16000: n},
        n_channels=1,
    )


def test_single_words_get_small_batches_and_narrow_masks():
    choices = choose(seen(5000, 0.6), longest=1)
    assert 6 <= int(choices.batch_seconds.value) <= 15
    assert "max_time_width: 5" in choices.spec_augment.value
    assert choices.tokenizer.value == "characters"
    assert "n_channels: 128" in choices.encoder.value


def test_a_hundred_hours_get_word_pieces_and_a_conformer():
    texts = [" ".join(f"word{i}x{j}" for j in range(50)) for i in range(100)]
    choices = choose(seen(40_000, 10.0, texts), longest=10)
    assert choices.tokenizer.value.startswith("bpe\n  vocab_size: 1000")
    assert "conformer.Conformer" in choices.encoder.value
    assert int(choices.batch_seconds.value) >= 240
    assert choices.max_epochs.value == "30"


def test_a_hundred_hours_of_a_few_words_keep_their_characters():
    assert choose(seen(40_000, 10.0), longest=10).tokenizer.value == "characters"


def test_fast_speech_joins_fewer_frames():
    assert "subsampling: 4" in choose(seen(5000, 1.0, ["abcdef"]), 1).encoder.value
    assert "subsampling: 2" in choose(seen(5000, 1.0, ["abcdefghij" * 3]), 1).encoder.value
    # Between two equal characters CTC needs a blank.
    assert "subsampling: 1" in choose(seen(5000, 1.0, ["aaaaaaaaaa" * 3]), 1).encoder.value


def test_batches_hold_the_longest_utterance():
    choices = choose(seen(200, 35.0), longest=50)
    assert int(choices.batch_seconds.value) > 35
    assert choices.valid_batch_seconds >= 60


@pytest.mark.parametrize(
    ("text", "cleaners"),
    [
        ("ONE TWO", []),
        ("it's one", []),
        ("One two", ["lower"]),
        ("one, two.", ["no_punctuation"]),
        ("<noise> One?", ["no_tags", "lower", "no_punctuation"]),
    ],
)
def test_texts_are_cleaned_as_far_as_they_need_it(text, cleaners):
    assert find_cleaners([text]) == cleaners


def test_too_few_utterances_are_not_divided(rows, here, capsys):
    assert hold_out(seen(19, 1.0)) is None
    path = write_corpus("jsonl", *rows["valid"])
    assert main(["init", "new", "--data", "jsonl", "--train", str(path)]) == 2
    assert "--valid PATH" in capsys.readouterr().err
    assert not (here / "new").exists()


def test_a_large_corpus_is_sampled_from_its_first_to_its_last_utterance():
    positions = spread(1_000_000, 20_000)
    assert len(positions) == 20_000
    assert (positions[0], positions[-1]) == (0, 999_999)
    assert seen(40_000, 9.0).hours == pytest.approx(100)


def test_comments_and_values_of_odd_paths_are_yaml(rows, here):
    folder = here / 'a # b: {c}\'s "d"'
    folder.mkdir()
    path = write_corpus("jsonl", folder, rows["train"][1])
    assert main(["init", "new", "--data", "jsonl", "--train", str(path)]) == 0
    assert config()["dataset"]["train"][0]["data_src_args"]["path"] == str(path)
    assert json.dumps(config("metrics"))

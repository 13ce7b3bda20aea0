import json
import pickle

import numpy as np
import pytest

from espnet3.components.data.errors import AudioError
from espnet3.components.data.sources import jsonl, tsv
from espnet3.errors import ConfigError, RecordError


@pytest.fixture
def folder(awkward, write_wav):
    for name, seconds in (("b", 1.0), ("a", 0.5)):
        write_wav(awkward / f"clips/{name} {name}.wav", seconds)
    return awkward


def write_jsonl(folder, *rows):
    path = folder / "test.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def write_tsv(folder, *rows):
    path = folder / "test.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def problem(error, *args, kind=jsonl, **kwargs) -> str:
    with pytest.raises(error) as caught:
        kind.Dataset(*args, **kwargs)
    return str(caught.value)


B, A = "clips/b b.wav", "clips/a a.wav"


# JSON Lines


def test_a_manifest_of_nemo_is_read_as_it_is(folder, write_wav):
    whole = write_wav(folder / B, 1.0)
    path = write_jsonl(
        folder,
        {"audio_filepath": B, "duration": 0.25, "text": "one", "offset": 0.5, "lang": "en"},
        {"audio_filepath": A, "duration": 7, "text": "two"},
    )
    dataset = jsonl.Dataset(path)
    assert len(dataset) == 2
    sample = dataset[0]
    assert np.array_equal(sample.pop("speech"), whole[8000:12000])
    assert sample == {
        "utt_id": "b_b", "text": "one", "duration": 0.25, "lang": "en", "sample_rate": 16000,
    }  # fmt: skip
    assert dataset[1]["speech"].shape == (8000,)  # without an offset, a duration cuts nothing
    assert dataset.durations() == [0.25, 7.0]


def test_fields_may_have_other_names(folder):
    path = write_jsonl(folder, {"clip": A, "words": "x", "who": 3, "uid": 17, "language": "en"})
    columns = {"speech": "clip", "text": "words", "speaker": "who", "utt_id": "uid",
               "lang": "language"}  # fmt: skip
    sample = jsonl.Dataset(path, columns=columns)[0]
    assert (sample["utt_id"], sample["text"], sample["speaker"]) == ("17", "x", 3)
    assert sample["lang"] == "en"
    assert not {"clip", "words", "who", "uid", "language"} & set(sample)


@pytest.mark.parametrize("name", ["audio_filepath", "audio", "wav", "path"])
def test_common_names_are_found(folder, name):
    path = write_jsonl(folder, {name: A, "id": "u1", "sentence": "x", "speaker_id": "s"})
    sample = jsonl.Dataset(path)[0]
    assert (sample["utt_id"], sample["text"], sample["speaker"]) == ("u1", "x", "s")


def test_a_column_that_is_not_needed_is_kept(folder):
    path = write_jsonl(folder, {"audio_filepath": A, "path": "original.mp3", "text": None})
    sample = jsonl.Dataset(path)[0]
    assert sample["path"] == "original.mp3"
    assert "text" not in sample


def test_durations_that_are_not_written_come_from_headers(folder):
    path = write_jsonl(
        folder, {"path": A}, "", {"path": B, "duration": 3}, {"path": B, "offset": 0.75}
    )
    assert jsonl.Dataset(path).durations() == [0.5, 3.0, 0.25]


def test_ids_of_repeated_files_get_a_number(folder):
    path = write_jsonl(folder, {"path": A}, {"path": B}, {"path": A})
    dataset = jsonl.Dataset(path)
    assert [dataset[i]["utt_id"] for i in range(3)] == ["a_a-1", "b_b-2", "a_a-3"]


def test_a_manifest_is_found_in_the_recipe_and_can_be_pickled(folder):
    path = write_jsonl(folder, {"path": A})
    dataset = jsonl.Dataset(path.name, recipe_dir=folder, channel=0, sample_rate=16000)
    assert pickle.loads(pickle.dumps(dataset))[0]["utt_id"] == "a_a"
    assert "Did you mean 'test.jsonl'?" in problem(ConfigError, folder / "tst.jsonl")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("{", "is not JSON in UTF-8"),
        ("[1]", 'not an object. Write one per line: {"audio_filepath"'),
        ({"id": "b"}, "audio_filepath is None, where the path of an audio file is expected"),
        ({"id": "b", "audio_filepath": {"x": 1}}, "where the path of an audio file is expected"),
        ({"id": "b c", "audio_filepath": A}, '"_".join(id.split())'),
        ({"audio_filepath": A}, "The id None is of type NoneType"),
        ({"id": "a", "audio_filepath": A}, "The id 'a' is that of "),
        ({"id": "b", "audio_filepath": A, "duration": "long"}, "duration is 'long', where a"),
        ({"id": "b", "audio_filepath": A, "duration": True}, "Write one, 0 or more"),
        ({"id": "b", "audio_filepath": A, "offset": -1}, "offset is -1, where a number of seconds"),
    ],
)
def test_a_wrong_line_is_named_by_file_and_line(folder, row, expected):
    path = write_jsonl(folder, {"id": "a", "audio_filepath": A}, "", row)
    message = problem(RecordError, path)
    assert message.startswith(f"{path}:3: ")
    assert expected in message


def test_a_column_that_is_not_there_is_named_with_the_closest(folder):
    path = write_jsonl(folder, {"audio_filepath": A, "transcript": "x"})
    message = problem(ConfigError, path, columns={"text": "transcrip"})
    assert message == (
        f"columns.text is 'transcrip', but {path} has no such column. Did you mean 'transcript'? "
        "It has: audio_filepath, transcript."
    )
    path = write_jsonl(folder, {"clip": A})
    assert problem(ConfigError, path).endswith("Write: columns: {speech: clip}")


def test_audio_that_is_missing_names_the_line_of_the_manifest(folder):
    path = write_jsonl(folder, {"path": A}, "", {"path": "clips/c.wav"})
    dataset = jsonl.Dataset(path)
    expected = f"{path}:3: {folder}/clips/c.wav does not exist"
    with pytest.raises(AudioError) as caught:
        dataset[1]
    assert str(caught.value).startswith(expected)
    with pytest.raises(AudioError) as caught:
        dataset.durations()
    assert expected in str(caught.value)


def test_the_fingerprint_changes_with_content_and_columns(folder):
    path = write_jsonl(folder, {"path": A, "text": "x", "words": "y"})
    prints = [jsonl.Dataset(path).fingerprint() for _ in range(2)]
    prints.append(jsonl.Dataset(path, columns={"text": "words"}).fingerprint())
    write_jsonl(folder, {"path": A, "text": "z", "words": "y"})
    prints.append(jsonl.Dataset(path).fingerprint())
    assert len(set(prints)) == 3


# Tab-separated


def test_a_table_of_common_voice_is_read_as_it_is(folder):
    path = write_tsv(
        folder,
        ("client_id", "path", "sentence", "up_votes"),
        ("ann", B, 'say "hi"', "2"),
        ("bob", A, "", "0"),
    )
    dataset = tsv.Dataset(path)
    sample = dataset[0]
    assert (sample["utt_id"], sample["speaker"]) == ("b_b", "ann")
    assert (sample["text"], sample["up_votes"]) == ('say "hi"', "2")
    assert dataset[1]["text"] == ""
    assert dataset.durations() == [1.0, 0.5]


def test_numbers_of_a_table_are_numbers(folder):
    path = write_tsv(folder, ("id", "wav", "offset", "duration"), ("a", B, "0.25", "0.5"))
    dataset = tsv.Dataset(path)
    assert dataset[0]["speech"].shape == (8000,)
    assert dataset[0]["duration"] == 0.5
    path = write_tsv(folder, ("id", "wav", "duration"), ("a", A, ""))
    assert tsv.Dataset(path).durations() == [0.5]


def test_a_table_of_windows_is_read(folder):
    path = folder / "a.tsv"
    path.write_bytes(f"\ufeffid\tpath\r\nx\t{A}\r\n".encode())
    assert tsv.Dataset(path)[0]["utt_id"] == "x"


def test_a_table_of_a_header_only_is_an_empty_dataset(folder):
    assert len(tsv.Dataset(write_tsv(folder, ("id", "path")))) == 0


@pytest.mark.parametrize(
    ("rows", "line", "expected"),
    [
        ([("id", "path"), ("a", A), ("b", A, "x")], 3, "has 3 cells, and the header has 2 (id, pa"),
        ([("id", "path"), ("a", A), ("a", B)], 3, "The id 'a' is that of "),
        ([("id", "path"), ("a", "")], 2, "path is '', where the path of an audio file is expected"),
        ([("id", "path", "id")], 1, "have a name twice, or an empty one"),
        ([("",), ("x",)], 1, "There is no header. Name the columns: path<TAB>text"),
    ],
)
def test_a_wrong_line_of_a_table_is_named(folder, rows, line, expected):
    path = write_tsv(folder, *rows)
    message = problem(RecordError, path, kind=tsv)
    assert message.startswith(f"{path}:{line}: ")
    assert expected in message


def test_a_table_that_is_not_utf_8_says_how_to_convert_it(folder):
    path = folder / "a.tsv"
    path.write_bytes("id\tpath\té\n".encode("latin1"))
    assert "iconv -f latin1 -t utf-8" in problem(RecordError, path, kind=tsv)

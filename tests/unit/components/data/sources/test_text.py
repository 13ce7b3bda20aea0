"""Texts without audio."""

import json

import pytest

from espnet3.components.data.data_organizer import DataOrganizer
from espnet3.components.data.dataset import fingerprint_of
from espnet3.components.data.sources.text import Dataset
from espnet3.errors import ConfigError, RecordError


def test_lines_of_a_file(awkward):
    (awkward / "a.txt").write_bytes("\ufeffone two\n\n three \u2028 four\r\nfive".encode())
    texts = Dataset("a.txt", recipe_dir=awkward)
    assert [texts[i]["text"] for i in range(len(texts))] == ["one two", "three \u2028 four", "five"]
    assert [texts[i]["utt_id"] for i in (0, -1)] == ["a-1", "a-4"]
    assert texts.durations()[2] == pytest.approx(4 / 15)


def test_texts_of_manifests_and_kaldi_folders_together(awkward):
    rows = [{"utt_id": "u1", "text": "hello", "audio": "x.flac"}, {"id": 7, "text": "you"}]
    (awkward / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (awkward / "kaldi").mkdir()
    (awkward / "kaldi" / "text").write_text("k1 good day\nk2\n")
    (awkward / "lines").write_text("l1 so long\n")
    texts = Dataset([awkward / "m.jsonl", awkward / "kaldi"])
    found = [(texts[i]["utt_id"], texts[i]["text"]) for i in range(len(texts))]
    assert found == [("u1", "hello"), ("7", "you"), ("k1", "good day")]
    assert Dataset(awkward / "lines", has_ids=True)[0] == {"utt_id": "l1", "text": "so long"}


def test_a_change_of_a_file_shows(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    before = fingerprint_of(Dataset(tmp_path / "a.txt"))
    (tmp_path / "a.txt").write_text("two\n")
    assert fingerprint_of(Dataset(tmp_path / "a.txt")) != before


def test_mistakes_say_what_to_write(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"utt_id": "a", "txt": "hello"}\n')
    with pytest.raises(ConfigError, match=r"no text called text.*Did you mean 'txt'.*column: COL"):
        Dataset(tmp_path / "m.jsonl")
    assert Dataset(tmp_path / "m.jsonl", column="txt")[0]["text"] == "hello"
    (tmp_path / "latin.txt").write_bytes("a\né".encode("latin1"))
    with pytest.raises(RecordError, match=r"latin\.txt:2: The line is not UTF-8.*iconv"):
        Dataset(tmp_path / "latin.txt")
    with pytest.raises(ConfigError, match="a folder without a file 'text'"):
        Dataset(tmp_path)
    (tmp_path / "empty.txt").write_text("\n\n")
    entry = {"data_src": "text", "data_src_args": {"path": str(tmp_path / "empty.txt")}}
    with pytest.raises(ConfigError, match=r"dataset\.train\.0\.data_src_args.*has no items"):
        _ = DataOrganizer(train=[entry]).train

"""Data as ESPnet2's tasks name it: several files with a line for each id."""

import numpy as np
import pytest
import soundfile

from espnet3.components.data.errors import AudioError
from espnet3.errors import ConfigError, RecordError
from espnet3.systems.espnet2.data_files import Dataset


@pytest.fixture
def folder(tmp_path):
    for name in ("mix", "ref"):
        soundfile.write(tmp_path / f"{name}.wav", np.full(1600, 0.5, dtype=np.float32), 16000)
        (tmp_path / f"{name}.scp").write_text(f"a {tmp_path}/{name}.wav\nb {name}.wav\n")
    (tmp_path / "text").write_text("b two words\na one\n")
    (tmp_path / "sids").write_text("a 0\nb 1\n")
    (tmp_path / "durations").write_text("a 1,2\nb 3\n")
    np.save(tmp_path / "x.npy", np.arange(3.0))
    (tmp_path / "spembs.scp").write_text("a x.npy\nb x.npy\n")
    return tmp_path


def open_files(folder, *files, **settings):
    return Dataset([[str(folder / path), name, type] for path, name, type in files], **settings)


def test_fields_have_the_names_and_types_of_their_files(folder):
    data = open_files(
        folder, ("mix.scp", "speech_mix", "sound"), ("ref.scp", "speech_ref1", "sound"),
        ("text", "text", "text"), ("sids", "sids", "text_int"),
        ("durations", "durations", "csv_float"), ("spembs.scp", "spembs", "npy"),
    )  # fmt: skip
    assert len(data) == 2
    sample = data[1]
    assert sample["utt_id"] == data.utt_id(1) == "b"
    assert len(sample["speech_mix"]) == len(sample["speech_ref1"]) == 1600
    assert sample["sample_rate"] == 16000
    assert sample["text"] == "two words"
    assert sample["sids"].tolist() == [1]
    assert data[0]["durations"].tolist() == [1, 2]
    assert sample["spembs"].tolist() == [0, 1, 2]
    assert data.durations() == pytest.approx([0.1, 0.1])
    assert "speech_mix" not in data.fields(0)


def test_texts_alone_have_the_durations_of_their_lengths(folder):
    data = open_files(folder, ("text", "text", "text"))
    assert data.durations() == [9 / 15, 3 / 15]
    before = data.fingerprint()
    (folder / "text").write_text("a other\nb text\n")
    assert open_files(folder, ("text", "text", "text")).fingerprint() != before


def test_an_entry_as_on_the_command_line_of_espnet2_is_taken(folder):
    assert Dataset([f"{folder}/text,src_text,text"])[0]["src_text"] == "two words"


def test_ids_that_differ_are_told(folder):
    (folder / "sids").write_text("a 0\nc 1\n")
    with pytest.raises(RecordError, match=r"(b is in .*text|c is in .*sids).*the same ids"):
        open_files(folder, ("text", "text", "text"), ("sids", "sids", "text_int"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "names no file"),
        ([["text", "text"]], "a path, a name and a type"),
        ([["text", "text", "kaldi_ark"]], "not read here; known are sound"),
        ([["text", "text", "txt"]], "Did you mean 'text'"),
    ],
)
def test_wrong_entries_are_refused(files, message):
    with pytest.raises(ConfigError, match=message):
        Dataset(files)


def test_a_name_twice_is_refused(folder):
    with pytest.raises(ConfigError, match="text is there twice"):
        open_files(folder, ("text", "text", "text"), ("text", "text", "text"))


def test_what_is_no_number_is_told_with_its_line(folder):
    data = open_files(folder, ("text", "sids", "text_int"))
    with pytest.raises(RecordError, match=r"text:1 \(b\) is 'two words'"):
        data[0]


def test_audio_that_cannot_be_read_is_told_with_its_line(folder):
    (folder / "mix.wav").write_bytes(b"none")
    with pytest.raises(AudioError, match=r"mix\.scp:1 \(a\)"):
        open_files(folder, ("mix.scp", "speech_mix", "sound"))[0]

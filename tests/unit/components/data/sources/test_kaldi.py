import pickle
import re
import shlex
import subprocess

import numpy as np
import pytest

from espnet3.components.data.dataset import durations_of, fingerprint_of
from espnet3.components.data.errors import AudioError
from espnet3.components.data.sources.kaldi import Dataset
from espnet3.errors import ConfigError, EspnetError, RecordError


@pytest.fixture
def folder(awkward, write_wav):
    """A data directory of two files, of 1 and 0.5 s, with paths relative to itself."""
    for name, seconds in (("b", 1.0), ("a", 0.5)):
        write_wav(awkward / f"wav/{name} {name}.wav", seconds)
    write(awkward, "wav.scp", "b wav/b b.wav", "a\twav/a a.wav")
    return awkward


def write(folder, name, *lines):
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def problem(error, *args, **kwargs) -> str:
    with pytest.raises(error) as caught:
        Dataset(*args, **kwargs)
    return str(caught.value)


# Samples


def test_utterances_come_in_the_order_of_wav_scp_with_text_and_speaker(folder):
    write(folder, "text", "a hello  world", "b")
    write(folder, "utt2spk", "a ann", "b bob")
    dataset = Dataset(folder)
    assert len(dataset) == 2
    sample = dataset[1]
    assert list(sample) == ["utt_id", "text", "speaker", "speech", "sample_rate"]
    assert (sample["utt_id"], sample["text"], sample["speaker"]) == ("a", "hello  world", "ann")
    assert sample["speech"].shape == (8000,)
    assert sample["speech"].dtype == np.float32
    assert sample["sample_rate"] == 16000
    assert dataset[0]["text"] == ""
    assert dataset[-1]["utt_id"] == "a"
    with pytest.raises(IndexError):
        dataset[2]


def test_without_text_and_speakers_there_are_no_such_fields(folder):
    assert set(Dataset(folder)[0]) == {"utt_id", "speech", "sample_rate"}


def test_segments_are_parts_of_recordings(folder, write_wav):
    whole = write_wav(folder / "wav/b b.wav", 1.0)
    write(folder, "segments", "b2 b 0.5 0.75", "b1 b 0.25 -1", "a1 a 0 0.5")
    dataset = Dataset(folder)
    assert [dataset[i]["utt_id"] for i in range(3)] == ["b2", "b1", "a1"]
    assert np.array_equal(dataset[0]["speech"], whole[8000:12000])
    assert np.array_equal(dataset[1]["speech"], whole[4000:])
    assert dataset.durations() == [0.25, 0.75, 0.5]


def test_other_alphabets_and_backslashes_stay_as_they_are(folder):
    write(folder, "text", r"a \n 日本\u3000語", "b naïve\u00a0x")
    dataset = Dataset(folder)
    assert dataset[1]["text"] == r"\n 日本\u3000語"
    assert dataset[0]["text"] == "naïve\u00a0x"


def test_lines_of_windows_and_a_byte_order_mark_are_read(folder):
    (folder / "wav.scp").write_bytes(b"\xef\xbb\xbfb wav/b b.wav\r\na wav/a a.wav\r\n")
    assert Dataset(folder)[0]["utt_id"] == "b"
    assert Dataset(folder).durations() == [1.0, 0.5]


def test_rate_and_channel_are_checked_when_read(folder, write_wav):
    stereo = write_wav(folder / "wav/a a.wav", 0.5, rate=8000, n_channels=2)
    dataset = Dataset(folder, sample_rate=8000, channel=1)
    assert np.array_equal(dataset[1]["speech"], stereo[:, 1])
    with pytest.raises(AudioError, match=r"(?s)wav\.scp:1 \(b\): .* is sampled at 16000 Hz"):
        dataset[0]


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [("sample_rate", "16k", "sample_rate: 16000"), ("channel", True, "channel: 0")],
)
def test_a_rate_or_channel_that_is_no_whole_number_is_refused(folder, name, value, fix):
    message = problem(ConfigError, folder, **{name: value})
    assert message.startswith(f"{name} is {value!r}")
    assert message.endswith(f"Write it without quotes or unit: {fix}")


def test_a_dataset_can_be_pickled(folder):
    dataset = pickle.loads(pickle.dumps(Dataset(folder)))
    assert dataset[1]["utt_id"] == "a"


# Paths


def test_relative_paths_count_from_the_current_folder_first(folder, tmp_path, monkeypatch):
    assert Dataset(folder)[0]["speech"].shape == (16000,)
    import soundfile

    other = tmp_path / "elsewhere"
    (other / "wav").mkdir(parents=True)
    for name in "ab":
        soundfile.write(other / f"wav/{name} {name}.wav", np.zeros(80), 16000)
    monkeypatch.chdir(other)
    dataset = Dataset(folder)
    monkeypatch.chdir(tmp_path)
    assert dataset[0]["speech"].shape == (80,)


def test_relative_paths_count_from_the_recipe_above_the_directory(tmp_path, write_wav):
    write_wav(tmp_path / "asr1/downloads/a.wav", 0.5)
    data = tmp_path / "asr1/dump/raw/test"
    data.mkdir(parents=True)
    write(data, "wav.scp", "a downloads/a.wav")
    assert Dataset(data).durations() == [0.5]


def test_relative_paths_that_lead_nowhere_list_what_was_tried(folder):
    write(folder, "wav.scp", "a no/a.wav")
    message = problem(ConfigError, folder)
    assert "refers to 'no/a.wav', which is in none of" in message
    assert str(folder) in message
    assert "write absolute paths" in message


def test_the_directory_is_looked_for_in_the_recipe_too(folder):
    recipe, name = folder.parent, folder.name
    assert len(Dataset(name, recipe_dir=recipe)) == 2
    message = problem(ConfigError, f"{name}s", recipe_dir=recipe)
    assert f"{recipe / name}s" in message
    assert "Did you mean" in message
    assert "--stages create_dataset" in message


def test_a_folder_without_wav_scp_is_refused(tmp_path):
    assert "which has no wav.scp. Write the folder of" in problem(ConfigError, tmp_path)


# Durations


def test_durations_come_from_utt2dur_without_opening_audio(folder):
    write(folder, "utt2dur", "a 7.5", "b 2")
    for file in (folder / "wav").iterdir():
        file.write_bytes(b"no audio")
    assert durations_of(Dataset(folder)).tolist() == [2.0, 7.5]


def test_durations_come_from_reco2dur_for_whole_files_and_open_ends(folder):
    write(folder, "reco2dur", "a 7.5", "b 2")
    assert Dataset(folder).durations() == [2.0, 7.5]
    write(folder, "segments", "b1 b 0.5 -1")
    assert Dataset(folder).durations() == [1.5]


def test_durations_that_are_not_written_down_come_from_headers_once(folder):
    write(folder, "utt2dur", "b 2")
    dataset = Dataset(folder)
    assert dataset.durations() == [2.0, 0.5]
    (folder / "wav/a a.wav").unlink()
    assert dataset.durations() == [2.0, 0.5]


def test_headers_that_cannot_be_read_are_counted_and_the_first_is_named(folder):
    (folder / "wav/a a.wav").write_text("no audio")
    dataset = Dataset(folder)
    with pytest.raises(AudioError) as caught:
        dataset.durations()
    message = str(caught.value)
    assert message.startswith("The durations of 1 of 2 items cannot be read")
    assert f"The first is {folder}/wav.scp:2 (a): " in message
    assert "convert it: ffmpeg" in message


# Ids that do not agree


def test_ids_of_text_must_be_those_of_the_utterances(folder):
    write(folder, "text", "a x", *(f"c{i} x" for i in range(5)))
    message = problem(RecordError, folder)
    assert message == (
        f"{folder}/text has no line for 1 id (b) of wav.scp, and lines for 5 ids (c0, c1, c2, ...) "
        "that wav.scp does not have. Make them agree: utils/fix_data_dir.sh "
        f"{shlex.quote(str(folder))}; or take what is there: strict: false"
    )


def test_utt2spk_is_checked_as_well_and_against_segments(folder):
    write(folder, "segments", "b1 b 0 1", "b2 b 0.5 1")
    write(folder, "utt2spk", "b1 bob")
    message = problem(RecordError, folder)
    assert "utt2spk has no line for 1 id (b2) of segments, and lines for 0 ids" in message


def test_what_is_there_is_taken_if_asked(folder):
    write(folder, "text", "a x", "c y")
    dataset = Dataset(folder, strict=False)
    assert "text" not in dataset[0]
    assert dataset[1]["text"] == "x"
    assert len(dataset) == 2


# Lines that are refused


def test_a_command_is_refused_and_the_line_to_run_makes_plain_files(tmp_path, write_wav):
    for name in "ab":
        write_wav(tmp_path / f"{name} raw.wav", 0.5)
    data = tmp_path / "it's data"
    data.mkdir()
    (data / "text").write_text("a hello\nb world\n")
    write(data, "wav.scp", *(f"{n} cat '{tmp_path}/{n} raw.wav' | cat - |" for n in "ab"))
    message = problem(RecordError, data)
    assert f"{data}/wav.scp:1 (a) is a command" in message
    assert "never executed" in message
    command = re.search(r"(cp -r .*)$", message)[1]
    subprocess.run(["bash", "-c", command], check=True, cwd=tmp_path)
    dataset = Dataset(f"{data}_wav")
    assert [s["text"] for s in (dataset[0], dataset[1])] == ["hello", "world"]
    assert dataset.durations() == [0.5, 0.5]


@pytest.mark.parametrize("value", ["dump/data.ark:5", "/x/a.ark:123[0:16]", "-"])
def test_an_archive_is_refused_with_the_line_to_run(folder, value):
    write(folder, "wav.scp", "b wav/b b.wav", f"a {value}")
    message = problem(RecordError, folder)
    assert f"{folder}/wav.scp:2 (a) is a part of an archive, {value!r}" in message
    assert "format_wav_scp.sh --audio-format wav" in message


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("wav.scp", "a", "wav.scp:3 (a) has no path. Write: a /path/to/a.wav"),
        ("wav.scp", "b x.wav", "wav.scp:3: The id 'b' is there twice"),
        ("wav.scp", "", "wav.scp:3: The line"),
        ("wav.scp", "x\u00a0y z", "wav.scp:3: The id 'x\\xa0y' holds"),
        ("segments", "x b", "segments:3 (x) is incomplete. Write: x RECORDING START END"),
        ("segments", "x c 0 1", "segments:3 (x) names the recording 'c', which wav.scp does not"),
        ("segments", "x b 1 1", "segments:3 (x) ends at 1 s, not after its start at 1 s"),
        ("segments", "x b 1 -1.5", "segments:3 (x) has '-1.5' where a number of seconds"),
        ("segments", "x b one 2", "segments:3 (x) has 'one' where a number of seconds"),
        ("utt2spk", "b bob", "utt2spk:3: The id 'b' is there twice"),
    ],
)
def test_a_wrong_line_is_named(folder, name, line, expected):
    first = {
        "wav.scp": ("b wav/b b.wav", "c wav/a a.wav"),
        "segments": ("s1 b 0 0.5", "s2 a 0 0.5"),
        "utt2spk": ("b bob", "a ann"),
    }[name]
    write(folder, name, *first, line, "d wav/a a.wav")
    message = problem(EspnetError, folder)
    assert f"{folder}/{expected}" in message


def test_text_that_is_not_utf_8_is_named_by_file_and_line(folder):
    (folder / "text").write_bytes("b x\na é\n".encode("latin1"))
    message = problem(RecordError, folder)
    assert message.startswith(f"{folder}/text:2: The line is not UTF-8")
    assert "iconv" in message


def test_a_wrong_duration_is_named(folder):
    write(folder, "utt2dur", "b 1", "a nan")
    with pytest.raises(RecordError, match=r"utt2dur:2 \(a\) has 'nan' where a number of seconds"):
        Dataset(folder).durations()


def test_an_empty_wav_scp_is_an_empty_dataset(folder):
    (folder / "wav.scp").write_text("")
    assert len(Dataset(folder)) == 0


# Fingerprint


def test_the_fingerprint_changes_with_what_the_items_are_made_from(folder):
    write(folder, "text", "a x", "b y")
    prints = [fingerprint_of(Dataset(folder)), fingerprint_of(Dataset(folder))]
    (folder / "text").touch()
    write(folder, "utt2dur", "a 0.5", "b 1")
    prints.append(Dataset(folder).fingerprint())
    assert len(set(prints)) == 1
    prints.append(Dataset(folder, channel=0).fingerprint())
    prints.append(Dataset(folder, sample_rate=16000).fingerprint())
    write(folder, "text", "a x", "b z")
    prints.append(Dataset(folder).fingerprint())
    write(folder, "segments", "b b 0 1", "a a 0 0.5")
    prints.append(Dataset(folder).fingerprint())
    assert len(set(prints)) == 5

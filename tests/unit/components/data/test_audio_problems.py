"""Odd and damaged audio: what is read, what is refused, and in which words."""

import os
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from espnet3.components.data.audio import read_audio, read_duration
from espnet3.components.data.errors import AudioError
from espnet3.components.data.sources import jsonl, kaldi
from espnet3.errors import RecordError
from tests.helpers.bad_audio import GOOD, OF_ANOTHER_FORM, RATE, UNREADABLE, encode, tone, write_all


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("it's audio")
    write_all(folder)
    return folder


@pytest.mark.parametrize("name", GOOD)
def test_what_is_odd_but_sound_is_read_as_float32(folder, name):
    samples, rate = read_audio(folder / name, sample_rate=RATE, channel="only")
    assert samples.dtype == np.float32
    assert (rate, samples.ndim) == (RATE, 1)
    assert read_duration(folder / name) == len(samples) / RATE


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("plain.wav", 1e-4),
        ("24_bit.wav", 1e-6),
        ("8_bit.wav", 0.01),
        ("from_a_pipe.wav", 1e-4),
    ],
)
def test_all_widths_have_full_scale_1(folder, name, tolerance):
    assert read_audio(folder / name).samples == pytest.approx(tone(0.5), abs=tolerance)


def test_values_beyond_full_scale_are_kept(folder):
    assert read_audio(folder / "beyond_full_scale.wav").samples.max() == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize("name", OF_ANOTHER_FORM)
def test_another_form_is_refused_unless_the_user_asks_for_this_one(folder, name):
    with pytest.raises(AudioError, match=rf"{re.escape(name)} .*(resample: true|channel: mix)"):
        read_audio(folder / name, sample_rate=RATE, channel="only")
    samples, rate = read_audio(folder / name, sample_rate=RATE, channel="mix", resample=True)
    assert (rate, samples.shape) == (RATE, (RATE // 2,))
    loudness = 0.75 if "stereo" in name else 1
    middle = slice(800, -800)
    assert samples[middle] == pytest.approx(loudness * tone(0.5)[middle], abs=2e-4)


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("is_content", [False, True])
def test_what_cannot_be_read_is_named_with_what_to_do(folder, name, is_content):
    path = folder / name
    if is_content and not path.exists():
        pytest.skip("a missing file has no content")
    told = UNREADABLE[name][1]
    with pytest.raises(AudioError) as caught:
        read_audio(path.read_bytes() if is_content else path)
    message = str(pickle.loads(pickle.dumps(caught.value)))
    assert (f"audio of {len(path.read_bytes())} bytes" if is_content else str(path)) in message
    if not (is_content and name == "empty.wav"):  # no bytes are no audio
        assert told in message
    assert re.search(r"again|convert it|Mend it|Correct its path", message)


def test_the_part_that_is_there_of_a_file_cut_short_can_be_read(folder):
    part = read_audio(folder / "cut.wav", start=0.05, end=0.2).samples
    assert part == pytest.approx(tone(0.5)[800:3200], abs=1e-4)
    assert read_duration(folder / "cut.wav") == 0.5
    with pytest.raises(AudioError, match="promises 8000 samples, and 3989 could be read"):
        read_audio(folder / "cut.wav")


def test_a_number_that_is_none_outside_of_the_part_does_no_harm(folder):
    assert len(read_audio(folder / "nan.wav", start=0.1).samples) == 6400
    with pytest.raises(AudioError, match=r"the first at 0\.0125 s of what was read"):
        read_audio(folder / "nan.wav", start=0.05)


def test_a_folder_and_an_empty_name_are_told_as_such(folder):
    with pytest.raises(AudioError, match=r"folder\.wav is a folder"):
        read_audio(folder / "folder.wav")
    with pytest.raises(AudioError, match="The path of an audio file is empty"):
        read_audio("")


def test_lists_without_a_name_are_refused_with_file_and_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"audio": "a.wav"}\n{"audio": ""}\n')
    with pytest.raises(RecordError, match=r"a\.jsonl:2: audio is ''"):
        jsonl.Dataset(tmp_path / "a.jsonl")
    (tmp_path / "wav.scp").write_text("a a.wav\nb \n")
    with pytest.raises(RecordError, match=r"wav\.scp:2 \(b\) has no path"):
        kaldi.Dataset(tmp_path)


READ = """
import os, sys
from espnet3.components.data.audio import read_audio
good, bad = sys.argv[1:]
read_audio(good)  # so that all is imported
if os.geteuid() == 0:
    os.setuid(65534)
read_audio(bad)
"""


def test_a_file_that_may_not_be_read_is_told_with_the_command():
    # Not in tmp_path, which others may not enter.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        good, bad = Path(folder, "a.wav"), Path(folder, "secret one.wav")
        for path in (good, bad):
            path.write_bytes(encode(tone(0.1)))
        bad.chmod(0)
        command = [sys.executable, "-c", READ, good, bad]
        done = subprocess.run(command, capture_output=True, text=True)
    assert f"AudioError: {bad} may not be read by you" in done.stderr
    assert f"chmod a+r '{bad}'" in done.stderr


@pytest.mark.parametrize("name", ["text.wav", "empty.wav", "missing.wav"])
def test_an_item_that_cannot_be_read_has_the_length_that_the_caller_wants(folder, tmp_path, name):
    (tmp_path / "wav.scp").write_text(f"a {folder}/plain.wav\nb {folder}/{name}\n")
    dataset = kaldi.Dataset(tmp_path)
    with pytest.raises(AudioError, match=rf"durations of 1 of 2 .*{re.escape(name)}"):
        dataset.durations()
    assert dataset.durations(unreadable=0.0) == [0.5, 0.0]
    with pytest.raises(AudioError, match=rf"wav\.scp:2 \(b\): .*{re.escape(name)}"):
        dataset[1]

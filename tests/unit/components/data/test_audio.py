import pickle
import shutil
import subprocess

import numpy as np
import pytest
import soundfile

from espnet3.components.data.audio import in_threads, read_audio, read_duration
from espnet3.components.data.errors import AudioError
from espnet3.errors import EspnetError


def problem(function, *args, **kwargs) -> str:
    with pytest.raises(AudioError) as caught:
        function(*args, **kwargs)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def test_a_file_comes_as_float32_with_its_rate(awkward, write_wav):
    written = write_wav(awkward / "a b.wav", 0.5, rate=8000)
    audio = read_audio(awkward / "a b.wav")
    assert audio.samples.dtype == np.float32
    assert audio.sample_rate == 8000
    assert np.array_equal(audio.samples, written)


def test_a_part_is_cut_at_its_samples(tmp_path, write_wav):
    written = write_wav(tmp_path / "a.wav", 1.0)
    part = read_audio(tmp_path / "a.wav", start=0.25, end=0.5).samples
    assert np.array_equal(part, written[4000:8000])
    rest = read_audio(tmp_path / "a.wav", start=0.25).samples
    assert np.array_equal(rest, written[4000:])


def test_an_end_that_was_rounded_up_is_the_end_of_the_file(tmp_path, write_wav):
    written = write_wav(tmp_path / "a.wav", 1.0)
    assert np.array_equal(read_audio(tmp_path / "a.wav", end=1.4).samples, written)


@pytest.mark.parametrize(("start", "end"), [(0, 1.6), (1.0, None), (1.1, 1.3), (0.5, 0.5), (-1, 1)])
def test_a_part_that_is_not_there_is_refused_with_the_length(tmp_path, write_wav, start, end):
    write_wav(tmp_path / "a.wav", 1.0)
    message = problem(read_audio, tmp_path / "a.wav", start=start, end=end)
    assert "a.wav is 1 s long, but the part from" in message
    assert message.endswith("Correct the start and end of that part.")


def test_channels_are_kept_unless_one_is_chosen(tmp_path, write_wav):
    written = write_wav(tmp_path / "a.wav", 0.1, n_channels=2)
    assert np.array_equal(read_audio(tmp_path / "a.wav").samples, written)
    assert np.array_equal(read_audio(tmp_path / "a.wav", channel=1).samples, written[:, 1])
    message = problem(read_audio, tmp_path / "a.wav", channel=2)
    assert "has 2 channels, but channel is 2" in message
    assert message.endswith("channel: 0")


def test_the_only_channel_may_be_chosen(tmp_path, write_wav):
    written = write_wav(tmp_path / "a.wav", 0.1)
    assert np.array_equal(read_audio(tmp_path / "a.wav", channel=0).samples, written)


def test_another_rate_is_refused_with_the_command_that_converts(tmp_path, write_wav):
    path = tmp_path / "it's.wav"
    write_wav(path, 0.1, rate=8000)
    message = problem(read_audio, path, sample_rate=16000)
    assert "is sampled at 8000 Hz, but sample_rate is 16000" in message
    command = message.partition("Convert it: ")[2].partition(" (or")[0]
    if shutil.which("sox"):
        subprocess.run(command, shell=True, check=True, cwd=tmp_path)
        assert soundfile.info(tmp_path / "OUT.wav").samplerate == 16000
    else:
        assert command.startswith("sox '")
    assert message.endswith("sample_rate: 8000")


@pytest.mark.parametrize("read", [read_audio, read_duration])
def test_what_is_no_audio_file_is_named_with_what_to_do(tmp_path, read):
    (tmp_path / "text.wav").write_text("hello")
    (tmp_path / "empty.wav").touch()
    assert problem(read, tmp_path / "no.wav").endswith("does not exist. " + "Correct its path, or "
        "make the file.")  # fmt: skip
    assert "is a folder. Write the path of an audio file." in problem(read, tmp_path)
    assert "is empty. Copy or make the file again." in problem(read, tmp_path / "empty.wav")
    assert "convert it: ffmpeg -i" in problem(read, tmp_path / "text.wav")
    told = problem(read, b"hello")
    assert "audio of 5 bytes cannot be read as audio: Format not recognised. It is no audio" in told


@pytest.mark.parametrize("suffix", ["flac", "mp3"])
def test_a_damaged_file_is_not_taken_for_a_short_one(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    noise = np.random.default_rng(0).normal(0, 0.1, 48000)
    soundfile.write(path, noise, 16000)
    assert len(read_audio(path).samples) == 48000
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "again" in problem(read_audio, path)


def test_duration_and_audio_come_from_the_content_of_a_file_too(tmp_path, write_wav):
    written = write_wav(tmp_path / "a.wav", 0.75, rate=8000)
    content = (tmp_path / "a.wav").read_bytes()
    assert read_duration(content) == read_duration(tmp_path / "a.wav") == 0.75
    assert np.array_equal(read_audio(content).samples, written)


def test_a_file_without_samples_is_0_seconds_long(tmp_path, write_wav):
    write_wav(tmp_path / "a.wav", 0.0)
    assert read_duration(tmp_path / "a.wav") == 0.0
    assert len(read_audio(tmp_path / "a.wav").samples) == 0


def test_the_duration_needs_the_header_only(tmp_path):
    path = tmp_path / "a.flac"
    soundfile.write(path, np.random.default_rng(0).normal(0, 0.1, 48000), 16000)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(EspnetError):
        read_audio(path)
    assert read_duration(path) == 3.0


def test_threads_keep_the_order_and_pass_errors_on():
    assert in_threads(lambda i: i * i, range(1000)) == [i * i for i in range(1000)]
    assert in_threads(str, []) == []
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda i: 1 / i, [1, 0])

"""`espnet3 transcribe`: audio of all kinds, models of all kinds, texts in all formats."""

import io
import json
import re
import shlex
import shutil
import subprocess
from itertools import pairwise

import numpy as np
import pytest
import soundfile

from espnet3.cli.main import main
from espnet3.components.decoding.alignment import Word
from espnet3.components.text.subtitles import captions, format_srt, format_textgrid, format_vtt
from espnet3.systems.asr.inference import Speech2Text
from tests.helpers.recognizer_parts import RATE, make_recipe, noise


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make_recipe(tmp_path_factory.mktemp('it\'s "a" recipe'))


@pytest.fixture
def audio(tmp_path):
    """Return a folder of audio in sub-folders, of several rates, lengths and channels."""
    folder = tmp_path / "my audio"
    (folder / "day 1").mkdir(parents=True)
    soundfile.write(folder / "a.wav", noise(1.0, seed=1), RATE)
    soundfile.write(folder / "a.flac", noise(0.7, seed=2), RATE)
    soundfile.write(folder / "day 1" / "b.wav", np.repeat(noise(0.9, seed=3), 2), 2 * RATE)
    stereo = np.stack([noise(1.2, seed=4)] * 2, 1)
    soundfile.write(folder / "day 1" / "c.ogg", stereo, RATE)
    (folder / "notes.txt").write_text("no audio\n")
    return folder


@pytest.fixture
def transcribe(tmp_path, recipe, capsys):
    """Return a function that calls the command, with the model of the recipe unless given one."""

    def call(*words, model=recipe / "exp/training", code=0):
        chosen = [] if model is None else ["--model", str(model)]
        ended = main(["transcribe", *map(str, words), *chosen, "--output", str(tmp_path / "out")])
        captured = capsys.readouterr()
        assert ended == code, captured.err
        return captured

    call.out = tmp_path / "out"
    return call


def lines(path):
    return dict(line.partition(" ")[::2] for line in path.read_text().splitlines())


def test_a_folder_of_any_audio_becomes_texts(transcribe, audio, recipe):
    printed = transcribe(audio).out
    texts = lines(transcribe.out / "transcripts.txt")
    assert list(texts) == ["a.flac", "a.wav", "day_1/b", "day_1/c"]
    model = Speech2Text.from_experiment(recipe / "exp/training")
    assert texts["a.wav"] == model(audio / "a.wav").text
    assert texts["day_1/b"] == model(audio / "day 1" / "b.wav").text
    assert len(set(texts.values())) == 4
    assert printed == "".join(f"{id}\t{text}\n" for id, text in texts.items())


def test_the_text_of_one_file_is_all_that_is_printed(transcribe, audio):
    text = transcribe(audio / "a.wav").out
    assert text == next(iter(lines(transcribe.out / "transcripts.txt").values())) + "\n"


def test_the_same_command_again_decodes_nothing(transcribe, audio):
    transcribe(audio)
    before = (transcribe.out / "decoding/audio/_SUCCESS.json").stat()
    again = transcribe(audio, "--format", "text", "jsonl", code=1)
    assert "word_times" in again.err  # other settings are other results, and are not mixed
    # Both lines can be pasted: the one that keeps these results, and the one that replaces them.
    assert re.search(
        r"  espnet3 transcribe .* --format text jsonl .* --output \S*out_2\n", again.err
    )
    assert re.search(r"  espnet3 transcribe .* --output \S*out runner.resume=false\n", again.err)
    transcribe(audio)
    assert (transcribe.out / "decoding/audio/_SUCCESS.json").stat() == before


def test_all_formats_of_timed_words(transcribe, audio):
    transcribe(audio, "--format", "text", "jsonl", "srt", "vtt", "ctm", "textgrid")
    rows = [json.loads(line) for line in (transcribe.out / "transcripts.jsonl").open()]
    first = rows[0]
    assert first["audio"] == str(audio / "a.flac")
    assert first["duration"] == 0.7
    assert " ".join(word["word"] for word in first["words"]) == first["text"]
    assert (transcribe.out / "srt/day_1/b.srt").read_text().startswith("1\n00:00:00,")
    assert (transcribe.out / "vtt/a.wav.vtt").read_text().startswith("WEBVTT\n\n00:00:00.")
    grid = (transcribe.out / "textgrid/day_1/c.TextGrid").read_text()
    assert "xmax = 1.2" in grid
    ctm = [line.split() for line in (transcribe.out / "transcripts.ctm").open()]
    assert [len(row) for row in ctm] == [6] * len(ctm)
    assert [row[4] for row in ctm if row[0] == "a.flac"] == first["text"].split()


def test_references_are_scored_by_id(transcribe, audio, tmp_path):
    transcribe(audio)
    texts = lines(transcribe.out / "transcripts.txt")
    shutil.rmtree(transcribe.out)
    wrong = {**texts, "a.wav": "nothing of this"}
    (tmp_path / "ref").write_text("".join(f"{id} {text}\n" for id, text in wrong.items()))
    transcribe(audio, "--reference", tmp_path / "ref")
    scores = json.loads((transcribe.out / "decoding/metrics.json").read_text())
    rates = {name: found["audio"] for name, found in scores.items()}
    assert 0 < rates["WER"]["rate"] < 100
    assert rates["WER"]["n_utterances"] == 4
    (tmp_path / "ref").write_text("a.wav nothing\n")
    shutil.rmtree(transcribe.out)
    assert (
        "has no text for 3 files" in transcribe(audio, "--reference", tmp_path / "ref", code=1).err
    )


def test_a_kaldi_directory_keeps_its_segments_and_texts(transcribe, tmp_path, audio):
    data = tmp_path / "data"
    data.mkdir()
    (data / "wav.scp").write_text(f"rec {audio / 'a.wav'}\n".replace(" audio", "_audio"))
    (tmp_path / "my_audio").symlink_to(audio)
    (data / "segments").write_text("u1 rec 0.0 0.5\nu2 rec 0.5 1.0\n")
    (data / "text").write_text("u1 one\nu2 two\n")
    transcribe(data)
    assert list(lines(transcribe.out / "transcripts.txt")) == ["u1", "u2"]
    assert (transcribe.out / "decoding/metrics.json").is_file()


def test_a_list_on_the_standard_input(transcribe, audio, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{audio / 'a.wav'}\n{audio / 'a.flac'}\n"))
    transcribe("-")
    assert list(lines(transcribe.out / "transcripts.txt")) == ["a.wav", "a.flac"]


def test_long_audio_is_decoded_in_windows(transcribe, tmp_path):
    soundfile.write(tmp_path / "long.wav", noise(70.0, seed=5), RATE)
    transcribe(tmp_path / "long.wav", "--format", "srt")
    last = (transcribe.out / "srt/long.srt").read_text().strip().split("\n\n")[-1]
    assert "00:01:0" in last


def test_one_bad_file_costs_one_file(transcribe, audio):
    (audio / "broken.wav").write_bytes(b"RIFF but not much more")
    transcribe(audio, code=1)
    (failed,) = (transcribe.out / "decoding/audio/failed.jsonl").read_text().splitlines()
    assert "broken.wav" in json.loads(failed)["error"]
    assert json.loads(failed)["ids"] == ["broken"]
    assert len(lines(transcribe.out / "transcripts.txt")) == 4


def test_failures_are_told_each_time(transcribe, audio, caplog):
    (audio / "broken.wav").write_bytes(b"RIFF but not much more")
    for _ in range(2):
        caplog.clear()
        transcribe(audio, code=1)
        assert "broken has no text: " in caplog.text
        assert "1 recording could not be recognised. See: espnet3 failed " in caplog.text


def test_results_with_times_serve_texts_without(transcribe, audio):
    transcribe(audio, "--format", "srt")
    before = (transcribe.out / "decoding/audio/_SUCCESS.json").stat()
    transcribe(audio)
    assert (transcribe.out / "decoding/audio/_SUCCESS.json").stat() == before
    assert len(lines(transcribe.out / "transcripts.txt")) == 4


def test_several_processes_and_a_packed_model(transcribe, audio, recipe, tmp_path):
    from tests.helpers.recognizer_parts import run

    run(recipe, "--stages", "pack_model")
    packed = next((recipe / "exp/training").glob("*.tar.gz"))
    transcribe(audio, "parallel.n_workers=2", "--format", "ctm", model=packed)
    assert (transcribe.out / "transcripts.ctm").read_text()


def test_a_class_of_ones_own(transcribe, audio, tmp_path, monkeypatch):
    (tmp_path / "own_model_of_a_test.py").write_text(
        "class Length:\n"
        "    def __init__(self, device): ...\n"
        "    def __call__(self, speech, sample_rate):\n"
        "        return f'{len(speech) / sample_rate:.1f} seconds'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    transcribe(audio, model="own_model_of_a_test.Length")
    assert lines(transcribe.out / "transcripts.txt")["day_1/b"] == "0.9 seconds"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere.wav"], "There is no nowhere.wav"),
        (["empty"], "has no audio files"),
        (["notes.txt"], "is no audio by its name"),
        (["a.wav", "--format", "subtitles"], "'subtitles' is no format"),
        (["a.wav", "--parallel", "other.yaml"], "has dataset"),
        (["a.wav", "parallel.n_worker=2"], "n_workers"),
        (["a.wav", "modle.decoder=null"], "modle"),
    ],
)
def test_mistakes_end_it_before_anything_is_decoded(transcribe, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    soundfile.write("a.wav", noise(0.5), RATE)
    (tmp_path / "notes.txt").write_text("no audio")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.yaml").write_text("parallel: {env: local}\ndataset: {}\n")
    assert told in transcribe(*words, code=1).err
    assert not (transcribe.out / "decoding").exists()


@pytest.mark.parametrize("model", ["nowhere", "no.such.Model", ""])
def test_a_model_that_is_none(transcribe, audio, model, tmp_path):
    given = tmp_path / "nothing_trained" if model == "" else model
    if model == "":
        given.mkdir()
    told = transcribe(audio, model=given, code=1).err
    assert "--model nowhere is no folder" in told or "no module" in told or "no trained" in told


def test_a_recipe_in_place_of_its_training_is_told_with_the_line(transcribe, audio, recipe):
    told = transcribe(audio, model=recipe, code=1).err
    line = shlex.split(told.partition("Write: ")[2])
    assert line[line.index("--model") + 1] == str(recipe / "exp" / "training")
    assert "train first" not in told


def test_misspelt_audio_is_told_with_the_line(transcribe, audio):
    told = transcribe(f"{audio}x", code=1).err
    assert str(audio) in shlex.split(told.partition("Write: ")[2])


def test_subtitles_without_times_are_refused(transcribe, audio, tmp_path, monkeypatch):
    (tmp_path / "text_only_model.py").write_text(
        "class M:\n    def __init__(self, device): ...\n"
        "    def __call__(self, speech): return 'a'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    told = transcribe(audio, "--format", "srt", model="text_only_model.M", code=1).err
    assert "--format text jsonl" in told


def test_m4a_needs_ffmpeg_and_says_so(transcribe, audio, monkeypatch):
    (audio / "d.m4a").write_bytes(b"....ftypM4A ")
    monkeypatch.setenv("PATH", "/nowhere")
    transcribe(audio, code=1)
    failed = (transcribe.out / "decoding/audio/failed.jsonl").read_text()
    assert "Install ffmpeg" in failed


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs the program ffmpeg")
def test_m4a_is_read_by_ffmpeg(transcribe, audio):
    line = ["ffmpeg", "-v", "error", "-i", audio / "a.wav", audio / "d.m4a"]
    subprocess.run(line, check=True)
    transcribe(audio)
    assert "d" in lines(transcribe.out / "transcripts.txt")


def words_of(text, seconds=0.4, pause=0.1):
    step = seconds + pause
    return [Word(w, i * step, i * step + seconds, 1.0) for i, w in enumerate(text.split())]


def test_captions_end_at_pauses_and_stay_readable():
    words = words_of("one two three four five six seven eight nine ten " * 4)
    later = [Word(w.word, w.start + 60, w.end + 60, 1.0) for w in words_of("and then")]
    found = captions([*words, *later])
    assert found[-1].text == "and then"
    assert all(one.end - one.start <= 7.001 for one in found)
    assert all(len(line) <= 84 for one in found for line in one.text.split("\n"))
    assert " ".join(one.text.replace("\n", " ") for one in found).split() == [
        w.word for w in [*words, *later]
    ]
    assert all(a.end <= b.start + 1e-9 for a, b in pairwise(found))


def test_formats_without_any_word():
    assert format_srt([]) == ""
    assert format_vtt([]) == "WEBVTT\n"
    assert 'text = ""' in format_textgrid([], 2.0)


def test_special_characters_are_escaped():
    assert "a &lt;b&gt; &amp;" in format_vtt(words_of("a <b> &"))
    assert 'text = "say ""hi"""' in format_textgrid([Word('say "hi"', 0, 1, 1.0)], 1.0)

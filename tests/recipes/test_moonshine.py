"""The Moonshine recipe: its model and its data, in this process."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

pytest.importorskip("onnxruntime", reason="needs pip install -e '.[moonshine]'")

from espnet3.components.data.data_organizer import DataOrganizer, DataSource
from espnet3.components.data.dataset_builder import build_dataset
from espnet3.components.data.errors import AudioError, DataError
from espnet3.errors import ConfigError, MissingExtraError
from espnet3.systems.asr import moonshine
from espnet3.systems.asr.metrics.wer import WER

RECIPE = Path(__file__).parents[2] / "egs3" / "moonshine" / "asr"
RATE = 16000

pytestmark = pytest.mark.skipif(
    not DataSource(recipe_dir=RECIPE).load("DatasetBuilder")().is_source_prepared(),
    reason="needs pip install -e '.[moonshine]'",
)


@pytest.fixture(scope="module")
def model():
    return moonshine.Moonshine()


@pytest.fixture(scope="module")
def builder():
    return DataSource(recipe_dir=RECIPE).load("DatasetBuilder")()


@pytest.fixture(scope="module")
def data_dir(builder, tmp_path_factory):
    folder = tmp_path_factory.mktemp('it\'s "data"')
    lines = build_dataset(builder, recipe_dir=RECIPE, context={"data_dir": folder})
    assert lines[1] == "DatasetBuilder.build: done"
    return folder


@pytest.fixture(scope="module")
def sentences(data_dir):
    dataset = open_dataset(data_dir / "two_cities")
    return [dataset[i] for i in range(len(dataset))]


def open_dataset(path):
    test = [{"name": "test", "data_src_args": {"path": str(path)}}]
    return DataOrganizer(recipe_dir=RECIPE, test=test).test["test"]


def word_error_rate(references, hypotheses):
    wer = WER(clean_types=["lower", "split_hyphens", "no_punctuation"], details=False)
    return wer.compute({"ref": references, "hyp": hypotheses})["rate"]


def speech_of(samples):
    return [sample["speech"] for sample in samples]


def test_real_speech_is_recognised(model, sentences):
    hypotheses = [model(speech=speech) for speech in speech_of(sentences)]
    assert word_error_rate([sample["text"] for sample in sentences], hypotheses) < 10


def test_a_batch_gives_what_its_utterances_give_alone(model, sentences):
    alone = [model(speech=speech) for speech in speech_of(sentences)]
    batch = model(speech=speech_of(sentences))
    # Activations are quantised with one scale per batch, so a close decision may differ.
    assert sum(a == b for a, b in zip(alone, batch, strict=True)) >= len(alone) - 2
    assert word_error_rate(alone, batch) < 3


def test_a_short_utterance_ends_early_in_a_batch_and_does_not_disturb_the_others(model, sentences):
    long, short = sentences[9]["speech"], sentences[0]["speech"][: 2 * RATE]
    silence = np.zeros(RATE, np.float32)
    texts = model(speech=[short, silence, long, short])
    assert texts[1] == ""
    assert texts[0] == texts[3]
    assert texts[0].lower().startswith("it was the best of times")
    assert word_error_rate([sentences[9]["text"]], [texts[2]]) < 20


@pytest.mark.parametrize("n_samples", [0, 1, 400, RATE // 10 - 1])
def test_audio_too_short_for_a_word_has_no_text(model, n_samples):
    assert model(speech=np.full(n_samples, 0.1, np.float32)) == ""


@pytest.mark.parametrize("seconds", [0.1, 1, 70])
def test_digital_silence_has_no_text(model, seconds):
    assert model(speech=np.zeros(int(seconds * RATE), np.float32)) == ""


@pytest.mark.parametrize("seconds", [0.1, 0.5, 3])
@pytest.mark.parametrize("kind", ["noise", "constant", "clipped"])
def test_audio_without_speech_ends_within_the_limit_of_tokens(model, kind, seconds):
    n_samples = int(seconds * RATE)
    noise = np.random.default_rng(0).standard_normal(n_samples).astype(np.float32)
    speech = {"noise": noise / 10, "constant": np.ones_like(noise), "clipped": np.sign(noise)}[kind]
    assert len(model(speech=speech).split()) <= np.ceil(seconds * 6.5)


def test_an_empty_batch_has_no_texts(model):
    assert model(speech=[]) == []


def test_more_than_a_minute_is_cut_at_pauses_and_recognised_to_the_end(model, sentences):
    texts = [sample["text"] for sample in sentences] * 2
    text = model(speech=np.concatenate(speech_of(sentences) * 2))
    assert word_error_rate([" ".join(texts)], [text]) < 15


def test_long_speech_is_cut_where_it_is_quiet_and_nothing_is_lost():
    speech = np.random.default_rng(0).standard_normal(10 * RATE).astype(np.float32)
    pauses = [int(2.5 * RATE), int(5.2 * RATE), int(7.9 * RATE)]
    for pause in pauses:
        speech[pause - 3200 : pause + 3200] *= 0.01
    pieces = moonshine.split_at_pauses(speech, 3 * RATE)
    assert np.array_equal(np.concatenate(pieces), speech)
    assert max(map(len, pieces)) <= 3 * RATE
    cuts = np.cumsum([len(piece) for piece in pieces])[:-1]
    assert cuts == pytest.approx(pauses, abs=1600)


def test_fewer_tokens_per_second_cut_the_text_off(model, sentences):
    speech = sentences[0]["speech"]
    text = moonshine.Moonshine(max_tokens_per_second=1)(speech=speech)
    assert text
    assert model(speech=speech).startswith(text)
    assert len(text.split()) <= 4


@pytest.mark.parametrize(
    ("speech", "advice"),
    [
        (np.zeros(RATE), 'dtype="float32"'),
        (np.zeros(RATE, np.int16), 'dtype="float32"'),
        (np.zeros((RATE, 2), np.float32), r"speech\[:, 0\]"),
        (np.full(RATE, np.nan, np.float32), "leave the utterance out"),
        ("utt1.wav", "numpy.asarray"),
        ([np.zeros(RATE, np.float32), np.zeros((1, RATE), np.float32)], r"speech\[:, 0\]"),
    ],
)
def test_what_is_not_mono_float32_is_refused(model, speech, advice):
    with pytest.raises(ValueError, match=advice):
        model(speech=speech)


@pytest.mark.parametrize("rate", [8000, [16000, 44100]])
def test_another_sample_rate_is_refused(model, rate):
    silence = np.zeros(RATE, np.float32)
    speech = [silence, silence] if isinstance(rate, list) else silence
    with pytest.raises(ValueError, match="-r 16000"):
        model(speech=speech, sample_rate=rate)


def test_a_gpu_is_refused():
    with pytest.raises(ConfigError, match="Write: device: cpu"):
        moonshine.Moonshine(device="cuda:0")


def test_a_limit_of_no_tokens_is_refused():
    with pytest.raises(ConfigError, match=r"Write: max_tokens_per_second: 6\.5"):
        moonshine.Moonshine(max_tokens_per_second=0)


@pytest.mark.parametrize("package", ["moonshine_voice", "onnxruntime"])
def test_a_missing_package_is_named_with_the_line_that_installs_it(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install -c constraints.txt -e '\.\[moon"):
        moonshine.Moonshine()


def test_a_version_without_weights_is_named_with_the_line_that_installs_it(tmp_path):
    with pytest.raises(MissingExtraError, match=r"0\.1\.0.*pip install -c constraints.txt"):
        moonshine.Moonshine(assets=tmp_path)


def test_the_package_of_the_weights_is_not_imported(model):
    assert "moonshine_voice" not in sys.modules


def test_the_tokenizer_reads_long_pieces_and_single_bytes(tmp_path):
    pieces = [b"<unk>", b"<s>", b"</s>", "\u2581caf".encode(), b"\xc3", b"\xa9", b"a" * 300]
    lengths = [bytes([len(piece)]) for piece in pieces[:-1]] + [
        bytes([300 % 128 + 128, 300 // 128])
    ]
    path = tmp_path / "tokenizer.bin"
    path.write_bytes(b"".join(a + b for a, b in zip(lengths, pieces, strict=True)))
    tokenizer = moonshine.MoonshineTokenizer(path)
    assert tokenizer.pieces == pieces
    assert tokenizer.decode([1, 3, 4, 5, 3, 6, 2]) == f"caf\u00e9 caf{'a' * 300}"
    assert tokenizer.decode([3, 4]) == "caf\ufffd"


def test_the_speech_is_built_once_and_again_after_an_interrupted_build(builder, tmp_path):
    def build():
        return build_dataset(builder, recipe_dir=RECIPE, context={"data_dir": tmp_path})[1]

    assert build().endswith("build: done")
    assert build().endswith("skipped, is_built() is true")
    next(tmp_path.rglob("*.trans.txt")).unlink()
    assert build().endswith("build: done")


def test_the_builder_names_the_line_that_installs_the_package(builder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "moonshine_voice", None)
    with pytest.raises(MissingExtraError, match=r"pip install -c constraints.txt -e '\.\[moon"):
        build_dataset(builder, recipe_dir=RECIPE, context={"data_dir": tmp_path})


def test_downsampling_keeps_a_tone_of_speech_and_removes_what_would_alias(builder):
    downsample = sys.modules[type(builder).__module__]._downsample
    time = np.arange(48000) / 48000
    low, high = (np.sin(2 * np.pi * f * time).astype(np.float32) for f in (6000, 9000))
    middle = slice(1000, 15000)
    expected = np.sin(2 * np.pi * 6000 * np.arange(16000) / 16000)
    assert downsample(low)[middle] == pytest.approx(expected[middle], abs=1e-3)
    assert np.abs(downsample(high)[middle]).max() < 1e-3


def test_the_dataset_has_ids_texts_speakers_and_durations(data_dir, sentences):
    dataset = open_dataset(data_dir / "two_cities")
    assert sentences[0]["utt_id"] == "reader-two_cities-0000"
    assert sentences[0]["speaker"] == "reader"
    assert sentences[9]["text"].endswith("in the superlative degree of comparison only.")
    lengths = [len(speech) / RATE for speech in speech_of(sentences)]
    assert dataset.durations() == pytest.approx(lengths)


def write_utterance(folder, *, utt_id="1-2-0003", level=0.1, rate=RATE):
    folder = folder / "1" / "2"
    folder.mkdir(parents=True, exist_ok=True)
    soundfile.write(folder / f"{utt_id}.flac", np.full(rate, level), rate)
    (folder / "1-2.trans.txt").write_text(f"{utt_id} HELLO WORLD\n")
    return folder


def test_the_fingerprint_tells_other_audio_but_not_another_time_or_place(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    write_utterance(here)
    flac = write_utterance(there) / "1-2-0003.flac"
    os.utime(flac, (1, 1))
    before = open_dataset(here).fingerprint()
    assert open_dataset(there).fingerprint() == before
    write_utterance(there, level=0.2)
    assert open_dataset(there).fingerprint() != before


def test_a_folder_that_is_not_there_names_the_stage_that_makes_it(tmp_path):
    with pytest.raises(DataError, match=r"is no folder.*create_dataset first"):
        open_dataset(tmp_path / "nowhere")


def test_a_folder_without_transcripts_names_what_to_write(tmp_path):
    with pytest.raises(DataError, match="dataset_dir=/corpora/LibriSpeech/test-clean"):
        open_dataset(tmp_path)


def test_a_text_without_audio_is_refused(tmp_path):
    (write_utterance(tmp_path) / "1-2-0003.flac").unlink()
    with pytest.raises(DataError, match=r"1-2-0003.*Unpack the corpus again, or delete that line"):
        open_dataset(tmp_path)


def test_an_utterance_in_two_places_is_refused(tmp_path):
    for part in ("dev", "test"):
        write_utterance(tmp_path / part)
    with pytest.raises(DataError, match="the path of one subset"):
        open_dataset(tmp_path)


def test_audio_at_another_rate_is_refused_with_the_command_that_converts_it(tmp_path):
    write_utterance(tmp_path, rate=8000)
    with pytest.raises(AudioError, match=r"8000 Hz.*-r 16000"):
        open_dataset(tmp_path)[0]

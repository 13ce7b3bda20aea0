"""`Speech2Text`: what it may be given, where it finds its files, and what it says is wrong."""

import json
import os
import shutil

import numpy as np
import pytest
import soundfile
import torch
from omegaconf import OmegaConf

from espnet3.components.data.errors import AudioError, DataError
from espnet3.components.decoding.ctc_beam import PrefixBeamCTC
from espnet3.components.decoding.joint_beam import JointBeam
from espnet3.components.text.tokenizer import CharacterTokenizer, load_tokenizer
from espnet3.config import load
from espnet3.errors import ConfigError, ResourceError, RunFolderError
from espnet3.io.atomic import write_json
from espnet3.systems.asr.inference import Speech2Text, output_fn
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.asr.trained_model import find_weights
from espnet3.systems.base.context import DEFAULTS
from tests.helpers.recognizer_parts import (
    MODELS,
    RATE,
    WEIGHTS,
    make_experiment,
    make_recipe,
    model_block,
    noise,
)


@pytest.fixture(scope="module")
def model(exp_dir):
    return Speech2Text.from_experiment(exp_dir)


def test_a_batch_says_what_its_utterances_say_alone(model):
    batch = [noise(1.5, seed=1), noise(0.4, seed=2), noise(0.9, seed=3)]
    together = model(batch)
    alone = [model(one) for one in batch]
    assert [r.text for r in together] == [r.text for r in alone]
    assert len({r.text for r in alone}) == 3
    for one, other in zip(together, alone, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-3)
    assert model([]) == []


def test_arrays_of_all_kinds_and_files_sound_the_same(model, tmp_path):
    samples = noise(1.0)
    whole = np.round(samples * 32767).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", whole, RATE)
    soundfile.write(tmp_path / "stereo.flac", np.stack([whole, whole], 1), RATE)
    kinds = [
        whole / 32768, torch.from_numpy(whole), tmp_path / "a.wav", str(tmp_path / "stereo.flac"),
    ]  # fmt: skip
    assert {model(kind).text for kind in kinds} == {model(whole).text}


def test_files_and_arrays_of_another_rate_are_resampled(model, tmp_path):
    import soxr

    high = soxr.resample(noise(1.0), RATE, 44100)
    soundfile.write(tmp_path / "high.wav", high, 44100, subtype="FLOAT")
    told = model(high, sample_rate=44100)
    assert model(tmp_path / "high.wav").text == told.text
    assert len(told.text) < len(model(high).text)  # taken for 5.5 seconds of speech


@pytest.mark.parametrize(
    ("speech", "problem"),
    [
        (np.zeros(0, np.float32), "no samples"),
        (np.full(800, np.nan, np.float32), "NaN or infinite"),
        (np.zeros((2, 800), np.float32), "Mix it down first: speech.mean"),
        (np.zeros(800, np.int32), "astype"),
        (b"RIFF", "Give a path"),
    ],
)
def test_what_is_no_speech_is_refused(model, speech, problem):
    with pytest.raises(AudioError, match=problem):
        model([noise(0.5), speech])


def test_very_short_audio_is_heard(model):
    assert isinstance(model(noise(1.0)[:80]).text, str)


def test_a_file_that_is_missing_is_named(model, tmp_path):
    with pytest.raises(AudioError, match=r"nothing.wav does not exist"):
        model(tmp_path / "nothing.wav")
    with pytest.raises(AudioError, match="Leave sample_rate out"):
        model(tmp_path / "nothing.wav", sample_rate=16000)


def test_an_experiment_works_from_anywhere_and_moved(exp_dir, tmp_path, monkeypatch, model):
    speech = noise(1.0)
    monkeypatch.chdir(tmp_path)
    relative = Speech2Text.from_experiment(os.path.relpath(exp_dir))
    moved = tmp_path / "moved recipe"
    shutil.copytree(exp_dir.parents[1], moved)
    (moved / "exp" / "training").rename(moved / "exp" / "renamed")
    renamed = Speech2Text.from_experiment(moved / "exp" / "renamed")
    assert relative(speech).text == renamed(speech).text == model(speech).text


def test_the_average_comes_before_checkpoints(tmp_path, caplog):
    for name in (WEIGHTS, "valid.acc.ave_2best.safetensors", "last.ckpt", "epoch3.ckpt"):
        (tmp_path / name).touch()
    entries = [
        {"monitor": "valid/acc", "k": 2, "mode": "max", "checkpoints": [{"file": "epoch3.ckpt"}]},
        {"monitor": "valid/loss", "k": 3, "mode": "min", "checkpoints": []},
    ]
    (tmp_path / "best.json").write_text(json.dumps({"version": 1, "criteria": entries}))
    found = []
    while len(found) < 4:
        with caplog.at_level("INFO"):
            found.append(find_weights(tmp_path))
        found[-1].unlink()
    names = ["valid.acc.ave_2best.safetensors", WEIGHTS, "epoch3.ckpt", "last.ckpt"]
    assert [path.name for path in found] == names
    assert "the average of the best 2 by valid/acc" in caplog.text
    with pytest.raises(RunFolderError, match=r"--stages train"):
        find_weights(tmp_path)


def test_a_checkpoint_gives_what_its_weights_give(exp_dir, tmp_path, model):
    shutil.copytree(exp_dir.parents[1], tmp_path / "asr")
    folder = tmp_path / "asr/exp/training"
    state = {f"model.{k}": v for k, v in model.model.state_dict().items()}
    torch.save({"state_dict": state}, folder / "last.ckpt")
    (folder / WEIGHTS).unlink()
    assert Speech2Text.from_experiment(folder)(noise()).text == model(noise()).text


def test_missing_weights_name_the_stage_and_what_there_is(exp_dir, tmp_path):
    with pytest.raises(ConfigError, match=rf"There are: {WEIGHTS}.*Stage train \(4\)"):
        Speech2Text(exp_dir / "valid.los.ave_3best.safetensors")
    with pytest.raises(RunFolderError, match="no such folder"):
        Speech2Text.from_experiment(tmp_path / "exp")


def test_weights_of_another_model_are_refused(exp_dir, tmp_path):
    shutil.copytree(exp_dir.parents[1], tmp_path / "asr")
    file = tmp_path / "asr/exp/training/config.yaml"
    config = OmegaConf.load(file)
    config.model.encoder.n_channels = 24
    OmegaConf.save(config, file)
    with pytest.raises(RunFolderError, match="not those of the model in the config"):
        Speech2Text.from_experiment(file.parent)
    file.unlink()
    with pytest.raises(ConfigError, match=r"no config.yaml beside the weights"):
        Speech2Text.from_experiment(file.parent)


@pytest.mark.parametrize(
    "decoder", [PrefixBeamCTC(beam_size=4), JointBeam(beam_size=4, ctc_weight=1.0)]
)
def test_n_best_reaches_the_decoder(exp_dir, decoder):
    result = Speech2Text.from_experiment(exp_dir, decoder=decoder, n_best=3)(noise(0.5))
    assert len(result.n_best) == 3
    assert result.text == result.n_best[0].text
    scores = [one.score for one in result.n_best]
    assert scores == sorted(scores, reverse=True)
    with pytest.raises(ConfigError, match="Write: beam_size: 5, or n_best: 4"):
        Speech2Text.from_experiment(exp_dir, decoder=decoder, n_best=5)


def test_settings_that_do_not_fit_are_refused(exp_dir):
    with pytest.raises(ConfigError, match="GreedyCTC finds one hypothesis"):
        Speech2Text.from_experiment(exp_dir, n_best=2)
    with pytest.raises(ConfigError, match="window_seconds: 20"):
        Speech2Text.from_experiment(exp_dir, window_seconds=3, overlap_seconds=2)
    with pytest.raises(ConfigError, match="cannot be called"):
        Speech2Text.from_experiment(exp_dir, decoder="greedy")


def test_output_fn_gives_the_fields_that_the_model_was_asked_for(exp_dir, model):
    plain = output_fn({"text": "one"}, model(noise(0.5)), 0)
    assert plain.keys() == {"hyp", "score", "ref"}
    beam = Speech2Text.from_experiment(exp_dir, decoder=PrefixBeamCTC(beam_size=3), n_best=2)
    [fields] = output_fn([{}], beam([noise(0.5)]), [0])
    assert fields.keys() == {"hyp", "score", "nbest"}
    nbest = json.loads(fields["nbest"])
    assert nbest[0]["text"] == fields["hyp"]
    assert nbest[0]["scores"].keys() == {"ctc"}
    assert "\n" not in fields["nbest"]


def test_words_have_times_and_become_one_line_of_json(exp_dir):
    model = Speech2Text.from_experiment(exp_dir, word_times=True)
    long, short = model([noise(2.0), noise(0.6, seed=1)])
    assert " ".join(word.word for word in long.words) == long.text
    assert len(long.words) > 2
    times = [time for word in long.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] <= 2.0
    alone = model(noise(0.6, seed=1)).words
    assert [(w.word, w.start, w.end) for w in short.words] == [
        (w.word, w.start, w.end) for w in alone
    ]
    rows = json.loads(output_fn({}, long, 0)["words"])
    assert rows[0] == pytest.approx(vars(long.words[0]), abs=5e-5)
    assert len(str(rows[0]["confidence"])) <= len("0.1234")  # the rest depends on the batch


def test_long_audio_is_heard_in_windows(tmp_path):
    # Without normalisation by utterance, what is heard in a window is what is heard of the whole.
    exp_dir = make_experiment(tmp_path / "asr", model_block(normalize=None))
    windows = {"window_seconds": 2.0, "overlap_seconds": 0.6}
    model = Speech2Text.from_experiment(exp_dir)
    windowed = Speech2Text.from_experiment(exp_dir, **windows)
    batch = [noise(1.0, seed=1), noise(5.0), noise(1.5, seed=2)]
    seen = []
    encode = windowed.model.encode

    def noting(speech, lengths):
        seen.append(speech.shape[1])
        return encode(speech, lengths)

    windowed.model.encode = noting
    assert [r.text for r in windowed(batch)] == [model(one).text for one in batch]
    assert max(seen) == 2 * RATE
    assert len(model(batch[1]).text) > 20


def test_an_attention_decoder_hears_window_by_window(tmp_path):
    decoder = {
        "_target_": f"{MODELS}.attention_decoder.TransformerDecoder",
        "_partial_": True, "n_layers": 1, "n_heads": 2, "hidden": 16,
    }  # fmt: skip
    exp_dir = make_experiment(tmp_path / "asr", model_block(decoder=decoder))
    joint = JointBeam(beam_size=2, ctc_weight=0.9)
    settings = {"window_seconds": 2.0, "overlap_seconds": 0.5, "word_times": True}
    model = Speech2Text.from_experiment(exp_dir, decoder=joint, **settings)
    result = model(noise(5.0))
    assert result.text
    assert result.words is not None
    assert len(result.n_best) == 1


@pytest.mark.parametrize("recorded", ["./exp/training", "/scratch/asr/exp/training"])
def test_a_copied_experiment_reads_the_tokenizer_in_it(tmp_path, model, recorded):
    exp_dir = make_experiment(tmp_path / "asr")
    shutil.move(tmp_path / "asr/data/tokenizer", exp_dir / "tokenizer")
    config = OmegaConf.load(exp_dir / "config.yaml")
    config.exp_dir, config.model.tokenizer = recorded, f"{recorded}/tokenizer"
    OmegaConf.save(config, exp_dir / "config.yaml")
    moved = exp_dir.rename(tmp_path / "on the shelf")
    assert Speech2Text.from_experiment(moved)(noise()).text == model(noise()).text


def test_a_tokenizer_that_is_not_that_of_the_training_is_refused(tmp_path):
    exp_dir = make_experiment(tmp_path)
    folder = tmp_path / "data/tokenizer"
    tokens = load_tokenizer(folder).tokens
    write_json(exp_dir / "tokens.json", tokens)
    assert Speech2Text.from_experiment(exp_dir)(noise()).text
    CharacterTokenizer([*tokens[:3], *reversed(tokens[3:-1]), tokens[-1]]).save(folder)
    with pytest.raises(RunFolderError, match=r"token 3 was 'e', and is 'z'.*Put the tokenizer"):
        Speech2Text.from_experiment(exp_dir)


@pytest.mark.parametrize("rate", [0, -8000, 7999.5, float("inf"), "8000"])
def test_a_rate_that_is_none_is_refused(model, rate):
    with pytest.raises(AudioError, match=r"must be a whole number.*sample_rate=16000"):
        model(noise(0.2), sample_rate=rate)


@pytest.mark.filterwarnings("error")
def test_samples_of_other_forms_are_heard_as_they_are(model):
    whole = np.round(noise(1.0) * 32767).astype(np.int16)
    locked = (whole / 32768).astype(np.float32)
    locked.flags.writeable = False
    kinds = [whole.astype(">i2"), locked, np.repeat(locked, 2)[::2]]
    assert {model(kind).text for kind in kinds} == {model(whole).text}
    assert model(torch.zeros(RATE, dtype=torch.bfloat16)).text == model(np.zeros(RATE)).text


def test_a_device_that_is_not_there_is_named(exp_dir):
    for device in ("gpu", "cuda:77"):
        with pytest.raises(ResourceError, match=rf"'{device}'.*device: cpu"):
            Speech2Text.from_experiment(exp_dir, device)


@pytest.mark.parametrize("value", ["20", float("nan"), True])
def test_a_window_that_is_no_number_is_refused(exp_dir, value):
    with pytest.raises(ConfigError, match=r"window_seconds is .*must be a number\. Write: "):
        Speech2Text.from_experiment(exp_dir, window_seconds=value)


def test_weights_that_diverged_are_no_empty_text(exp_dir):
    broken = Speech2Text.from_experiment(exp_dir)
    with torch.no_grad():
        next(broken.model.encoder.parameters()).fill_(float("nan"))
    with pytest.raises(DataError, match=r"NaN for 2 of 2 utterances.*weights"):
        broken([noise(0.5), noise(0.3)])


def test_infer_reads_the_config_of_the_training_once_for_all_test_sets(tmp_path, monkeypatch):
    recipe = make_recipe(tmp_path)
    monkeypatch.chdir(recipe)
    tests = [
        {"name": name, "data_src": "jsonl", "data_src_args": {"path": "data/dev.jsonl"}}
        for name in ("one", "two", "three")
    ]
    above = {"dataset": {"test": tests}, "parallel": {"env": "local", "n_workers": 1}}
    files = ["conf/training.yaml", "conf/inference.yaml", above]
    loaded = load.load_config(files, below=DEFAULTS, recipe_dir=recipe)
    calls = []
    real = load.load_config
    monkeypatch.setattr(load, "load_config", lambda *a, **k: (calls.append(a), real(*a, **k))[1])
    system = ASRSystem(inference=loaded)
    system.check_infer()
    assert list(system.infer()) == ["one", "two", "three"]
    assert len(calls) <= 2, calls

"""The recipe for AudioMNIST: its corpus on small copies, and all of it where there is time."""

import hashlib
import importlib.util
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from espnet3.components.data.data_organizer import DataSource
from espnet3.components.data.dataset_builder import build_dataset
from espnet3.components.data.sources import jsonl
from espnet3.errors import ConfigError
from espnet3.parallel import use_parallel
from tests.helpers.recipe_copy import DATA, ROOT, RecipeCopy

RECIPE = ROOT / "egs3" / "audiomnist" / "asr"
SPEECH = DATA / "audiomnist_16k"
SIZES = {"n_train": 12, "n_valid": 4, "n_test": 4}


def write_takes(root: Path, *, rate=48000, kind="wav", speakers=("01", "02", "05")) -> Path:
    """Write three takes of each digit and speaker; the digit is the pitch."""
    for speaker in speakers:
        folder = root / "data" / speaker
        folder.mkdir(parents=True)
        for digit in range(10):
            for take in range(3):
                wave = np.sin(2 * np.pi * (300 + 100 * digit) * np.arange(rate // 5) / rate)
                noise = np.random.default_rng(take).normal(0, 0.01, len(wave))
                name = f"{digit}_{speaker}_{take}.{kind}"
                soundfile.write(folder / name, 0.02 * wave + 0.02 * noise, rate)
    return root


def build(data_dir, **arguments):
    builder = DataSource(recipe_dir=RECIPE).load("DatasetBuilder")()
    context = {"data_dir": data_dir}
    given = {**SIZES, **arguments}
    return build_dataset(builder, recipe_dir=RECIPE, arguments=given, context=context)


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(f.relative_to(folder)): hashlib.md5(f.read_bytes()).hexdigest() for f in files}


@pytest.fixture(scope="module")
def takes(tmp_path_factory):
    return write_takes(tmp_path_factory.mktemp("it's audiomnist"))


def test_strings_are_joined_from_takes_of_one_speaker_and_resampled(takes, tmp_path):
    build(tmp_path, source=takes)
    train = jsonl.Dataset(tmp_path / "strings" / "train.jsonl", sample_rate=16000)
    assert len(train) == 12
    for sample in train:
        words = sample["text"].split()
        assert 1 <= len(words) <= 5
        assert {name.split("/")[1] for name in sample["made"]["files"]} == {sample["speaker"]}
        assert np.abs(sample["speech"]).max() == pytest.approx(0.9, abs=0.001)
        seconds = len(sample["speech"]) / 16000
        assert 0.2 * len(words) < seconds < 0.2 * len(words) + 0.4 * (len(words) + 1)
    first = train[0]
    spectrum = np.abs(np.fft.rfft(first["speech"]))
    digit = int(Path(first["made"]["files"][0]).name[0])
    hertz = np.fft.rfftfreq(len(first["speech"]), 1 / 16000)
    assert spectrum[np.abs(hertz - 300 - 100 * digit) < 10].max() > 0.3 * spectrum.max()


def test_speakers_and_takes_of_the_sets_do_not_overlap(takes, tmp_path):
    build(tmp_path, source=takes, n_train=60, n_valid=20, n_test=20)
    files, speakers = {}, {}
    for name in ("train", "valid", "test"):
        text = (tmp_path / "strings" / f"{name}.jsonl").read_text()
        rows = [json.loads(line) for line in text.splitlines()]
        files[name] = {file for row in rows for file in row["made"]["files"]}
        speakers[name] = {row["speaker"] for row in rows}
    assert speakers == {"train": {"01", "02"}, "valid": {"01", "02"}, "test": {"05"}}
    assert not files["train"] & files["valid"]
    assert {Path(file).stem[-1] for file in files["valid"]} == {"2"}


def test_any_number_of_workers_makes_the_same_bytes(takes, tmp_path):
    build(tmp_path / "one", source=takes)
    with use_parallel({"env": "local", "n_workers": 2}):
        build(tmp_path / "two", source=takes)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    again = build(tmp_path / "one", source=takes)
    assert all("skipped" in line for line in again)


def test_flac_at_16_khz_is_taken_as_well(tmp_path):
    build(tmp_path / "data", source=write_takes(tmp_path / "flac", rate=16000, kind="flac"))
    assert len(jsonl.Dataset(tmp_path / "data" / "strings" / "test.jsonl")) == 4


def test_what_is_not_the_corpus_is_told_with_where_to_get_it(takes, tmp_path):
    with pytest.raises(ConfigError, match=r"create_dataset\.source is not set.*AudioMNIST"):
        build(tmp_path)
    with pytest.raises(ConfigError, match=r"has no data/01/0_01_0\.wav.*github\.com"):
        build(tmp_path, source=tmp_path)
    incomplete = write_takes(tmp_path / "incomplete", speakers=("01",))
    for path in incomplete.glob("data/01/7_01_*.wav"):
        path.unlink()
    with pytest.raises(ConfigError, match="fewer than two takes of seven"):
        build(tmp_path, source=incomplete)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not SPEECH.is_dir(), reason=f"there is no {SPEECH}")
@pytest.mark.parametrize("seed", [0, 1])
def test_held_out_speakers_are_recognised_within_ten_minutes(tmp_path, seed):
    recipe = RecipeCopy("audiomnist/asr", tmp_path / "asr")
    training = ["--training_config", "conf/training.yaml", f"seed={seed}"]
    metrics = ["--metrics_config", "conf/metrics.yaml"]
    began = time.monotonic()
    recipe.run(
        "--stages", "create_dataset-measure", *training, *metrics,
        "--inference_config", "conf/inference.yaml", f"create_dataset.source={SPEECH}",
        seconds=1200,
    )  # fmt: skip
    minutes = (time.monotonic() - began) / 60
    score = score_of(recipe, "inference")
    print(f"seed {seed}: WER {score['rate']:.2f}%, {minutes:.1f} minutes, load {os.getloadavg()}")
    assert score["n_utterances"] == 300
    assert score["rate"] <= 5
    if importlib.util.find_spec("flashlight"):
        recipe.run(
            "--stages", "infer", "measure", *training, *metrics,
            "--inference_config", "conf/inference_lexicon.yaml",
        )  # fmt: skip
        restricted = score_of(recipe, "inference_lexicon")
        print(f"seed {seed}: WER {restricted['rate']:.2f}% with the lexicon")
        assert restricted["rate"] <= score["rate"]
    assert minutes <= 10


def score_of(recipe: RecipeCopy, name: str) -> dict[str, float]:
    file = recipe.folder / "exp" / "training" / name / "metrics.json"
    return json.loads(file.read_text())["WER"]["test"]

"""Data of 16 kHz and a front end of 8 kHz were trained and decoded without a word."""

import numpy as np
import pytest
import soundfile
import yaml

from espnet3.components.data.errors import DataError
from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.systems.asr.inference import Speech2Text
from espnet3.systems.base.datasets import check_test_rates
from espnet3.systems.base.given_parts import NOTHING_GIVEN
from espnet3.systems.base.inference import infer
from espnet3.systems.base.inference_output import OutputSettings
from espnet3.systems.base.inference_runner import InferenceRunner
from espnet3.systems.base.training import _build_parts, check_train, load_loader_config
from espnet3.trainer.reporting.summary import StartupTimes
from tests.helpers.recognizer_parts import (
    MODELS,
    RATE,
    WEIGHTS,
    make_experiment,
    model_block,
    noise,
)

LOG_MEL = f"{MODELS}.log_mel.LogMel"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A trained experiment of 8 kHz, and audio of 8, 16 and 44.1 kHz."""
    monkeypatch.chdir(tmp_path)
    make_experiment(tmp_path)
    for rate in (RATE, 16000, 44100):
        soundfile.write(f"data/{rate}.wav", noise(1.0)[: rate // 2], rate)
        row = '{{"utt_id": "u{0}", "audio": "{0}.wav", "text": "one two"}}\n'
        (tmp_path / f"data/{rate}.jsonl").write_text(row.format(rate))
    return tmp_path


def entry(rate, **arguments):
    return {"data_src": "jsonl", "data_src_args": {"path": f"data/{rate}.jsonl", **arguments}}


def load(recipe, values):
    file = recipe / "config.yaml"
    file.write_text(yaml.safe_dump(values))
    return load_config(file)


def training(recipe, train, valid=None, model=None, **more):
    values = {
        "recipe_dir": ".",
        "exp_dir": "exp/new",
        "dataset": {
            "train": train,
            **({"valid": valid} if valid else {}),
            "preprocessor": {
                "_target_": "espnet3.systems.asr.preprocessor.Tokenize",
                "tokenizer": "data/tokenizer",
            },
            **more,
        },
        "dataloader": {"train": {"batch_size": 1}},
        "model": model or model_block(),
        "optimizer": {"_target_": "torch.optim.Adam"},
        "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 1},
    }
    return load(recipe, values)


def inference(recipe, test, **more):
    values = {
        "recipe_dir": ".",
        "inference_dir": "exp/inference",
        "dataset": {"test": [{"name": "dev", **test}]},
        "model": {
            "_target_": "espnet3.systems.asr.inference.Speech2Text",
            "weights": f"exp/training/{WEIGHTS}",
        },
        "output_fn": "espnet3.systems.asr.inference.output_fn",
        "parallel": {"env": "local", "n_workers": 1},
        **more,
    }
    return load(recipe, values)


def with_frontend(**settings):
    block = model_block()
    return {**block, "frontend": {"_target_": LOG_MEL, "n_mels": 20, **settings}}


def build(loaded):
    check_train(loaded)
    loader = load_loader_config(loaded)
    with loaded.naming_places():
        return _build_parts(loaded.plain(), loader, StartupTimes(0.0), None, NOTHING_GIVEN)


def test_a_training_config_that_names_both_is_refused_before_anything_is_built(recipe):
    loaded = training(recipe, [entry(RATE), entry(16000, sample_rate=16000)])
    with pytest.raises(ConfigError) as caught:
        check_train(loaded)
    said = str(caught.value)
    assert "dataset.train.1.data_src_args.sample_rate (set in" in said
    assert "model.frontend.sample_rate (set in" in said
    assert "data_src_args: {sample_rate: 8000, resample: true}" in said
    assert "sample_rate: 16000" in said


def test_validation_data_count_as_well(recipe):
    loaded = training(recipe, [entry(RATE, sample_rate=RATE)], [entry(44100, sample_rate=44100)])
    with pytest.raises(ConfigError, match=r"dataset\.valid\.0.* is 44100.*is 8000"):
        check_train(loaded)


def test_a_default_of_the_front_end_counts(recipe):
    loaded = training(recipe, [entry(RATE, sample_rate=RATE)], model=with_frontend())
    with pytest.raises(ConfigError, match=r"is 8000, but model.frontend.sample_rate.* is 16000"):
        check_train(loaded)


def test_a_rate_that_stands_nowhere_is_read_from_the_data(recipe):
    loaded = training(recipe, [entry(RATE), entry(44100)])
    with pytest.raises(ConfigError, match=r"u44100 in dataset.train.1 .* is 44100, but .* is 8000"):
        build(loaded)


def test_what_is_resampled_fits(recipe):
    fits = entry(44100, sample_rate=RATE, resample=True)
    assert build(training(recipe, [entry(RATE), fits], [fits])).model.sample_rate == RATE


def test_a_transform_of_ones_own_may_resample(recipe, monkeypatch):
    (recipe / "own_rate.py").write_text(
        "def lower(sample):\n"
        "    return {**sample, 'speech': sample['speech'][::2], 'sample_rate': 8000}\n"
    )
    monkeypatch.syspath_prepend(recipe)
    own = {**entry(16000, sample_rate=16000), "transform": "own_rate.lower"}
    build(training(recipe, [own]))


def test_models_and_data_that_tell_no_rate_are_let_pass(recipe, monkeypatch):
    (recipe / "own_parts.py").write_text(
        "import torch\n"
        "class Model(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(1, 1)\n"
    )
    monkeypatch.syspath_prepend(recipe)
    build(
        training(recipe, [entry(16000, sample_rate=16000)], model={"_target_": "own_parts.Model"})
    )


def test_infer_is_refused_by_the_config_that_lies_beside_the_weights(recipe):
    with pytest.raises(ConfigError, match=r"dataset.test.0.*16000, but model.frontend.*exp/train"):
        check_test_rates(inference(recipe, entry(16000, sample_rate=16000)))
    check_test_rates(inference(recipe, entry(16000, sample_rate=RATE, resample=True)))


def test_infer_is_refused_by_the_training_that_comes_first(recipe):
    """What lies beside the weights is then of a training before."""
    first = training(recipe, [entry(16000)], model=with_frontend(sample_rate=16000))
    check_test_rates(inference(recipe, entry(16000, sample_rate=16000)), first)
    with pytest.raises(ConfigError, match=r"dataset.test.0.* is 8000, but model.*is 16000"):
        check_test_rates(inference(recipe, entry(RATE, sample_rate=RATE)), first)


def test_infer_reads_the_rate_of_the_data_where_the_config_has_none(recipe):
    with pytest.raises(ConfigError, match=r"u44100 in test set dev is 44100, but .* is 8000"):
        infer(inference(recipe, entry(44100)))
    assert not (recipe / "exp/inference/dev/manifest.json").exists()


def test_a_recogniser_that_is_told_the_rate_resamples(recipe):
    infer(inference(recipe, entry(16000), input_key=["speech", "sample_rate"]))
    told = (recipe / "exp/inference/dev/hyp.scp").read_text()
    expected = Speech2Text(f"exp/training/{WEIGHTS}")("data/16000.wav").text
    assert told.split(maxsplit=1)[1].strip() == expected


@pytest.mark.parametrize("idx", [1, [0, 1]])
def test_a_single_sample_of_another_rate_is_refused_by_its_name(recipe, idx):
    model = Speech2Text(f"exp/training/{WEIGHTS}")
    dataset = [
        {"utt_id": f"u{rate}", "speech": np.zeros(rate, np.float32), "sample_rate": rate}
        for rate in (RATE, 22050)
    ]
    outputs = OutputSettings(
        input_keys=("speech",), idx_key="utt_id", hyp_key="hyp", ref_key="ref",
        output_fn="espnet3.systems.asr.inference.output_fn", output_keys=None, artifacts={},
        results=None,
    )  # fmt: skip
    with pytest.raises(DataError, match=r"u22050: .*sample_rate of 22050.* 8000.*resample: true"):
        InferenceRunner.forward(idx, dataset, model, outputs)

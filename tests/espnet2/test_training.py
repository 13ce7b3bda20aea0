"""Models of ESPnet2 in the stages `collect_stats` and `train`."""

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from espnet3.cli.recipe import run_recipe
from espnet3.errors import ConfigError
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.espnet2.inference import ESPnet2Inference
from espnet3.systems.espnet2.model import ESPnet2Model
from espnet3.systems.espnet2.preprocessor import ESPnet2Preprocessor
from tests.helpers.espnet2_models import TOKENS, asr_keys, noise, write_data

TRAINING = """
exp_tag: training
seed: 1
dataset:
  train: [{data_src: kaldi, data_src_args: {path: data/noise}}]
  valid: [{data_src: kaldi, data_src_args: {path: data/noise}}]
  preprocessor:
    _target_: espnet3.systems.espnet2.preprocessor.ESPnet2Preprocessor
    task: asr
    config: conf/train_asr.yaml
    token_list: data/tokens.txt
dataloader: {train: {batch_size: 2}, valid: {batch_size: 2}}
stats_dir: exp/stats
model:
  _target_: espnet3.systems.espnet2.model.ESPnet2Model
  task: asr
  config: conf/train_asr.yaml
  token_list: data/tokens.txt
  normalize: global_mvn
  normalize_conf: {stats_file: exp/stats/train/feats_stats.npz}
optimizer: {_target_: torch.optim.Adam, lr: 0.002}
best_model_criterion: [[valid/loss, 1, min]]
trainer: {accelerator: cpu, max_epochs: 2, logger: false}
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    folder = tmp_path / "recipe"
    write_data(folder / "data/noise", text="abc dab")
    (folder / "data/tokens.txt").write_text("\n".join(TOKENS) + "\n")
    (folder / "conf").mkdir()
    keys = {**asr_keys(), "optim": "adam", "batch_type": "numel", "max_epoch": 3}
    (folder / "conf/train_asr.yaml").write_text(yaml.safe_dump(keys))
    (folder / "conf/training.yaml").write_text(TRAINING)
    monkeypatch.chdir(folder)
    return folder


def test_collect_stats_then_train(recipe):
    stages = ["--stages", "collect_stats", "train", "--training_config", "conf/training.yaml"]
    assert run_recipe(ASRSystem, stages, recipe_dir=recipe) == 0
    (weights,) = (recipe / "exp/training").glob("*.safetensors")
    state = load_file(weights)
    stats = np.load(recipe / "exp/stats/train/feats_stats.npz")
    mean = stats["sum"] / stats["count"]
    assert np.allclose(state["network.normalize.mean"].numpy(), mean, rtol=1e-4)

    model = ESPnet2Model(
        "asr", "conf/train_asr.yaml", token_list="data/tokens.txt", normalize="global_mvn",
        normalize_conf={"stats_file": "exp/stats/train/feats_stats.npz"},
    )  # fmt: skip
    model.load_state_dict(state)

    decoded = ESPnet2Inference("asr", "exp/training/config.yaml", weights, beam_size=2)
    assert decoded.decoder == "espnet3"
    assert isinstance(decoded(noise(1)[0]).text, str)


def test_training_without_statistics_is_told_how_to_make_them(recipe):
    model = ESPnet2Model(
        "asr", "conf/train_asr.yaml", token_list="data/tokens.txt", normalize="global_mvn",
        normalize_conf={"stats_file": "exp/none.npz"},
    )  # fmt: skip
    with pytest.raises(ConfigError, match="--stages collect_stats"):
        model(speech=torch.zeros(1, 8000))


def test_loss_and_weight_are_those_of_espnet2(recipe):
    model = ESPnet2Model("asr", "conf/train_asr.yaml", token_list="data/tokens.txt").eval()
    preprocess = ESPnet2Preprocessor("asr", "conf/train_asr.yaml", token_list="data/tokens.txt")
    samples = [preprocess({"utt_id": "a", "speech": s, "text": "ab c"}) for s in noise(2)]
    assert samples[0]["text"].tolist() == [3, 4, 2, 5]
    speech = torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(one["speech"]) for one in samples], batch_first=True
    )
    batch = {
        "speech": speech,
        "speech_lengths": torch.tensor([len(one["speech"]) for one in samples]),
        "text": torch.tensor([one["text"].tolist() for one in samples]),
        "text_lengths": torch.tensor([4, 4]),
    }
    loss, stats, weight = model(utt_id=["a", "b"], **batch)
    theirs = model.network(**batch)
    assert float(loss) == pytest.approx(float(theirs[0]))
    assert float(weight) == 2
    assert float(stats["loss"]) == pytest.approx(float(loss))


def test_keys_of_the_loop_are_told_with_their_place_here(recipe, caplog):
    with caplog.at_level("INFO", "espnet3"):
        ESPnet2Model("asr", "conf/train_asr.yaml", token_list="data/tokens.txt")
    assert "batch_type (dataloader.train)" in caplog.text
    assert (
        "numel with batch_bins: 1000000 is dataloader.train: {batch_seconds: 62.5}" in caplog.text
    )


def test_unknown_keys_are_refused_with_the_nearest(recipe):
    with pytest.raises(ConfigError, match="Did you mean 'encoder'"):
        ESPnet2Model("asr", "conf/train_asr.yaml", token_list="data/tokens.txt", encodr="x")


def test_options_of_a_part_win_one_by_one(recipe):
    model = ESPnet2Model(
        "asr", "conf/train_asr.yaml", token_list="data/tokens.txt",
        encoder_conf={"num_blocks": 2},
    )  # fmt: skip
    assert len(model.network.encoder.encoders) == 2
    assert model.network.encoder.output_size() == 16


def test_weights_of_espnet2_are_a_start(recipe):
    model = ESPnet2Model("asr", "conf/train_asr.yaml", token_list="data/tokens.txt")
    torch.save(model.network.state_dict(), "valid.acc.ave.pth")
    (recipe / "conf/training.yaml").write_text(
        TRAINING.replace("normalize: global_mvn", "normalize: utterance_mvn")
        .replace("normalize_conf: {stats_file: exp/stats/train/feats_stats.npz}", "")
        .replace("lr: 0.002", "lr: 0.0")
        + "init: {path: valid.acc.ave.pth, to: network, strict: true}\n"
    )
    stages = ["--stages", "train", "--training_config", "conf/training.yaml"]
    assert run_recipe(ASRSystem, stages, recipe_dir=recipe) == 0
    (weights,) = (recipe / "exp/training").glob("*.safetensors")
    state = load_file(weights)
    assert torch.equal(state["network.ctc.ctc_lo.weight"], model.network.ctc.ctc_lo.weight)

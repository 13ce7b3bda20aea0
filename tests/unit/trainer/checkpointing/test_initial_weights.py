import json
import logging

import pytest
import torch
from safetensors.torch import save_file

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.config import METHODS, load_training_config
from espnet3.trainer.fine_tuning import InitReport, load_initial_weights
from tests.helpers.checkpoint_parts import Net


class Parts(torch.nn.Module):
    """A model with an encoder and a decoder of the same kind."""

    def __init__(self, n_out: int = 2) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        self.decoder = torch.nn.Linear(2, n_out)


@pytest.fixture
def file(tmp_path):
    torch.manual_seed(1)
    path = tmp_path / "a.safetensors"
    save_file(Parts().state_dict(), path)
    return path


def parse_init(value):
    return load_training_config(load_config({"exp_dir": "exp", "init": value})).init


def load(model, value):
    return load_initial_weights(model, parse_init(value))


def equal(a, b):
    return all(torch.equal(a.state_dict()[k], b.state_dict()[k]) for k in a.state_dict())


def original(file):
    model = Parts()
    load(model, str(file))
    return model


def test_a_path_loads_everything_it_fits(file, caplog):
    with caplog.at_level(logging.INFO):
        (report,) = load(Parts(), {"path": str(file), "strict": True})
    assert report.is_whole
    assert len(report.loaded) == 6
    assert f"Weights from {file}: 6 of 6 loaded." in caplog.text


def test_a_checkpoint_of_a_training_is_taken_by_the_names_of_the_model(tmp_path):
    net = Net()
    state = {f"model.{k}": v for k, v in net.state_dict().items()}
    torch.save({"state_dict": state, "optimizer_states": []}, tmp_path / "last.ckpt")
    other = Net()
    (report,) = load(other, {"path": str(tmp_path / "last.ckpt"), "strict": True})
    assert equal(net, other)
    assert report.is_whole


def test_a_part_is_loaded_by_prefix(file):
    model = Parts()
    decoder = model.decoder.weight.clone()
    (report,) = load(model, {"path": str(file), "from": "encoder", "to": "encoder"})
    assert equal(model.encoder, original(file).encoder)
    assert torch.equal(model.decoder.weight, decoder)
    assert report.is_whole  # what is outside of `to` does not count as missing


def test_a_part_goes_to_another_place(file):
    model = Parts()
    load(model, {"path": str(file), "from": "decoder.", "to": "encoder.1"})
    assert equal(model.encoder[1], original(file).decoder)


def test_several_files_are_loaded_in_order(file, tmp_path):
    second = tmp_path / "b.pt"
    torch.save(Parts().decoder.state_dict(), second)
    model = Parts()
    reports = load(model, [str(file), {"path": str(second), "to": "decoder"}])
    assert [len(report.loaded) for report in reports] == [6, 2]
    assert torch.equal(model.decoder.weight, torch.load(second, weights_only=True)["weight"])


def test_missing_unexpected_and_other_shapes_are_reported(file, caplog):
    model = Parts(n_out=5)
    model.extra = torch.nn.Linear(1, 1)
    del model.encoder[1]
    with caplog.at_level(logging.INFO):
        (report,) = load(model, str(file))
    assert report.missing == ["extra.weight", "extra.bias"]
    assert report.unexpected == ["encoder.1.bias", "encoder.1.weight"]
    assert "decoder.weight: [2, 2] in the file, [5, 2] in the model" in str(report)
    assert "2 of 6 loaded" in str(report)
    assert str(report) in caplog.text


def test_strict_makes_it_an_error(file):
    with pytest.raises(ConfigError, match=r"(?s)decoder.weight: .*strict: true. Set exclude"):
        load(Parts(n_out=5), {"path": str(file), "strict": True})


@pytest.mark.parametrize("pattern", ["decoder", "dec*", "decoder.*"])
def test_what_is_excluded_stays_and_is_no_mismatch(file, pattern):
    model = Parts(n_out=5)
    (report,) = load(model, {"path": str(file), "exclude": [pattern], "strict": True})
    assert report.excluded == ["decoder.weight", "decoder.bias"]


def test_a_report_on_many_weights_is_short():
    names = [f"block{i}.layer{j}.{k}.weight" for i in range(30) for j in range(4) for k in range(9)]
    text = str(InitReport("a.ckpt", loaded=["x"], missing=names))
    assert len(text) < 500
    assert "block0.layer0.* (9)" in text
    assert "1080 missing in the file" in text
    assert "and 112 more" in text


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (3, "init is 3 .*, but must be a file. Write: init: {path: "),
        (["a.ckpt", 3], "init.1 is 3 .*, but must be a file"),
        ({"pth": "a"}, "Did you mean 'path'"),
        ({"path": "a", "from": 3}, "init.from"),
        ({"path": "a", "exlude": []}, "Did you mean 'exclude'"),
    ],
)
def test_mistakes_in_the_block_are_told(value, fix):
    with pytest.raises(ConfigError, match=fix):
        parse_init(value)


def test_no_init_is_fine():
    assert parse_init(None) == ()
    assert load_initial_weights(Parts(), ()) == []


def test_a_prefix_that_is_not_in_the_file_is_told(file):
    with pytest.raises(ConfigError, match=r"Did you mean 'encoder'.* It has: decoder, encoder"):
        load(Parts(), {"path": str(file), "from": "encodr"})


def test_a_file_that_fits_nowhere_is_told(file):
    with pytest.raises(ConfigError, match=r"(?s)Nothing of .* fits Net.*from: PREFIX_IN_FILE"):
        load(Net(), str(file))


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"does not exist. Correct the path"):
        load(Parts(), str(tmp_path / "no.ckpt"))


def test_files_that_are_missing_or_none_are_told_with_their_place(tmp_path, file):
    config = tmp_path / "training.yaml"
    config.write_text(f"init:\n- {json.dumps(str(file))}\n- path: nowhere.ckpt\n")
    place = r"init\.1\.path is 'nowhere\.ckpt' .*training\.yaml:3\)"
    with pytest.raises(ConfigError, match=place):
        load_from(config)
    config.write_text(f"init: {json.dumps(str(config))}\n")
    with pytest.raises(ConfigError) as refused:
        load_from(config)
    assert "training.yaml:1), which is damaged, or holds no weights" in str(refused.value)
    assert "Give a .safetensors file" in str(refused.value)
    assert "resume" not in str(refused.value)


def load_from(config):
    loaded = load_config(config, below={"exp_dir": "exp"})
    with loaded.naming_places():
        load_initial_weights(Parts(), load_training_config(loaded).init)


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_drawn_as_espnet2_names_it(method, caplog):
    caplog.set_level(logging.INFO)
    model = torch.nn.ModuleDict(
        {
            "encoder": torch.nn.Sequential(torch.nn.Conv1d(8, 64, 3), torch.nn.BatchNorm1d(64)),
            "rnn": torch.nn.LSTM(64, 32),
            "embed": torch.nn.Embedding(5, 4),
            "output": torch.nn.Linear(64, 64),
        }
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(0)
    load(model, method)
    after = model.state_dict()
    kept = {name for name in before if torch.equal(before[name], after[name])}
    assert {"embed.weight", "encoder.1.weight", "encoder.1.running_mean"} <= kept
    assert not {"encoder.0.weight", "rnn.weight_hh_l0", "output.weight"} & kept
    assert all(not after[name].any() for name in after if "bias" in name)
    deviation = {"chainer": 1 / 8, "xavier": (2 / 128) ** 0.5, "kaiming": (2 / 64) ** 0.5}
    wanted = deviation[method.partition("_")[0]]
    assert after["output.weight"].std() == pytest.approx(wanted, rel=0.1)
    assert f"Weights by {method}: 4 drawn, 4 biases set to 0." in caplog.text


def test_a_method_may_be_for_a_part_and_a_file_for_another(file):
    model = Parts()
    kept = model.encoder[1].weight.clone()
    load(
        model,
        [
            {"method": "xavier_normal", "to": "encoder", "exclude": ["encoder.1"]},
            {"path": str(file), "from": "decoder", "to": "decoder"},
        ],
    )
    assert not model.encoder[0].bias.any()
    assert torch.equal(model.encoder[1].weight, kept)
    assert torch.equal(model.decoder.weight, original(file).decoder.weight)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("xavier_unifrom", "Write: init: xavier_uniform"),
        ("orthogonal", "Those are chainer, xavier_uniform"),
        ({"method": "xavier"}, "Did you mean 'xavier_"),
        ({"method": "chainer", "to": "encodr"}, "draws no weight of Parts.*encoder, decoder"),
        ({"method": "chainer", "strict": True}, "init.strict is not a known key"),
    ],
)
def test_a_method_that_is_none_is_told(value, words):
    with pytest.raises(ConfigError, match=words):
        load(Parts(), value)

"""`freeze` leaves parts of a model as they are: weights, statistics, and no dropout."""

import logging

import pytest
import torch
from torch import nn

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.config import load_training_config
from espnet3.trainer.fine_tuning import freeze
from espnet3.trainer.optimization.optimization_config import OptimizationConfig
from espnet3.trainer.optimization.optimizers import split_parameters
from espnet3.trainer.reporting.summary import ModelSize


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, affine=False), nn.Dropout())
        self.encoder_norm = nn.InstanceNorm1d(4, track_running_stats=True)
        self.decoder = nn.ModuleDict({"embed": nn.Embedding(3, 4), "output": nn.Linear(4, 3)})
        self.head = nn.Linear(4, 3)
        self.head.weight = self.decoder["output"].weight  # tied
        self.scale = nn.Parameter(torch.ones(()))


def eval_modules(model) -> list[str]:
    return [name for name, module in model.named_modules() if name and not module.training]


def frozen_names(model) -> set[str]:
    named = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if not parameter.requires_grad}


@pytest.mark.parametrize(
    ("patterns", "parameters", "modules"),
    [
        (["encoder.*"], {"encoder.0.weight", "encoder.0.bias"}, ["encoder"]),
        (["encoder"], {"encoder.0.weight", "encoder.0.bias"}, ["encoder"]),
        (["encoder."], {"encoder.0.weight", "encoder.0.bias"}, ["encoder"]),
        (["encoder*"], {"encoder.0.weight", "encoder.0.bias"}, ["encoder", "encoder_norm"]),
        (["encoder.1"], set(), ["encoder.1"]),
        (["*.bias"], {"encoder.0.bias", "decoder.output.bias", "head.bias"}, []),
        (["scale"], {"scale"}, []),
        (["decoder.output"], {"decoder.output.weight", "decoder.output.bias", "head.weight"},
         ["decoder.output"]),
        (["decoder.embed", "encoder.[0-1]"],
         {"decoder.embed.weight", "encoder.0.weight", "encoder.0.bias"},
         ["encoder", "decoder.embed"]),
    ],
)  # fmt: skip
def test_what_a_pattern_freezes(patterns, parameters, modules):
    model = Model()
    frozen = freeze(model, patterns)
    assert frozen_names(model) == parameters
    assert list(frozen.modules) == modules
    model.train()
    frozen.hold()
    inside = [name for name, _ in model.named_modules() if _is_in(name, modules)]
    assert eval_modules(model) == inside
    frozen.release()
    assert frozen_names(model) == set()


def _is_in(name: str, modules: list[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def test_what_is_frozen_is_logged_and_no_longer_called_trainable(caplog):
    caplog.set_level(logging.INFO)
    model = Model()
    freeze(model, ["encoder.*", "scale"])
    n = sum(parameter.numel() for parameter in model.parameters())
    assert "Frozen: encoder (in eval mode) and 1 parameter by name (scale); 13 of" in caplog.text
    assert f"13 of {n} parameters" in caplog.text
    assert "all trainable" not in str(ModelSize.of(model))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            ["encodr.*"],
            r"freeze is 'encodr\.\*'.*Did you mean 'encoder'\? .*freeze: \[encoder\]",
        ),
        (["encoder", "lstm"], r"freeze\.1 is 'lstm'.*It has: .*encoder.*Write: freeze: \["),
        ("encodr", r"freeze is 'encodr' \(set in .*freeze: \[encoder\]"),
        (["*"], r"leaves nothing of Model to train: \*.*Write: freeze: \[encoder\]"),
        ("", "freeze: "),
        ([3], r"freeze\.0 is 3"),
        ({"encoder": True}, r"freeze \(set in .*\): names modules"),
    ],
)
def test_what_cannot_be_frozen_is_told_with_a_line_that_works(value, words):
    loaded = load_config({"exp_dir": "exp", "freeze": value})
    with pytest.raises(ConfigError, match=words) as refused, loaded.naming_places():
        freeze(Model(), load_training_config(loaded).freeze)
    line = str(refused.value).rpartition("freeze: [")[2].rstrip("].")
    assert freeze(Model(), [line]).parameters


def test_a_model_of_one_part_is_not_told_to_freeze_it():
    with pytest.raises(ConfigError, match=r"freeze: \[0\.weight\]"):
        freeze(nn.Sequential(nn.Linear(2, 2)), ["*"])
    with pytest.raises(ConfigError, match="Delete freeze"):
        freeze(nn.Sequential(nn.Linear(2, 2, bias=False)), ["*"])


def test_frozen_parameters_are_no_optimizers_and_a_prefix_of_them_alone_is_told():
    adam = {"_target_": "torch.optim.Adam"}
    names = {
        "a": {"optimizer": adam, "params": ["encoder", "decoder", "head", "scale"]},
        "b": {"optimizer": adam, "params": "encoder"},
    }
    model = Model()
    freeze(model, ["encoder"])
    single = split_parameters(model, OptimizationConfig.from_config({"optimizer": adam}))
    assert all(p.requires_grad for p in single["optimizer"])
    with pytest.raises(ConfigError, match=r"optimizers\.a\.params has 'encoder'.*see freeze"):
        split_parameters(model, OptimizationConfig.from_config({"optimizers": names}))

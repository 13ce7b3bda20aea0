import pytest
from torch import nn

from espnet3.errors import ConfigError
from espnet3.trainer.optimization.optimization_config import OptimizationConfig
from espnet3.trainer.optimization.optimizers import split_parameters

SGD = {"_target_": "torch.optim.SGD", "lr": 0.1}


def model():
    return nn.ModuleDict(
        {
            "generator": nn.Linear(1, 1),
            "generator_ema": nn.Linear(1, 1),
            "discriminators": nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)]),
        }
    )


def split(net=None, **params):
    optimizers = {
        name: {"optimizer": SGD, **({"params": p} if p else {})} for name, p in params.items()
    }
    config = OptimizationConfig.from_config({"optimizers": optimizers})
    net = net or model()
    names = {id(p): name for name, p in net.named_parameters()}
    groups = split_parameters(net, config)
    return {name: [names[id(p)] for p in group] for name, group in groups.items()}


def test_a_prefix_ends_at_a_dot():
    groups = split(g="generator", e="generator_ema", d="discriminators")
    assert groups["g"] == ["generator.weight", "generator.bias"]
    assert len(groups["e"]) == 2
    assert len(groups["d"]) == 4


def test_lists_and_patterns():
    groups = split(a=["generator*", "discriminators.0"], b="*.1.*")
    assert len(groups["a"]) == 6
    assert groups["b"] == ["discriminators.1.weight", "discriminators.1.bias"]


def test_one_optimizer_has_all():
    assert len(split(only=None)["only"]) == 8


def test_frozen_parameters_need_no_optimizer():
    net = model()
    net["generator_ema"].requires_grad_(False)
    assert len(split(net, g="generator", d="discriminators")["g"]) == 2


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"g": "generator", "d": "discriminators"},
         ["2 trainable", "generator_ema.weight", "params: [generator, generator_ema]"]),
        ({"g": "generator*", "d": ["discriminators", "generator"]},
         ["several optimizers", "'generator.weight' fits", "prefixes of one of them longer"]),
        ({"g": "generatorr", "d": "discriminators"}, ["'generatorr'", "Did you mean 'generator'?"]),
        ({"g": None, "d": "discriminators"}, ["optimizers.g.params is not set", "params: [...]"]),
    ],
)  # fmt: skip
def test_mistakes(params, words):
    with pytest.raises(ConfigError) as caught:
        split(**params)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_model_without_trainable_parameters():
    with pytest.raises(ConfigError, match="requires_grad=True"):
        split(model().requires_grad_(False), g="generator")

import math

import pytest
import torch
from torch import nn

from espnet3.errors import ConfigError
from espnet3.trainer.optimization.optimization_config import OptimizationConfig
from espnet3.trainer.optimization.optimizers import TrainingLength, build_optimizer, build_scheduler

ADAM = {"_target_": "torch.optim.Adam", "lr": 0.1, "betas": [0.8, 0.9]}
LENGTH = TrainingLength(n_batches=10, n_epochs=3, n_updates=math.inf)
TORCH = "torch.optim.lr_scheduler"


def parameters():
    return [nn.Parameter(torch.zeros(2))]


def scheduler(node, length=LENGTH, interval="step", **trainer):
    config = OptimizationConfig.from_config(
        {"optimizer": ADAM, "scheduler": node, "scheduler_interval": interval, "trainer": trainer}
    )
    optimizer = build_optimizer("optimizer", config, parameters())
    return build_scheduler("optimizer", config, optimizer, length)


def test_the_optimizer_has_the_parameters_themselves():
    own = parameters()
    config = OptimizationConfig.from_config({"optimizer": ADAM})
    optimizer = build_optimizer("optimizer", config, own)
    assert optimizer.param_groups[0]["params"][0] is own[0]
    assert type(optimizer.param_groups[0]["betas"]) in (list, tuple)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({**ADAM, "learning_rate": 1}, ["no argument 'learning_rate'", "Signature"]),
        ({**ADAM, "weight_decya": 1}, ["Did you mean 'weight_decay'?"]),
    ],
)
def test_arguments_that_do_not_fit(node, words):
    config = OptimizationConfig.from_config({"optimizer": node})
    with pytest.raises(ConfigError) as caught:
        build_optimizer("optimizer", config, parameters())
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_an_argument_that_a_scheduler_lacks():
    with pytest.raises(ConfigError, match="Write: step_size: VALUE"):
        scheduler({"_target_": f"{TORCH}.StepLR"})


@pytest.mark.parametrize(
    ("node", "arguments", "name", "expected"),
    [
        ({"_target_": f"{TORCH}.OneCycleLR", "max_lr": 1.0}, {}, "total_steps", 30),
        ({"_target_": f"{TORCH}.OneCycleLR", "max_lr": 1.0, "total_steps": 7}, {},
         "total_steps", 7),
        ({"_target_": f"{TORCH}.OneCycleLR", "max_lr": 1.0, "epochs": 2, "steps_per_epoch": 4}, {},
         "total_steps", 8),
        ({"_target_": f"{TORCH}.OneCycleLR", "max_lr": 1.0}, {"accumulate_grad_batches": 4},
         "total_steps", 9),
        ({"_target_": f"{TORCH}.CosineAnnealingLR"}, {}, "T_max", 30),
        ({"_target_": f"{TORCH}.CosineAnnealingLR"}, {"interval": "epoch"}, "T_max", 3),
        ({"_target_": f"{TORCH}.CosineAnnealingLR"},
         {"length": TrainingLength(10, 3, n_updates=12)}, "T_max", 12),
        ({"_target_": f"{TORCH}.CosineAnnealingLR"},
         {"length": TrainingLength(math.inf, math.inf, n_updates=12)}, "T_max", 12),
    ],
)  # fmt: skip
def test_the_length_of_the_training(node, arguments, name, expected):
    assert getattr(scheduler(node, **arguments), name) == expected


def test_a_training_without_end_needs_a_length():
    endless = TrainingLength(10, math.inf, math.inf)
    with pytest.raises(ConfigError, match=r"total_steps: 100000, or set trainer\.max_epochs"):
        scheduler({"_target_": f"{TORCH}.OneCycleLR", "max_lr": 1.0}, endless)


def test_steps_of_an_optimizer_that_steps_less_often():
    part = {"optimizer": ADAM}
    config = OptimizationConfig.from_config(
        {
            "optimizers": {
                "often": {**part, "params": "a"},
                "seldom": {**part, "params": "b", "step_every_n_iters": 2, "accum_grad_steps": 3},
            }
        }
    ).optimizers
    assert LENGTH.n_steps(config["often"], config) == 30
    assert LENGTH.n_steps(config["seldom"], config) == 6
    # max_steps counts those of the other one.
    assert TrainingLength(10, math.inf, 12).n_steps(config["seldom"], config) == 2


@pytest.mark.parametrize(
    ("outer", "expected"),
    [
        ({"_target_": f"{TORCH}.SequentialLR", "milestones": [2]}, [0.05, 0.05, 0.1, 0.01]),
        ({"_target_": f"{TORCH}.ChainedScheduler"}, [0.05, 0.005, 0.001, 0.0001]),
    ],
)
def test_schedulers_of_schedulers(outer, expected):
    inner = [
        {"_target_": f"{TORCH}.ConstantLR", "factor": 0.5, "total_iters": 2},
        {"_target_": f"{TORCH}.ExponentialLR", "gamma": 0.1},
    ]
    built = scheduler({**outer, "schedulers": inner})
    rates = []
    for _ in range(4):
        rates.append(built.optimizer.param_groups[0]["lr"])
        built.optimizer.step()
        built.step()
    assert rates == pytest.approx(expected)


def test_a_mistake_in_an_inner_scheduler_is_named():
    inner = [{"_target_": f"{TORCH}.ConstantLR", "facter": 0.5}]
    with pytest.raises(ConfigError, match=r"scheduler\.schedulers\.0 .*Did you mean 'factor'"):
        scheduler({"_target_": f"{TORCH}.ChainedScheduler", "schedulers": inner})

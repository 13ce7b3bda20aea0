from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from torch import nn

from espnet3.errors import ConfigError
from espnet3.trainer.optimization.optimization_config import OptimizerConfig
from espnet3.trainer.optimization.optimizer_steps import Updater
from espnet3.trainer.optimization.optimizers import check_combination


def updater(name="a", fused=False, **settings):
    node = {"_target_": "torch.optim.Adam"}
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(1))], fused=fused)
    return Updater(name, OptimizerConfig(optimizer=node, **settings), optimizer)


def check(updaters, strategy=None, scaler=None):
    plugin = SimpleNamespace(scaler=scaler)
    strategy = strategy or SingleDeviceStrategy()
    check_combination(SimpleNamespace(strategy=strategy, precision_plugin=plugin), updaters)


def test_what_goes_together():
    check([updater(), updater("b", accum_grad_steps=2, gradient_clip_val=1.0)])
    check([updater(accum_grad_steps=2, gradient_clip_val=1.0)], scaler=object())
    check([updater(gradient_clip_val=1.0)], FSDPStrategy())


@pytest.mark.parametrize(
    ("updaters", "options", "fix"),
    [
        ([updater(), updater("b")], {"strategy": FSDPStrategy()}, "strategy: ddp"),
        ([updater()], {"strategy": ModelParallelStrategy()}, "strategy: fsdp"),
        ([updater(), updater("b", accum_grad_steps=2)], {"scaler": object()}, "bf16-mixed"),
        ([updater(fused=True, gradient_clip_val=1.0)], {"scaler": object()}, "fused: false"),
    ],
)
def test_what_does_not(updaters, options, fix):
    with pytest.raises(ConfigError, match=fix):
        check(updaters, **options)

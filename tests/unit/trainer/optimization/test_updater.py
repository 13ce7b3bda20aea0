import pytest
import torch
from torch import nn

from espnet3.trainer.optimization.optimization_config import OptimizerConfig
from espnet3.trainer.optimization.optimizer_steps import Moment, Updater, frozen_others

NODE = {"_target_": "torch.optim.SGD", "lr": 0.1}


def updater(accumulated=1, every=1):
    config = OptimizerConfig(optimizer=NODE, accum_grad_steps=accumulated, step_every_n_iters=every)
    return Updater("a", config, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))


def moments(n_batches, n_epochs):
    return [
        Moment(epoch * n_batches + i, i, i == n_batches - 1)
        for epoch in range(n_epochs)
        for i in range(n_batches)
    ]


@pytest.mark.parametrize(
    ("accumulated", "every", "due", "closes"),
    [
        (1, 1, "xxxxx xxxxx", "xxxxx xxxxx"),
        (2, 1, "xxxxx xxxxx", ".x.xx .x.xx"),
        (1, 2, ".x.x. x.x.x", ".x.xx x.x.x"),  # nothing waits after the fifth: no step
        (2, 2, ".x.x. x.x.x", "...xx ..x.x"),
        (9, 1, "xxxxx xxxxx", "....x ....x"),
    ],
)
def test_when_it_computes_and_when_it_steps(accumulated, every, due, closes):
    one = updater(accumulated, every)
    marks = lambda flags: "".join("x" if flag else "." for flag in flags)  # noqa: E731
    assert marks(one.is_due(m) for m in moments(5, 2)) == due.replace(" ", "")
    assert marks(one.closes(m) for m in moments(5, 2)) == closes.replace(" ", "")


def test_others_are_frozen_only_inside_and_stay_frozen_if_they_were():
    one, other = updater(), updater()
    frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    other.optimizer.add_param_group({"params": [frozen]})
    with frozen_others(one, [one, other]):
        assert not other.parameters
        assert one.parameters[0].requires_grad
    assert len(other.parameters) == 1
    assert not frozen.requires_grad

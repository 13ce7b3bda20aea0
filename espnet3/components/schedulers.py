"""Schedulers of the learning rate that torch does not have."""

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class WarmupLR(LRScheduler):
    """Rise linearly to the optimizer's own rate, then fall with the root of the step.

    The rate is `lr * warmup_steps**0.5 * min(step**-0.5, step * warmup_steps**-1.5)`, so that `lr`
    is the highest one, reached at step `warmup_steps`. It does not depend on how long the training
    is. Use it with `scheduler_interval: step`.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        >>> WarmupLR(optimizer, warmup_steps=4).get_last_lr()
        [0.25]
    """

    def __init__(
        self, optimizer: Optimizer, warmup_steps: int | float = 25000, last_epoch: int = -1
    ) -> None:
        if warmup_steps <= 0:
            raise ValueError(f"warmup_steps is {warmup_steps}, but must be above 0")
        # Before super().__init__(), which asks get_lr() for the first rate.
        self.warmup_steps = warmup_steps
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Return the rate of each parameter group for the current step, counted from 1."""
        # torch counts from 0, which has no power of -0.5.
        step = self.last_epoch + 1
        factor = self.warmup_steps**0.5 * min(step**-0.5, step * self.warmup_steps**-1.5)
        return [float(lr) * factor for lr in self.base_lrs]

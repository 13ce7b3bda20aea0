"""The loss of ESPnet2's transducers, where the package that it asks for cannot be had."""

import importlib.machinery
import importlib.util
import logging
import sys
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from espnet3.components.models.losses import rnnt_loss
from espnet3.errors import ConfigError

logger = logging.getLogger(__name__)

_PACKAGE = "warprnnt_pytorch"


class RNNTLoss(nn.Module):
    """Our transducer loss under the name and with the arguments that ESPnet2 calls.

    Args:
        blank: Id of the blank.
        reduction: `mean` over the utterances, `sum`, or `none`.
        fastemit_lambda: 0; others are refused.

    Raises:
        ConfigError: `fastemit_lambda` is set.
    """

    def __init__(
        self, blank: int = 0, reduction: str = "mean", fastemit_lambda: float = 0.0
    ) -> None:
        super().__init__()
        if fastemit_lambda:
            raise ConfigError(
                key="fastemit_lambda",
                value=fastemit_lambda,
                problem=f"but the package {_PACKAGE} is not installed, and our own loss has none",
                fix=f"Write: fastemit_lambda: 0.0, or install {_PACKAGE}.",
            )
        self.blank = blank
        self.reduction = reduction

    def forward(
        self, logits: Tensor, tokens: Tensor, lengths: Tensor, tokens_lengths: Tensor
    ) -> Tensor:
        """Return the negative log-likelihood; `logits` are [B, T, U + 1, V], not normalised."""
        targets = tokens.long().clamp_min(0)  # padding may be -1, which is no token
        losses = rnnt_loss(logits, lengths.long(), targets, tokens_lengths.long(), blank=self.blank)
        reductions: dict[str, Any] = {"mean": losses.mean, "sum": losses.sum}
        result: Tensor = reductions.get(self.reduction, lambda: losses)()
        return result


def provide_loss() -> None:
    """Let ESPnet2 find our loss where `warprnnt_pytorch` is not installed.

    That package is compiled for one version of torch, and has no release for those of today.
    ESPnet2 imports it by this name while it builds a transducer, or at its first batch.
    """
    if _PACKAGE in sys.modules or importlib.util.find_spec(_PACKAGE) is not None:
        return
    stand_in: Any = ModuleType(_PACKAGE)
    stand_in.__spec__ = importlib.machinery.ModuleSpec(_PACKAGE, None)
    stand_in.RNNTLoss = RNNTLoss
    sys.modules[_PACKAGE] = stand_in
    logger.info("%s is not installed: transducers of ESPnet2 are trained by our loss", _PACKAGE)

"""Normalisation of features to mean 0 and variance 1: by statistics of the corpus, or by item."""

import os
from typing import Any

import torch
from torch import Tensor, nn

from espnet3.commands import recipe_command
from espnet3.components.data.errors import DataError
from espnet3.components.models.frames import zero_padding
from espnet3.config.trust import checked_path, current_trust

_Normalized = tuple[Tensor, Tensor | None]


class GlobalNormalization(nn.Module):
    """Subtracts the mean of the training set and divides by its standard deviation.

    Mean and deviation are buffers, so they are in each checkpoint. Where the file does not exist
    they stay unknown until a checkpoint brings them: that is how `collect_stats` can build the
    model that it takes the statistics for, and how a packed model does without the file.

    Args:
        stats_file: as stage `collect_stats` writes it, `<stats_dir>/train/feats_stats.npz`.
        norm_means: Subtract the mean.
        norm_vars: Divide by the standard deviation.
        eps: The least standard deviation to divide by.

    Example:
        >>> GlobalNormalization("exp/stats/train/feats_stats.npz")
        GlobalNormalization(stats_file=exp/stats/train/feats_stats.npz, unknown so far)
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        stats_file: str | os.PathLike[str],
        norm_means: bool = True,
        norm_vars: bool = True,
        eps: float = 1e-10,
    ) -> None:
        super().__init__()
        self.stats_file = os.fspath(stats_file)
        self.norm_means = norm_means
        self.norm_vars = norm_vars
        self.eps = eps
        mean, std = _load(self.stats_file) if self._has_file() else (None, None)
        self.register_buffer("mean", torch.empty(0) if mean is None else mean)
        self.register_buffer("std", torch.empty(0) if std is None else std)

    def _has_file(self) -> bool:
        # Of a packed model only the name may be left: what lies elsewhere under it is another one.
        is_packed_away = current_trust() is not None and not os.path.isabs(self.stats_file)
        return not is_packed_away and os.path.exists(self.stats_file)

    def forward(self, feats: Tensor, lengths: Tensor | None = None) -> _Normalized:
        """Normalise `[batch, time, dim]`; behind the end of an item, as `lengths` says, is 0.

        Raises:
            DataError: The statistics are unknown, or of another dimension.
        """
        self._check(feats)
        # Half precision would round off most digits when a large mean is subtracted.
        values = feats.to(self.mean.dtype)
        if self.norm_means:
            values = values - self.mean
        if self.norm_vars:
            # A dimension that never varies has a deviation of 0.
            values = values / self.std.clamp_min(self.eps)
        return _masked(values.to(feats.dtype), lengths), lengths

    def inverse(self, feats: Tensor, lengths: Tensor | None = None) -> _Normalized:
        """Undo `forward`, for a model that generates features."""
        self._check(feats)
        values = feats.to(self.mean.dtype)
        if self.norm_vars:
            values = values * self.std.clamp_min(self.eps)
        if self.norm_means:
            values = values + self.mean
        return _masked(values.to(feats.dtype), lengths), lengths

    def _check(self, feats: Tensor) -> None:
        if self.mean.numel() == 0:
            raise DataError(
                f"The statistics file {self.stats_file} does not exist, and no checkpoint brought "
                "its values.",
                fix=f"Make it with: {recipe_command('collect_stats')}",
            )
        n_leading = feats.dim() - self.mean.dim()
        if n_leading < 0 or feats.shape[n_leading:] != self.mean.shape:
            again = recipe_command("collect_stats", overrides=["collect_stats.resume=false"])
            raise DataError(
                f"The features are {list(feats.shape)}, but the statistics in {self.stats_file} "
                f"are of dimension {list(self.mean.shape)}. If the features changed, take them "
                f"again: {again}"
            )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Take the shape from the checkpoint where no file gave it."""
        for name in ("mean", "std"):
            found = state_dict.get(prefix + name)
            buffer: Tensor = getattr(self, name)
            if isinstance(found, Tensor) and buffer.numel() == 0:
                setattr(self, name, torch.empty_like(found, device=buffer.device))
        # It refuses a buffer of another shape, so the shapes are set first.
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """Say which file, and what it gave."""
        known = list(self.mean.shape) if self.mean.numel() else "unknown so far"
        return f"stats_file={self.stats_file}, {known}"


class UtteranceNormalization(nn.Module):
    """Gives each item mean 0 and variance 1 over its own frames; padding is left out and set to 0.

    Args:
        norm_means: Subtract the mean.
        norm_vars: Divide by the standard deviation.
        eps: The least standard deviation to divide by.
    """

    def __init__(self, norm_means: bool = True, norm_vars: bool = True, eps: float = 1e-10) -> None:
        super().__init__()
        self.norm_means = norm_means
        self.norm_vars = norm_vars
        self.eps = eps

    def forward(self, feats: Tensor, lengths: Tensor | None = None) -> _Normalized:
        """Normalise `[batch, time, dim]`; `lengths` are the frames of each item."""
        values = feats if feats.dtype == torch.float64 else feats.float()
        if lengths is None:
            count: Tensor | int = feats.shape[1]
        else:
            count = lengths.to(feats.device).clamp_min(1).view(-1, *[1] * (feats.dim() - 1))
        mean = _masked(values, lengths).sum(1, keepdim=True) / count
        # Padding has become -mean, which would count in the variance.
        centered = _masked(values - mean, lengths)
        # The variance is that of the centred values whether or not the mean is to go.
        var = centered.square().sum(1, keepdim=True) / count
        result = centered if self.norm_means else values
        if self.norm_vars:
            result = result / var.sqrt().clamp_min(self.eps)
        return _masked(result, lengths).to(feats.dtype), lengths

    def extra_repr(self) -> str:
        """Say what is normalised."""
        return f"norm_means={self.norm_means}, norm_vars={self.norm_vars}"


def _load(path: str) -> tuple[Tensor, Tensor]:
    from espnet3.components.data.stats import load_stats

    stats = load_stats(checked_path(path))
    to_tensor = torch.from_numpy
    return to_tensor(stats.mean.copy()).float(), to_tensor(stats.var.copy()).sqrt().float()


def _masked(feats: Tensor, lengths: Tensor | None) -> Tensor:
    """Set what lies behind the end of each item to 0."""
    return feats if lengths is None else zero_padding(feats, lengths)

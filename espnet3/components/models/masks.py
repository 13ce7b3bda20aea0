"""Masks of padded batches: which frames are real."""

import torch
from torch import Tensor


def valid_frames(lengths: Tensor, n_frames: int, device: torch.device | None = None) -> Tensor:
    """Return [batch, n_frames], true where a frame lies before the end of its item.

    Args:
        lengths: Frames of each item.
        n_frames: Frames of the padded batch.
        device: Of the mask; None for that of `lengths`.

    Example:
        >>> valid_frames(torch.tensor([1, 3]), 3).int().tolist()
        [[1, 0, 0], [1, 1, 1]]
    """
    lengths = lengths if device is None else lengths.to(device)
    return torch.arange(n_frames, device=lengths.device) < lengths[:, None]


def zero_padding(values: Tensor, lengths: Tensor) -> Tensor:
    """Return [batch, time, ...] with 0 behind the end of each item."""
    is_padding = ~valid_frames(lengths, values.shape[1], values.device)
    return values.masked_fill(is_padding.view(is_padding.shape + (1,) * (values.dim() - 2)), 0.0)

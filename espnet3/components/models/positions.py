"""Where in a sequence a vector stands, as sines and cosines that are added to it."""

import math

import torch
from torch import Tensor


def sinusoids(n: int, size: int, *, start: int = 0, like: Tensor) -> Tensor:
    """Return `[n, size]` for the positions `start` to `start + n - 1`.

    The wavelengths are a geometric series from 2 pi to 20000 pi. Nothing is stored, so no length
    is too long, and a position has the same values whatever comes before or behind it.

    Args:
        n: how many positions.
        size: of each vector; even.
        start: the first position.
        like: a tensor on the device and of the type that are wanted.

    Example:
        >>> sinusoids(2, 2, like=torch.zeros(1)).tolist()[0]
        [0.0, 1.0]
    """
    rates = torch.exp(
        torch.arange(0, size, 2, device=like.device, dtype=torch.float32)
        * (-math.log(10000.0) / size)
    )
    places = torch.arange(start, start + n, device=like.device, dtype=torch.float32)
    angles = places[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(like.dtype)

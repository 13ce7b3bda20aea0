"""Vectors of the tokens so far, one row per hypothesis, to which one more is added at each step."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, cat

_BLOCK = 16  # places to add at once: a search then copies its past once in a step, not twice


@dataclass
class _Used:
    """How many places of a buffer are taken, by whichever cache took the last."""

    n: int


@dataclass(frozen=True)
class TokenCache:
    """The first `n` places of a buffer `[rows, places, size]`.

    Adding a token leaves this cache as it is: the new one has a place behind its end in the same
    buffer, or a buffer of its own if that place is taken or must not be written to.
    """

    buffer: Tensor
    n: int
    used: _Used = field(repr=False)

    @classmethod
    def of(cls, values: Tensor) -> "TokenCache":
        """Return the cache of `[rows, places, size]`."""
        return cls(values, values.shape[1], _Used(values.shape[1]))

    @property
    def values(self) -> Tensor:
        """`[rows, n, size]`."""
        return self.buffer[:, : self.n]

    def add(self, values: Tensor) -> "TokenCache":
        """Return a cache with `[rows, places, size]` behind the places of this one."""
        if torch.is_grad_enabled():  # gradients need the values as they were
            return TokenCache.of(cat([self.values, values], 1))
        end = self.n + values.shape[1]
        buffer, used = self.buffer, self.used
        if used.n != self.n or end > buffer.shape[1]:
            free = values.new_empty(len(values), values.shape[1] + _BLOCK, values.shape[2])
            buffer, used = cat([self.values, free], 1), _Used(self.n)
        buffer[:, self.n : end] = values
        used.n = end
        return TokenCache(buffer, end, used)

    def select(self, indices: Tensor) -> "TokenCache":
        """Return the cache of the rows `indices`, which may leave some out and repeat others."""
        return TokenCache(self.buffer.index_select(0, indices), self.n, _Used(self.n))

"""Self-attention that knows how far apart two frames are, not where they stand."""

import torch
from torch import Tensor, nn

from espnet3.components.models.positions import sinusoids
from espnet3.errors import ConfigError


class RelativeAttention(nn.Module):
    """Attention with several heads, whose scores depend on content and on distance.

    The score of frame i for frame j is `(q_i + u) k_j + (q_i + v) r_(i-j)`, divided by the root of
    the size of a head, as in Transformer-XL (arXiv 1901.02860): `r` is a projection of sines and
    cosines of the distance, `u` and `v` are learnt.

    Args:
        size: Of a frame; even.
        n_heads: Attentions beside each other; they share `size`.
        dropout: Of the attention, while training.

    Raises:
        ConfigError: The heads cannot share the size evenly.
    """

    def __init__(self, size: int, n_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if n_heads < 1 or size % n_heads or size % 2:
            raise ConfigError(
                f"model.encoder has hidden: {size} and n_heads: {n_heads}, but hidden must be even "
                f"and a multiple of n_heads. Write for example: hidden: {64 * max(1, n_heads)}"
            )
        self.n_heads = n_heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(size, 3 * size)
        self.distance = nn.Linear(size, size, bias=False)
        self.output = nn.Linear(size, size)
        self.content_bias = nn.Parameter(torch.zeros(n_heads, 1, size // n_heads))
        self.distance_bias = nn.Parameter(torch.zeros(n_heads, 1, size // n_heads))

    def forward(self, frames: Tensor, distances: Tensor, is_valid: Tensor) -> Tensor:
        """Return [batch, frames, size].

        Args:
            frames: [batch, frames, size].
            distances: What `distance_vectors` returned for as many frames.
            is_valid: [batch, frames]; false where a frame is padding, to which none attends.
        """
        query, key, value = (self._split(x) for x in self.query_key_value(frames).chunk(3, -1))
        scale = query.shape[-1] ** -0.5
        by_distance = (query + self.distance_bias) @ self._split(self.distance(distances)).mT
        bias = (shift(by_distance) * scale).masked_fill(~is_valid[:, None, None], float("-inf"))
        attended = nn.functional.scaled_dot_product_attention(
            query + self.content_bias,
            key,
            value,
            attn_mask=bias,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.output(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split(self, values: Tensor) -> Tensor:
        """Return [..., n, size] as [..., n_heads, n, size / n_heads]."""
        *others, size = values.shape
        # Not -1, whose meaning torch.export cannot work out for every length.
        return values.view(*others, self.n_heads, size // self.n_heads).transpose(-3, -2)


def distance_vectors(frames: Tensor) -> Tensor:
    """Return [2 n - 1, size] for n frames: the distances from n - 1 down to 1 - n."""
    n = frames.shape[1]
    return sinusoids(2 * n - 1, frames.shape[2], start=1 - n, like=frames).flip(0)


def shift(by_distance: Tensor) -> Tensor:
    """Turn scores of [frame, distance] into scores of [frame, other frame].

    Row i of the input has the distances from n - 1 down to 1 - n; what row i of the output wants
    is i to i - n + 1, so each row begins one column before the one above it. A step from row to
    row that is shorter by one reads that without copying.

    Args:
        by_distance: [..., n, 2 n - 1].

    Example:
        >>> shift(torch.tensor([[1.0, 0.0, -1.0], [1.0, 0.0, -1.0]])).tolist()
        [[0.0, -1.0], [1.0, 0.0]]
    """
    *others, n, _ = by_distance.shape
    scores = by_distance.contiguous()
    *steps, step, _ = scores.stride()
    offset = scores.storage_offset() + n - 1
    return scores.as_strided((*others, n, n), (*steps, step - 1, 1), offset)

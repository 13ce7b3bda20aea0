"""The layers of a Transformer that writes token by token, with keys and values kept for the next.

One `forward` serves a whole sequence and a single step, so both compute the same.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from espnet3.components.models.token_cache import TokenCache
from espnet3.errors import ConfigError


@dataclass(frozen=True)
class Memory:
    """What a layer looks at beside the tokens: the encoded speech of each utterance."""

    keys_values: Tensor
    is_real: Tensor
    """`[utterances, 1, 1, frames]`: false where a frame is padding."""

    def select(self, utterances: Tensor) -> "Memory":
        """Return the memory of these utterances alone."""
        return Memory(
            self.keys_values.index_select(0, utterances), self.is_real.index_select(0, utterances)
        )


class Attention(nn.Module):
    """Attention with several heads; keys and values are made apart, so that they can be kept."""

    def __init__(self, size: int, n_heads: int, memory_size: int, dropout: float) -> None:
        super().__init__()
        if n_heads < 1 or size % n_heads:
            raise ConfigError(
                f"{n_heads} attention heads cannot share a hidden size of {size} evenly. Write "
                f"a hidden size that n_heads divides, such as hidden: {64 * max(1, n_heads)}"
            )
        self.n_heads = n_heads
        self.dropout = dropout
        self.query = nn.Linear(size, size)
        self.key_value = nn.Linear(memory_size, 2 * size)
        self.output = nn.Linear(size, size)

    def keys_values(self, memory: Tensor) -> Tensor:
        """Return the keys and values of `[rows, positions, size]`.

        Both are in one tensor, `[rows, positions, 2 * size]`, in which the past of a hypothesis is
        one piece of memory: a search copies them at each step.
        """
        both: Tensor = self.key_value(memory)
        return both

    def forward(
        self,
        queries: Tensor,
        keys_values: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Attend from `[rows, positions, size]`; `mask` is true where it may look."""
        keys, values = keys_values.chunk(2, -1)
        attended = scaled_dot_product_attention(
            self._split(self.query(queries)),
            self._split(keys),
            self._split(values),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal,
        )
        return self.output(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split(self, values: Tensor) -> Tensor:
        return values.view(*values.shape[:2], self.n_heads, -1).transpose(1, 2)


class CausalLayer(nn.Module):
    """Attention to the tokens so far, to the memory if there is one, and a feed-forward network.

    Each is applied to the normalised input and added to it (pre-norm).

    Args:
        size: of the vectors.
        n_heads: of both attentions.
        feed_forward: size within the feed-forward network.
        dropout: while training.
        memory_size: of the encoded frames; None: there is no memory.
    """

    def __init__(
        self,
        size: int,
        n_heads: int,
        feed_forward: int,
        dropout: float,
        memory_size: int | None = None,
    ) -> None:
        super().__init__()
        self.self_norm = nn.LayerNorm(size)
        self.self_attention = Attention(size, n_heads, size, dropout)
        self.memory_norm = self.memory_attention = None
        if memory_size is not None:
            self.memory_norm = nn.LayerNorm(size)
            self.memory_attention = Attention(size, n_heads, memory_size, dropout)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(size),
            nn.Linear(size, feed_forward),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(feed_forward, size),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, past: TokenCache | None, memory: Memory | None
    ) -> tuple[Tensor, TokenCache]:
        """Return the output, and the keys and values of all tokens so far.

        Args:
            x: `[rows, positions, size]`; with a past, one position.
            past: keys and values of the tokens before.
            memory: of fewer utterances than there are rows if the rows of each stand together.
        """
        normed = self.self_norm(x)
        new = self.self_attention.keys_values(normed)
        present = TokenCache.of(new) if past is None else past.add(new)
        attended = self.self_attention(normed, present.values, is_causal=past is None)
        x = x + self.dropout(attended)
        if memory is not None:
            x = x + self.dropout(self._look_at(x, memory))
        return x + self.dropout(self.feed_forward(x)), present

    def _look_at(self, x: Tensor, memory: Memory) -> Tensor:
        assert self.memory_norm is not None
        assert self.memory_attention is not None
        # The rows of an utterance become one list of queries: its memory need not be copied.
        together = self.memory_norm(x).view(len(memory.is_real), -1, x.shape[-1])
        attended: Tensor = self.memory_attention(together, memory.keys_values, memory.is_real)
        return attended.view_as(x)

"""A Transformer from tokens to the next token: of a language model, or with a memory a decoder."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from espnet3.components.models.transformer_layers import CausalLayer, Memory, TokenCache, sinusoids
from espnet3.errors import ConfigError


@dataclass(frozen=True)
class TransformerState:
    """Keys and values of the tokens so far, by layer."""

    layers: tuple[TokenCache, ...] = ()
    """Empty before the first token."""

    def select(self, indices: Tensor) -> "TransformerState":
        """Return the state of the rows `indices`, which may leave some out and repeat others."""
        return TransformerState(tuple(one.select(indices) for one in self.layers))


class TokenTransformer(nn.Module):
    """Embedding, causal layers, and the logits of the next token.

    Args:
        n_tokens: of the vocabulary.
        size: of the vectors; even, and a multiple of `n_heads`.
        n_layers: how many layers.
        n_heads: of each attention.
        feed_forward: size within the feed-forward networks; None: four times `size`.
        dropout: while training.
        memory_size: of encoded frames to look at; None: there are none.
    """

    def __init__(
        self,
        n_tokens: int,
        *,
        size: int,
        n_layers: int,
        n_heads: int,
        feed_forward: int | None = None,
        dropout: float = 0.1,
        memory_size: int | None = None,
    ) -> None:
        super().__init__()
        if size % 2 or n_layers < 1:
            raise ConfigError(
                f"A Transformer of hidden size {size} with {n_layers} layer(s) cannot be built: "
                "the size must be even, and one layer is the least. Write: hidden: 256, n_layers: 2"
            )
        self.size = size
        self.embedding = nn.Embedding(n_tokens, size)
        nn.init.normal_(self.embedding.weight, std=size**-0.5)
        self.dropout = nn.Dropout(dropout)
        inner = feed_forward or 4 * size
        self.layers = nn.ModuleList(
            CausalLayer(size, n_heads, inner, dropout, memory_size) for _ in range(n_layers)
        )
        self.norm = nn.LayerNorm(size)
        self.output = nn.Linear(size, n_tokens)

    def forward(
        self, tokens: Tensor, state: TransformerState, memories: Sequence[Memory | None] = ()
    ) -> tuple[Tensor, TransformerState]:
        """Return the logits `[rows, positions, n_tokens]` behind each token, and the new state.

        Args:
            tokens: `[rows, positions]`; after a state with tokens, one position. Negative ids, as
                padding has them, count as token 0: nothing real looks at them.
            state: of the tokens before.
            memories: one for each layer.
        """
        n_before = state.layers[0].n if state.layers else 0
        x = self.embedding(tokens.clamp_min(0)) * math.sqrt(self.size)
        x = self.dropout(x + sinusoids(tokens.shape[1], self.size, start=n_before, like=x))
        kept: list[TokenCache] = []
        for index, layer in enumerate(self.layers):
            past = state.layers[index] if state.layers else None
            x, present = layer(x, past, memories[index] if memories else None)
            kept.append(present)
        return self.output(self.norm(x)), TransformerState(tuple(kept))

    def step(
        self, tokens: Tensor, state: TransformerState, memories: Sequence[Memory | None] = ()
    ) -> tuple[Tensor, TransformerState]:
        """Return log-probabilities `[rows, n_tokens]` behind one more token in each row."""
        logits, state = self(tokens[:, None], state, memories)
        return torch.log_softmax(logits[:, 0].float(), -1), state

"""The attention decoder of a hybrid recogniser: tokens from encoded speech, one after the other."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from espnet3.components.models.token_transformer import (
    Attention,
    CausalLayer,
    LayerOptions,
    Memory,
    TokenTransformer,
    TransformerState,
    grouped,
)


@dataclass(frozen=True)
class DecoderState:
    """Hypotheses of several utterances; those of an utterance stand together, equally many each."""

    tokens: TransformerState
    memories: tuple[Memory, ...]
    n_rows: int
    """Hypotheses of each utterance."""

    @property
    def n_utterances(self) -> int:
        """Number of utterances in the memories."""
        return len(self.memories[0].is_real)


class TransformerDecoder(nn.Module):
    """Causal self-attention over the tokens, and attention to the encoded frames.

    In a config it is a partial: `ASRModel` fills in `n_tokens` and `encoder_size`.

    Args:
        n_tokens: of the vocabulary; the last one is both start and end.
        encoder_size: of the encoded frames.
        n_layers: how many layers.
        n_heads: of each attention.
        hidden: size of the vectors; even, and a multiple of `n_heads`.
        feed_forward: size within the feed-forward networks; None: four times `hidden`.
        dropout: while training.
        activation: of the feed-forward networks: gelu, relu or swish.
        norm_eps: what a LayerNorm adds to the variance.

    Example:
        >>> decoder = TransformerDecoder(5, 8, n_layers=1, n_heads=2, hidden=16).eval()
        >>> state = decoder.start(torch.zeros(2, 7, 8), torch.tensor([7, 3]))
        >>> log_probs, state = decoder.step(torch.tensor([4, 4]), state)
        >>> log_probs.shape
        torch.Size([2, 5])
    """

    def __init__(  # noqa: PLR0913 - one by one, as a config names them
        self,
        n_tokens: int,
        encoder_size: int,
        *,
        n_layers: int = 2,
        n_heads: int = 4,
        hidden: int = 256,
        feed_forward: int | None = None,
        dropout: float = 0.1,
        activation: str = "gelu",
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.n_tokens = n_tokens
        self.network = TokenTransformer(
            n_tokens,
            size=hidden,
            n_layers=n_layers,
            n_heads=n_heads,
            feed_forward=feed_forward,
            dropout=dropout,
            memory_size=encoder_size,
            options=LayerOptions(activation, norm_eps),
        )

    def forward(self, encoded: Tensor, encoded_lengths: Tensor, tokens_in: Tensor) -> Tensor:
        """Return the logits `[batch, positions, n_tokens]` of the token behind each of `tokens_in`.

        Args:
            encoded: `[batch, frames, encoder_size]`.
            encoded_lengths: frames of each utterance.
            tokens_in: `[batch, positions]`, beginning with the start token; padded at the end.
        """
        state = self.start(encoded, encoded_lengths)
        logits: Tensor = self.network(tokens_in, state.tokens, state.memories)[0]
        return logits

    def start(self, encoded: Tensor, encoded_lengths: Tensor) -> DecoderState:
        """Return the state before the start token: one hypothesis for each utterance."""
        frames = torch.arange(encoded.shape[1], device=encoded.device)
        # An utterance without frames sees one of padding: attention to nothing is not a number.
        n_frames = encoded_lengths.to(encoded.device).clamp_min(1)
        is_real = (frames < n_frames[:, None])[:, None, None]
        memories = [Memory(a.keys_values(encoded), is_real) for a in self._attentions()]
        return DecoderState(TransformerState(), tuple(memories), n_rows=1)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Add a token `[rows]` to each hypothesis; the first is the start token.

        Returns:
            The log-probabilities `[rows, n_tokens]` of the token behind it, and the new state.
        """
        log_probs, kept = self.network.step(tokens, state.tokens, state.memories)
        return log_probs, DecoderState(kept, state.memories, state.n_rows)

    def select(self, state: DecoderState, indices: Tensor) -> DecoderState:
        """Return the state of the hypotheses `indices`, left out, repeated or in another order.

        Encoded speech is copied only if utterances are left out, or have unequally many rows.
        """
        utterances, n_rows = grouped(indices, state.n_rows, state.n_utterances)
        memories = state.memories
        if utterances is not None:
            memories = tuple(memory.select(utterances) for memory in memories)
        return DecoderState(state.tokens.select(indices), memories, n_rows)

    def _attentions(self) -> list[Attention]:
        layers = [layer for layer in self.network.layers if isinstance(layer, CausalLayer)]
        return [layer.memory_attention for layer in layers if layer.memory_attention is not None]

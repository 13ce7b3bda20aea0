"""An LSTM from tokens to the next token: the network of a small language model."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class LSTMState:
    """Output and cell of each layer, `[layers, rows, size]`; None before the first token."""

    values: tuple[Tensor, Tensor] | None = None

    def select(self, indices: Tensor) -> "LSTMState":
        """Return the state of the rows `indices`, which may leave some out and repeat others."""
        if self.values is None:
            return self
        return LSTMState((self.values[0][:, indices], self.values[1][:, indices]))


class TokenLSTM(nn.Module):
    """Embedding, LSTM layers, and the logits of the next token.

    Args:
        n_tokens: of the vocabulary.
        size: of embedding and layers.
        n_layers: how many layers.
        dropout: while training.
    """

    def __init__(self, n_tokens: int, *, size: int, n_layers: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, size)
        between = dropout if n_layers > 1 else 0.0
        self.lstm = nn.LSTM(size, size, n_layers, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(size, n_tokens)

    def forward(self, tokens: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Return the logits `[rows, positions, n_tokens]` behind each token, and the new state.

        Args:
            tokens: `[rows, positions]`; negative ids, as padding has them, count as token 0.
            state: of the tokens before.
        """
        x = self.dropout(self.embedding(tokens.clamp_min(0)))
        hidden, values = self.lstm(x, state.values)
        return self.output(self.dropout(hidden)), LSTMState(values)

    def step(self, tokens: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Return log-probabilities `[rows, n_tokens]` behind one more token in each row."""
        logits, state = self(tokens[:, None], state)
        return torch.log_softmax(logits[:, 0].float(), -1), state

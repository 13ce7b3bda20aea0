"""Parts of a transducer: prediction networks, which see the tokens so far, and the joint network.

The state of a prediction network is one tensor [N, ...]: a decoder picks and repeats hypotheses by
indexing it.
"""

import torch
from torch import Tensor, nn

from espnet3.components.text.tokenizer import BLANK


class LSTMPrediction(nn.Module):
    """A prediction network that remembers all tokens.

    Args:
        n_tokens: with blank, which stands for the begin.
        size: of its embeddings and its output.
        n_layers: of the LSTM.
        dropout: of the embeddings, and between layers.
    """

    def __init__(
        self, n_tokens: int, size: int = 128, n_layers: int = 1, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.output_size = size
        self.embedding = nn.Embedding(n_tokens, size)
        self.dropout = nn.Dropout(dropout)
        # torch warns about dropout between layers where there is only one.
        between = dropout if n_layers > 1 else 0.0
        self.lstm = nn.LSTM(size, size, n_layers, batch_first=True, dropout=between)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [B, U, size] of tokens [B, U], which begin with blank."""
        output, _ = self.lstm(self.dropout(self.embedding(tokens)))
        return torch.as_tensor(output)

    def start(self, n: int, device: torch.device | str = "cpu") -> Tensor:
        """Return the states of n empty hypotheses."""
        weight = self.embedding.weight
        shape = (n, 2, self.lstm.num_layers, self.output_size)
        return torch.zeros(shape, device=device, dtype=weight.dtype)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs [N, size] after the tokens [N], and the new states."""
        # cuDNN takes contiguous states only.
        hidden, cell = state.permute(1, 2, 0, 3).contiguous()
        embedded = self.dropout(self.embedding(tokens))[:, None]
        output, (hidden, cell) = self.lstm(embedded, (hidden, cell))
        return output[:, 0], torch.stack([hidden, cell]).permute(2, 0, 1, 3)


class StatelessPrediction(nn.Module):
    """A prediction network that sees the last tokens only: smaller, faster, nearly as good.

    Args:
        n_tokens: with blank, which stands for the begin.
        size: of its embeddings and its output.
        context: tokens that it sees.
        dropout: of the embeddings.
    """

    def __init__(
        self, n_tokens: int, size: int = 128, context: int = 2, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.output_size = size
        self.context = context
        self.embedding = nn.Embedding(n_tokens, size)
        self.dropout = nn.Dropout(dropout)
        self.mix = nn.Linear(context * size, size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [B, U, size] of tokens [B, U], which begin with blank."""
        padded = nn.functional.pad(tokens, (self.context - 1, 0), value=BLANK)
        return self._output(padded.unfold(1, self.context, 1))

    def start(self, n: int, device: torch.device | str = "cpu") -> Tensor:
        """Return the states of n empty hypotheses."""
        return torch.full((n, self.context), BLANK, device=device)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs [N, size] after the tokens [N], and the new states."""
        state = torch.cat([state[:, 1:], tokens[:, None]], dim=1)
        return self._output(state), state

    def _output(self, last: Tensor) -> Tensor:
        embedded = self.dropout(self.embedding(last)).flatten(-2)
        return torch.relu(self.mix(embedded))


class Joint(nn.Module):
    """Scores the next token from a frame and from the tokens so far.

    Args:
        encoder_size: of the frames.
        prediction_size: of the prediction network's output.
        n_tokens: with blank.
        size: of the space where both are added.
    """

    def __init__(
        self, encoder_size: int, prediction_size: int, n_tokens: int, size: int = 128
    ) -> None:
        super().__init__()
        self.from_frame = nn.Linear(encoder_size, size)
        # Both are added up, so one bias is enough.
        self.from_tokens = nn.Linear(prediction_size, size, bias=False)
        self.output = nn.Linear(size, n_tokens)

    def forward(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        """Return logits [B, T, U, V] of encoded [B, T, D] and predicted [B, U, P]."""
        return self.pair(encoded[:, :, None], predicted[:, None])

    def pair(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        """Return logits [..., V] of frames [..., D] and predictions [..., P], one for one."""
        logits: Tensor = self.output(
            torch.tanh(self.from_frame(encoded) + self.from_tokens(predicted))
        )
        return logits

"""A neural language model over the tokens of a recogniser, trained by the same stages."""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from espnet3.components.models.token_transformer import TokenTransformer, TransformerState
from espnet3.components.text.tokenizer import end_of, load_tokenizer
from espnet3.config.trust import checked_path
from espnet3.errors import ConfigError, suggest

_KINDS = ("lstm", "transformer")
_PADDING = -1  # as the loader pads integers

_TRAIN = "python run.py --stages train --training_config conf/training_lm.yaml"


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
        # torch warns about dropout in an LSTM of one layer, where it has no effect.
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
        # In 32 bits: scores are summed over a whole text, and compared at small differences.
        return torch.log_softmax(logits[:, 0].float(), -1), state


_State = LSTMState | TransformerState


class LanguageModel(nn.Module):
    """Predicts each token of a text, and its end, from the tokens before.

    Args:
        tokenizer: folder of the tokenizer, which must be that of the recogniser.
        kind: `lstm` or `transformer`.
        hidden: size of the vectors.
        n_layers: how many layers.
        n_heads: of each attention of a Transformer.
        dropout: while training.

    Raises:
        ConfigError: there is no tokenizer, or the kind is not known.
    """

    def __init__(
        self,
        tokenizer: str,
        kind: str = "lstm",
        *,
        hidden: int = 256,
        n_layers: int = 2,
        n_heads: int = 4,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if kind not in _KINDS:
            raise ConfigError(
                f"model.kind is {kind!r}; a language model is one of {', '.join(_KINDS)}."
                f"{suggest(kind, _KINDS)} Write: kind: lstm"
            )
        self.tokens = load_tokenizer(tokenizer).tokens
        self.n_tokens = len(self.tokens)
        self.network: TokenLSTM | TokenTransformer
        if kind == "lstm":
            self.network = TokenLSTM(self.n_tokens, size=hidden, n_layers=n_layers, dropout=dropout)
        else:
            self.network = TokenTransformer(
                self.n_tokens, size=hidden, n_layers=n_layers, n_heads=n_heads, dropout=dropout
            )

    def forward(
        self, tokens: Tensor, tokens_lengths: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], int]:
        """Return the mean loss of a token, and its exponential, `perplexity`.

        The weight of the batch is its number of tokens, the ends of texts included, so `valid/loss`
        is exact. `valid/perplexity` is a mean over batches, and a little above exp(`valid/loss`).
        """
        losses, n_losses = self._losses(tokens, tokens_lengths)
        loss = losses / n_losses
        return loss, {"loss": loss.detach(), "perplexity": loss.detach().exp()}, n_losses

    def start(self, n: int, device: torch.device | str = "cpu") -> _State:
        """Return the state of `n` empty texts; the first token of a `step` is the start token."""
        return LSTMState() if isinstance(self.network, TokenLSTM) else TransformerState()

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Add a token `[rows]` to each text.

        Returns:
            The log-probabilities `[rows, n_tokens]` of the token behind it, and the new state.
        """
        return self.network.step(tokens, state)

    def select(self, state: Any, indices: Tensor) -> Any:
        """Return the state of the texts `indices`, left out, repeated or in another order."""
        return state.select(indices)

    @torch.inference_mode()
    def perplexity(self, texts: Iterable[Sequence[int]], batch_size: int = 64) -> float:
        """Return the exact perplexity of texts, given as tokens; their ends count as tokens.

        Args:
            texts: token ids of each.
            batch_size: texts that are scored at once.

        Raises:
            ConfigError: there are no texts.
        """
        device = self.network.output.weight.device
        rows = [torch.tensor(list(text), dtype=torch.long, device=device) for text in texts]
        if not rows:
            raise ConfigError(
                "There are no texts to take the perplexity of.", fix="Give one or more."
            )
        # Restored below: the caller may be in the middle of a training.
        was_training = self.training
        self.eval()
        total, n_total = 0.0, 0
        for begin in range(0, len(rows), batch_size):
            batch = rows[begin : begin + batch_size]
            lengths = torch.tensor([len(row) for row in batch], device=device)
            padded = pad_sequence(batch, batch_first=True, padding_value=_PADDING)
            losses, n_losses = self._losses(padded, lengths)
            total, n_total = total + float(losses), n_total + n_losses
        self.train(was_training)
        return math.exp(total / n_total)

    def _losses(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, int]:
        """Return the sum of the losses, and how many there are."""
        end = end_of(self.n_tokens)
        tokens = tokens[:, : int(lengths.max())]
        # ESPnet has one token for both start and end of a text.
        before = nn.functional.pad(tokens, (1, 0), value=end)
        places = torch.arange(before.shape[1], device=tokens.device)
        targets = nn.functional.pad(tokens, (0, 1), value=_PADDING)
        targets = targets.masked_fill(places > lengths[:, None], _PADDING)
        targets = targets.masked_fill(places == lengths[:, None], end)
        logits, _ = self.network(before, self.start(len(tokens)))
        losses = cross_entropy(
            logits.flatten(0, 1).float(),
            targets.flatten(),
            ignore_index=_PADDING,
            reduction="sum",
        )
        # Each text has one more loss than tokens, for its end.
        return losses, int(lengths.sum()) + len(tokens)


def load_language_model(path: str | os.PathLike[str], device: str = "cpu") -> Any:
    """Return a trained language model, ready to score.

    Args:
        path: the experiment folder of its training, of which the averaged weights are taken, or
            else a checkpoint; or a weights file with the training's `config.yaml` beside it.
        device: where to put it.

    Raises:
        ConfigError: there is nothing at the path, or it is no language model.
        RunFolderError: the folder has no weights, or they do not fit or cannot be read.
    """
    from espnet3.systems.asr.trained_model import find_weights, load_trained

    # A packed decoder may name a path, and is only allowed its own files.
    place = checked_path(path)
    if not place.exists():
        raise ConfigError(
            f"The language model {place} does not exist. Correct the path, which counts from the "
            f"recipe's folder, or train it: {_TRAIN}"
        )
    model = load_trained(find_weights(place) if place.is_dir() else place, device)
    if not _can_step(model):
        raise ConfigError(
            f"{place} is the training of a {type(model).__name__}, no language model.",
            fix="Give that of "
            f"a {LanguageModel.__module__}.{LanguageModel.__name__}; to train one: {_TRAIN}",
        )
    return model


def _can_step(model: Any) -> bool:
    """Tell whether a model of the user's own has what a search needs."""
    needed = ("start", "step", "select", "tokens", "n_tokens")
    return all(hasattr(model, name) for name in needed)

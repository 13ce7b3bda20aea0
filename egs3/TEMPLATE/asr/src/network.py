"""What `train` trains: a small network that hears touch-tones. Replace it by your own.

What stays is the contract: `forward` takes the fields of a batch by their names, and returns loss,
statistics to log, and the weight of the batch in their means. `collect_feats` returns what the
stage `collect_stats` takes the mean and variance of.
"""

from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from espnet3.components.models.normalization import GlobalNormalization
from src.model import FRAME, HOP

DIGITS = "0123456789"
BLANK = 0  # of CTC: no digit; digit d is token d + 1


def add_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    """Add the text as numbers: the `preprocessor` of conf/training.yaml."""
    tokens = [1 + DIGITS.index(digit) for digit in sample["text"].split()]
    return {**sample, "tokens": np.array(tokens)}


class Network(nn.Module):
    """Two convolutions over the spectrum, trained with CTC: it needs texts, but no times.

    Args:
        stats_file: What `collect_stats` wrote; once trained, mean and variance are in the weights.
        n_channels: Of the convolutions.
        dropout: While training.
    """

    def __init__(self, stats_file: str, n_channels: int = 48, dropout: float = 0.1) -> None:
        super().__init__()
        self.normalize = GlobalNormalization(stats_file)
        self.encoder = nn.Sequential(
            nn.Conv1d(FRAME // 2 + 1, n_channels, 5, padding=2),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Conv1d(n_channels, n_channels, 5, padding=2),
            nn.ReLU(),
        )
        self.output = nn.Linear(n_channels, 1 + len(DIGITS))

    def forward(
        self, speech: Tensor, speech_lengths: Tensor, tokens: Tensor, tokens_lengths: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], int]:
        """Return the loss of a batch; texts and ids in it, which we do not name, stay behind."""
        log_probs, n_frames = self.recognize(speech, speech_lengths)
        losses = nn.functional.ctc_loss(
            log_probs.transpose(0, 1), tokens, n_frames, tokens_lengths, BLANK, reduction="none"
        )
        loss = (losses / tokens_lengths).mean()
        stats = {"loss": loss.detach()}
        if not self.training:
            stats["exact"] = self._share_exact(log_probs, n_frames, tokens, tokens_lengths)
        return loss, stats, len(tokens)

    def collect_feats(
        self, speech: Tensor, speech_lengths: Tensor, **others: Any
    ) -> dict[str, Tensor]:
        """Return the features before they are normalised."""
        feats, n_frames = spectrum(speech, speech_lengths)
        return {"feats": feats, "feats_lengths": n_frames}

    def recognize(self, speech: Tensor, speech_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities [batch, frames, tokens], and how many frames each has."""
        feats, n_frames = spectrum(speech, speech_lengths)
        feats, _ = self.normalize(feats, n_frames)
        hidden = self.encoder(feats.transpose(1, 2)).transpose(1, 2)
        return self.output(hidden).log_softmax(-1), n_frames

    @staticmethod
    def _share_exact(
        log_probs: Tensor, n_frames: Tensor, tokens: Tensor, tokens_lengths: Tensor
    ) -> Tensor:
        """Return the share of utterances without an error."""
        best = log_probs.argmax(-1)
        is_exact = [
            collapse(row[:n]) == target[:length].tolist()
            for row, n, target, length in zip(best, n_frames, tokens, tokens_lengths, strict=True)
        ]
        return torch.tensor(is_exact).float().mean()


def spectrum(speech: Tensor, speech_lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithmic spectrum [batch, frames, bins], and how many frames each has."""
    speech = nn.functional.pad(speech, (0, max(0, FRAME - speech.shape[1])))
    frames = speech.unfold(1, FRAME, HOP) * torch.hann_window(FRAME, device=speech.device)
    feats = torch.fft.rfft(frames).abs().clamp_min(1e-5).log()
    return feats, 1 + (speech_lengths - FRAME).clamp_min(0) // HOP


def collapse(best: Tensor) -> list[int]:
    """Return the tokens of a row of frames: repetitions count once, blanks not at all."""
    return [token for token, _ in groupby(best.tolist()) if token != BLANK]

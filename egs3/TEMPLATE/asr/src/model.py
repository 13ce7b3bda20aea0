"""The model: a decoder of touch-tones. Replace it by your recogniser.

What stays is how it is called: the class is built once in each worker, with the arguments in
`model:` of conf/inference.yaml and the worker's device, and called with the input of an utterance,
or with a list of inputs where utterances are batched.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

SAMPLE_RATE = 8000
FRAME, HOP = 200, 80  # samples: 25 ms, 10 ms
LOW, HIGH = (697.0, 770.0, 852.0, 941.0), (1209.0, 1336.0, 1477.0)  # Hz; a key is one of both
KEYS = "123456789*0#"

Speech = NDArray[np.float32]


@dataclass(frozen=True)
class Hypothesis:
    """What was heard in one utterance."""

    keys: list[str]
    confidence: float
    """How much of the energy of the keys was in their two tones, on average."""
    shares: NDArray[np.float32]
    """The share of each tone in the energy of each frame."""


class TouchToneModel:
    """Finds in each frame the strongest low and high tone, and joins frames to keys.

    Args:
        device: Given by espnet3: `cpu`, or this worker's GPU.
        threshold: The least share of a frame's energy that each of the two tones must have.
        min_frames: The shortest key, in frames of 10 ms.
    """

    def __init__(self, device: str = "cpu", threshold: float = 0.25, min_frames: int = 3) -> None:
        self.device = torch.device(device)
        self.threshold = threshold
        self.min_frames = min_frames
        times = torch.arange(FRAME) / SAMPLE_RATE
        phases = 2 * torch.pi * times[:, None] * torch.tensor(LOW + HIGH)
        self._tones = torch.cat([phases.cos(), phases.sin()], dim=1).to(self.device)

    def __call__(self, speech: Speech | list[Speech]) -> Any:
        """Return the hypothesis for one utterance, or one for each of a list."""
        return self._decode(speech) if isinstance(speech, list) else self._decode([speech])[0]

    def _decode(self, batch: list[Speech]) -> list[Hypothesis]:
        longest = max(FRAME, *(len(speech) for speech in batch))
        padded = np.zeros((len(batch), longest), np.float32)
        for row, speech in zip(padded, batch, strict=True):
            row[: len(speech)] = speech
        shares = self._shares(torch.from_numpy(padded).to(self.device)).cpu().numpy()
        n_frames = [1 + max(0, len(speech) - FRAME) // HOP for speech in batch]
        return [self._search(row[:n]) for row, n in zip(shares, n_frames, strict=True)]

    def _shares(self, speech: torch.Tensor) -> torch.Tensor:
        """Return for [batch, samples] the share of each tone, [batch, frames, tones]."""
        frames = speech.unfold(1, FRAME, HOP)
        real, imaginary = (frames @ self._tones).chunk(2, dim=-1)
        energy = frames.square().sum(-1, keepdim=True).clamp_min(1e-9)
        return 2 * (real.square() + imaginary.square()) / (FRAME * energy)

    def _search(self, shares: NDArray[np.float32]) -> Hypothesis:
        low, high = shares[:, : len(LOW)], shares[:, len(LOW) :]
        best = np.minimum(low.max(1), high.max(1))
        frames = np.where(best > self.threshold, 3 * low.argmax(1) + high.argmax(1), -1)
        runs = [(key, list(run)) for key, run in groupby(range(len(frames)), lambda i: frames[i])]
        kept = [(key, run) for key, run in runs if key >= 0 and len(run) >= self.min_frames]
        heard = [float(low[i].max() + high[i].max()) for _, run in kept for i in run]
        confidence = sum(heard) / len(heard) if heard else 0.0
        return Hypothesis([KEYS[key] for key, _ in kept], confidence, shares)

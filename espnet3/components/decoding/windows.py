"""Long audio in overlapping windows, joined to one sequence of encoder frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espnet3.errors import ConfigError


@dataclass(frozen=True)
class Window:
    """A piece of an utterance, and what of its encoder frames is kept."""

    start: int
    """First sample."""
    end: int
    """The sample after the last one."""
    kept_from: int
    """First frame that is kept, counted from the window's own begin."""
    kept_to: int | None
    """The frame after the last one that is kept; None for all, in the last window."""


def split_windows(
    n_samples: int, samples_per_frame: float, window_samples: int, overlap_samples: int
) -> list[Window]:
    """Return windows that cover an utterance, cut in the middle of their overlaps.

    Each begins at a whole number of encoder frames, so that its frames fall on those of the
    utterance. The last one reaches back as far as it may, so that it is not short.

    Example:
        >>> split_windows(100, 1, 60, 20)  # doctest: +NORMALIZE_WHITESPACE
        [Window(start=0, end=60, kept_from=0, kept_to=50),
         Window(start=40, end=100, kept_from=10, kept_to=None)]
    """
    if n_samples <= window_samples:
        return [Window(0, n_samples, 0, None)]
    size = max(1, int(window_samples / samples_per_frame))
    # Rounded up, so the overlap is never shorter than requested.
    step = max(1, size - int(np.ceil(overlap_samples / samples_per_frame)))
    # Rounded up, so the last window, which ends with the utterance, is no longer than the others.
    last = int(np.ceil((n_samples - window_samples) / samples_per_frame))
    starts = [*range(0, last, step), last]
    # The frame from which on the window counts, and not the one before it.
    cuts = [0, *((before + size + start) // 2 for before, start in pairwise(starts))]
    windows = []
    for i, start in enumerate(starts):
        is_last = i + 1 == len(starts)
        first_sample = round(start * samples_per_frame)
        end = n_samples if is_last else first_sample + window_samples
        kept_to = None if is_last else cuts[i + 1] - start
        windows.append(Window(first_sample, end, cuts[i] - start, kept_to))
    return windows


def windows_of(
    model: Any, n_samples: int, window_seconds: float, overlap_seconds: float
) -> list[Window]:
    """Return the windows of an utterance for a model with `sample_rate` and `frame_seconds`.

    Raises:
        ConfigError: the overlap is not shorter than half the window, or below two encoder frames.
    """
    if not 2 * model.frame_seconds <= overlap_seconds < window_seconds / 2:
        raise ConfigError(
            f"overlap_seconds is {overlap_seconds} and window_seconds is {window_seconds}, but the "
            f"overlap must have two encoder frames ({2 * model.frame_seconds:g} s) and be shorter "
            "than half the window. For example: window_seconds: 20 and overlap_seconds: 4"
        )
    rate = model.sample_rate
    return split_windows(
        n_samples,
        model.frame_seconds * rate,
        round(window_seconds * rate),
        round(overlap_seconds * rate),
    )


def encode_windows(
    model: Any,
    speech: Tensor | NDArray[Any],
    window_seconds: float = 20.0,
    overlap_seconds: float = 4.0,
    batch_size: int = 8,
) -> tuple[Tensor, Tensor]:
    """Encode long audio with bounded memory.

    The joined frames are those of the whole utterance, at the same times, as far as no frame
    depends on samples further away than half the overlap. Normalisation by utterance is done by
    window. A decoder takes the result like that of `model.encode`.

    Args:
        model: has `encode(speech [B, N], lengths [B]) -> (encoded [B, T, D], lengths [B])`,
            `sample_rate` and `frame_seconds`.
        speech: the samples [N] of one utterance at the model's rate.
        window_seconds: of each window.
        overlap_seconds: of a window with the next.
        batch_size: windows encoded at a time.

    Returns:
        encoded [1, T, D] and lengths [1], on the device of the model's output.

    Raises:
        ConfigError: see `windows_of`; or the overlap is shorter than what the encoder cuts off.
    """
    samples = torch.as_tensor(speech)
    windows = windows_of(model, len(samples), window_seconds, overlap_seconds)
    kept: list[Tensor] = []
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        pieces = [samples[window.start : window.end] for window in batch]
        lengths = torch.tensor([len(piece) for piece in pieces], device=samples.device)
        padded = torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True)
        with torch.inference_mode():
            encoded, n_frames = model.encode(padded, lengths)
        kept += [
            _kept_of(frames[: int(n)], window)
            for frames, n, window in zip(encoded, n_frames, batch, strict=True)
        ]
    joined = torch.cat(kept)[None]
    return joined, torch.tensor([joined.shape[1]], device=joined.device)


def _kept_of(frames: Tensor, window: Window) -> Tensor:
    if window.kept_to is not None and len(frames) < window.kept_to:
        raise ConfigError(
            f"The encoder gives {len(frames)} frames for a window, but {window.kept_to} are needed "
            "to join it to the next.",
            fix="Choose a longer overlap, such as overlap_seconds: 4",
        )
    # A copy, so that the rest of the batch can go.
    return frames[window.kept_from : window.kept_to].clone()


def join_texts(texts: Sequence[str]) -> str:
    """Join texts of overlapping windows, for decoders that need a window at a time.

    Two texts are joined in the middle of the longest run of words that the end of the first and
    the begin of the second have in common; without one they follow each other.

    Example:
        >>> join_texts(["one two three fou", "two three four five", "six"])
        'one two three four five six'
    """
    joined: list[str] = []
    for text in texts:
        words = text.split()
        # What lies further back than twice the new text cannot be its begin.
        offset = max(0, len(joined) - 2 * len(words))
        # From 200 words on, autojunk would ignore the frequent ones.
        match = SequenceMatcher(None, joined[offset:], words, autojunk=False).find_longest_match()
        if match.size:
            middle = match.size // 2
            joined = joined[: offset + match.a + middle] + words[match.b + middle :]
        else:
            joined += words
    return " ".join(joined)

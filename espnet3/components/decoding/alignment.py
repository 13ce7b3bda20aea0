"""Forced alignment of tokens and words by CTC posteriors."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from espnet3.components.data.errors import DataError
from espnet3.components.text.tokenizer import BLANK, SPACE_TOKEN, WORD_START, Tokenizer

# In place of -inf, so that a path through an impossible frame is still one path.
_LEAST = -1e4


@dataclass(frozen=True)
class Word:
    """A word and when it was said."""

    word: str
    start: float
    """Seconds from the begin of the utterance."""
    end: float
    confidence: float
    """From 0 to 1: the geometric mean of the posteriors of its tokens."""


def align_ctc(
    log_probs: Tensor | NDArray[Any], tokens: Sequence[int]
) -> list[tuple[int, int, float]]:
    """Return where each token is on the most likely path of a token sequence.

    Args:
        log_probs: [T, V] of one utterance.
        tokens: ids without blanks.

    Returns:
        For each token its first frame, the frame after its last one, and the mean of its
        log-probabilities over these frames. CTC models give a token few frames, often one; the
        rest are blanks.

    Raises:
        DataError: there are fewer frames than tokens (two equal tokens in a row need one more).

    Example:
        >>> probs = np.array([[0.1, 0.9, 0.0], [0.8, 0.1, 0.1], [0.0, 0.1, 0.9]])
        >>> [(start, end) for start, end, _ in align_ctc(np.log(probs + 1e-9), [1, 2])]
        [(0, 1), (2, 3)]
    """
    values = log_probs.float().cpu().numpy() if isinstance(log_probs, Tensor) else log_probs
    values = np.maximum(values.astype(np.float64), _LEAST)
    ids = np.asarray(tokens, dtype=np.int64)
    needed = frames_needed(tokens)
    if len(values) < needed:
        raise DataError(
            f"{len(ids)} tokens need {needed} frames, but the utterance has {len(values)}: "
            "they cannot be aligned. Is the text that of this audio?"
        )
    states = _best_states(values, ids)
    spans = []
    for i, token in enumerate(ids):
        frames = np.nonzero(states == 2 * i + 1)[0]
        score = float(values[frames, token].mean())
        spans.append((int(frames[0]), int(frames[-1]) + 1, score))
    return spans


def frames_needed(tokens: Sequence[int]) -> int:
    """Return the least number of frames that have a path of the tokens.

    Example:
        >>> frames_needed([5, 5, 6])
        4
    """
    repeats = sum(a == b for a, b in pairwise(tokens))
    return len(tokens) + repeats


def word_times(
    log_probs: Tensor | NDArray[Any],
    tokens: Sequence[int],
    tokenizer: Tokenizer,
    frame_seconds: float,
) -> list[Word]:
    """Return the words of a token sequence with their times.

    A word lasts from the first frame of its first token to the last frame of its last one.

    Args:
        log_probs: [T, V] of one utterance.
        tokens: as a decoder found them.
        tokenizer: that of the model.
        frame_seconds: the model's, of an encoder frame.

    Returns:
        The words in order; none where the frames are too few for the tokens, which a decoder
        that does not go by CTC may find.
    """
    if len(log_probs) < frames_needed(tokens):
        return []
    spans = align_ctc(log_probs, tokens)
    words = []
    for first, last in _word_ranges([tokenizer.tokens[token] for token in tokens]):
        text = tokenizer.decode(list(tokens[first:last])).strip()
        if text:
            confidence = float(np.exp(np.mean([score for _, _, score in spans[first:last]])))
            start, end = spans[first][0], spans[last - 1][1]
            words.append(Word(text, start * frame_seconds, end * frame_seconds, confidence))
    return words


def _word_ranges(names: Sequence[str]) -> list[tuple[int, int]]:
    """Return first and behind-last place of each word, without the spaces between."""
    ranges: list[tuple[int, int]] = []
    first = 0
    for i, name in enumerate([*names, SPACE_TOKEN]):
        is_space = name == SPACE_TOKEN
        if is_space or name.startswith(WORD_START):
            if i > first:
                ranges.append((first, i))
            first = i + 1 if is_space else i
    return ranges


def _best_states(values: NDArray[np.float64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the state of each frame: 2 i + 1 for token i, even ones for the blanks around."""
    symbols = np.full(2 * len(ids) + 1, BLANK)
    symbols[1::2] = ids
    can_skip = np.zeros(len(symbols), dtype=bool)
    # From one token to the next without a blank, unless they are equal.
    can_skip[3::2] = ids[1:] != ids[:-1]
    scores = np.full(len(symbols), -np.inf)
    # As if before the first frame, which may be in the first blank or, a step on, the first token.
    scores[:1] = 0.0
    # One byte each, as an hour of audio has a great many of these.
    came_from = np.zeros((len(values), len(symbols)), dtype=np.int8)
    # What a state gets from the one before it, and from the one before that.
    one, two = np.full((2, len(symbols)), -np.inf)
    for t, frame in enumerate(values):
        one[1:] = scores[:-1]
        # Elsewhere `two` keeps the -inf that it was filled with.
        np.copyto(two[2:], scores[:-2], where=can_skip[2:])
        came_from[t] = one > scores
        scores = np.maximum(scores, one)
        came_from[t, two > scores] = 2
        scores = np.maximum(scores, two) + frame[symbols]
    states = np.zeros(len(values), dtype=np.int64)
    state = len(symbols) - 1
    # A path may end in the last token as well as in the blank behind it.
    if len(symbols) > 1 and scores[-2] > scores[-1]:
        state -= 1
    for t in range(len(values) - 1, -1, -1):
        states[t] = state
        state -= int(came_from[t, state])
    return states

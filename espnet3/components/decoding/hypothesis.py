"""The result of every decoder."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Hypothesis:
    """One token sequence that a decoder found for an utterance.

    Example:
        >>> Hypothesis((3, 4), -1.5, {"ctc": -1.5}).tokens
        (3, 4)
    """

    tokens: tuple[int, ...]
    """Ids without blanks and without the start and end token."""
    score: float
    """Total log-probability, with weights, by which the hypotheses are ranked."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """The unweighted log-probabilities by part: ctc, attention, lm, ngram."""

"""What a recogniser returns for an utterance."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from espnet3.components.decoding.alignment import Word
from espnet3.io.json_text import dump_json

_DIGITS = 4


@dataclass(frozen=True)
class Candidate:
    """One of the texts that a decoder found for an utterance."""

    text: str
    tokens: tuple[str, ...]
    """As the tokenizer spells them."""
    score: float
    """Log-probability by which the candidates are ranked; weights of the decoder included."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Its parts by name, unweighted: ctc, attention, lm, ngram."""


@dataclass(frozen=True)
class Recognition:
    """What was heard in an utterance.

    Example:
        >>> best = Candidate("one two", ("one", "two"), -0.5)
        >>> Recognition.of([best]).text
        'one two'
    """

    text: str
    tokens: tuple[str, ...] = ()
    """As the tokenizer spells them."""
    score: float = 0.0
    """Log-probability of the text, as the decoder ranks it."""
    n_best: tuple[Candidate, ...] = ()
    """The best texts, this one first; as many as were asked for, or found."""
    words: tuple[Word, ...] | None = None
    """With `word_times`: each with `word`, `start` and `end` in seconds, and `confidence`."""

    @classmethod
    def of(
        cls, candidates: list[Candidate], words: tuple[Word, ...] | None = None
    ) -> "Recognition":
        """Make the result of one utterance of its candidates, best first."""
        best = candidates[0]
        return cls(best.text, best.tokens, best.score, tuple(candidates), words)

    def n_best_json(self) -> str:
        """Return the candidates as one line of JSON, best first."""
        rows = []
        for one in self.n_best:
            parts = {name: _rounded(value) for name, value in one.scores.items()}
            row = {"text": one.text, "score": _rounded(one.score)}
            rows.append({**row, "scores": parts} if parts else row)
        return dump_json(rows)

    def words_json(self) -> str:
        """Return the words with their times as one line of JSON."""
        rows = [
            {
                "word": one.word,
                "start": _rounded(one.start),
                "end": _rounded(one.end),
                "confidence": _rounded(one.confidence),
            }
            for one in self.words or ()
        ]
        return dump_json(rows)


def _rounded(value: float) -> float:
    """Leave out the digits that depend on which utterances shared a batch."""
    return round(value, _DIGITS)

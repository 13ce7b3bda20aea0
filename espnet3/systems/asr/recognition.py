"""What a recogniser returns for an utterance."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from espnet3.components.decoding.alignment import Word
from espnet3.io.json_text import dump_json


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
        rows = [
            {
                "text": one.text,
                "score": one.score,
                **({"scores": dict(one.scores)} if one.scores else {}),
            }
            for one in self.n_best
        ]
        return dump_json(rows)

    def words_json(self) -> str:
        """Return the words with their times as one line of JSON."""
        names = ("word", "start", "end", "confidence")
        return dump_json([{name: getattr(one, name) for name in names} for one in self.words or ()])

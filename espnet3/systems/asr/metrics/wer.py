"""Word error rate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from espnet3.components.metrics.error_rate import ErrorRate


@dataclass(frozen=True)
class WER(ErrorRate):
    """Word error rate: substitutions, deletions and insertions of words, per reference word.

    A word is what stands between white space; nothing else is changed unless `clean_types` says so.
    The arguments are those of `ErrorRate`.

    Example:
        >>> wer = WER(clean_types=["lower", "no_punctuation"])
        >>> wer.compute({"ref": ["Hello, world!"], "hyp": ["hello word"]})["substitutions"]
        1
    """

    unit: ClassVar[str] = "words"

    def split(self, text: str) -> Sequence[str]:
        """Return the words."""
        return text.split()

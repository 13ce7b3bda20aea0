"""Character error rate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from espnet3.components.metrics.error_rate import ErrorRate


@dataclass(frozen=True)
class CER(ErrorRate):
    """Character error rate: edits of characters (Unicode code points), per reference character.

    Between two words there is one blank, however much white space the text has there; none at the
    ends. The arguments are those of `ErrorRate`, and `count_spaces`.

    Example:
        >>> data = {"ref": ["ice cream"], "hyp": ["icecream"]}
        >>> CER().compute(data)["deletions"], CER(count_spaces=False).compute(data)["deletions"]
        (1, 0)
    """

    unit: ClassVar[str] = "characters"

    count_spaces: bool = True
    """Count the blank between two words as a character, as ESPnet always did; False leaves blanks
    out, as is usual for Chinese and Japanese."""

    def split(self, text: str) -> Sequence[str]:
        """Return the characters, as one text."""
        return (" " if self.count_spaces else "").join(text.split())

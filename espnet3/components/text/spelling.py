"""One spelling for each text, before it is cut into tokens."""

import unicodedata
from collections.abc import Sequence

from espnet3.components.metrics.text_cleaning import CLEANERS
from espnet3.errors import ConfigError, suggest


class Speller:
    r"""Brings texts into one spelling: cleaned, NFC, single blanks.

    What looks the same is then the same tokens, however it was typed. Unless a cleaner does it,
    letters are not changed otherwise: not their case, nor full-width ones.

    Args:
        clean_types: Names of cleaners, as of a metric, such as `lower`. A tokenizer is read from a
            file that others made, so they are names only, and never a function to import.

    Raises:
        ConfigError: A name is unknown.

    Example:
        >>> Speller()(" Cafe\u0301  au\tlait\n")
        'Café au lait'
        >>> Speller(["no_punctuation", "lower"])("Hello, you!")
        'hello you'
    """

    def __init__(self, clean_types: Sequence[str] = ()) -> None:
        self.clean_types = tuple(clean_types)
        for name in self.clean_types:
            if name not in CLEANERS:
                raise ConfigError(
                    f"clean_types has {name!r}",
                    key="clean_types",
                    problem=f"which is not known.{suggest(name, CLEANERS)} Known: "
                    f"{', '.join(CLEANERS)}",
                    fix="For a function of your own, set the transform of the dataset: "
                    "transform: src.texts.clean",
                )
        self._cleaners = [CLEANERS[name] for name in self.clean_types]

    def __call__(self, text: str) -> str:
        """Return the text in its spelling."""
        for clean in self._cleaners:
            text = clean(text)
        # After the cleaners, which need not return NFC.
        return " ".join(unicodedata.normalize("NFC", text).split())

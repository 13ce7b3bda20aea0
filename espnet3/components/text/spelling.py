"""Spelling of texts: cleaners for scores and tokens, and one spelling before tokens are cut."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from espnet3.config.targets import BadTarget, locate
from espnet3.errors import ConfigError, suggest

Cleaner = Callable[[str], str]

# No white space inside, as in `<noise>`: `a < b or c > d` has no tag.
_TAG = re.compile(r"<[^<>\s]*>")
_HYPHENS = re.compile("[-\u2010-\u2015\u2212]")
# The underscore is apart, because `\w` counts it as a letter.
_MARK = re.compile(r"(?P<inner>(?<=\w)['\u2019](?=\w))|[^\w\s]|_")


def _remove_tags(text: str) -> str:
    # A blank and not nothing, which would join the words on both sides.
    return _TAG.sub(" ", text)


def _split_hyphens(text: str) -> str:
    return _HYPHENS.sub(" ", text)


def _remove_punctuation(text: str) -> str:
    return _MARK.sub(_replace_mark, text)


def _replace_mark(match: re.Match[str]) -> str:
    if match["inner"]:
        return "'"
    mark = match[0]
    return "" if unicodedata.category(mark).startswith("P") else mark


CLEANERS: dict[str, Cleaner] = {
    "lower": str.lower,
    "upper": str.upper,
    "nfc": partial(unicodedata.normalize, "NFC"),
    "nfkc": partial(unicodedata.normalize, "NFKC"),
    "no_tags": _remove_tags,
    "split_hyphens": _split_hyphens,
    "no_punctuation": _remove_punctuation,
}


class TextCleaner:
    r"""Apply cleaners to a text, in their order.

    - `lower`, `upper`: letters of all scripts.
    - `nfc`, `nfkc`: one spelling for each accented letter; nfkc also for full-width letters,
      ligatures and superscripts.
    - `no_tags`: `<unk>`, `<noise>` and the like become a blank.
    - `split_hyphens`: hyphens, dashes and minus signs become a blank.
    - `no_punctuation`: removes what Unicode calls punctuation (not symbols such as `$` and `+`). An
      apostrophe between letters stays, as `'`.
    - `package.module.function`: your own, from text to text.

    White space needs none: error rates ignore how much of it is between two words.

    Args:
        names: What to apply; None is nothing.

    Raises:
        ConfigError: A name is unknown, or its function cannot be imported.

    Example:
        >>> TextCleaner(["no_tags", "no_punctuation", "lower"])("<s> Don't stop, Mary!")
        "  don't stop mary"
    """

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self._cleaners = [(name, _find(name)) for name in names or ()]

    def __call__(self, text: str) -> str:
        """Return the cleaned text."""
        for name, clean in self._cleaners:
            text = clean(text)
            if not isinstance(text, str):
                raise ConfigError(
                    f"The function {name} of clean_types returned {text!r:.80}, of type "
                    f"{type(text).__name__}. It takes a text; let it return one as well."
                )
        return text


def _find(name: str) -> Cleaner:
    if name in CLEANERS:
        return CLEANERS[name]
    if "." not in name:
        raise ConfigError(
            f"clean_types has {name!r}, which is not known.{suggest(name, CLEANERS)} Known: "
            f"{', '.join(CLEANERS)}; for your own function write package.module.function."
        )
    try:
        found = locate(name)
    except BadTarget as error:
        raise ConfigError(f"clean_types has {name!r}, but {error}") from error
    if not callable(found):
        raise ConfigError(
            f"clean_types has {name!r}, which is no function but {found!r:.80}.",
            fix="Write the dotted path of a function from text to text.",
        )
    return found  # type: ignore[no-any-return]  # what it returns is checked when it is called


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

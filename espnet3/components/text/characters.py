"""A tokenizer whose tokens are characters."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.components.text.spelling import Speller
from espnet3.components.text.tokenizer import (
    SPACE_TOKEN,
    UNKNOWN,
    TokenizerFolder,
    check_tokens,
    with_special,
    without_special,
)


class CharacterTokenizer:
    """One token for each character, `<space>` for a blank.

    A text comes back as `Speller` spells it; a character that was in none of the training texts
    comes back as nothing.

    Args:
        tokens: In the order of their ids, with the special ones; see `from_texts`.
        clean_types: What is done to texts first; see `Speller`.

    Raises:
        ConfigError: The special tokens are missing, or a token is there twice.

    Example:
        >>> tokenizer = CharacterTokenizer.from_texts(["a cab"])
        >>> tokenizer.tokens
        ('<blank>', '<unk>', '<space>', 'a', 'b', 'c', '<sos/eos>')
        >>> tokenizer.encode("cab!")
        [5, 3, 4, 1]
        >>> tokenizer.decode([5, 3, 4, 1])
        'cab'
    """

    kind = "characters"

    def __init__(self, tokens: Sequence[str], clean_types: Sequence[str] = ()) -> None:
        check_tokens(tokens, "a character tokenizer")
        self.tokens = tuple(tokens)
        self.spell = Speller(clean_types)
        # Special tokens have several characters, so no character of a text is taken for one.
        self._ids = {_character(token): id for id, token in enumerate(self.tokens)}

    @classmethod
    def from_texts(
        cls, texts: Iterable[str], clean_types: Sequence[str] = ()
    ) -> "CharacterTokenizer":
        """Take the characters of texts, in the order of their codes."""
        spell = Speller(clean_types)
        found: set[str] = set()
        for text in texts:
            found.update(spell(text))
        # Always with the blank: a lexicon or an n-gram over words needs it, though all of the texts
        # are single words. Sorted: the order of a set differs from process to process.
        return cls(with_special([SPACE_TOKEN, *sorted(found - {" "})]), clean_types)

    @classmethod
    def load(cls, folder: TokenizerFolder) -> "CharacterTokenizer":
        """Read what `save` wrote."""
        return cls(folder.read_tokens(), folder.read_about().get("clean_types", ()))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's characters."""
        ids = self._ids
        return [ids.get(character, UNKNOWN) for character in self.spell(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without the special ones."""
        kept = without_special(ids, len(self.tokens))
        return "".join(_character(self.tokens[id]) for id in kept)

    def save(self, folder: str | Path, facts: Mapping[str, Any] | None = None) -> None:
        """Write the tokenizer into a folder; `facts` are kept with it."""
        about = {"clean_types": list(self.spell.clean_types), **(facts or {})}
        TokenizerFolder(folder).write(self.kind, self.tokens, {}, about)


def _character(token: str) -> str:
    return " " if token == SPACE_TOKEN else token

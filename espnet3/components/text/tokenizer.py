"""What a tokenizer is, and how one is loaded."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from espnet3.components.text.folder import TokenizerFolder
from espnet3.config.targets import locate
from espnet3.errors import ConfigError

_KINDS = {
    "characters": "espnet3.components.text.characters.CharacterTokenizer",
    "bpe": "espnet3.components.text.sentencepiece.SentencePieceTokenizer",
    "unigram": "espnet3.components.text.sentencepiece.SentencePieceTokenizer",
}


class Tokenizer(Protocol):
    """Turns texts into ids of tokens, and back.

    Id 0 is `<blank>`, 1 is `<unk>`, the last one is `<sos/eos>`.
    """

    tokens: tuple[str, ...]
    """In the order of their ids."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without the special ones but for `<unk>`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; special ones are dropped."""
        ...

    def save(self, folder: str | Path, facts: Mapping[str, Any] | None = None) -> None:
        """Write the tokenizer into a folder, with facts about it that JSON can hold."""
        ...


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load the tokenizer that `save`, or the stage train_tokenizer, wrote.

    Raises:
        ConfigError: There is none, or it cannot be read; the message says how to make one.
    """
    place = TokenizerFolder(folder)
    kind = place.read_about().get("kind")
    if kind not in _KINDS:
        raise ConfigError(
            f"The tokenizer in {place} is of the kind {kind!r}, which is not known. Known: "
            f"{', '.join(_KINDS)}. Make it again: python run.py --stages train_tokenizer"
        )
    loaded: Tokenizer = locate(_KINDS[kind]).load(place)
    return loaded

"""Base class of tokenizers: special tokens, and the folder on disk."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from espnet3.commands import recipe_command
from espnet3.config.targets import locate
from espnet3.config.trust import checked_path
from espnet3.errors import ConfigError
from espnet3.io.atomic import write_bytes, write_json

BLANK = 0
"""Id of what CTC puts where there is no token."""
UNKNOWN = 1
"""Id of what was not in the texts that the tokenizer was trained on."""

BLANK_TOKEN = "<blank>"
UNKNOWN_TOKEN = "<unk>"
END_TOKEN = "<sos/eos>"
"""Before the first and after the last token; its id is the last one."""
SPACE_TOKEN = "<space>"
"""The blank between two words, among characters."""

SPECIAL_TOKENS = (BLANK_TOKEN, UNKNOWN_TOKEN, END_TOKEN)
WORD_START = "\u2581"
"""What SentencePiece puts before the first piece of a word."""


def end_of(n_tokens: int) -> int:
    """Return the id of `<sos/eos>`.

    Example:
        >>> end_of(30)
        29
    """
    return n_tokens - 1


def with_special(tokens: Sequence[str]) -> tuple[str, ...]:
    """Return tokens with the special ones at their places.

    Example:
        >>> with_special(["a", "b"])
        ('<blank>', '<unk>', 'a', 'b', '<sos/eos>')
    """
    return (BLANK_TOKEN, UNKNOWN_TOKEN, *tokens, END_TOKEN)


def check_tokens(tokens: Sequence[str], place: str) -> None:
    """Raise unless the special tokens are at their places, and no token is there twice.

    Args:
        tokens: In the order of their ids.
        place: Where they come from, for the error.

    Raises:
        ConfigError: They are of another form.
    """
    ends = (*tokens[:2], *tokens[-1:])
    if len(tokens) < len(SPECIAL_TOKENS) or ends != SPECIAL_TOKENS:
        raise ConfigError(
            f"The tokens of {place} begin with {', '.join(tokens[:2])} and end with "
            f"{', '.join(tokens[-1:])}, but must begin with {BLANK_TOKEN}, {UNKNOWN_TOKEN} and end "
            f"with {END_TOKEN}. Train the tokenizer again: {recipe_command('train_tokenizer')}"
        )
    seen: set[str] = set()
    for token in tokens:
        if token in seen:
            raise ConfigError(
                f"The tokens of {place} have {token!r} twice. If it is in the texts, clean them "
                "first: tokenizer.clean_types: [no_tags]; then train the tokenizer again."
            )
        seen.add(token)


def without_special(ids: Sequence[int], n_tokens: int) -> list[int]:
    """Return the ids of what is text: neither blank, nor unknown, nor an end.

    Example:
        >>> without_special([0, 2, 0, 1, 3, 4], n_tokens=5)
        [2, 3]
    """
    special = {BLANK, UNKNOWN, end_of(n_tokens)}
    return [int(id) for id in ids if int(id) not in special]


VERSION = 1
ABOUT = "tokenizer.json"
TOKENS = "tokens.txt"
# By name, since these modules import this one; a fixed list, so that loading runs no foreign code.
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
            f"{', '.join(_KINDS)}.",
            fix=f"Make it again: {recipe_command('train_tokenizer')}",
        )
    loaded: Tokenizer = locate(_KINDS[kind]).load(place)
    return loaded


class TokenizerFolder:
    """The files of a tokenizer; `tokenizer.json` is written last, so without it there is none.

    Args:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def exists(self) -> bool:
        """Tell whether there is a whole tokenizer."""
        return (self.path / ABOUT).is_file()

    def write(
        self,
        kind: str,
        tokens: Sequence[str],
        files: Mapping[str, bytes],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a tokenizer in the place of the one that is there."""
        self.path.mkdir(parents=True, exist_ok=True)
        # What is there must not pass for a tokenizer while half of it is another one.
        (self.path / ABOUT).unlink(missing_ok=True)
        written = {TOKENS: "".join(f"{token}\n" for token in tokens).encode(), **files}
        for other in self.path.glob("*.model"):
            other.unlink()  # of another kind of tokenizer
        for name, data in written.items():
            write_bytes(self.path / name, data)
        about = {"kind": kind, "version": VERSION, "n_tokens": len(tokens), **(facts or {})}
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in written.items()}
        write_json(self.path / ABOUT, {**about, "files": digests})

    def read_about(self) -> dict[str, Any]:
        """Return what `tokenizer.json` says.

        Raises:
            ConfigError: There is no tokenizer, or it is one that this version cannot read.
        """
        self._check_exists()
        try:
            about = json.loads(checked_path(self.path / ABOUT).read_text("utf-8"))
            version = about["version"]
        # JSON that is nested too deeply ends in a RecursionError.
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._damaged(f"{ABOUT} is no description of one ({error!r:.80})") from error
        if version != VERSION:
            raise self._damaged(f"it is of version {version!r}, and this is version {VERSION}")
        return dict(about)

    def read_tokens(self) -> tuple[str, ...]:
        """Return the tokens, in the order of their ids."""
        # Not splitlines, for which characters such as U+2028 end a line as well.
        return tuple(self.read_file(TOKENS).decode("utf-8").removesuffix("\n").split("\n"))

    def read_file(self, name: str) -> bytes:
        """Return the content of a file of the tokenizer."""
        try:
            data = checked_path(self.path / name).read_bytes()
        except FileNotFoundError as error:
            raise self._damaged(f"its file {name} is missing") from error
        if hashlib.sha256(data).hexdigest() != self.read_about().get("files", {}).get(name):
            raise self._damaged(f"its file {name} is not the one that was written with {ABOUT}")
        return data

    def identity(self) -> str:
        """Return a digest of all that the tokenizer is."""
        self._check_exists()
        # It holds the checksums of all other files, so they need not be read.
        return hashlib.sha256((self.path / ABOUT).read_bytes()).hexdigest()

    def _check_exists(self) -> None:
        if not self.exists():
            raise ConfigError(
                f"There is no tokenizer in {self.path}: it has no {ABOUT}.",
                fix=f"Make it first: {recipe_command('train_tokenizer')} ; or write the folder of "
                "another one: tokenizer: {save_path: FOLDER}",
            )

    def _damaged(self, problem: str) -> ConfigError:
        return ConfigError(
            f"The tokenizer in {self.path} cannot be read: {problem}.",
            fix=f"Remove the folder and make it again: {recipe_command('train_tokenizer')}",
        )

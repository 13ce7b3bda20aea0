"""Tokenizers of characters and of word pieces: special tokens, and the folder on disk."""

import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from espnet3.commands import recipe_command
from espnet3.components.text.spelling import Speller
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
    return _KINDS[kind].load(place)


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


MODEL_TYPES = ("bpe", "unigram")

_N_OWN = 2  # <blank> and <sos/eos> are ours; <unk> is a piece of SentencePiece too
# SentencePiece has a RuntimeError for everything; the numbers are in its text only.
_MOST = re.compile(r"too high.* <= (\d+)")
_LEAST = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")


class SentencePieceTokenizer:
    """Pieces of words, found by byte-pair encoding (`bpe`) or a unigram language model.

    Its ids are those of the SentencePiece model plus one, between `<blank>` and `<sos/eos>`.

    Args:
        model: The bytes of a model without ids for begin, end and padding, as `train_pieces` makes.
        kind: `bpe` or `unigram`.
        clean_types: What is done to texts first; see `Speller`.
    """

    def __init__(self, model: bytes, kind: str, clean_types: Sequence[str] = ()) -> None:
        from sentencepiece import SentencePieceProcessor

        self.kind = kind
        self.spell = Speller(clean_types)
        self._model = model
        self._processor = SentencePieceProcessor(model_proto=model)
        pieces = [self._processor.id_to_piece(i) for i in range(self._processor.vocab_size())]
        # Piece 0 is SentencePiece's own `<unk>`, which is one of the special tokens.
        self.tokens = with_special(pieces[1:])
        check_tokens(self.tokens, f"a {kind} tokenizer")

    @classmethod
    def load(cls, folder: TokenizerFolder) -> "SentencePieceTokenizer":
        """Read what `save` wrote."""
        about = folder.read_about()
        kind = str(about["kind"])
        return cls(folder.read_file(_file_of(kind)), kind, about.get("clean_types", ()))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's pieces."""
        return [id + 1 for id in self._processor.encode(self.spell(text))]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without the special ones."""
        kept = without_special(ids, len(self.tokens))
        return str(self._processor.decode([id - 1 for id in kept]))

    def save(self, folder: str | Path, facts: Mapping[str, Any] | None = None) -> None:
        """Write the tokenizer into a folder; `facts` are kept with it."""
        files = {_file_of(self.kind): self._model}
        about = {"clean_types": list(self.spell.clean_types), **(facts or {})}
        TokenizerFolder(folder).write(self.kind, self.tokens, files, about)

    def __reduce__(self) -> Any:
        # The bytes say all; each process makes a processor of its own.
        return type(self), (self._model, self.kind, self.spell.clean_types)


def train_pieces(
    texts: Iterable[str],
    model_type: str,
    vocab_size: int,
    *,
    clean_types: Sequence[str] = (),
    character_coverage: float = 1.0,
) -> SentencePieceTokenizer:
    """Train a tokenizer; the same texts in the same order give the same bytes.

    Args:
        texts: To train on.
        model_type: `bpe` or `unigram`.
        vocab_size: The number of tokens, with `<blank>`, `<unk>` and `<sos/eos>`.
        clean_types: What is done to the texts first; see `Speller`.
        character_coverage: Share of the characters of the texts that get a token; less than 1 for
            scripts with thousands of characters.

    Raises:
        ConfigError: The texts do not have as many pieces; the message has the largest number.
    """
    from sentencepiece import SentencePieceTrainer

    written = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=map(Speller(clean_types), texts),
            model_writer=written,
            model_type=model_type,
            vocab_size=vocab_size - _N_OWN,
            character_coverage=character_coverage,
            # Texts are spelled by us, so that all kinds of tokenizers agree.
            normalization_rule_name="identity",
            unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1,
            # Sums of several threads are added up in another order.
            num_threads=1,
            # In bytes; longer texts would be left out without a word.
            max_sentence_length=1 << 30,
            minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        raise _explained(error, model_type, vocab_size) from error
    return SentencePieceTokenizer(written.getvalue(), model_type, clean_types)


def _file_of(kind: str) -> str:
    return f"{kind}.model"


def _explained(error: RuntimeError, model_type: str, vocab_size: int) -> ConfigError:
    """Return an error in our words, and with our counts, for what SentencePiece says."""
    text = str(error)
    most, least = _MOST.search(text), _LEAST.search(text)
    if most:
        n = int(most[1]) + _N_OWN
        problem = f"but these texts have only {n} tokens for model_type {model_type}"
    elif least:
        n = int(least[1]) + _N_OWN
        problem = f"but the characters of these texts alone are {n} tokens"
    else:
        return ConfigError(
            f"model_type is {model_type}",
            key="model_type",
            problem=f"but SentencePiece cannot train it on these texts: {text}",
            fix="See whether they are what you expect, or write: model_type: characters",
        )
    fix = f"Write: vocab_size: {n}"
    return ConfigError(key="vocab_size", value=vocab_size, problem=problem, fix=fix)


# A fixed list, so that loading runs no foreign code.
_KINDS: dict[str, type[CharacterTokenizer | SentencePieceTokenizer]] = {
    CharacterTokenizer.kind: CharacterTokenizer,
    **dict.fromkeys(MODEL_TYPES, SentencePieceTokenizer),
}

"""Tokenizers of word pieces, by SentencePiece."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.components.text.spelling import Speller
from espnet3.components.text.tokenizer import (
    TokenizerFolder,
    check_tokens,
    with_special,
    without_special,
)
from espnet3.errors import ConfigError

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

"""Token error rate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from espnet3.components.metrics.error_rate import ErrorRate
from espnet3.config.fingerprint import file_identity, flatten
from espnet3.errors import ConfigError

Tokenizer = Callable[[str], Sequence[str]]


@dataclass(frozen=True)
class TER(ErrorRate):
    """Token error rate: edits of tokens, per reference token.

    The arguments are those of `ErrorRate`, and `tokenizer`.

    Example:
        >>> TER().compute({"ref": ["_he llo"], "hyp": ["_he lp"]})["rate"]
        50.0
    """

    unit: ClassVar[str] = "tokens"

    tokenizer: str | Path | Tokenizer | None = None
    """Path of a SentencePiece model, or a function from text to tokens (as `_target_`); None: the
    texts already are tokens with white space between them."""

    def split(self, text: str) -> Sequence[str]:
        """Return the tokens."""
        return self._tokenize(text)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that the numbers depend on, with the identity of the model's file."""
        if not isinstance(self.tokenizer, str | Path):
            # A function is known by its name, and one that was bound by its arguments too.
            return {**super().settings, "tokenizer": flatten(self.tokenizer, "function")}
        path = Path(self.tokenizer)
        _check_file(path)
        # Not the path alone: a tokenizer that was trained again must make old numbers stale.
        identity = {"path": str(path.absolute()), **file_identity(path)}
        return {**super().settings, "tokenizer": identity}

    # Not in __init__: checks and dry runs build metrics before the file has to exist.
    @cached_property
    def _tokenize(self) -> Tokenizer:
        if self.tokenizer is None:
            return str.split
        if isinstance(self.tokenizer, str | Path):
            return _load_sentencepiece(Path(self.tokenizer))
        return self.tokenizer


def _check_file(path: Path) -> None:
    # Not when the metric is built: an earlier stage of the same command may train the model.
    if not path.is_file():
        raise ConfigError(
            f"tokenizer is {str(path)!r}, but there is no such file.",
            fix="Write the path of a SentencePiece model, or leave it out: tokenizer: null",
        )


def _load_sentencepiece(path: Path) -> Tokenizer:
    import sentencepiece

    _check_file(path)
    try:
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"tokenizer is {str(path)!r}, which is no SentencePiece model: {error}.",
            fix="Write the path of a file that stage train_tokenizer, or spm_train, made.",
        ) from error
    return lambda text: model.encode(text, out_type=str)

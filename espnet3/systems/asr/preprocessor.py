"""Preprocess samples of a recogniser or language model before batching."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from espnet3.components.data.errors import DataError
from espnet3.components.text.tokenizer import Tokenizer, TokenizerFolder, load_tokenizer


@dataclass(frozen=True)
class Tokenize:
    """Adds the ids of a sample's text, an int64 array.

    The tokenizer is loaded once in each process that reads samples. What is done to texts first is
    set where the tokenizer is trained: `tokenizer: {clean_types: [lower]}`.

    Raises:
        ConfigError: There is no tokenizer; the message has the command that makes it.

    Example:
        ```yaml
        preprocessor:
          _target_: espnet3.systems.asr.preprocessor.Tokenize
          tokenizer: ${tokenizer.save_path}
        ```
    """

    tokenizer: str | Path
    """Folder of the tokenizer."""
    text_key: str = "text"
    """Field of the sample with the text."""
    tokens_key: str = "tokens"
    """Field to add."""
    identity: str = field(init=False, default="")
    """A digest of the tokenizer: what is made with another one is not taken for the same."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", TokenizerFolder(self.tokenizer).identity())

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample with its tokens.

        Raises:
            DataError: It has no text, or an empty one; the message names the utterance.
        """
        import numpy as np

        text = text_of(sample, self.text_key)
        ids = _load(str(self.tokenizer), self.identity).encode(text)
        if not ids:
            raise DataError(
                f"{_name(sample)} has the text {text!r:.80}, of which nothing is left after "
                "tokenizer.clean_types. Leave the utterance out where the data is made."
            )
        return {**sample, self.tokens_key: np.array(ids, dtype=np.int64)}


def text_of(sample: Any, key: str = "text") -> str:
    """Return the text of a sample.

    Raises:
        DataError: It has none, or an empty one; the message names the utterance.
    """
    text = sample.get(key)
    if text is None:
        raise DataError(
            f"{_name(sample)} has no field {key!r}. It has: {', '.join(sample)}.",
            fix="Name the column with the text, as in data_src_args: {columns: {text: COLUMN}}",
        )
    if not isinstance(text, str):
        raise DataError(
            f"{_name(sample)} has the {key} {text!r:.80}, of type {type(text).__name__}, where a "
            "text is expected. Let the dataset return one."
        )
    if not text.strip():
        raise DataError(
            f"{_name(sample)} has an empty {key}, which nothing can be learned from. Leave the "
            "utterance out where the data is made."
        )
    return text


# `identity` is unused, but part of the cache's key: a tokenizer that was trained again is reloaded.
@lru_cache(maxsize=4)
def _load(folder: str, identity: str) -> Tokenizer:
    return load_tokenizer(folder)


def _name(sample: Any) -> str:
    id = sample.get("utt_id")
    return "A sample" if id is None else f"Utterance {id!r}"

"""The `tokenizer` block of a training config."""

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from espnet3.components.data.functions import find_function
from espnet3.components.text.sentencepiece import MODEL_TYPES
from espnet3.components.text.spelling import Speller
from espnet3.components.text.tokenizer import TokenizerFolder
from espnet3.config.schema import FrozenConfig, Names, validate
from espnet3.config.sources import set_in
from espnet3.config.targets import find_bad_argument, signature_of
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

BLOCK = "tokenizer"
_CHARACTERS = "characters"
_OURS = "espnet3.systems.asr."
_SMALLEST = 4  # the special tokens, and one more


def _spelled_out(value: Any) -> Any:
    return _CHARACTERS if value == "char" else value


class TokenizerConfig(FrozenConfig):
    """What stage 2 trains."""

    model_type: Annotated[Literal["characters", "bpe", "unigram"], BeforeValidator(_spelled_out)]
    """characters (or char), or word pieces of SentencePiece: bpe or unigram."""
    vocab_size: int | None = Field(default=None, ge=_SMALLEST)
    """Tokens of bpe or unigram, with <blank>, <unk> and <sos/eos>; characters are all there are."""
    save_path: str | None = None
    """Folder of the tokenizer; unset: data_dir/tokenizer."""
    clean_types: Names = []
    """What is done to texts before they are cut, here and wherever this tokenizer is used."""
    character_coverage: float = Field(default=1.0, gt=0, le=1)
    """Of bpe or unigram: share of the characters that get a token; less for Chinese or Japanese."""
    text_builder: dict[str, Any] | None = None
    """Texts that are not those of dataset.train: `func`, a dotted path, and its arguments."""

    @property
    def folder(self) -> Path:
        """Where the tokenizer is."""
        assert self.save_path is not None
        return Path(self.save_path)

    @property
    def settings(self) -> dict[str, Any]:
        """What the tokens depend on, beside the texts."""
        settings: dict[str, Any] = {"model_type": self.model_type, "clean_types": self.clean_types}
        if self.model_type in MODEL_TYPES:
            settings["vocab_size"] = self.vocab_size
            settings["character_coverage"] = self.character_coverage
        return settings


def load_tokenizer_config(loaded: "LoadedConfig") -> TokenizerConfig:
    """Read the block, with `save_path` filled in.

    Raises:
        ConfigError: There is no such block, or it is wrong.
    """
    values = loaded.plain()
    if values.get(BLOCK) is None:
        raise ConfigError(
            f"{BLOCK}{set_in(BLOCK, loaded)} is not set, so which tokenizer to train is not known. "
            "Write: tokenizer: {model_type: characters, save_path: '${data_dir}/tokenizer'}"
        )
    config = validate(TokenizerConfig, values[BLOCK], prefix=BLOCK, loaded=loaded)
    if config.save_path is None:
        config = config.model_copy(update={"save_path": str(Path(values["data_dir"], BLOCK))})
    _check_size(config, loaded)
    _check_cleaners(config, loaded)
    _check_builder(config, loaded)
    return config


def check_tokenizer_exists(loaded: "LoadedConfig") -> None:
    """Refuse a config whose preprocessor or model reads a tokenizer that nobody has made.

    Raises:
        ConfigError: The message has the key, its place, and the command that makes it.
    """
    values: Any = loaded.plain()
    for block in (("dataset", "preprocessor"), ("model",)):
        key, found = ".".join(block), values
        for name in block:
            found = found.get(name) if isinstance(found, Mapping) else None
        # Others may call something else a tokenizer.
        if not isinstance(found, Mapping) or not str(found.get("_target_")).startswith(_OURS):
            continue
        folder = found.get(BLOCK)
        if isinstance(folder, str) and not TokenizerFolder(folder).exists():
            place = set_in(f"{key}.{BLOCK}", loaded)
            raise ConfigError(
                f"{key}.{BLOCK} is {folder!r}{place}, where there is no tokenizer. Make it first: "
                f"python run.py --stages train_tokenizer{_given_as(loaded)}"
            )


def _given_as(loaded: "LoadedConfig") -> str:
    """Return the option that gives this config again: where the tokenizer goes depends on it."""
    files = [file for file in loaded.files if Path(file).stem == loaded.names.self_name]
    return f" --training_config {shlex.quote(files[-1])}" if files else ""


def _check_size(config: TokenizerConfig, loaded: "LoadedConfig") -> None:
    key = f"{BLOCK}.vocab_size"
    if config.model_type in MODEL_TYPES and config.vocab_size is None:
        place = set_in(f"{BLOCK}.model_type", loaded)
        raise ConfigError(
            f"{BLOCK}.model_type is {config.model_type!r}{place}, but {key} is not set. Write the "
            "number of tokens: vocab_size: 500"
        )
    if config.model_type == _CHARACTERS and config.vocab_size is not None:
        logger.warning(
            "%s is ignored%s: with model_type characters, all characters of the texts are tokens",
            key, set_in(key, loaded),
        )  # fmt: skip


def _check_cleaners(config: TokenizerConfig, loaded: "LoadedConfig") -> None:
    try:
        Speller(config.clean_types)
    except ConfigError as error:
        place = set_in(f"{BLOCK}.clean_types", loaded)
        raise ConfigError(f"{BLOCK}.{error}{place}") from None


def _check_builder(config: TokenizerConfig, loaded: "LoadedConfig") -> None:
    if config.text_builder is None:
        return
    key = f"{BLOCK}.text_builder"
    func = config.text_builder.get("func")
    if not isinstance(func, str):
        raise ConfigError(
            f"{key}.func is {func!r}{set_in(key, loaded)}, but must be the dotted path of a "
            "function that returns texts, or a file of them. Write: text_builder: {func: "
            "src.texts.build}"
        )
    found = find_function(func, key=f"{key}.func")
    arguments = {name: value for name, value in config.text_builder.items() if name != "func"}
    signature = signature_of(found)
    bad = find_bad_argument(signature, arguments) if signature else None
    if bad is not None:
        where = set_in(f"{key}.{bad.name}" if bad.name else key, loaded)
        raise ConfigError(f"{key} does not fit {func}: {bad.reason}{where}.{bad.hint}")

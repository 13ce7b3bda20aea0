"""Stage 2, `train_tokenizer`: from the texts of the training sets to a tokenizer on disk.

A tokenizer that was made from the same texts with the same settings is kept. If these have
changed, it is trained again, unless a model was trained with it: its output would then mean other
tokens, so the stage refuses and says how to continue.
"""

import logging
import shlex
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.components.text.characters import CharacterTokenizer
from espnet3.components.text.sentencepiece import train_pieces
from espnet3.components.text.tokenizer import Tokenizer, TokenizerFolder
from espnet3.config.fingerprint import diff
from espnet3.config.sources import set_in
from espnet3.errors import ConfigError, StaleRunError
from espnet3.parallel.clusters.table import check_resources
from espnet3.parallel.parallel import as_parallel_config
from espnet3.systems.asr.tokenizer_config import BLOCK, TokenizerConfig, load_tokenizer_config
from espnet3.systems.asr.training_texts import (
    TextSummary,
    check_training_sets,
    gather_texts,
    summarize,
)
from espnet3.systems.base.stages import Skipped
from espnet3.systems.base.training_record import has_weights

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

_SOURCE = "made_from"


def train_tokenizer(loaded: "LoadedConfig") -> Any:
    """Train the tokenizer of the `tokenizer` block, unless it is there.

    Returns:
        Its folder, or `Skipped` if it was made from the same texts and settings before.

    Raises:
        ConfigError: The block is wrong, or does not fit the texts.
        StaleRunError: A trained model needs the tokenizer as it is.
    """
    config = load_tokenizer_config(loaded)
    texts = gather_texts(config, loaded)
    summary = summarize(texts)
    source = _describe_source(config, summary)
    known = _known_source(config)
    if known == source:
        return Skipped(f"{config.folder} was made from the same {summary.n_texts} texts")
    if known is not None:
        _refuse_if_needed(config, _changes(known, source), loaded)
        logger.info("The tokenizer is trained again: %s", "; ".join(_changes(known, source)))
    tokenizer = _train(config, texts, loaded)
    tokenizer.save(config.folder, {_SOURCE: source})
    logger.info(
        "%d tokens (%s) from %d texts: %s",
        len(tokenizer.tokens), config.model_type, summary.n_texts, config.folder,
    )  # fmt: skip
    return config.folder


def check_train_tokenizer(loaded: "LoadedConfig") -> None:
    """Check all that can be checked without reading texts.

    Raises:
        ConfigError: Naming the key, its place, and what to write.
        StaleRunError: The settings are not those of the tokenizer that a trained model needs.
    """
    config = load_tokenizer_config(loaded)
    if config.text_builder is None:
        check_training_sets(loaded)
        check_resources(as_parallel_config(loaded))
    known = _known_source(config)
    if known is not None:
        changed = _changed_settings(known, config.settings)
        if changed:
            _refuse_if_needed(config, changed, loaded)


def describe_train_tokenizer(loaded: "LoadedConfig") -> list[str]:
    """Return what the stage would do; no text is read.

    Raises:
        ConfigError: As the stage itself would.
    """
    config = load_tokenizer_config(loaded)
    builder = config.text_builder
    origin = "dataset.train" if builder is None else str(builder["func"])
    size = "" if config.vocab_size is None else f", vocab_size {config.vocab_size}"
    lines = [f"model_type {config.model_type}{size}, from the texts of {origin}: {config.folder}"]
    known = _known_source(config)
    if known is not None:
        changed = _changed_settings(known, config.settings)
        lines.append(
            f"there is one, of other settings: {'; '.join(changed)}"
            if changed
            else f"there is one, from {known['texts']['n_texts']} texts; kept if these are the same"
        )
    return lines


def _train(config: TokenizerConfig, texts: Iterable[str], loaded: "LoadedConfig") -> Tokenizer:
    if config.vocab_size is None or config.model_type == CharacterTokenizer.kind:
        return CharacterTokenizer.from_texts(texts, config.clean_types)
    try:
        return train_pieces(
            texts,
            config.model_type,
            config.vocab_size,
            clean_types=config.clean_types,
            character_coverage=config.character_coverage,
        )
    except ConfigError as error:
        size = f"vocab_size is {config.vocab_size}"
        place = set_in(f"{BLOCK}.vocab_size", loaded)
        text = str(error).replace(size, f"{BLOCK}.{size}{place}", 1)
        raise ConfigError(text) from error.__cause__


def _describe_source(config: TokenizerConfig, summary: TextSummary) -> dict[str, Any]:
    return {"settings": config.settings, "texts": asdict(summary)}


def _known_source(config: TokenizerConfig) -> dict[str, Any] | None:
    """Return what the tokenizer on disk was made from; None if there is none of ours."""
    folder = TokenizerFolder(config.folder)
    if not folder.exists():
        return None
    known = folder.read_about().get(_SOURCE)
    if known is None:
        raise StaleRunError(
            f"The tokenizer in {folder} was not made by this stage, and is not replaced. To use "
            "it, leave the stage out; to train another one, write another folder: tokenizer: "
            "{save_path: '${data_dir}/tokenizer_2'}"
        )
    return dict(known)


def _changes(known: dict[str, Any], source: dict[str, Any]) -> list[str]:
    changed = _changed_settings(known, source["settings"])
    before, now = known["texts"], source["texts"]
    if before != now:
        changed.append(f"other texts: {before['n_texts']} then, {now['n_texts']} now")
    return changed


def _changed_settings(known: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    return diff({BLOCK: known["settings"]}, {BLOCK: settings})


def _refuse_if_needed(config: TokenizerConfig, changed: list[str], loaded: "LoadedConfig") -> None:
    users = trained_with(config.folder, Path(str(loaded.config["exp_dir"])))
    if not users:
        return
    folders = shlex.join(map(str, users))
    place = set_in(f"{BLOCK}.save_path", loaded)
    raise StaleRunError(
        f"The tokenizer in {config.folder}{place} would be another one ({'; '.join(changed)}), but "
        f"the model in {folders} was trained with it as it is. To keep both, write another folder "
        f"and another experiment: tokenizer: {{save_path: {config.folder}_2}} and exp_tag: NAME_2. "
        f"To start over, remove them first: rm -r {shlex.quote(str(config.folder))} {folders}"
    )


def trained_with(tokenizer: Path, exp_dir: Path) -> list[Path]:
    """Return the experiments with trained weights whose config names a tokenizer.

    Args:
        tokenizer: Its folder.
        exp_dir: An experiment; those beside it are looked at as well, since they may share it.
    """
    found = []
    for file in sorted({exp_dir / "config.yaml", *exp_dir.parent.glob("*/config.yaml")}):
        if has_weights(file.parent) and file.is_file() and _names(file, tokenizer):
            found.append(file.parent)
    return found


def _names(config_file: Path, tokenizer: Path) -> bool:
    from espnet3.config.files import read_file

    wanted = tokenizer.absolute()
    values: list[Any] = [read_file(config_file).values]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value
        elif isinstance(value, str) and Path(value).absolute() == wanted:
            return True
    return False

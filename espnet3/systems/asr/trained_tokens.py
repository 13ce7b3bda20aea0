"""The tokens that a model was trained with, kept beside its weights.

The weights know tokens by their numbers only. If the tokenizer is replaced by another one of the
same size, all would load, and the texts would be wrong.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.components.text.tokenizer import load_tokenizer
from espnet3.config.trust import checked_path
from espnet3.errors import ConfigError, RunFolderError, StaleRunError
from espnet3.io.atomic import write_json
from espnet3.systems.base.training_record import has_weights

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_TOKENS = "tokens.json"


def record_tokens(loaded: "LoadedConfig") -> None:
    """Write the tokens of `model.tokenizer` into the experiment, before it is trained.

    Raises:
        StaleRunError: The experiment has weights, and they were trained with other tokens.
    """
    block = loaded.plain().get("model")
    folder = block.get("tokenizer") if isinstance(block, Mapping) else None
    tokens = _tokens_in(folder)
    if tokens is None:
        return
    exp_dir = Path(str(loaded.config["exp_dir"]))
    known = _read(exp_dir)
    if known is None or not has_weights(exp_dir):
        exp_dir.mkdir(parents=True, exist_ok=True)
        write_json(exp_dir / _TOKENS, tokens)
    elif known != tokens:
        raise StaleRunError(
            f"The tokenizer in {folder} is not the one that the model in {exp_dir} is trained "
            f"with: {_difference(known, tokens)}. Put the old one back, or train another model: "
            "exp_tag: NAME_2"
        )


def check_trained_tokens(model: Any, folder: Path) -> None:
    """Refuse a model whose tokenizer is not that of the training whose weights are in a folder.

    Raises:
        RunFolderError: With the first difference.
    """
    known = _read(folder)
    tokens = getattr(getattr(model, "tokenizer", model), "tokens", None)
    if known is not None and tokens is not None and known != tuple(tokens):
        raise RunFolderError(
            f"The tokenizer is not the one that the weights in {folder} were trained with: "
            f"{_difference(known, tuple(tokens))}. The texts would be wrong. Put the tokenizer of "
            f"the training back, whose tokens are in {folder / _TOKENS}"
        )


def _tokens_in(folder: Any) -> tuple[str, ...] | None:
    try:
        return load_tokenizer(folder).tokens if isinstance(folder, str) else None
    except ConfigError:
        return None  # one of Hugging Face, or none: the model tells what it misses


def _read(folder: Path) -> tuple[str, ...] | None:
    file = folder / _TOKENS
    if not file.is_file():
        return None  # it was not trained by a stage, or is packed, with checksums
    try:
        tokens = json.loads(checked_path(file).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        tokens = None
    if not isinstance(tokens, list):
        raise RunFolderError(
            f"{file} is damaged: it is no list of tokens. Copy it anew from the folder of the "
            "training, or delete it if you know that the tokenizer is that of the training."
        )
    return tuple(tokens)


def _difference(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    if len(before) != len(now):
        return f"it had {len(before)} tokens, and has {len(now)}"
    id = next(i for i, (old, new) in enumerate(zip(before, now, strict=True)) if old != new)
    return f"token {id} was {before[id]!r}, and is {now[id]!r}"

"""Check the recogniser of an inference config before workers start."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import keys_in, names_places, value_at
from espnet3.config.targets import check_arguments, locate
from espnet3.errors import ConfigError
from espnet3.systems.asr.settings import (
    OVERLAP_SECONDS,
    arguments_of,
    check_n_best,
    check_windows,
)

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

SPEECH2TEXT = "espnet3.systems.asr.inference.Speech2Text"
GREEDY = "espnet3.components.decoding.ctc_greedy.GreedyCTC"


@names_places
def check_recognizer(loaded: "LoadedConfig") -> None:
    """Check the settings of `Speech2Text` and its decoder; other models are let pass.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    block = _block(loaded)
    if block is None:
        return
    decoder = block.get("decoder")
    if decoder is not None:
        _check_decoder(decoder)
    _check_finite(block)
    _check_numbers(block, decoder or {})


def _check_finite(block: Mapping[str, Any]) -> None:
    for key in keys_in(block, "model"):
        value = value_at({"model": block}, key)
        # No threshold at all is a threshold of infinity.
        is_threshold = key.endswith("threshold") and value == math.inf
        if isinstance(value, float) and not math.isfinite(value) and not is_threshold:
            raise ConfigError(
                key=key,
                value=value,
                problem="which is no number to compute with",
                fix=f"Delete the line for the default, or write: {key.rpartition('.')[2]}: 1",
            )


@names_places
def check_weights(loaded: "LoadedConfig") -> None:
    """See to it that the weights are there; asked when `infer` starts, as `train` may make them.

    Raises:
        ConfigError: naming the stage that makes them.
    """
    from espnet3.systems.asr.trained_model import require_weights

    block = _block(loaded)
    if block is not None and block.get("weights"):
        require_weights(Path(block["weights"]), "model.weights")


def _block(loaded: "LoadedConfig") -> Mapping[str, Any] | None:
    block = loaded.plain().get("model")
    if not isinstance(block, Mapping):
        return None
    is_ours = str(block.get("_target_", "")).startswith(SPEECH2TEXT)
    return block if is_ours else None


def _check_decoder(decoder: Any) -> None:
    key = "model.decoder"
    if not isinstance(decoder, Mapping) or "_target_" not in decoder:
        raise ConfigError(
            key=key,
            value=decoder,
            problem="without a _target_",
            fix=f"Write: decoder: {{_target_: {GREEDY}}}",
        )
    check_arguments(key, str(decoder["_target_"]), decoder)


def _check_numbers(block: Mapping[str, Any], decoder: Mapping[str, Any]) -> None:
    target = str(decoder.get("_target_", GREEDY))
    arguments = arguments_of(locate(target), decoder)
    knows_decoder = bool(decoder) or block["_target_"] == SPEECH2TEXT  # a packed model has its own
    try:
        check_windows(block.get("window_seconds"), block.get("overlap_seconds", OVERLAP_SECONDS))
        if knows_decoder:
            check_n_best(block.get("n_best", 1), target.rpartition(".")[2], arguments)
    except ConfigError as error:
        # The recogniser says the same of its arguments, which have no block around them.
        raise error.below("model") from None

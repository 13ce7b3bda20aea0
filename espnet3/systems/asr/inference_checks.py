"""Settings of a recogniser that must fit each other, checked in configs and in calls alike."""

import copy
import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import keys_in, names_places, value_at
from espnet3.config.targets import check_arguments, signature_at
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


OVERLAP_SECONDS = 4.0


def check_windows(window_seconds: Any, overlap_seconds: Any) -> None:
    """Refuse windows that would not move on.

    Raises:
        ConfigError: with what to write.
    """
    if window_seconds is None:
        return
    for name, value in (("window_seconds", window_seconds), ("overlap_seconds", overlap_seconds)):
        # In Python, `True` is an int as well.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            fix = f"Write: {name}: 20"
            raise ConfigError(key=name, value=value, problem="but must be a number", fix=fix)
    if overlap_seconds < 0 or window_seconds <= 2 * overlap_seconds:
        raise ConfigError(
            f"window_seconds is {window_seconds:g}",
            key="window_seconds",
            problem=f"with overlap_seconds {overlap_seconds:g}: a window must be longer than both "
            "of its overlaps",
            fix="Write for example: window_seconds: 20, overlap_seconds: 4",
        )


def check_n_best(n_best: Any, decoder: str, arguments: Mapping[str, Any]) -> None:
    """Refuse to ask a decoder for more hypotheses than it follows.

    Args:
        n_best: What is asked for.
        decoder: Name of its class.
        arguments: Those of the decoder with `n_best` and `beam_size` among them, if it has any.

    Raises:
        ConfigError: with what to write.
    """
    if not isinstance(n_best, int) or isinstance(n_best, bool) or n_best < 1:
        problem, fix = "but must be 1 or more", "Write: n_best: 1"
        raise ConfigError(key="n_best", value=n_best, problem=problem, fix=fix)
    if n_best == 1:
        return
    if "n_best" not in arguments:
        raise ConfigError(
            key="n_best",
            value=n_best,
            problem=f"but {decoder} finds one hypothesis",
            fix="Write n_best: 1, or a decoder that searches: {_target_: "
            "espnet3.components.decoding.ctc_beam.PrefixBeamCTC, "
            f"beam_size: {max(10, n_best)}}}",
        )
    beam_size = arguments.get("beam_size")
    if isinstance(beam_size, int) and n_best > beam_size:
        raise ConfigError(
            key="n_best",
            value=n_best,
            problem=f"but beam_size of the decoder {decoder} is {beam_size}, so there are not so "
            "many",
            fix=f"Write: beam_size: {n_best}, or n_best: {beam_size}",
        )


def arguments_of(signature: inspect.Signature | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a class: its defaults, and above them those that are given."""
    # Classes written in C have no signature; then only what was given is known.
    parameters = signature.parameters.values() if signature is not None else ()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return {**defaults, **given}


def searching_for(n_best: int, decoder: Any) -> Any:
    """Return the decoder, or a copy of it that returns at least `n_best` hypotheses.

    Raises:
        ConfigError: it cannot find so many, or is no decoder.
    """
    if not callable(decoder):
        raise ConfigError(
            f"decoder is {decoder!r:.80}, which cannot be called.",
            fix="Write: decoder: {_target_: espnet3.components.decoding.ctc_greedy.GreedyCTC}",
        )
    # Some keep what they search by in an object of its own.
    holder = decoder if hasattr(decoder, "n_best") else getattr(decoder, "settings", decoder)
    names = [name for name in ("n_best", "beam_size") if hasattr(holder, name)]
    known = {name: getattr(holder, name) for name in names}
    check_n_best(n_best, type(decoder).__name__, known)
    if n_best <= known.get("n_best", 1):
        return decoder
    # A shallow copy: its weights and n-grams may be large, and are only read.
    wider = copy.copy(decoder)
    if holder is decoder:
        wider.n_best = n_best
    else:
        wider.settings = replace(holder, n_best=n_best)
    return wider


SPEECH2TEXT = "espnet3.systems.asr.inference.Speech2Text"
GREEDY = "espnet3.components.decoding.ctc_greedy.GreedyCTC"


@names_places
def check_recognizer(loaded: "LoadedConfig") -> None:
    """Check the settings of `Speech2Text` and its decoder; other models are let pass.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    block = _block(loaded.plain())
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

    block = _block(loaded.plain())
    if block is not None and block.get("weights"):
        require_weights(Path(block["weights"]), "model.weights")


def _block(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    block = values.get("model")
    if not isinstance(block, Mapping):
        return None
    # A prefix, so that `Speech2Text.from_experiment` and `.from_packed` are checked too.
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
    # A decoder's own default of beam_size counts: n_best must not exceed that either.
    arguments = arguments_of(signature_at(target, with_defaults=True), decoder)
    knows_decoder = bool(decoder) or block["_target_"] == SPEECH2TEXT  # a packed model has its own
    try:
        check_windows(block.get("window_seconds"), block.get("overlap_seconds", OVERLAP_SECONDS))
        if knows_decoder:
            check_n_best(block.get("n_best", 1), target.rpartition(".")[2], arguments)
    except ConfigError as error:
        # The recogniser says the same of its arguments, which have no block around them.
        raise error.below("model") from None

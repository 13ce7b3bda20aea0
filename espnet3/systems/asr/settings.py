"""Settings of a recogniser that must fit each other, checked in configs and in calls alike."""

import copy
import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from espnet3.errors import ConfigError

OVERLAP_SECONDS = 4.0


def check_windows(window_seconds: Any, overlap_seconds: Any) -> None:
    """Refuse windows that would not move on.

    Raises:
        ConfigError: with what to write.
    """
    if window_seconds is None:
        return
    for name, value in (("window_seconds", window_seconds), ("overlap_seconds", overlap_seconds)):
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


def arguments_of(target: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a class: its defaults, and above them those that are given."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return dict(given)
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return {**defaults, **given}


def searching_for(n_best: int, decoder: Any) -> Any:
    """Return the decoder, or a copy of it that returns at least `n_best` hypotheses.

    Raises:
        ConfigError: it cannot find so many, or is no decoder.
    """
    if not callable(decoder):
        raise ConfigError(
            f"decoder is {decoder!r:.80}, which cannot be called. Write: decoder: "
            "{_target_: espnet3.components.decoding.ctc_greedy.GreedyCTC}"
        )
    # Some keep what they search by in an object of its own.
    holder = decoder if hasattr(decoder, "n_best") else getattr(decoder, "settings", decoder)
    names = [name for name in ("n_best", "beam_size") if hasattr(holder, name)]
    known = {name: getattr(holder, name) for name in names}
    check_n_best(n_best, type(decoder).__name__, known)
    if n_best <= known.get("n_best", 1):
        return decoder
    wider = copy.copy(decoder)
    if holder is decoder:
        wider.n_best = n_best
    else:
        wider.settings = replace(holder, n_best=n_best)
    return wider

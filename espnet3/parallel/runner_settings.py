"""Validate the settings of a runner before anything starts."""

import inspect
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError, ProviderError

if TYPE_CHECKING:
    from espnet3.parallel.base_runner import BaseRunner

logger = logging.getLogger(__name__)


def one_or_more(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names of which one may be given by itself."""
    if isinstance(names, str):
        return (names,)
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{names!r} is no list of names; write one, such as ['runner.code'].")
    return tuple(names)


def check_settings(runner: "BaseRunner") -> None:
    """Refuse settings that cannot be meant.

    Raises:
        ConfigError: naming the setting and what to write.
        ProviderError: if the provider lacks a method.
    """
    if runner.batch_size is not None and not _is_count(runner.batch_size, least=1):
        raise ConfigError(
            f"batch_size is {runner.batch_size!r}; write batch_size=1 or more, or None."
        )
    if runner.batch_seconds is not None and not _is_positive(runner.batch_seconds):
        raise ConfigError(
            f"batch_seconds is {runner.batch_seconds!r}; write batch_seconds=60, or None."
        )
    if runner.on_error not in ("raise", "skip"):
        raise ConfigError(
            f'on_error is {runner.on_error!r}; write on_error="raise" or on_error="skip".'
        )
    for name in ("resume", "retry_failed"):
        if not isinstance(getattr(runner, name), bool):
            raise ConfigError(
                f"{name} is {getattr(runner, name)!r}; write {name}=True or {name}=False."
            )
    _check_max_errors(runner)
    for name in ("build_env_local", "build_worker_setup_fn"):
        if not callable(getattr(runner.provider, name, None)):
            raise ProviderError(
                f"{type(runner.provider).__name__} has no {name}(). A provider needs "
                "build_env_local() and build_worker_setup_fn(); see EnvironmentProvider."
            )


def apply_settings(runner: "BaseRunner", given: Mapping[str, Any]) -> None:
    """Set what the `__init__` of a runner of one's own did not pass on to that of its base class.

    Args:
        runner: as it was built.
        given: settings that a config has; those of other names are the runner's own.

    Raises:
        ConfigError: a value cannot be meant.
    """
    from espnet3.parallel.base_runner import BaseRunner

    for name, parameter in inspect.signature(BaseRunner.__init__).parameters.items():
        if name in given and given[name] is not None and hasattr(runner, name):
            value = one_or_more(given[name]) if name == "accept_changes" else given[name]
            if getattr(runner, name) == parameter.default != value:
                setattr(runner, name, value)
                check_settings(runner)


def _check_max_errors(runner: "BaseRunner") -> None:
    limit = runner.max_errors
    if limit is None:
        return
    if not _is_count(limit, least=0):
        raise ConfigError(f"max_errors is {limit!r}; write max_errors=0 or more, or None.")
    if runner.on_error != "skip":
        logger.warning('max_errors=%d is ignored: it needs on_error="skip"', limit)


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf

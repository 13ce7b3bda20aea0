"""The class that `provider._target_` names: whether it serves `infer`, and how it is called."""

from typing import Any

from espnet3.config.targets import (
    BadTarget,
    argument_names,
    check_arguments,
    locate_callable,
    signature_of,
)
from espnet3.errors import ConfigError
from espnet3.systems.base.inference_config import InferenceConfig

_TO_WRITE = {
    "build_env_local": 'def build_env_local(self): return {"dataset": ..., "model": ...}',
    "build_worker_setup_fn": "def build_worker_setup_fn(self): return self.build_env_local",
}
_CONFIG = ("inference_config", "config")
_PARAMS = "params"


def check_provider(config: InferenceConfig) -> None:
    """Refuse a provider that lacks a method, or cannot be called as `infer` calls it.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    target = _located(config)
    known = argument_names(target)
    if isinstance(target, type):
        lacking = [name for name in _TO_WRITE if not _has(target, name)]
        if lacking:
            others = "; ".join(_TO_WRITE[name] for name in lacking)
            raise _bad_target(config, f"which has no {lacking[0]}()", f"Write in it: {others}")
    for name in (name for name in _CONFIG if name in config.provider):
        raise ConfigError(
            key=f"provider.{name}",
            problem="is set, but the config of the stage is what a provider gets there",
            fix="Values of your own stand under params: provider: {params: {beam_size: 8}}",
        )
    if not _takes_config(target, set(config.provider)):
        fix = "Write in it: def __init__(self, config): self.config = config"
        raise _bad_target(config, "which takes no config", fix)
    if known is not None and _PARAMS in config.provider and _PARAMS not in known:
        raise ConfigError(
            key="provider.params",
            problem=f"is set, but {config.provider_target} takes none",
            fix="Write in it: def __init__(self, config, params=None), and let build_env_local() "
            "return them as well",
        )
    check_arguments("provider", config.provider_target, config.provider)


def provider_arguments(
    target: Any, config: Any, params: dict[str, Any], block: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return how to call a provider: the config first, or by name, and `params` if it takes them.

    Args:
        target: the class, or a function that returns a provider.
        config: what the provider builds from.
        params: of the `provider` block.
        block: its other arguments, which are given by name.
    """
    known = argument_names(target)
    takes_params = known is None or _PARAMS in known
    named = {_PARAMS: params} if params or takes_params else {}
    if _takes_positional(target, {*block, _PARAMS}):
        return (config,), named
    name = _CONFIG[0] if known is not None and "config" not in known else "config"
    return (), {name: config, **named}


def _located(config: InferenceConfig) -> Any:
    try:
        return locate_callable(config.provider_target)
    except BadTarget as bad:
        raise _bad_target(config, f"but {bad}") from None


def _bad_target(config: InferenceConfig, problem: str, fix: str = "") -> ConfigError:
    value = config.provider_target
    return ConfigError(key="provider._target_", value=value, problem=problem, fix=fix)


def _has(target: type, name: str) -> bool:
    is_abstract = name in getattr(target, "__abstractmethods__", ())
    return not is_abstract and callable(getattr(target, name, None))


def _takes_config(target: Any, given: set[str]) -> bool:
    known = argument_names(target)
    by_name = known is None or bool(known.intersection(_CONFIG))
    return by_name or _takes_positional(target, {*given, _PARAMS})


def _takes_positional(target: Any, given: set[str]) -> bool:
    """Tell whether there is a positional parameter that the block does not give."""
    signature = signature_of(target)
    if signature is None:
        return True
    first = next(iter(signature.parameters.values()), None)
    if first is None:
        return False
    if first.kind is first.VAR_POSITIONAL:
        return True
    positional = (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
    return first.kind in positional and first.name not in given

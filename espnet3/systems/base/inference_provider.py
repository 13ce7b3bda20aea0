"""The provider of inference: a dataset and a model in each worker."""

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.config.instantiate import instantiate
from espnet3.config.resolve import resolved
from espnet3.config.targets import (
    BadTarget,
    argument_names,
    check_arguments,
    locate_callable,
    signature_of,
)
from espnet3.errors import ConfigError, ProviderError, ResourceError, suggest
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.execute import build_part, part_key

if TYPE_CHECKING:
    from espnet3.systems.base.inference_config import InferenceConfig

ORGANIZER = "espnet3.components.data.data_organizer.DataOrganizer"

_NOT_GIVEN: Any = object()
_PARAMS = "params"
_CONFIG = ("inference_config", "config")
_TO_WRITE = {
    "build_env_local": 'def build_env_local(self): return {"dataset": ..., "model": ...}',
    "build_worker_setup_fn": "def build_worker_setup_fn(self): return self.build_env_local",
}
# Of drivers: NVIDIA's, that of Windows' subsystem for Linux, and AMD's.
_DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg", "/dev/kfd")


class InferenceProvider(EnvironmentProvider):
    """Builds `dataset` and `model` from a config, once in each worker.

    Override the static `build_dataset` or `build_model` where the default does not fit; everything
    in `params` is passed on to `forward` by name.

    Args:
        config: what the build functions get, usually the inference config.
        params: small extra arguments of `forward`, such as `{"beam_size": 8}`.
        inference_config: another name of `config`, for code that calls it so; give one of the two.
    """

    fingerprint_ignore: tuple[str, ...] = (
        "config.inference_dir",
        "config.metrics",
        "config.runner",
    )
    """What the results of inference do not depend on."""

    def __init__(
        self,
        config: Any = _NOT_GIVEN,
        params: Mapping[str, Any] | None = None,
        *,
        inference_config: Any = _NOT_GIVEN,
    ) -> None:
        super().__init__(_given_config(type(self), config, inference_config))
        self.params = dict(params or {})
        for name in ("build_dataset", "build_model"):
            # getattr_static, because getattr would return a plain function for a static method.
            if not isinstance(inspect.getattr_static(type(self), name), staticmethod | classmethod):
                raise ProviderError(
                    f"{type(self).__name__}.{name} is not static. Workers call it with the config "
                    f"alone; write @staticmethod above 'def {name}' and take no 'self'."
                )
        reserved = {"dataset", "model"} & set(self.params)
        if reserved:
            raise ProviderError(
                f"params holds {sorted(reserved)[0]!r}, which the provider builds itself. Override "
                f"build_{sorted(reserved)[0]}() instead."
            )

    @staticmethod
    def build_dataset(config: Any) -> Any:
        """Build the test set that `config.test_set` names from `config.dataset`."""
        organizer = instantiate(_organizer_block(config), key="dataset")
        name = config.test_set
        # Asked first: a KeyError from inside the dataset is the user's to see.
        if name not in organizer.test:
            known = list(organizer.test)
            raise ConfigError(
                f"test_set is {name!r}, but dataset.test has {', '.join(map(repr, known))}."
                f"{suggest(name, known)}"
            )
        return organizer.test[name]

    @staticmethod
    def build_model(config: Any) -> Any:
        """Build `config.model` on this worker's device; see `resolve_device`.

        A module of torch is put into evaluation mode.
        """
        model = instantiate(config.model, key="model", device=resolve_device(config))
        # Not imported: a model without torch should not pay for its import.
        torch = sys.modules.get("torch")
        is_module = torch is not None and isinstance(model, torch.nn.Module)
        return model.eval() if is_module else model

    def build_env_local(self) -> dict[str, Any]:
        """Build dataset and model in this process."""
        return _build_env(type(self), self.config, self.params)

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return a function that carries the config, and builds dataset and model in a worker."""
        return _Setup(type(self), self.config, self.params)


@dataclass(frozen=True)
class _Setup:
    """Builds dataset and model in a worker, which may have the model from another test set."""

    provider: type[InferenceProvider]
    config: Any
    params: dict[str, Any]

    def __call__(self) -> dict[str, Any]:
        return _build_env(self.provider, self.config, self.params)

    def part_keys(self) -> dict[str, str]:
        """Return what the model is made of, where that is known: see `build_part`."""
        # One of the user's may look at anything in the config, such as the test set.
        is_ours = self.provider.build_model is InferenceProvider.build_model
        return {"model": model_key(self.config)} if is_ours else {}


def model_key(config: Any) -> str:
    """Return a key of the model that a config describes: the same for equal ones only."""
    get = config.get if hasattr(config, "get") else partial(getattr, config)
    try:
        block = {key: resolved(get(key, None)) for key in ("model", "device", "recipe_dir")}
    except ConfigError:  # which building it will say
        return ""
    return part_key(block, {"config": block})


def organizer_defaults(block: Any, recipe_dir: Any) -> dict[str, Any]:
    """Return what a `dataset` block leaves unsaid, so that it can be instantiated."""
    if not isinstance(block, Mapping) or block.get("_target_", ORGANIZER) != ORGANIZER:
        return {}  # an organizer of the user's own may take other arguments
    unsaid = {"_target_": ORGANIZER, "recipe_dir": recipe_dir}
    return {key: value for key, value in unsaid.items() if key not in block}


def builds_own_dataset(target: Any) -> bool:
    """Tell whether a provider, by its class, builds datasets otherwise than `InferenceProvider`."""
    is_ours = isinstance(target, type) and issubclass(target, InferenceProvider)
    return not is_ours or target.build_dataset is not InferenceProvider.build_dataset


def _given_config(provider: type, config: Any, inference_config: Any) -> Any:
    # A sentinel, as the config itself may be None.
    given = [value for value in (config, inference_config) if value is not _NOT_GIVEN]
    if len(given) == 1:
        return given[0]
    what = "both config and inference_config, which are one" if given else "no config"
    raise ProviderError(
        f"{provider.__name__} is given {what}.",
        fix=f"Write: {provider.__name__}(config, params=params)",
    )


def _organizer_block(config: Any) -> Any:
    """Return the `dataset` block, with what goes without saying."""
    block = resolved(config.dataset)
    recipe_dir = config.get("recipe_dir") if hasattr(config, "get") else None
    unsaid = organizer_defaults(block, recipe_dir)
    return {**unsaid, **block} if unsaid else config.dataset


def _build_env(
    provider: type[InferenceProvider], config: Any, params: dict[str, Any]
) -> dict[str, Any]:
    return {
        "dataset": provider.build_dataset(config),
        "model": build_part("model", lambda: provider.build_model(config)),
        **params,
    }


def resolve_device(config: Any) -> str:
    """Return the device for this worker's model.

    It is `config.device` if set; else the GPU with this worker's `LOCAL_RANK`, counted among the
    visible ones and starting over if there are more workers than GPUs; else the CPU. Never a
    physical number: a scheduler that gives a job GPU 3 shows it as the only one, number 0.
    """
    device = config.get("device") if hasattr(config, "get") else getattr(config, "device", None)
    if device:
        return _checked(str(device))
    if not _may_have_gpus():
        return "cpu"
    import torch

    n_gpus = torch.cuda.device_count()
    if n_gpus == 0:
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % n_gpus}"


def _may_have_gpus() -> bool:
    """Tell whether asking torch is worth its import, of seconds, in each worker."""
    return "torch" in sys.modules or any(Path(driver).exists() for driver in _DRIVERS)


def _checked(device: str) -> str:
    """Refuse a GPU that is not there, instead of an error from deep inside the model.

    Raises:
        ResourceError: no GPU, or not so many, can be seen from this worker.
    """
    if not device.startswith("cuda"):
        return device
    import torch

    n_gpus = torch.cuda.device_count()
    if n_gpus > int(device.partition(":")[2] or 0):
        return device
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    raise ResourceError(
        f"device is {device!r}, but this worker sees {n_gpus} GPU(s) "
        f"(CUDA_VISIBLE_DEVICES={visible!r}). Leave device unset: each worker takes what it has."
    )


def check_provider(config: "InferenceConfig") -> None:
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


def _located(config: "InferenceConfig") -> Any:
    try:
        return locate_callable(config.provider_target)
    except BadTarget as bad:
        raise _bad_target(config, f"but {bad}") from None


def _bad_target(config: "InferenceConfig", problem: str, fix: str = "") -> ConfigError:
    value = config.provider_target
    return ConfigError(key="provider._target_", value=value, problem=problem, fix=fix)


def _has(target: type, name: str) -> bool:
    # An abstract method exists, and would only fail when the provider is built.
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

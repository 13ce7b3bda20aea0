"""The provider of stage 3: a dataset, and a model that computes features, in each worker.

Apart from the stage, so that workers do not import pydantic and the schedulers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from espnet3.components.data.random_numbers import fixed_random
from espnet3.config.instantiate import instantiate
from espnet3.errors import ConfigError
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.execute import build_part
from espnet3.systems.base.inference_provider import model_key, resolve_device

COLLECT_FEATS = "collect_feats"


class StatisticsProvider(EnvironmentProvider):
    """Builds `dataset`, `model` and `collate_fn` from a config, once in each worker.

    Args:
        config: `split`, `dataset`, and as far as there are any `model`, `collate_fn`, `device`.
    """

    def build_env_local(self) -> dict[str, Any]:
        """Build them in this process."""
        return _build_env(self.config)

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return a function that carries the config, and builds them in a worker."""
        return _Setup(self.config)


@dataclass(frozen=True)
class _Setup:
    """Builds the environment in a worker, which may have the model from another split."""

    config: Any

    def __call__(self) -> dict[str, Any]:
        return _build_env(self.config)

    def part_keys(self) -> dict[str, str]:
        """Return what the model is made of: see `build_part`."""
        return {"model": model_key(self.config)}


def build_split(config: Any) -> Any:
    """Build the dataset of `config.split`.

    Raises:
        ConfigError: there is none.
    """
    organizer = instantiate(config.dataset, key="dataset")
    dataset = getattr(organizer, config.split, None)
    if dataset is None:
        raise ConfigError(
            f"{type(organizer).__qualname__} has no dataset {config.split!r}. Let its attribute "
            f"{config.split} be a dataset, or leave dataset.{config.split} out of the config."
        )
    return dataset


def _build_env(config: Mapping[str, Any]) -> dict[str, Any]:
    from espnet3.components.data.loader_config import build_collate

    dataset = build_split(config)
    has_model = bool(config.get("model"))
    model = build_part("model", lambda: _build_model(config)) if has_model else None
    # The default one needs torch, which takes seconds to import.
    collate_fn = build_collate(config.get("collate_fn")) if model is not None else None
    return {"dataset": dataset, "model": model, "collate_fn": collate_fn}


def _build_model(config: Any) -> Any:
    """Build the model on this worker's device, in evaluation mode; None if it has no features."""
    import torch  # noqa: F401 - so that the block below seeds it as well

    # A front end with random weights must be the same in all workers.
    with fixed_random() as seed:
        seed(0)
        model = instantiate(config.model, key="model")
    if not callable(getattr(model, COLLECT_FEATS, None)):
        return None
    if hasattr(model, "to") and hasattr(model, "eval"):
        return model.to(resolve_device(config)).eval()
    return model

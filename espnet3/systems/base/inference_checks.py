"""What can be wrong with an inference config, found before anything is built."""

from typing import TYPE_CHECKING

from espnet3.config.arguments import check_arguments
from espnet3.config.sources import set_in
from espnet3.config.targets import locate
from espnet3.errors import ConfigError
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.clusters.table import check_resources
from espnet3.parallel.parallel import as_parallel_config
from espnet3.systems.base.inference_config import (
    DEFAULT_PROVIDER,
    DEFAULT_RUNNER,
    InferenceConfig,
    load_inference_config,
)
from espnet3.systems.base.inference_output import load_function
from espnet3.systems.base.inference_provider import ORGANIZER, builds_own_dataset
from espnet3.systems.base.provider_target import check_provider
from espnet3.systems.base.test_sets import chosen_test_sets, listed_test_sets

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_EXAMPLES = {
    "model": "{_target_: src.model.MyModel}",
    "dataset": "{test: [{name: dev, data_src: kaldi, data_src_args: {path: data/dev}}]}",
}


def check_inference(loaded: "LoadedConfig", *, runs_here: bool = True) -> InferenceConfig:
    """Check all that can be checked without building anything.

    Args:
        loaded: the config.
        runs_here: whether this machine must have what workers need, such as GPUs.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    from espnet3.components.data.data_organizer import check_datasets

    if runs_here:
        check_resources(as_parallel_config(loaded))
    config = load_inference_config(loaded)
    chosen_test_sets(listed_test_sets(config.dataset, loaded), config.test_set, loaded)
    check_provider(config, loaded)
    is_provided = builds_own_dataset(locate(config.provider_target))
    check_datasets(loaded, ("test",), provided=is_provided)
    check_arguments("runner", config.runner_target, config.runner, loaded)
    _check_runner(config, loaded)
    if config.provider_target == DEFAULT_PROVIDER:
        _check_default_blocks(config, loaded)
    if config.output_fn:
        load_function(config.output_fn, where=set_in("output_fn", loaded))
    if config.results == "parquet":
        from espnet3.io.parquet import check_parquet

        check_parquet()
    return config


def _check_runner(config: InferenceConfig, loaded: "LoadedConfig") -> None:
    target = locate(config.runner_target)
    if not (isinstance(target, type) and issubclass(target, BaseRunner)):
        raise ConfigError(
            f"runner._target_ is {config.runner_target!r}{set_in('runner._target_', loaded)}, "
            f"which is no BaseRunner. Write: _target_: {DEFAULT_RUNNER}"
        )
    on_error = config.runner.get("on_error", "raise")
    if on_error not in ("raise", "skip"):
        raise ConfigError(
            f"runner.on_error is {on_error!r}{set_in('runner.on_error', loaded)}. Write: "
            "on_error: skip, or on_error: raise"
        )


def _check_default_blocks(config: InferenceConfig, loaded: "LoadedConfig") -> None:
    """Check what `InferenceProvider` builds; providers of users may read these blocks otherwise."""
    for key, example in _EXAMPLES.items():
        if getattr(config, key) is None:
            where = (
                f"{set_in(key, loaded)}; is what is below it indented?" if loaded.has(key) else ","
            )
            raise ConfigError(
                f"{key} is not set{where} InferenceProvider builds it. Write {key}: {example}, or "
                f"a provider of your own with build_{key}(config)."
            )
    _check_test_sets(config, loaded)
    _check_model(config, loaded)


def _check_test_sets(config: InferenceConfig, loaded: "LoadedConfig") -> None:
    assert config.dataset is not None
    is_ours = config.dataset.get("_target_", ORGANIZER) == ORGANIZER
    if is_ours and config.test_set is None and not listed_test_sets(config.dataset, loaded):
        raise ConfigError(
            f"dataset.test{set_in('dataset', loaded)} lists no test set. Write: test: "
            "[{name: dev, data_src: kaldi, data_src_args: {path: data/dev}}]"
        )


def _check_model(config: InferenceConfig, loaded: "LoadedConfig") -> None:
    assert config.model is not None
    if "_target_" not in config.model:
        raise ConfigError(
            f"model{set_in('model', loaded)} has no _target_, so what to build is not known. "
            "Write: _target_: src.model.MyModel"
        )
    arguments = {**config.model, "device": "cpu"}
    check_arguments("model", config.model["_target_"], arguments, loaded)

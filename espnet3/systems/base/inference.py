"""Stage 6, `infer`: decode the test sets of a config on the workers of its `parallel` block."""

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.config.arguments import check_arguments
from espnet3.config.instantiate import instantiate
from espnet3.config.resolve import resolved
from espnet3.config.sources import set_in
from espnet3.config.targets import locate
from espnet3.errors import ConfigError
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.clusters.table import check_resources
from espnet3.parallel.parallel import as_parallel_config, use_parallel
from espnet3.parallel.shared_cluster import SharedCluster
from espnet3.systems.base.inference_code import describe_targets
from espnet3.systems.base.inference_config import (
    DEFAULT_PROVIDER,
    DEFAULT_RUNNER,
    InferenceConfig,
    load_inference_config,
)
from espnet3.systems.base.inference_output import load_function
from espnet3.systems.base.inference_provider import ORGANIZER
from espnet3.systems.base.test_sets import chosen_test_sets, listed_test_sets, results_folder

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)
_DEFAULTED = (
    "input_key", "output_fn", "output_keys", "idx_key", "hyp_key", "ref_key", "batch_size",
    "batch_seconds", "results",
)  # fmt: skip


@dataclass(frozen=True)
class TestSetRun:
    """What decoding one test set takes; the model is built in the workers."""

    __test__ = False  # pytest takes the name for a test

    name: str
    runner: BaseRunner
    n_items: int
    durations: Any
    """Seconds of each item, if the dataset knows them."""

    @property
    def output_dir(self) -> Path:
        """The folder of the results."""
        assert self.runner.output_dir is not None
        return self.runner.output_dir

    def __call__(self, client: Any) -> Any:
        """Decode, or go on, or answer at once if all is done."""
        return self.runner(range(self.n_items), durations=self.durations, client=client)


def infer(loaded: "LoadedConfig") -> dict[str, Any]:
    """Decode all test sets, one after the other, on one cluster.

    Returns:
        What the runner's `merge` returned, by test set: for an `InferenceRunner` the files by
        field.

    Raises:
        ConfigError: before anything starts.
    """
    parallel = as_parallel_config(loaded)
    runs = plan_inference(loaded)
    n_tasks = sum(run.n_items for run in runs)
    with use_parallel(parallel):
        shared = SharedCluster(parallel, n_tasks) if parallel.env != "local" else nullcontext(None)
        with shared as client:
            results = {}
            for run in runs:
                logger.info("Test set %s: %d items into %s", run.name, run.n_items, run.output_dir)
                results[run.name] = run(client)
    return results


def check_inference(loaded: "LoadedConfig") -> InferenceConfig:
    """Check all that can be checked without building anything.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    from espnet3.components.data.data_organizer import check_datasets

    check_resources(as_parallel_config(loaded))
    config = load_inference_config(loaded)
    chosen_test_sets(listed_test_sets(config.dataset, loaded), config.test_set, loaded)
    check_datasets(loaded, ("test",))
    for block in ("provider", "runner"):
        check_arguments(block, getattr(config, f"{block}_target"), getattr(config, block), loaded)
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
    for key, example in (
        ("model", "{_target_: src.model.MyModel}"),
        ("dataset", "{test: [{name: dev, data_src: kaldi, data_src_args: {path: data/dev}}]}"),
    ):
        if getattr(config, key) is None:
            where = (
                f"{set_in(key, loaded)}; is what is below it indented?" if loaded.has(key) else ","
            )
            raise ConfigError(
                f"{key} is not set{where} InferenceProvider builds it. Write {key}: {example}, or "
                f"a provider of your own with build_{key}(config)."
            )
    assert config.model is not None
    assert config.dataset is not None
    is_ours = config.dataset.get("_target_", ORGANIZER) == ORGANIZER
    if is_ours and config.test_set is None and not listed_test_sets(config.dataset, loaded):
        raise ConfigError(
            f"dataset.test{set_in('dataset', loaded)} lists no test set. Write: test: "
            "[{name: dev, data_src: kaldi, data_src_args: {path: data/dev}}]"
        )
    if "_target_" not in config.model:
        raise ConfigError(
            f"model{set_in('model', loaded)} has no _target_, so what to build is not known. "
            "Write: _target_: src.model.MyModel"
        )
    arguments = {**config.model, "device": "cpu"}
    check_arguments("model", config.model["_target_"], arguments, loaded)


def plan_inference(loaded: "LoadedConfig") -> list[TestSetRun]:
    """Build the datasets, and what runs over them.

    Raises:
        ConfigError: also if a test set is empty.
    """
    config = check_inference(loaded)
    listed = listed_test_sets(config.dataset, loaded)
    names = chosen_test_sets(listed, config.test_set, loaded)
    whole = loaded.resolved()
    return [_plan_test_set(_config_of(name, config, whole), config, loaded) for name in names]


def _plan_test_set(
    own_config: "DictConfig", config: InferenceConfig, loaded: "LoadedConfig"
) -> TestSetRun:
    from espnet3.components.data.dataset import durations_of, fingerprint_of

    name = own_config.test_set
    provider = _build_provider(own_config, config, loaded)
    dataset = _build_dataset(provider)
    if len(dataset) == 0:
        raise ConfigError(
            f"The test set {name!r} has no items. Check its data_src_args, or run the stage that "
            "makes it: --stage create_dataset"
        )
    durations = durations_of(dataset)
    if config.batch_seconds is not None and durations is None:
        raise ConfigError(
            f"batch_seconds is {config.batch_seconds:g} but the test set {name!r} does not know "
            "its durations. Write durations(self) in its Dataset, which returns the seconds of "
            "each item; or set batch_size instead."
        )
    runner = _build_runner(provider, config, results_folder(config.inference_dir, name), loaded)
    runner.depends_on = {
        **runner.depends_on,
        "test_set.content": fingerprint_of(dataset),
        "code": describe_targets(resolved(own_config), dataset),
    }
    return TestSetRun(name, runner, len(dataset), durations)


def _config_of(name: str, settings: InferenceConfig, whole: "DictConfig") -> "DictConfig":
    """Return the config as the provider of one test set sees it.

    Defaults are filled in, and the other test sets left out: neither spelling out a default nor
    adding a test set must make these results stale.
    """
    from omegaconf import DictConfig, OmegaConf

    config = DictConfig(OmegaConf.to_container(whole))
    config.update({key: getattr(settings, key) for key in _DEFAULTED})
    config["provider"] = {"_target_": settings.provider_target, **(config.get("provider") or {})}
    config["test_set"] = name
    tests = OmegaConf.select(config, "dataset.test")
    if OmegaConf.is_list(tests):
        config["dataset"]["test"] = [entry for entry in tests if entry.get("name") == name]
    OmegaConf.set_readonly(config, True)
    return config


def _build_provider(config: Any, settings: InferenceConfig, loaded: "LoadedConfig") -> Any:
    block = {"_target_": settings.provider_target, **settings.provider}
    params = block.pop("params", None) or {}
    make = instantiate({**block, "_partial_": True}, key="provider", loaded=loaded)
    return make(config, params=params)


def _build_dataset(provider: Any) -> Any:
    if hasattr(provider, "build_dataset"):
        return provider.build_dataset(provider.config)
    logger.info("%s has no build_dataset(): building all to count", type(provider).__name__)
    return provider.build_env_local()["dataset"]


def _build_runner(
    provider: Any, config: InferenceConfig, output_dir: Path, loaded: "LoadedConfig"
) -> BaseRunner:
    from espnet3.systems.base.inference_runner import InferenceRunner

    block = {"_target_": config.runner_target, **config.runner}
    make = instantiate({**block, "_partial_": True}, key="runner", loaded=loaded)
    shared: dict[str, Any] = {"batch_size": config.batch_size, "output_dir": output_dir}
    # What the dataset holds is described by its own fingerprint.
    ignored = ["exp_tag", "create_dataset", "dataset.train", "dataset.valid"]
    target = locate(config.runner_target)
    if issubclass(target, InferenceRunner):
        # What the runner block itself sets, as in older configs, wins.
        shared |= {k: v for k, v in _output_settings(config).items() if k not in block}
        ignored += [*_DEFAULTED, "output_artifacts", "provider"]  # the runner tells these itself
    keys = tuple(f"config.{key}" for key in ignored)
    provider.fingerprint_ignore = (*getattr(provider, "fingerprint_ignore", ()), *keys)
    runner: BaseRunner = make(provider, **shared)
    runner.batch_seconds = config.batch_seconds
    runner.is_configured = True
    return runner


def _output_settings(config: InferenceConfig) -> dict[str, Any]:
    names = ("idx_key", "hyp_key", "ref_key", "input_key", "output_fn", "output_keys", "results")
    artifacts = {name: options.model_dump() for name, options in config.output_artifacts.items()}
    return {**{name: getattr(config, name) for name in names}, "output_artifacts": artifacts}


def describe_inference(loaded: "LoadedConfig") -> list[str]:
    """Return what the stage would do, line by line; nothing is started or written."""
    from espnet3.systems.base.inference_plan import describe_inference as describe

    return describe(loaded)

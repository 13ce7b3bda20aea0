"""Provider, dataset and runner for decoding one test set."""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.config.instantiate import instantiate
from espnet3.config.resolve import resolved
from espnet3.config.sources import names_places
from espnet3.config.targets import argument_names, locate
from espnet3.errors import ConfigError, EspnetError, ProviderError
from espnet3.parallel.base_runner import BaseRunner, apply_settings
from espnet3.parallel.execute import check_env
from espnet3.parallel.hooks import bind
from espnet3.systems.base.inference_checks import check_inference
from espnet3.systems.base.inference_code import describe_targets
from espnet3.systems.base.inference_config import (
    BATCHING,
    OUTPUTS,
    InferenceConfig,
    load_inference_config,
    writes_fields,
)
from espnet3.systems.base.inference_provider import (
    InferenceProvider,
    builds_own_dataset,
    organizer_defaults,
)
from espnet3.systems.base.provider_target import provider_arguments
from espnet3.systems.base.readers import keys_of_others, names_in_code
from espnet3.systems.base.sampling_rates import check_test_samples
from espnet3.systems.base.test_sets import chosen_test_sets, listed_test_sets, results_folder

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from espnet3.config.load import LoadedConfig
    from espnet3.systems.base.inference_output import Need

logger = logging.getLogger(__name__)
_ENTRY = re.compile(r"dataset\.test\.0((?:\.\w+)*)")
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
        """Decode; resumes, and answers at once if all is done."""
        return self.runner(range(self.n_items), durations=self.durations, client=client)


@names_places
def plan_inference(
    loaded: "LoadedConfig", *, runs_here: bool = True, needs: Sequence["Need"] = ()
) -> list[TestSetRun]:
    """Build the datasets, and what runs over them.

    Args:
        loaded: the config.
        runs_here: whether this machine must have what workers need; not for a mere description.
        needs: fields that a later stage reads.

    Raises:
        ConfigError: also if a test set is empty.
    """
    from espnet3.systems.base.inference_runner import InferenceRunner

    config = check_inference(loaded, runs_here=runs_here)
    names = chosen_test_sets(listed_test_sets(config.dataset), config.test_set)
    whole = loaded.resolved()
    runs = [_plan_test_set(_config_of(name, config, whole), config, loaded) for name in names]
    for run in runs:
        if isinstance(run.runner, InferenceRunner):
            run.runner.needs = tuple(needs)
    return runs


@names_places
def open_test_set(loaded: "LoadedConfig", name: str) -> Any:
    """Build the dataset of one test set as `infer` sees it, and nothing else.

    Raises:
        ConfigError: The config is wrong, or has no such test set.
    """
    config = load_inference_config(loaded)
    chosen_test_sets(listed_test_sets(config.dataset), name)
    own_config = _config_of(name, config, loaded.resolved())
    return _build_env(_build_provider(own_config, config), own_config)["dataset"]


def _plan_test_set(
    own_config: "DictConfig", config: InferenceConfig, loaded: "LoadedConfig"
) -> TestSetRun:
    from espnet3.components.data.dataset import durations_of, fingerprint_of
    from espnet3.components.data.errors import create_command

    name = own_config.test_set
    provider = _build_provider(own_config, config)
    try:
        env = _build_env(provider, own_config)
    except EspnetError as error:
        listed = listed_test_sets(config.dataset)
        position = listed.index(name) if name in listed else 0
        raise _with_place(error, position, loaded) from error.__cause__
    dataset = env["dataset"]
    if len(dataset) == 0:
        raise ConfigError(
            f"The test set {name!r} has no items. Check its data_src_args, or run the stage that "
            f"makes it: {create_command()}"
        )
    check_test_samples(dataset, name, own_config)
    # With `skip`, audio that cannot be read fails alone, when its turn comes.
    durations = durations_of(dataset, 0.0 if config.runner.get("on_error") == "skip" else None)
    runner = _build_runner(provider, config, results_folder(config.inference_dir, name), loaded.has)
    if durations is None and runner.batch_seconds is not None:
        _tell_unknown_durations(runner.batch_seconds, name, config)
        runner.batch_seconds = None
    if not hasattr(
        provider, "build_dataset"
    ):  # what forward() misses is told here rather than by each worker
        bind(type(runner).forward, ["idx"], {**env, **runner.settings()})
    runner.depends_on = {
        **runner.depends_on,
        "test_set.content": fingerprint_of(dataset),
        "code": describe_targets(resolved(own_config), dataset),
    }
    return TestSetRun(name, runner, len(dataset), durations)


def _with_place(error: EspnetError, position: int, loaded: "LoadedConfig") -> EspnetError:
    """Return an error about the one test set that a provider sees with its true position."""

    def placed(match: re.Match[str]) -> str:
        key = f"dataset.test.{position}{match[1]}"
        return f"{key}{loaded.set_in(key)}"

    return type(error)(_ENTRY.sub(placed, str(error), count=1))


def _tell_unknown_durations(seconds: float, name: str, config: InferenceConfig) -> None:
    """Refuse, or warn where a provider of one's own has put its dataset around the recipe's.

    Raises:
        ConfigError: the dataset of a source does not know its durations.
    """
    problem = f"batch_seconds is {seconds:g} but the test set {name!r} does not know its durations"
    ways = (
        "Write durations(self) in its Dataset, which returns the seconds of each item; or set "
        "batch_size instead: batch_seconds=null batch_size=8"
    )
    if not builds_own_dataset(locate(config.provider_target)):
        raise ConfigError(f"{problem}. {ways}")
    logger.warning(
        "%s: its items are decoded in batches of batch_size, or alone. %s", problem, ways
    )


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
    if settings.dataset is not None:  # so that a provider may call instantiate(config.dataset)
        unsaid = organizer_defaults(settings.dataset, config.get("recipe_dir"))
        config["dataset"] = {**unsaid, **config["dataset"]}
    tests = OmegaConf.select(config, "dataset.test")
    if OmegaConf.is_list(tests):
        config["dataset"]["test"] = [entry for entry in tests if entry.get("name") == name]
    OmegaConf.set_readonly(config, True)
    return config


def _build_provider(config: Any, settings: InferenceConfig) -> Any:
    block = {"_target_": settings.provider_target, **settings.provider}
    params = block.pop("params", None) or {}
    make = instantiate({**block, "_partial_": True}, key="provider")
    target = locate(settings.provider_target)
    args, named = provider_arguments(target, config, params, settings.provider)
    return make(*args, **named)


def _build_env(provider: Any, config: Any) -> dict[str, Any]:
    """Build the dataset, to count its items, and all else where a provider cannot build it alone.

    Raises:
        ProviderError: there is no dataset.
    """
    if hasattr(provider, "build_dataset"):
        return {"dataset": provider.build_dataset(getattr(provider, "config", config))}
    name = type(provider).__name__
    logger.info("%s has no build_dataset(): building all to count", name)
    env = check_env(provider.build_env_local(), f"{name}.build_env_local()")
    dataset = env.get("dataset")
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        found = f"dataset is a {type(dataset).__name__}" if "dataset" in env else "has no dataset"
        raise ProviderError(
            f"{name}.build_env_local() returned {', '.join(env) or 'nothing'}, which {found}: the "
            "stage infer must know how many items there are. Return a dataset with __len__ and "
            '__getitem__: {"dataset": dataset, "model": model}'
        )
    return env


def _build_runner(
    provider: Any, config: InferenceConfig, output_dir: Path, has: Callable[[str], bool]
) -> BaseRunner:
    from espnet3.systems.base.inference_runner import InferenceRunner

    target = locate(config.runner_target)
    given = _settings_of(target, config, has)
    runner = _make_runner(target, provider, config, {**given, "output_dir": output_dir})
    # One of one's own may take less than there is, or pass on less than it got.
    runner.output_dir = runner.output_dir or output_dir
    apply_settings(runner, {**given, **config.runner})
    if isinstance(runner, InferenceRunner):
        runner.apply_outputs(given)
    # What the dataset holds is described by its own fingerprint; what is read by other stages only
    # changes no result.
    others = {*keys_of_others("infer"), "vars"} - names_in_code([config.provider_target])
    ignored = ["exp_tag", "dataset.train", "dataset.valid", *sorted(others)]
    # Filled in for the provider: not part of runs that were planned before it was.
    ignored += [f"dataset.{key}" for key in organizer_defaults(config.dataset, None)]
    if not isinstance(provider, InferenceProvider):
        ignored += [name.removeprefix("config.") for name in InferenceProvider.fingerprint_ignore]
    if writes_fields(target):
        ignored += [*_DEFAULTED, "output_artifacts", "provider"]  # the runner tells these itself
    runner.not_results = tuple(f"config.{key}" for key in ignored)
    runner.config_block, runner.folder_key = "runner", "exp_tag"
    return runner


def _make_runner(
    target: type, provider: Any, config: InferenceConfig, given: dict[str, Any]
) -> BaseRunner:
    """Build a runner with those of the settings that it takes.

    Raises:
        ConfigError: it needs an argument that is not set, or sets one itself that is.
    """
    names = argument_names(target)
    taken = given if names is None else {k: v for k, v in given.items() if k in names}
    block = {"_target_": config.runner_target, **config.runner}
    make = instantiate({**block, "_partial_": True}, key="runner")
    try:
        runner: BaseRunner = make(provider, **taken)
    except TypeError as error:
        reason = _ARGUMENT.search(str(error))
        if reason is None:
            raise
        name = reason["twice"] or reason["lacking"]
        advice = (
            f"Delete {name}, or let the class take it: def __init__(self, provider, **settings): "
            "super().__init__(provider, **settings)"
            if reason["twice"]
            else f"Write in the block runner: {name}: VALUE"
        )
        raise ConfigError(
            key="runner._target_",
            value=config.runner_target,
            problem=f"which cannot be built: {error}",
            fix=advice,
        ) from error
    return runner


_ARGUMENT = re.compile(
    r"multiple values for (?:keyword )?argument '(?P<twice>\w+)'"
    r"|missing \d+ required .*argument.*?: '(?P<lacking>\w+)'"
)


def _settings_of(
    target: type, config: InferenceConfig, has: Callable[[str], bool]
) -> dict[str, Any]:
    """Return the arguments of a runner that the config sets by keys of their own."""
    defaults = {name: field.default for name, field in InferenceConfig.model_fields.items()}
    values = {name: getattr(config, name) for name in (*BATCHING, *OUTPUTS)}
    artifacts = {name: options.model_dump() for name, options in config.output_artifacts.items()}
    values["output_artifacts"] = artifacts or None
    given = {
        name: value
        for name, value in values.items()
        if value is not None and (has(name) or value != defaults[name])
    }
    # Runners that are none of ours may mean something else by these names, and are asked.
    known = OUTPUTS if writes_fields(target) else argument_names(target) or ()
    return {name: value for name, value in given.items() if name in BATCHING or name in known}

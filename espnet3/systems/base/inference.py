"""Stage 6, `infer`: decode the test sets of a config on the workers of its `parallel` block."""

import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.commands import free_name, same_command
from espnet3.config.instantiate import instantiate
from espnet3.config.resolve import resolved
from espnet3.config.sources import names_places
from espnet3.config.targets import argument_names, locate
from espnet3.errors import ConfigError, EspnetError, ProviderError
from espnet3.parallel.base_runner import BaseRunner, apply_settings
from espnet3.parallel.detached.control import SharedWorkers
from espnet3.parallel.execute import check_env
from espnet3.parallel.open_pool import SharedCluster
from espnet3.parallel.parallel import as_parallel_config, use_parallel
from espnet3.parallel.signals import interruptible
from espnet3.parallel.tasks import bind
from espnet3.shards.layout import RunLayout
from espnet3.systems.base.checks import keys_of_others, names_in_code
from espnet3.systems.base.context import results_folder, whole_folder
from espnet3.systems.base.datasets import check_test_samples
from espnet3.systems.base.inference_config import (
    BATCHING,
    OUTPUTS,
    InferenceConfig,
    check_inference,
    chosen_test_sets,
    listed_test_sets,
    load_inference_config,
    writes_fields,
)
from espnet3.systems.base.inference_output import Need
from espnet3.systems.base.inference_provider import (
    InferenceProvider,
    builds_own_dataset,
    organizer_defaults,
    provider_arguments,
)
from espnet3.systems.base.stages import Detached
from espnet3.systems.base.training_fingerprint import describe_targets
from espnet3.text import count

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from espnet3.config.load import LoadedConfig
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)
_DEFAULTED = (
    "input_key", "output_fn", "output_keys", "idx_key", "hyp_key", "ref_key", "batch_size",
    "batch_seconds", "results",
)  # fmt: skip
_ARGUMENT = re.compile(
    r"multiple values for (?:keyword )?argument '(?P<twice>\w+)'"
    r"|missing \d+ required .*argument.*?: '(?P<lacking>\w+)'"
)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a stage on workers, over a test set or a split; workers build the model."""

    name: str
    runner: "BaseRunner"
    n_items: int
    durations: Any
    """Seconds of each item, if the dataset knows them."""

    @property
    def output_dir(self) -> Path:
        """The folder of the results."""
        assert self.runner.output_dir is not None
        return self.runner.output_dir

    @property
    def folder(self) -> Path:
        """The folder of the plan and the shards."""
        return self.output_dir / self.runner.shard_subdir

    def __call__(self, client: Any) -> Any:
        """Run it; resumes, and answers at once if all is done.

        Raises:
            StaleRunError: there are results of another config, data or code.
        """
        items = count(self.n_items, "item")
        logger.info("%s: %s into %s", self.name, items, self.output_dir)
        return self.runner(range(self.n_items), durations=self.durations, client=client)


@names_places
def infer(
    loaded: "LoadedConfig",
    *,
    detach: bool = False,
    on_all_done: Callable[[], None] = lambda: None,
    needs: Sequence[Need] = (),
    workers: SharedCluster | None = None,
) -> dict[str, Any] | Detached:
    """Decode all test sets, one after the other, on one cluster.

    Args:
        loaded: the config.
        detach: use detached workers, as with `parallel.mode: async`.
        on_all_done: called if an earlier run had finished all test sets.
        needs: fields that a later stage reads; a first item that lacks one ends the run.
        workers: those of an earlier call.

    Returns:
        What the runner's `merge` returned, by test set: for an `InferenceRunner` the files by
        field; or the folders in which detached workers continue.

    Raises:
        ConfigError: before anything starts.
    """
    parallel = parallel_of(loaded, detach=detach)
    runs = plan_inference(loaded, needs=needs)
    before = _ends(runs)  # a run that is merged now has another file than before
    results = decode_all(runs, parallel, workers)
    if None not in before and _ends(runs) == before:
        on_all_done()
    return results


def decode_all(
    runs: Sequence[PlannedRun], parallel: "ParallelConfig", workers: SharedCluster | None = None
) -> dict[str, Any] | Detached:
    """Run all on one set of workers, or leave them to detached ones; results are by name."""
    if parallel.mode == "async":
        return _leave(runs, parallel)
    return run_all(runs, parallel, workers)


def run_all(
    runs: Sequence[PlannedRun], parallel: "ParallelConfig", workers: SharedCluster | None = None
) -> dict[str, Any]:
    """Run one after the other, on the same workers, and return what each returned, by name.

    Args:
        runs: in this order.
        parallel: where workers run.
        workers: those of an earlier call, which stay for a later one; else they end with this one.
    """
    # For all runs together, as they share one cluster.
    n_tasks = sum(run.n_items for run in runs)
    opened = SharedCluster(parallel, n_tasks) if workers is None else nullcontext(workers)
    results = {}
    # Also between two runs a signal must not leave jobs behind.
    with interruptible(), use_parallel(parallel), opened as shared:
        for run in runs:
            shared.kept.is_open = workers is not None or run is not runs[-1]
            results[run.name] = run(shared)
    return results


def _ends(runs: Sequence[PlannedRun]) -> list[tuple[int, int] | None]:
    """Return an identity of the end of each run; None for one that is not complete."""
    found: list[tuple[int, int] | None] = []
    for run in runs:
        file = RunLayout(run.folder, n_shards=1).success
        stat = file.stat() if file.exists() else None
        found.append((stat.st_ino, stat.st_mtime_ns) if stat else None)
    return found


def parallel_of(loaded: "LoadedConfig", *, detach: bool = False) -> "ParallelConfig":
    """Return the `parallel` block, as it is with `--detach`.

    Raises:
        ConfigError: if its workers cannot be detached.
    """
    parallel = as_parallel_config(loaded)
    if not detach or parallel.mode == "async":
        return parallel
    return as_parallel_config({**parallel.model_dump(exclude_unset=True), "mode": "async"})


def _leave(runs: Sequence[PlannedRun], parallel: "ParallelConfig") -> dict[str, Any] | Detached:
    """Submit workers for all test sets together; results are there if all is done already."""

    with use_parallel(parallel), SharedWorkers(parallel) as workers:
        handles = {run.name: run(workers) for run in runs}
    if workers.roots:
        return Detached(tuple(workers.roots))
    return {name: handle.result() for name, handle in handles.items()}


@names_places
def plan_inference(
    loaded: "LoadedConfig", *, runs_here: bool = True, needs: Sequence[Need] = ()
) -> list[PlannedRun]:
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
    runs = [_plan_test_set(_config_of(name, config, whole), config, loaded.has) for name in names]
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
    own_config: "DictConfig", config: InferenceConfig, has: Callable[[str], bool]
) -> PlannedRun:
    from espnet3.components.data.dataset import durations_of, fingerprint_of
    from espnet3.components.data.errors import DataError, create_command

    name = own_config.test_set
    provider = _build_provider(own_config, config)
    try:
        env = _build_env(provider, own_config)
    except EspnetError as error:
        listed = listed_test_sets(config.dataset)
        # The provider sees one test set alone, at position 0.
        error.move("dataset.test.0", f"dataset.test.{listed.index(name) if name in listed else 0}")
        raise
    dataset = env["dataset"]
    if len(dataset) == 0:
        raise ConfigError(
            f"The test set {name!r} has no items.",
            fix=f"Check its data_src_args, or run the stage that makes it: {create_command()}",
        )
    # Before the durations, for which every audio file may have to be opened.
    check_test_samples(dataset, name, own_config)
    # With `skip`, audio that cannot be read fails alone, when its turn comes.
    try:
        durations = durations_of(dataset, 0.0 if config.runner.get("on_error") == "skip" else None)
    except DataError as error:
        error.add_note(f"To decode the others, type: {same_command('runner.on_error=skip')}")
        raise
    runner = _build_runner(provider, config, results_folder(config.inference_dir, name), has)
    if durations is None and runner.batch_seconds is not None:
        _report_unknown_durations(runner.batch_seconds, name, config)
        runner.batch_seconds = None
    if not hasattr(provider, "build_dataset"):
        # An argument that forward() lacks is an error here, rather than in each worker.
        bind(type(runner).forward, ["idx"], {**env, **runner.settings()})
    runner.depends_on = {
        **runner.depends_on,
        "test_set.content": fingerprint_of(dataset),
        "code": describe_targets(resolved(own_config), dataset),
    }
    return PlannedRun(name, runner, len(dataset), durations)


def _report_unknown_durations(seconds: float, name: str, config: InferenceConfig) -> None:
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

    # A copy, as it is changed below and `whole` serves all test sets.
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
    # Providers get it, and must not change what the fingerprint was taken of.
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
    # Loading a whole model just to count items may take minutes, so it is at least said.
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
        ignored += [
            *_DEFAULTED,
            "output_artifacts",
            "provider",
        ]  # the runner describes these itself
    runner.not_results = tuple(f"config.{key}" for key in ignored)
    elsewhere = free_name(os.path.normpath(whole_folder(output_dir.parent)))
    runner.config_block, runner.elsewhere = "runner", f"inference_dir={elsewhere}"
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
        # Only a mismatch of arguments is the config's fault; other TypeErrors are bugs to be seen.
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

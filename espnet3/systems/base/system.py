"""A system: a class whose methods are the stages of a recipe."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError
from espnet3.systems.base.context import complete_all
from espnet3.systems.base.given_parts import NOTHING_GIVEN, GivenParts
from espnet3.systems.base.stages import (
    KINDS,
    Skipped,
    find_config,
    find_stage,
    has_own,
    stages_of,
    steps_of,
)

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig
    from espnet3.parallel.open_pool import SharedCluster
    from espnet3.systems.base.checks import Reader
    from espnet3.systems.base.inference_output import Need
    from espnet3.systems.base.sweep import Sweep
    from espnet3.systems.base.training_record import Comparison

_MAKE_NO_INPUTS = ("train", "average", "infer", "measure", "report", "pack_model", "upload_model")
"""Stages that make neither data nor files of a training config; one of a recipe's own may."""


class BaseSystem:
    """Prepares data, runs inference and measures it; subclass it to add or replace stages.

    A method named as a known stage replaces that stage; `@stage(...)` adds one. A method
    `describe_<stage>()` returns the lines that `--dry-run` shows, and `check_<stage>()` raises
    before the first stage runs if that one cannot.

    Args:
        training: the config of stages 1 to 5, as `load_config` returns it.
        inference: that of `infer`.
        metrics: that of `measure` and `report`.
        publication: that of `pack_model` and `upload_model`.
        demo: that of `pack_demo` and `upload_demo`.

    Example:
        >>> class MySystem(BaseSystem):
        ...     def train(self):
        ...         print("training")
        >>> MySystem().train()
        training
    """

    planned: tuple[str, ...] = ()
    """Names of the stages that are to run, for checks of what an earlier one of them makes."""
    detach = False
    """Whether stages use detached workers where they can: `--detach`."""
    on_work: Callable[[], None] = staticmethod(lambda: None)
    """Called by a stage that often finds all done, when it has something to do after all."""
    found_all_done = False
    """Set by a stage that did nothing, because an earlier run had done it all."""
    given: GivenParts = NOTHING_GIVEN
    """Model and data of `train` that come as objects, in place of blocks of its config."""
    sweep: "Sweep | None" = None
    """Values of settings that `infer` and `measure` try instead: `--best`."""
    workers: "SharedCluster | None" = None
    """Workers that several systems share."""
    _comparison: "Comparison | None" = None

    def __init__(
        self,
        training: "LoadedConfig | None" = None,
        inference: "LoadedConfig | None" = None,
        metrics: "LoadedConfig | None" = None,
        publication: "LoadedConfig | None" = None,
        demo: "LoadedConfig | None" = None,
    ) -> None:
        given = {
            "training": training, "inference": inference, "metrics": metrics,
            "publication": publication, "demo": demo,
        }  # fmt: skip
        configs = complete_all(given)
        self.training = configs["training"]
        self.inference = configs["inference"]
        self.metrics = configs["metrics"]
        self.publication = configs["publication"]
        self.demo = configs["demo"]

    def config_for(self, stage_name: str) -> "LoadedConfig":
        """Return the config that a stage reads.

        Raises:
            ConfigError: none of those that it can read was given.
        """
        stage = find_stage(stages_of(type(self)), stage_name)
        loaded = find_config(self, stage)
        if loaded is not None:
            return loaded
        raise ConfigError(
            f"Stage {stage} needs a config.",
            fix=f"Write: {type(self).__name__}({stage.configs[0]}="
            f'load_config("conf/{stage.configs[0]}.yaml"))',
        )

    def readers_of(self, stage_name: str) -> "Sequence[Reader]":
        """Return the functions that read the config of a stage of ours, and refuse what is wrong.

        All that they refuse is reported at once, with misspelt keys, so they import nothing heavy.
        """
        from espnet3.systems.base.checks import readers_of

        return readers_of(stage_name)

    @property
    def exp_dir(self) -> Path:
        """The folder of the experiment, which all configs share."""
        return Path(self._context("exp_dir"))

    @property
    def recipe_dir(self) -> Path:
        """The folder of the recipe."""
        return Path(self._context("recipe_dir"))

    def _context(self, key: str) -> Any:
        for kind in KINDS:
            loaded: LoadedConfig | None = getattr(self, kind)
            if loaded is not None and loaded.has(key):
                return loaded.config[key]
        raise ConfigError(f"No config sets {key}.", fix=f"Write in one of them: {key}: VALUE")

    def create_dataset(self) -> Any:
        """Prepare the data."""
        from espnet3.components.data.dataset_builder import create_dataset
        from espnet3.parallel.parallel import use_parallel

        loaded = self.config_for("create_dataset")
        with use_parallel(loaded):  # for builders that run a runner, such as `build_corpus`
            steps = create_dataset(loaded.resolved())
        if steps and all(": skipped, " in step for step in steps):
            return Skipped("all is there already")
        return steps

    def check_create_dataset(self) -> None:
        """Check the sources and the arguments of their builders before anything runs."""
        from espnet3.components.data.dataset_builder import check_create_dataset
        from espnet3.parallel.parallel import as_parallel_config

        loaded = self.config_for("create_dataset")
        as_parallel_config(loaded)
        check_create_dataset(loaded)

    def describe_create_dataset(self) -> list[str]:
        """Return which steps of the builders would run, and which are done."""
        from espnet3.components.data.dataset_builder import describe_create_dataset

        return describe_create_dataset(self.config_for("create_dataset").resolved())

    collect_stats, check_collect_stats, describe_collect_stats = steps_of(
        "collect_stats", "espnet3.systems.base.statistics"
    )

    def train(self) -> Any:
        """Train the model, or resume a stopped training."""
        from espnet3.systems.base.training import train

        # Until `start` is called: a training that was finished before never calls it.
        self.found_all_done = True
        self.compare_train()

        def start() -> None:
            self.found_all_done = False
            self.on_work()

        comparison, self._comparison = self._comparison, None  # it holds the datasets
        return train(self.config_for("train"), comparison, start, self.given)

    def compare_train(self) -> None:
        """Refuse to train over another training, if `check_train` could not know yet.

        Raises:
            StaleRunError: Naming each key that differs.
        """
        from espnet3.systems.base.training import compare

        loaded = self.config_for("train")
        self._comparison = self._comparison or compare(loaded, given=self.given)

    def check_train(self) -> None:
        """Check the training config, and what was launched, before anything runs.

        Settings and code are compared with those of the training that is there; files and data
        too, if no earlier stage makes them, or else when the stage starts.
        """
        from espnet3.systems.base.training import check_train

        with_inputs = self._has_inputs("train")
        loaded = self.config_for("train")
        comparison = check_train(loaded, with_inputs=with_inputs, given=self.given)
        self._comparison = comparison if with_inputs else None

    def _has_inputs(self, stage_name: str) -> bool:
        """Tell whether no stage that runs before another one makes files or data."""
        before = (
            self.planned[: self.planned.index(stage_name)] if stage_name in self.planned else ()
        )
        return all(name in _MAKE_NO_INPUTS for name in before)

    def check_trained(self, *, with_inputs: bool = False) -> None:
        """Refuse to use weights that another training config made than the one that is given.

        Raises:
            StaleRunError: Naming each key that differs.
        """
        from espnet3.systems.base.training_record import compare_weights

        # A training that runs first makes its own weights, and compares them itself.
        if self.training is None or "train" in self.planned:
            return
        given = (self.inference, self.metrics, self.publication, self.demo)
        others = [loaded for loaded in given if loaded is not None]
        compare_weights(self.training, with_inputs=with_inputs, others=others)

    def describe_train(self) -> list[str]:
        """Describe `train`: data, batches, model, where it resumes."""
        from espnet3.systems.base.training import describe_train

        return describe_train(self.config_for("train"), self._comparison)

    average, check_average, describe_average = steps_of("average", "espnet3.systems.base.training")

    def infer(self) -> Any:
        """Run the model over the test sets."""
        from espnet3.systems.base.inference import infer

        if not self._has_inputs("infer"):  # or it was done before anything ran
            self.check_trained(with_inputs=True)
        if self.sweep is not None:
            needs = self._needs_of_measure()
            return self.sweep.infer(detach=self.detach, needs=needs, workers=self.workers)
        return infer(
            self.config_for("infer"),
            detach=self.detach,
            on_all_done=self._note_all_done,
            needs=self._needs_of_measure(),
            workers=self.workers,
        )

    def _needs_of_measure(self) -> "Sequence[Need]":
        """Return the fields that `measure` reads, if it runs after `infer`."""
        from espnet3.systems.base.metric import needs_of

        if "measure" not in self.planned or not has_own(type(self), "measure", "check_measure"):
            return ()
        return needs_of(self.config_for("measure"), self.config_for("infer"))

    def _note_all_done(self) -> None:
        self.found_all_done = True

    def check_infer(self) -> None:
        """Check the inference config before anything runs."""
        from espnet3.systems.base.datasets import check_test_rates
        from espnet3.systems.base.inference import parallel_of
        from espnet3.systems.base.inference_config import check_inference

        parallel_of(self.config_for("infer"), detach=self.detach)
        check_inference(self.config_for("infer"))
        is_trained_first = "train" in self.planned
        training = self.config_for("train") if is_trained_first else None
        check_test_rates(self.config_for("infer"), training)
        self.check_trained(with_inputs=self._has_inputs("infer"))

    def describe_infer(self) -> list[str]:
        """Return what `infer` would do: test sets, shards, batches, job script."""
        from espnet3.systems.base.run_description import describe_inference

        return describe_inference(self.config_for("infer"), detach=self.detach)

    def measure(self) -> Any:
        """Score the results."""
        from espnet3.systems.base.metric import measure

        if self.sweep is not None:
            return self.sweep.measure()
        return measure(self.config_for("measure"), self.inference)

    def check_measure(self) -> None:
        """Check the metrics config before anything runs."""
        from espnet3.systems.base.metric import check_measure

        decodes_first = "infer" in self.planned and has_own(type(self), "infer", "check_infer")
        check_measure(
            self.config_for("measure"),
            self.inference,
            decodes_first=decodes_first,
            makes_data="create_dataset" in self.planned,
        )
        self.check_trained()

    def describe_measure(self) -> list[str]:
        """Return what `measure` would do."""
        from espnet3.systems.base.metric import describe_measure

        return describe_measure(self.config_for("measure"), self.inference)

    report, check_report, describe_report = steps_of(
        "report", "espnet3.systems.base.report", gets_system=True
    )

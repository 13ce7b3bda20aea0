"""The stages of a system: their numbers, their order, and the configs that they read."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from espnet3.errors import ConfigError, suggest
from espnet3.text import first_line

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

F = TypeVar("F", bound=Callable[..., Any])

KINDS = ("training", "inference", "metrics", "publication", "demo")
"""Of configs; each has an option on the command line, such as `--training_config`."""

_MARK = "_espnet3_stage"


@dataclass(frozen=True)
class Stage:
    """A step of a recipe, which is the method of this name of its system."""

    name: str
    number: int | None
    configs: tuple[str, ...]
    """Kinds of config that it can read; of those that were given, it gets the first."""
    help: str
    alternative_key: str = ""
    """A config of another kind than the first serves only if it has this key."""
    blocks: tuple[str, ...] | None = None
    """Top-level keys of the config of which it builds something; None for all."""
    reads: tuple[str, ...] = ()
    """Dotted keys of its config that it reads, each with all that is below it."""
    ignores: tuple[str, ...] = ()
    """What it leaves alone of these."""
    reads_of_inference: tuple[str, ...] = ()
    """Keys of the inference config that it reads beside its own, if there is one."""
    needs_any: tuple[str, ...] = ()
    """Where `all` or a range covers it, it is skipped if its config has none of these keys."""
    in_all: bool = True
    """Whether `--stages all` runs it."""
    is_distributed: bool = False
    """Whether it may run in many processes at once that srun or torchrun started."""
    can_detach: bool = False
    """Whether it supports detached workers."""
    uses_weights: bool = False
    """Whether it uses a trained model, so that it compares the training config with the one of
    the training."""
    is_defined: bool = False
    """Whether the system has a method for it."""
    is_ours: bool = True
    """Whether the method is ESPnet3's; one of a recipe may read any key."""

    def __str__(self) -> str:
        return self.name if self.number is None else f"{self.name} ({self.number})"


@dataclass(frozen=True)
class Skipped:
    """Result of a stage that had nothing to do, with the reason."""

    reason: str


@dataclass(frozen=True)
class Detached:
    """Result of a detached stage: its run folders."""

    run_dirs: tuple[Path, ...]


_TRAINING = ("training",)
_DATA = ("dataset", "create_dataset")
_MODEL = ("dataset", "dataloader", "model")
_TRAINER = ("trainer", "optimizer", "optimizers")
_INFERENCE = ("dataset", "model", "provider", "runner", "output_artifacts")

EVERYWHERE = ("recipe_dir", "exp_tag", "exp_dir", "vars")
"""Keys that no stage has to account for: where the experiment is, and a block for one's own
values, to which others refer as `${vars.NAME}`."""
_OF_TRAINING = (
    *_MODEL, *_TRAINER, "scheduler", "schedulers", "scheduler_interval", "scheduler_monitor",
    "fit", "best_model_criterion", "checkpoint", "init", "freeze", "num_threads",
    "max_nonfinite_batches", "resume", "accept_changes", "seed", "stats_dir", "tokenizer",
)  # fmt: skip
_OF_INFERENCE = (
    *_INFERENCE, "parallel", "device", "test_set", "inference_dir", "input_key", "output_fn",
    "output_keys", "idx_key", "hyp_key", "ref_key", "batch_size", "batch_seconds", "results",
)  # fmt: skip
_OF_MEASURING = ("metrics", "inference_dir", "test_set", "dataset")
_OF_RESULTS = (
    "dataset", "test_set", "inference_dir", "output_fn", "output_keys", "output_artifacts",
    "idx_key", "hyp_key", "ref_key", "input_key", "provider", "runner", "model",
)  # fmt: skip

STAGES = (
    Stage(
        "create_dataset", 1, ("training", "inference"), "Prepare the data",
        blocks=_DATA, reads=(*_DATA, "parallel", "data_dir", "dataset_dir", "seed"),
    ),
    Stage(
        "train_tokenizer", 2, _TRAINING, "Train the tokenizer",
        blocks=("dataset", "tokenizer"), needs_any=("tokenizer",),
        reads=("dataset", "tokenizer", "parallel", "data_dir"),
        ignores=("dataset.valid", "dataset.test"),
    ),
    Stage(
        "collect_stats", 3, _TRAINING, "Collect shapes and statistics of the features",
        blocks=_MODEL, needs_any=_TRAINER, ignores=("dataset.test",),
        reads=(
            "dataset", "dataloader.collate_fn", "model", "collect_stats", "parallel", "device",
            "stats_dir",
        ),
    ),
    Stage(
        "train", 4, _TRAINING, "Train the model",
        needs_any=_TRAINER, reads=_OF_TRAINING, ignores=("dataset.test",), is_distributed=True,
    ),
    Stage(
        "average", 5, _TRAINING, "Average the best checkpoints", blocks=(), needs_any=_TRAINER,
        reads=("best_model_criterion",), uses_weights=True,
    ),
    Stage(
        "infer", 6, ("inference",), "Run the model over the test sets",
        blocks=_INFERENCE, reads=_OF_INFERENCE, ignores=("dataset.train", "dataset.valid"),
        can_detach=True, uses_weights=True,
    ),
    Stage(
        "measure", 7, ("metrics", "inference"), "Score the results",
        alternative_key="metrics", blocks=("metrics",),
        reads=_OF_MEASURING, reads_of_inference=_OF_RESULTS,
        ignores=("dataset.train", "dataset.valid"), uses_weights=True,
    ),
    Stage(
        "report", 8, ("metrics", "inference"), "Write a report of the scores",
        blocks=(), reads=(*_OF_MEASURING, "report"), reads_of_inference=_OF_RESULTS,
        ignores=("dataset.train", "dataset.valid"), uses_weights=True,
    ),
    Stage(
        "pack_model", 9, ("publication",), "Pack the model for others",
        reads=("pack", "inference_dir"), uses_weights=True,
    ),
    Stage(
        "upload_model", 10, ("publication",), "Upload the packed model",
        needs_any=("upload",), reads=("pack", "upload"),
    ),
    Stage("pack_demo", None, ("demo",), "Pack a demo", in_all=False),
    Stage("upload_demo", None, ("demo",), "Upload the demo", in_all=False),
)  # fmt: skip
"""What every system knows by name, in the order in which they run."""


@dataclass(frozen=True)
class _Mark:
    config: str
    help: str
    after: str
    before: str
    is_distributed: bool


def stage(
    *,
    config: str,
    after: str = "",
    before: str = "",
    help: str = "",
    is_distributed: bool = False,
) -> Callable[[F], F]:
    """Make a method of a system a stage of its own, right after or right before another.

    A method that has the name of a known stage replaces that stage and needs no decorator.

    Args:
        config: the kind of config that it reads: training, inference, metrics, publication, demo.
        after: name of the stage that it follows.
        before: name of the stage that it precedes; give one of the two.
        help: one line for `--list-stages`; the first line of the docstring if left out.
        is_distributed: it trains, so srun or torchrun may start it in many processes at once.

    Example:
        >>> class MySystem:
        ...     @stage(config="inference", after="infer", help="Rescore with a language model")
        ...     def rescore(self): ...
        >>> [str(known) for known in stages_of(MySystem)][5:8]
        ['infer (6)', 'rescore', 'measure (7)']
    """

    def mark(method: F) -> F:
        text = help or first_line(method.__doc__ or "").rstrip(".")
        setattr(method, _MARK, _Mark(config, text, after, before, is_distributed))
        return method

    return mark


def stages_of(system: type) -> tuple[Stage, ...]:
    """Return the stages of a system, in the order in which they run.

    Raises:
        ConfigError: an added stage has no place, exists already, or reads an unknown config.
    """
    stages = list(STAGES)
    anchors: dict[str, str] = {}
    # From the base class on, so that a subclass can place its stages next to inherited ones.
    for cls in reversed(system.__mro__):
        for name, method in vars(cls).items():
            mark = getattr(method, _MARK, None)
            if mark is not None:
                _check_mark(cls, name, mark, [known.name for known in stages])
                stages.insert(_position(stages, mark, anchors), _added(name, mark))
                anchors[name] = mark.after
    return tuple(_as_defined(known, system) for known in stages)


def _as_defined(known: Stage, system: type) -> Stage:
    method = getattr(system, known.name, None)
    # One that a recipe wrote itself may read other keys.
    is_ours = getattr(method, "__module__", "").startswith("espnet3.")
    needs_any = known.needs_any if is_ours else ()
    return replace(known, is_defined=callable(method), is_ours=is_ours, needs_any=needs_any)


def _added(name: str, mark: _Mark) -> Stage:
    return Stage(name, None, (mark.config,), mark.help, is_distributed=mark.is_distributed)


def _position(stages: Sequence[Stage], mark: _Mark, anchors: dict[str, str]) -> int:
    names = [known.name for known in stages]
    if mark.before:
        return names.index(mark.before)
    position = names.index(mark.after) + 1
    # Two stages that follow the same one keep the order in which they are written.
    while position < len(names) and anchors.get(names[position]) == mark.after:
        position += 1
    return position


def _check_mark(cls: type, name: str, mark: _Mark, known: Sequence[str]) -> None:
    where = f"Stage {name!r} of {cls.__name__}"
    if name in known:
        raise ConfigError(
            f"{where} exists already and keeps its place and config.",
            fix=f"Remove @stage(...) above def {name}.",
        )
    if mark.config not in KINDS:
        raise ConfigError(
            f"{where} reads the config {mark.config!r}.{suggest(mark.config, KINDS)} Write: "
            f"@stage(config=...) with one of {', '.join(KINDS)}."
        )
    anchor = mark.after or mark.before
    if bool(mark.after) == bool(mark.before):
        raise ConfigError(
            f"{where} needs one place.",
            fix=f"Write either @stage(config={mark.config!r}, "
            f'after="infer") or @stage(config={mark.config!r}, before="infer").',
        )
    if anchor not in known:
        raise ConfigError(
            f"{where} is placed next to {anchor!r}, which is no stage.{suggest(anchor, known)} "
            f"Stages: {', '.join(known)}."
        )


class StageStep:
    """A step of a stage, as a method of a system: a function of a module that is imported late.

    Args:
        stage: name of the stage, whose config the function gets.
        module: dotted path.
        prefix: of the function's name: none for the stage itself, `check_` or `describe_`.
        gets_system: the function gets the system instead.
    """

    def __init__(self, stage: str, module: str, prefix: str, gets_system: bool) -> None:
        self._stage, self._module, self._name = stage, module, f"{prefix}{stage}"
        self._gets_system = gets_system
        self._is_check = prefix == "check_"

    def __get__(self, system: Any, owner: type | None = None) -> Any:
        # As a function does: on the class it is itself, on an object it is bound.
        return self if system is None else partial(self, system)

    def __call__(self, system: Any) -> Any:
        """Run the step; errors name the file and line of what is wrong in the config."""
        # Imported at the call, so that listing stages does not import torch.
        function = getattr(import_module(self._module), self._name)
        loaded = system.config_for(self._stage)
        with loaded.naming_places():
            found = function(system if self._gets_system else loaded)
        if self._is_check and find_stage(STAGES, self._stage).uses_weights:
            system.check_trained()
        return found


def steps_of(
    stage: str, module: str, *, gets_system: bool = False
) -> tuple[StageStep, StageStep, StageStep]:
    """Return what runs, checks and describes a stage, for a system to have as methods.

    Example:
        >>> class MySystem:
        ...     average, check_average, describe_average = steps_of("average", "my.training")
        >>> callable(MySystem().average)
        True
    """
    run, check, describe = (
        StageStep(stage, module, prefix, gets_system) for prefix in ("", "check_", "describe_")
    )
    return run, check, describe


def find_stage(stages: Iterable[Stage], name: str) -> Stage:
    """Return the stage of this name, which must exist."""
    return next(known for known in stages if known.name == name)


def find_config(configs: Any, stage: Stage) -> "LoadedConfig | None":
    """Return the config that a stage reads: the first that was given, and serves.

    Args:
        configs: a system or `Configs`, which have an attribute for each kind.
        stage: of the system.
    """
    for kind in stage.configs:
        loaded: LoadedConfig | None = getattr(configs, kind)
        needed = stage.alternative_key if kind != stage.configs[0] else ""
        if loaded is not None and (not needed or loaded.has(needed)):
            return loaded
    return None


def has_own(system: type, stage_name: str, companion: str) -> bool:
    """Tell whether a companion method, such as `describe_infer`, belongs to the stage as it is.

    One that was written for a stage that a subclass has replaced since does not.
    """
    owners = [
        next((i for i, cls in enumerate(system.__mro__) if name in vars(cls)), None)
        for name in (companion, stage_name)
    ]
    return owners[0] is not None and owners[1] is not None and owners[0] <= owners[1]

"""Config of a training: its top-level keys, the `trainer` block, and arguments of `_target_`s."""

import inspect
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    create_model,
    field_validator,
)

from espnet3.config.schema import FrozenConfig, Names, validate
from espnet3.config.sources import join_key, names_places
from espnet3.config.targets import BadTarget, find_bad_argument, refuse_argument, signature_at
from espnet3.errors import ConfigError, suggest
from espnet3.logs import said_if_long
from espnet3.trainer.trainer_block import KEY, check_trainer_names, trainer_block

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

OPTIMIZATION = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
"""Arguments that our module carries out, for one optimizer and for several alike."""

_BUILT = {
    "callbacks": "[{_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: valid/loss}]",
    "plugins": "[{_target_: lightning.pytorch.plugins.MixedPrecision, precision: bf16-mixed, "
    "device: cpu}]",
    "profiler": "{_target_: lightning.pytorch.profilers.SimpleProfiler}",
    "strategy": "{_target_: lightning.pytorch.strategies.DDPStrategy}",
    "accelerator": "{_target_: lightning.pytorch.accelerators.CPUAccelerator}",
}
"""Arguments that may hold a `_target_`, or a list of such; loggers have rules of their own."""

_OURS = {
    "use_distributed_sampler": (False, "our loaders spread the samples over the ranks themselves"),
    "barebones": (False, "it leaves out logging and checkpoints, on which resuming relies"),
    "enable_checkpointing": (True, "training resumes from last.ckpt after an interruption"),
}
"""Arguments with one value only, and why."""

_PLAIN = (int, float, bool, str, NoneType)
_CHECKED_BY_NAME = ("accelerator", "strategy", "devices", "num_nodes", "precision")
"""Those that `launch_check` looks at."""

_WHOLE = ("max_epochs", "min_epochs", "max_steps", "min_steps", "log_every_n_steps")

_EXAMPLES = {
    "max_epochs": 20, "min_epochs": 1, "max_steps": 100000, "min_steps": 1000,
    "log_every_n_steps": 50, "limit_train_batches": 1.0, "limit_val_batches": 1.0,
    "check_val_every_n_epoch": 1, "num_sanity_val_steps": 2, "deterministic": True,
    "benchmark": True, "enable_progress_bar": True,
}  # fmt: skip
"""What to write for a value of a wrong type, where Lightning's default is None."""


CRITERIA = "best_model_criterion"
_CRITERION = f"{CRITERIA}: [[valid/loss, 3, min]]"


@dataclass(frozen=True)
class Criterion:
    """Keep the `k` checkpoints with the smallest or largest value of a metric."""

    monitor: str
    """Name of the metric, such as `valid/loss`."""
    k: int
    mode: str
    """`min` or `max`."""

    @property
    def stem(self) -> str:
        """Name of the averaged files without their ending: `valid.loss.ave_3best`."""
        # A slash in the name of a metric would make a folder of it.
        return f"{self.monitor.replace('/', '.')}.ave_{self.k}best"

    def rank(self, value: float) -> float:
        """Return a number that is smaller for a better value."""
        return value if self.mode == "min" else -value

    def __str__(self) -> str:
        return f"{self.monitor} ({self.mode}, best {self.k})"


def _criterion(entry: Any) -> Criterion:
    if not isinstance(entry, list | tuple) or len(entry) != 3:
        raise ValueError(f"needs metric, number and min or max. Write: {_CRITERION}")
    monitor, k, mode = entry
    if not isinstance(monitor, str) or not monitor:
        raise ValueError(f"starts with no name of a metric. Write: {_CRITERION}")
    # bool is a subclass of int, so `true` would pass as one checkpoint.
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ValueError(
            f"{k!r} is no number of checkpoints (1 or more). Write: [{monitor}, 3, {mode}]"
        )
    if mode not in ("min", "max"):
        hint = suggest(str(mode), ("min", "max"))
        raise ValueError(
            f"the mode {mode!r} is neither min nor max.{hint} "
            f"Write: [{monitor}, {k}, {'max' if 'acc' in monitor else 'min'}]"
        )
    return Criterion(monitor, k, mode)


class CriteriaConfig(FrozenConfig):
    """The key by which the best checkpoints are chosen; all that `average` reads."""

    best_model_criterion: tuple[Annotated[Criterion, BeforeValidator(_criterion)], ...] = ()
    """`[[monitor, K, min or max], ...]`: which checkpoints are kept, and averaged."""

    @field_validator("best_model_criterion", mode="before")
    @classmethod
    def _are_lists(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise ValueError(f"must be a list of lists. Write: {_CRITERION}")
        # The outer brackets are what people forget; the entry is quoted back with them.
        if value and isinstance(value[0], str):
            raise ValueError(
                f"must be a list of lists. Write: {CRITERIA}: [[{', '.join(map(str, value))}]]"
            )
        return value

    @field_validator("best_model_criterion")
    @classmethod
    def _differ(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        # The files of an average are named after the metric, so two entries would share them.
        for index, criterion in enumerate(criteria):
            if criterion.monitor in [c.monitor for c in criteria[:index]]:
                raise ValueError(
                    f"names {criterion.monitor} twice. Keep one entry, with the larger number"
                )
        return criteria


class CheckpointConfig(FrozenConfig):
    """Block `checkpoint`: when `last.ckpt` is written besides after each epoch and validation."""

    every_n_steps: PositiveInt | None = None
    """Steps of optimizers between two saves, as in `trainer.max_steps`."""
    every_minutes: PositiveFloat | Literal["auto"] | None = "auto"
    """Minutes between two saves; auto: 1, or as many as keep saving below 1% of the time, up to 30;
    null: only after each epoch and validation."""


Method = Literal["chainer", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"]
METHODS: tuple[str, ...] = get_args(Method)


class InitConfig(FrozenConfig):
    """One file to start from."""

    path: str
    """`.safetensors`, `.ckpt`, or a `state_dict` saved by torch."""
    # `from` is a keyword in Python, so the field cannot have the name that users write.
    source: str = Field("", alias="from")
    """Take only the weights below this prefix, such as `encoder`; it is cut off."""
    to: str = ""
    """Put them below this prefix of the model."""
    exclude: tuple[str, ...] = ()
    """Names in the model, prefixes or patterns (`decoder.*.bias`), to leave as they are."""
    strict: bool = False
    """Whether anything missing, unexpected or of another shape is an error."""


class MethodConfig(FrozenConfig):
    """One way to draw weights: matrices by the method, biases 0, embeddings and norms as built."""

    method: Method
    """Of torch.nn.init; `chainer`: a normal distribution with deviation 1/sqrt(inputs)."""
    to: str = ""
    """Only what is below this prefix of the model."""
    exclude: tuple[str, ...] = ()
    """Names in the model, prefixes or patterns, to leave as they are."""


InitEntry = InitConfig | MethodConfig


def _init_entry(value: Any) -> Any:
    if isinstance(value, str):
        # A file with the name of a method has to be given as {path: ...}.
        return {"method" if value in METHODS else "path": value}
    if not isinstance(value, Mapping):
        raise ValueError(
            "must be a file. Write: init: {path: exp/other/valid.loss.ave_3best.safetensors}"
        )
    return value


def _kind(entry: Mapping[str, Any]) -> str:
    return "draw" if "method" in entry and "path" not in entry else "load"


# With a discriminator pydantic reports one problem; a plain union reports those of both models.
_Entry = Annotated[
    Annotated[InitConfig, Tag("load")] | Annotated[MethodConfig, Tag("draw")],
    Discriminator(_kind),
]


def _pattern(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            "names modules or parameters of the model, * for any. Write: freeze: [encoder.*]"
        )
    return value.strip()


class TrainingConfig(CriteriaConfig):
    """Keys that a training reads; the blocks of others are checked by their owners."""

    exp_dir: str
    """The folder of checkpoints, logs and curves."""
    seed: NonNegativeInt = 0
    """Of the weights, the order of the data, and everything random."""
    resume: Literal["auto", "never"] = "auto"
    """`auto` continues from `last.ckpt`; `never` puts it aside and starts from scratch."""
    accept_changes: Names = Field(default_factory=list)
    """Keys, as a refusal names them, with which a training continues although they changed."""
    num_threads: PositiveInt | None = None
    """Threads of torch on the CPU in each process; see `choose_threads` for the default."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When `last.ckpt` is written besides after each epoch and validation."""
    fit: dict[str, Any] = Field(default_factory=dict)
    """Arguments of Lightning's `Trainer.fit`, such as `ckpt_path`."""
    init: tuple[Annotated[_Entry, BeforeValidator(_init_entry)], ...] = ()
    """Weights to start from: a path, a method, a mapping, or a list of these, in this order."""
    freeze: tuple[Annotated[str, BeforeValidator(_pattern)], ...] = ()
    """Modules and parameters that stay as they are: a pattern or several, see `freeze`."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Arguments of Lightning's trainer, see `check_trainer`."""
    dataloader: Any = None
    """Of the data; here only the number of the loader's workers matters."""

    @field_validator("checkpoint", mode="before")
    @classmethod
    def _of_checkpoint(cls, value: Any) -> Any:
        return _mapping(value, "checkpoint: {every_minutes: 30}")

    @field_validator("fit", mode="before")
    @classmethod
    def _of_fit(cls, value: Any) -> Any:
        return _mapping(value, "fit: {ckpt_path: exp/other/last.ckpt}")

    @field_validator("trainer", mode="before")
    @classmethod
    def _of_trainer(cls, value: Any) -> Any:
        return _mapping(value, "trainer: {accelerator: auto, devices: 1, max_epochs: 10}")

    @field_validator("init", "freeze", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return value if isinstance(value, list | tuple) else [value]

    @property
    def is_trial(self) -> bool:
        """Tell whether it is a few batches only (`fast_dev_run`), of which nothing is kept."""
        return bool(self.trainer.get("fast_dev_run"))

    @property
    def n_loader_workers(self) -> int:
        """Processes of the loader, beside each process that trains."""
        return n_loader_workers(self.dataloader)


def n_loader_workers(dataloader: Any) -> int:
    """Return `train.num_workers` of a `dataloader` block, whatever else is wrong with it."""
    split = dataloader.get("train") if isinstance(dataloader, Mapping) else None
    found = split.get("num_workers") if isinstance(split, Mapping) else None
    # The block has not been validated yet, so anything may stand here.
    return found if isinstance(found, int) else 0


def _mapping(value: Any, line: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping. Write: {line}")
    return value


def load_training_config(loaded: "LoadedConfig") -> TrainingConfig:
    """Read the keys.

    Raises:
        ConfigError: one error that lists every problem.
    """
    return validate(TrainingConfig, those_of(TrainingConfig, loaded.plain()), loaded=loaded)


def load_criteria(loaded: "LoadedConfig") -> tuple[Criterion, ...]:
    """Read `best_model_criterion` alone.

    Raises:
        ConfigError: one error that lists every problem.
    """
    values = those_of(CriteriaConfig, loaded.plain())
    return validate(CriteriaConfig, values, loaded=loaded).best_model_criterion


def those_of(model: type[FrozenConfig], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a model has fields for; what is null counts as not set."""
    return {key: values[key] for key in model.model_fields if values.get(key) is not None}


@names_places
def check_trainer(loaded: "LoadedConfig") -> dict[str, Any]:
    """Check the names and the plain values of the block; no data or model is needed.

    Returns:
        The block.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    check_trainer_names(loaded)
    block = trainer_block(loaded)
    for name, value in block.items():
        key = join_key(KEY, name)
        if isinstance(value, float) and value.is_integer() and name in _WHOLE:
            raise ConfigError(
                key=key,
                value=value,
                problem="but must be a whole number, and YAML takes 1e5 or 10.0 for none",
                fix=f"Write: {name}: {int(value)}",
            )
        if name in _OURS and value != _OURS[name][0]:
            raise ConfigError(
                key=key, value=value, problem=f"but {_OURS[name][1]}", fix="Delete the line."
            )
    plain = plain_arguments()
    values = {name: value for name, value in block.items() if name in plain.model_fields}
    validate(plain, values, prefix=KEY, loaded=loaded)
    return block


def plain_arguments() -> type[FrozenConfig]:
    """Return a model of the arguments that are numbers, texts or switches, as Lightning types them.

    Lightning itself would fail on `max_epochs: three` when data and model are built.
    """
    from lightning.pytorch import Trainer

    parameters = inspect.signature(Trainer.__init__).parameters.values()
    fields: dict[str, Any] = {
        p.name: (p.annotation, _EXAMPLES.get(p.name, p.default))
        for p in parameters
        # The others are checked above, by `launch_check`, or as settings of optimizers.
        if p.name not in (*_CHECKED_BY_NAME, *_OURS, *OPTIMIZATION) and _is_plain(p.annotation)
    }
    model: type[FrozenConfig] = create_model("PlainArguments", __base__=FrozenConfig, **fields)
    return model


def _is_plain(annotation: Any) -> bool:
    parts = get_args(annotation)
    return annotation in _PLAIN or (bool(parts) and all(part in _PLAIN for part in parts))


def load_lightning() -> None:
    """Import Lightning; a line says so where that takes more than two seconds."""
    with said_if_long(logger, "Loading PyTorch Lightning ..."):
        import lightning.pytorch  # noqa: F401


def has_goal(block: Mapping[str, Any]) -> bool:
    """Tell whether the block says when the training ends; Lightning's default is 1,000 epochs."""
    return any(block.get(name) for name in ("max_epochs", "max_steps", "max_time", "fast_dev_run"))


def lightning_arguments(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return what goes to Lightning: objects built, our own arguments left out.

    Raises:
        ConfigError: a `_target_` is missing or cannot be built.
    """
    arguments = {k: v for k, v in block.items() if k not in (*OPTIMIZATION, *_OURS)}
    for name in _BUILT:
        value = arguments.get(name)
        if isinstance(value, list):
            # One by one: of a whole list, Hydra makes a ListConfig, which is no list to Lightning.
            arguments[name] = [_build(name, n, f"{name}.{i}") for i, n in enumerate(value)]
        elif isinstance(value, Mapping):
            arguments[name] = _build(name, value, name)
    return arguments


def blamed_argument(block: Mapping[str, Any], error: Exception) -> str | None:
    """Return the argument in the block that an error of Lightning is about."""
    text = str(error)
    # Its errors have no field for the argument, so the surest sign comes first, the vaguest last.
    quoted = (name for name in block if f"`{name}" in text or f"({name}=" in text)
    named = (name for name in block if name.rstrip("s") in text)
    by_value = (
        name
        for name, value in block.items()
        # A short value such as `no` occurs in any sentence.
        if isinstance(value, str) and len(value) > 2 and value.lower() in text.lower()
    )
    return next(quoted, next(named, next(by_value, None)))


def _build(name: str, node: Any, key: str) -> Any:
    from espnet3.config.instantiate import instantiate

    key = join_key(KEY, key)
    if isinstance(node, Mapping) and "_target_" in node:
        check_call(node, key)
        # Containers of OmegaConf are no lists and dicts to Lightning, nor fit into a checkpoint.
        return instantiate({"_convert_": "all", **node}, key=key)
    if isinstance(node, Mapping | str):
        raise ConfigError(
            f"{key} is {node!r:.80}",
            key=key,
            problem="which names no class",
            fix=f"Write: {name}: {_BUILT[name]}",
        )
    return node


def check_call(node: Mapping[str, Any], key: str, *, added: Iterable[str] = ()) -> None:
    """Refuse arguments that a target does not take, or lacks.

    One with `**kwargs` takes any: where they go, such as from `DDPStrategy` to torch, is its own.

    Args:
        node: `_target_` and its arguments.
        key: of the node, for errors.
        added: arguments that the caller will give as well.

    Raises:
        ConfigError: naming the argument, or those that are missing.
    """
    _check(node, key, {**node, **dict.fromkeys(added)}, lacks_nothing=True)


def check_parts(node: Mapping[str, Any], key: str) -> None:
    """Refuse arguments that the targets within a node do not take; they may lack some as yet.

    Raises:
        ConfigError: naming the argument.
    """
    if node.get("_recursive_") is False:
        return  # what is built of it is up to the target
    for name, child in node.items():
        if isinstance(child, Mapping):
            inner = join_key(key, str(name))
            if "_target_" in child:
                _check(child, inner, child, lacks_nothing=False)
            check_parts(child, inner)


def _check(
    node: Mapping[str, Any],
    key: str,
    arguments: Mapping[str, Any],
    *,
    lacks_nothing: bool,
) -> None:
    target = str(node["_target_"])
    try:
        signature = signature_at(target)
    except BadTarget as bad:
        raise ConfigError(
            key=join_key(key, "_target_"), value=target, problem=f"but {bad}"
        ) from bad
    bad_one = find_bad_argument(signature, arguments) if signature else None
    refuse_argument(bad_one, key, node)
    if bad_one is not None and lacks_nothing:
        raise ConfigError(
            key=key,
            problem=f"does not fit {target}: {bad_one.reason}",
            fix=lambda loaded: bad_one.hint_at(key, node, loaded),
        )

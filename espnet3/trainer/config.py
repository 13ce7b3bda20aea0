"""Config of a training: its top-level keys, the `trainer` block, and arguments of `_target_`s."""

import inspect
from collections.abc import Collection, Iterable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from espnet3.config.advice import unknown_hint
from espnet3.config.resolve import resolved
from espnet3.config.schema import FrozenConfig, Names, validate
from espnet3.config.sources import join_key, set_in
from espnet3.config.targets import BadTarget, find_bad_argument, locate, signature_of
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

KEY = "trainer"

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


class TrainingConfig(FrozenConfig):
    """What `train` reads of its config; the blocks of others are checked by their owners."""

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
    best_model_criterion: Any = None
    """`[[monitor, K, min or max], ...]`: which checkpoints are kept, and averaged."""
    checkpoint: dict[str, Any] = Field(default_factory=dict)
    """When `last.ckpt` is written, see `CheckpointConfig`."""
    fit: dict[str, Any] = Field(default_factory=dict)
    """Arguments of Lightning's `Trainer.fit`, such as `ckpt_path`."""
    init: Any = None
    """Weights to start from, see `initial_weights.py`."""
    freeze: Any = None
    """Modules and parameters that stay as they are: a pattern or several, see `freeze`."""

    @field_validator("checkpoint", mode="before")
    @classmethod
    def _of_checkpoint(cls, value: Any) -> Any:
        return _mapping(value, "checkpoint: {every_minutes: 30}")

    @field_validator("fit", mode="before")
    @classmethod
    def _of_fit(cls, value: Any) -> Any:
        return _mapping(value, "fit: {ckpt_path: exp/other/last.ckpt}")


def _mapping(value: Any, line: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping. Write: {line}")
    return value


def load_training_config(loaded: "LoadedConfig") -> TrainingConfig:
    """Read the keys.

    Raises:
        ConfigError: one error that lists every problem.
    """
    values = resolved(loaded.config, loaded=loaded)
    own = {key: values[key] for key in TrainingConfig.model_fields if values.get(key) is not None}
    return validate(TrainingConfig, own, loaded=loaded)


def trainer_block(loaded: "LoadedConfig") -> dict[str, Any]:
    """Return the resolved `trainer` block as plain values.

    Raises:
        ConfigError: it is no mapping.
    """
    values = resolved(loaded.config, loaded=loaded).get(KEY)
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{KEY} is {values!r:.60}{set_in(KEY, loaded)}, but must be a mapping of Lightning's "
            "arguments. Write: trainer: {accelerator: auto, devices: 1, max_epochs: 10}"
        )
    return dict(values)


def check_trainer(loaded: "LoadedConfig") -> dict[str, Any]:
    """Check the names and the plain values of the block; no data or model is needed.

    Returns:
        The block.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    block = trainer_block(loaded)
    known = trainer_arguments()
    for name, value in block.items():
        key = join_key(KEY, name)
        if name not in known:
            raise ConfigError(_unknown(key, value, known, loaded))
        if isinstance(value, float) and value.is_integer() and name in _WHOLE:
            raise ConfigError(
                f"{key} is {value!r}{set_in(key, loaded)}, but must be a whole number, and YAML "
                f"takes 1e5 or 10.0 for none. Write: {name}: {int(value)}"
            )
        if name in _OURS and value != _OURS[name][0]:
            raise ConfigError(
                f"{key} is {value!r}{set_in(key, loaded)}, but {_OURS[name][1]}. Delete the line."
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
    from pydantic import create_model

    parameters = inspect.signature(Trainer.__init__).parameters.values()
    fields: dict[str, Any] = {
        p.name: (p.annotation, _EXAMPLES.get(p.name, p.default))
        for p in parameters
        if p.name not in (*_CHECKED_BY_NAME, *_OURS, *OPTIMIZATION) and _is_plain(p.annotation)
    }
    model: type[FrozenConfig] = create_model("PlainArguments", __base__=FrozenConfig, **fields)
    return model


def _is_plain(annotation: Any) -> bool:
    parts = get_args(annotation)
    return annotation in _PLAIN or (bool(parts) and all(part in _PLAIN for part in parts))


def _unknown(key: str, value: Any, known: Collection[str], loaded: "LoadedConfig") -> str:
    text = f"{key}{set_in(key, loaded)} is no argument of the trainer."
    hint = unknown_hint(key, value, known, loaded)
    return f"{text}{hint or ' See the arguments of lightning.pytorch.Trainer.'}"


def has_goal(block: Mapping[str, Any]) -> bool:
    """Tell whether the block says when the training ends; Lightning's default is 1,000 epochs."""
    return any(block.get(name) for name in ("max_epochs", "max_steps", "max_time", "fast_dev_run"))


def trainer_arguments() -> frozenset[str]:
    """Return the names of the arguments of Lightning's `Trainer`."""
    from lightning.pytorch import Trainer

    return frozenset(inspect.signature(Trainer.__init__).parameters) - {"self"}


def lightning_arguments(block: Mapping[str, Any], loaded: "LoadedConfig | None") -> dict[str, Any]:
    """Return what goes to Lightning: objects built, our own arguments left out.

    Raises:
        ConfigError: a `_target_` is missing or cannot be built.
    """
    arguments = {k: v for k, v in block.items() if k not in (*OPTIMIZATION, *_OURS)}
    for name in _BUILT:
        value = arguments.get(name)
        if isinstance(value, list):
            # One by one: of a whole list, Hydra makes a ListConfig, which is no list to Lightning.
            arguments[name] = [_build(name, n, f"{name}.{i}", loaded) for i, n in enumerate(value)]
        elif isinstance(value, Mapping):
            arguments[name] = _build(name, value, name, loaded)
    return arguments


def blamed_argument(block: Mapping[str, Any], error: Exception) -> str | None:
    """Return the argument in the block that an error of Lightning speaks of."""
    text = str(error)
    quoted = (name for name in block if f"`{name}" in text or f"({name}=" in text)
    named = (name for name in block if name.rstrip("s") in text)
    by_value = (
        name
        for name, value in block.items()
        if isinstance(value, str) and len(value) > 2 and value.lower() in text.lower()
    )
    return next(quoted, next(named, next(by_value, None)))


def _build(name: str, node: Any, key: str, loaded: "LoadedConfig | None") -> Any:
    from espnet3.config.instantiate import instantiate

    key = join_key(KEY, key)
    if isinstance(node, Mapping) and "_target_" in node:
        check_call(node, key, loaded)
        # Containers of OmegaConf are no lists and dicts to Lightning, nor fit into a checkpoint.
        return instantiate({"_convert_": "all", **node}, key=key, loaded=loaded)
    if isinstance(node, Mapping | str):
        raise ConfigError(
            f"{key} is {node!r:.80}{set_in(key, loaded)}, which names no class. "
            f"Write: {name}: {_BUILT[name]}"
        )
    return node


def check_call(
    node: Mapping[str, Any],
    key: str,
    loaded: "LoadedConfig | None" = None,
    *,
    added: Iterable[str] = (),
) -> None:
    """Refuse arguments that a target does not take, or lacks.

    One with `**kwargs` takes any: where they go, such as from `DDPStrategy` to torch, is its own.

    Args:
        node: `_target_` and its arguments.
        key: of the node, for errors.
        loaded: where it comes from.
        added: arguments that the caller will give as well.

    Raises:
        ConfigError: naming the argument and its place, or those that are missing.
    """
    _check(node, key, loaded, {**node, **dict.fromkeys(added)}, lacks_nothing=True)


def check_parts(node: Mapping[str, Any], key: str, loaded: "LoadedConfig | None" = None) -> None:
    """Refuse arguments that the targets within a node do not take; they may lack some as yet.

    Raises:
        ConfigError: naming the argument and its place.
    """
    if node.get("_recursive_") is False:
        return  # what is built of it is up to the target
    for name, child in node.items():
        if isinstance(child, Mapping):
            inner = join_key(key, str(name))
            if "_target_" in child:
                _check(child, inner, loaded, child, lacks_nothing=False)
            check_parts(child, inner, loaded)


def _check(
    node: Mapping[str, Any],
    key: str,
    loaded: "LoadedConfig | None",
    arguments: Mapping[str, Any],
    *,
    lacks_nothing: bool,
) -> None:
    target = str(node["_target_"])
    try:
        signature = signature_of(locate(target))
    except BadTarget as bad:
        name = join_key(key, "_target_")
        raise ConfigError(f"{name} is {target!r}{set_in(name, loaded)}, but {bad}") from bad
    bad_one = find_bad_argument(signature, arguments) if signature else None
    if bad_one is None or not (bad_one.name or lacks_nothing):
        return
    full = join_key(key, bad_one.name) if bad_one.name else key
    problem = (
        f"is no argument of {target}"
        if bad_one.name
        else f"does not fit {target}: {bad_one.reason}"
    )
    hint = bad_one.hint_at(key, node, loaded)
    raise ConfigError(f"{full}{set_in(full, loaded)} {problem}.{hint}")

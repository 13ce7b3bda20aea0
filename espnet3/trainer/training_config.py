"""The top-level keys of a training config that the trainer reads, beside its block."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from espnet3.config.resolve import resolved
from espnet3.config.schema import FrozenConfig, Names, validate

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


class TrainingConfig(FrozenConfig):
    """What `train` reads of its config; the blocks of others are checked by their owners."""

    exp_dir: str
    """The folder of checkpoints, logs and curves."""
    seed: NonNegativeInt = 0
    """Of the weights, the order of the data, and everything random."""
    resume: Literal["auto", "never"] = "auto"
    """`auto` goes on from `last.ckpt`; `never` puts it aside and starts anew."""
    accept_changes: Names = Field(default_factory=list)
    """Keys, as a refusal names them, with which a training goes on although they changed."""
    num_threads: PositiveInt | None = None
    """Threads of torch on the CPU in each process; see `threads.py` for the default."""
    best_model_criterion: Any = None
    """`[[monitor, K, min or max], ...]`: which checkpoints are kept, and averaged."""
    checkpoint: dict[str, Any] = Field(default_factory=dict)
    """When `last.ckpt` is written, see `CheckpointConfig`."""
    fit: dict[str, Any] = Field(default_factory=dict)
    """Arguments of Lightning's `Trainer.fit`, such as `ckpt_path`."""
    init: Any = None
    """Weights to start from, see `initial_weights.py`."""
    freeze: Any = None
    """Modules and parameters that stay as they are: a pattern or several, see `freezing.py`."""

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

"""What a model returns: a loss, statistics to log, and the weight of the batch in their means."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from espnet3.errors import TrainingError

FORMS = """Return one of:
    return loss, stats, weight               # stats: {"acc": 0.9, ...}; weight: the batch size
    return {"loss": loss, "acc": 0.9}        # or with "stats" and "weight"
    return loss                              # or loss, stats
    return output                            # an object with .loss, as of Hugging Face"""

Number = Tensor | float


@dataclass(frozen=True)
class ModelOutput:
    """An output in one form, whichever the model chose."""

    loss: Tensor
    """A scalar, with its graph."""
    stats: Mapping[str, Number]
    """Detached scalars by name, `loss` among them; what was None is left out."""
    weight: Number
    """Of this batch in the means of its stats."""


def parse_output(output: Any, model: str, default_weight: float = 1.0) -> ModelOutput:
    """Read what `forward` returned.

    Args:
        output: `(loss, stats, weight)`, a mapping with `loss`, an object with `.loss`, the loss
            alone, or `(loss, stats)`.
        model: name of the model's class, for the errors.
        default_weight: taken where the model gives none; as a rule the size of the batch.

    Raises:
        TrainingError: it is of another form, or its loss is no scalar.
    """
    loss: Any
    stats: Any
    weight: Any
    if isinstance(output, Mapping) and "loss" in output:
        loss, stats, weight = _from_mapping(output, model)
    elif hasattr(output, "loss"):
        loss = output.loss
        stats, weight = getattr(output, "stats", None), getattr(output, "weight", None)
    elif isinstance(output, tuple | list) and len(output) == 3:
        loss, stats, weight = output
    elif isinstance(output, tuple | list) and len(output) == 2 and isinstance(output[1], Mapping):
        loss, stats, weight = output[0], output[1], None
    elif isinstance(output, Tensor) and output.ndim == 0:
        loss, stats, weight = output, None, None
    else:
        raise TrainingError(f"{model}.forward returned {_describe(output)}. {FORMS}")
    loss = _checked_loss(loss, model)
    values = _scalars(stats or {}, model)
    values.setdefault("loss", loss.detach())
    weight = default_weight if weight is None else _scalar(weight, "the weight", model)
    return ModelOutput(loss, values, weight)


def _from_mapping(output: Mapping[str, Any], model: str) -> tuple[Any, dict[str, Any], Any]:
    given = output.get("stats") or {}
    if not isinstance(given, Mapping):
        raise TrainingError(f"{model}.forward returned stats as {_describe(given)}. {FORMS}")
    others = {k: v for k, v in output.items() if k not in ("loss", "stats", "weight")}
    # Logits and hidden states are for other readers.
    scalars = {name: value for name, value in others.items() if _is_plain_scalar(value)}
    return output["loss"], {**scalars, **given}, output.get("weight")


def _checked_loss(loss: Any, model: str) -> Tensor:
    if loss is None:
        raise TrainingError(
            f"{model}.forward returned no loss (it is None). A model of Hugging Face computes one "
            "only if the batch has labels: let the collate_fn return them as 'labels'."
        )
    if not isinstance(loss, Tensor):
        raise TrainingError(f"{model}.forward returned {_describe(loss)} as loss. {FORMS}")
    if loss.numel() != 1:
        raise TrainingError(
            f"The loss of {model} has the shape {tuple(loss.shape)}, but must be one number. "
            "Reduce it: loss = loss.mean()"
        )
    return loss.reshape(())


def _scalars(stats: Any, model: str) -> dict[str, Number]:
    if not isinstance(stats, Mapping):
        raise TrainingError(f"{model}.forward returned stats as {_describe(stats)}. {FORMS}")
    return {
        str(name): _scalar(value, f"stats[{name!r}]", model)
        for name, value in stats.items()
        if value is not None
    }


def _is_plain_scalar(value: Any) -> bool:
    # The logits of one utterance and one class are one number, too.
    return _is_scalar(value) and getattr(value, "ndim", 0) == 0


def _is_scalar(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return hasattr(value, "__float__") and getattr(value, "size", 1) == 1


def _scalar(value: Any, what: str, model: str) -> Number:
    if not _is_scalar(value):
        raise TrainingError(
            f"{model}.forward returned {what} as {_describe(value)}, but it must be one number. "
            "Reduce it, such as by .mean(), or leave it out."
        )
    return value.detach().reshape(()) if isinstance(value, Tensor) else float(value)


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a mapping with the keys {', '.join(map(str, value)) or '(none)'}"
    if isinstance(value, tuple | list):
        kinds = ", ".join(type(item).__name__ for item in value)
        return f"a {type(value).__name__} of {len(value)} ({kinds})"
    return f"{type(value).__name__} {value!r:.60}"


def batch_size(inputs: Mapping[str, Any]) -> float:
    """Return the length of the first tensor, or 1 where there is none."""
    tensors = (value for value in inputs.values() if isinstance(value, torch.Tensor) and value.ndim)
    return float(next((len(tensor) for tensor in tensors), 1))

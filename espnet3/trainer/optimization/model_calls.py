"""Call a model with a batch, and read what it returns: a loss, statistics and their weight."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from espnet3.errors import ConfigError, TrainingError, suggest

FORMS = """Return one of:
    return loss, stats, weight               # stats: {"acc": 0.9, ...}; weight: the batch size
    return {"loss": loss, "acc": 0.9}        # or with "stats" and "weight"
    return loss                              # or loss, stats
    return output                            # an object with .loss, as of Hugging Face"""
Number = Tensor | float

_WHOLE = "batch"
_LENGTHS = "_lengths"
_ID_KEYS = ("utt_id", "utt_ids", "uttid", "id", "ids")


def fields_of(batch: Any) -> Mapping[str, Any]:
    """Return the dict of a batch, which may come as `(utt_ids, dict)`, ESPnet2's habit.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Mapping):
        batch = batch[1]
    if isinstance(batch, Mapping):
        return batch
    raise ConfigError(
        f"A batch is a {type(batch).__name__}, but must be a dict of the arguments of the model's "
        "forward. Let dataloader.collate_fn return one, such as "
        '{"speech": speech, "speech_lengths": lengths}, or (utt_ids, that dict).'
    )


def ids_of(batch: Any) -> list[str]:
    """Return the ids of the utterances in a batch, as far as it has them."""
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Mapping):
        return _texts(batch[0])
    if isinstance(batch, Mapping):
        return next((_texts(batch[key]) for key in _ID_KEYS if key in batch), [])
    return []


def _texts(ids: Any) -> list[str]:
    if isinstance(ids, str):
        return [ids]
    return [str(i) for i in (ids.tolist() if isinstance(ids, Tensor) else ids)]


def refuse_lightning(model: Any) -> None:
    """Refuse a LightningModule, or its class: its `training_step` would never be called.

    Raises:
        ConfigError: with what to write instead.
    """
    kind = model if isinstance(model, type) else type(model)
    # By name, since `lightning` and `pytorch_lightning` have a class each.
    if not any(c.__name__ == "LightningModule" for c in kind.__mro__):
        return
    raise ConfigError(
        f"{kind.__name__} is a LightningModule: its training_step and configure_optimizers would "
        "not be called here.",
        fix="Make it an nn.Module whose forward returns the loss:\n"
        "    def forward(self, x, y):\n"
        '        return {"loss": loss, "accuracy": accuracy}\n'
        "with optimizer: {_target_: torch.optim.AdamW, lr: 0.001} in the config; or train it with "
        "Lightning: espnet3.trainer.trainer.build_trainer(config).fit(module, loader)",
    )


class ModelInputs:
    """Picks the arguments of a model's `forward` from batches.

    A batch is a dict, of which each field is an argument; a tuple or list, as torch's own datasets
    give, in the order of the arguments; or anything, for a `forward(batch)` with this one argument.
    """

    def __init__(self, model: nn.Module) -> None:
        refuse_lightning(model)
        # A compiled model hides the signature of its own.
        model = getattr(model, "_orig_mod", model)
        self._model = type(model).__name__
        parameters = inspect.signature(model.forward).parameters.values()
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self._known = [p.name for p in named]
        self._required = [p.name for p in named if p.default is p.empty]
        self._takes_batch = self._known == [_WHOLE] and not self._takes_all
        self._fitting: set[str] = set()
        """Names in a batch that was found to fit as it is."""

    def fields(self, batch: Any) -> Mapping[str, Any]:
        """Return a batch by the names of the model's arguments, or of its own fields.

        Raises:
            ConfigError: it is neither a dict nor a list of arguments.
        """
        if self._takes_batch:
            return {_WHOLE: batch}
        if type(batch) is dict:
            return batch
        is_pair = isinstance(batch, tuple | list) and len(batch) == 2  # (utt_ids, dict)
        if isinstance(batch, Tensor):
            batch = [batch]
        elif not isinstance(batch, tuple | list) or (is_pair and isinstance(batch[1], Mapping)):
            return fields_of(batch)
        if len(batch) > len(self._known):
            raise ConfigError(
                f"A batch has {len(batch)} parts, but {self._model}.forward takes "
                f"{len(self._known)}: {', '.join(self._known) or 'none'}.",
                fix="Give it an argument for "
                "each, or let the dataset return dicts of its arguments.",
            )
        return dict(zip(self._known, batch, strict=False))  # `pick` reports what is missing

    def pick(self, batch: Any) -> dict[str, Any]:
        """Return the arguments for a batch.

        Ids and other texts that `forward` has no place for are left out.

        Raises:
            ConfigError: a tensor has no place, or an argument without default is not there.
        """
        fields = dict(self.fields(batch))
        if self._fitting and fields.keys() == self._fitting:
            return fields
        missing = [name for name in self._required if name not in fields]
        unknown = [] if self._takes_all else [name for name in fields if name not in self._known]
        homeless = [
            name
            for name in unknown
            if _has_tensor(fields[name]) and not _says_no_more(name, fields)
        ]
        if missing or homeless:
            raise ConfigError(self._misfit(fields, missing, homeless))
        if not unknown:
            self._fitting = set(fields)
        return {name: value for name, value in fields.items() if name not in unknown}

    def _misfit(self, fields: Mapping[str, Any], missing: list[str], homeless: list[str]) -> str:
        reasons = []
        if homeless:
            reasons.append(f"the model takes no {_quoted(homeless)}")
        if missing:
            reasons.append(f"the batch has no {_quoted(missing)}")
        return (
            f"The batches do not fit {self._model}.forward: {' and '.join(reasons)}.\n"
            f"  A batch has: {', '.join(map(str, fields))}\n"
            f"  forward takes: {', '.join(self._known)}\n"
            "Rename the keys in dataloader.collate_fn or in the dataset, or the arguments of "
            f"{self._model}.forward; to ignore further keys, add **kwargs to it."
        )


def _has_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(isinstance(item, Tensor) for item in value)
    return isinstance(value, Tensor)


def _says_no_more(name: str, fields: Mapping[str, Any]) -> bool:
    """Tell whether a field is that of lengths, beside a field in which nothing is padded."""
    padded, lengths = fields.get(name.removesuffix(_LENGTHS)), fields[name]
    if not name.endswith(_LENGTHS) or not isinstance(padded, Tensor) or padded.ndim < 2:
        return False
    return isinstance(lengths, Tensor) and bool((lengths == padded.shape[1]).all())


def _quoted(names: list[str]) -> str:
    return ", ".join(map(repr, names))


def steps_of(output: Any, optimizers: Sequence[str], model: str) -> dict[str, Any]:
    """Return the step of each optimizer.

    A step is an output, a function without arguments that returns one, or None for nothing to do.
    With one optimizer, the output itself will do.

    Raises:
        TrainingError: with several optimizers, the steps are not named after them.
    """
    if is_named(output, optimizers):
        return _checked_steps(output, optimizers, model)
    if len(optimizers) == 1:
        return {optimizers[0]: output}
    keys = f" with the keys {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
    raise TrainingError(
        f"{model}.forward returned one {type(output).__name__}{keys}, but there are the optimizers "
        f"{', '.join(optimizers)}. {_example(optimizers)}"
    )


def _checked_steps(
    steps: Mapping[str, Any], optimizers: Sequence[str], model: str
) -> dict[str, Any]:
    for name in steps:
        if name not in optimizers:
            raise TrainingError(
                f"{model}.forward returned a step {name!r}, but there is no such optimizer."
                f"{suggest(str(name), optimizers)} The optimizers are: {', '.join(optimizers)}."
            )
    missing = [name for name in optimizers if name not in steps]
    if missing:
        raise TrainingError(
            f"{model}.forward returned no step for {', '.join(missing)}. {_example(optimizers)} "
            "Where there is nothing to do for one, let it be None, on all ranks alike."
        )
    return dict(steps)


def _example(optimizers: Sequence[str]) -> str:
    steps = ", ".join(f'"{name}": lambda: self.{name}_step(batch)' for name in optimizers)
    return f"Return a step for each: {{{steps}}}"


def is_named(output: Any, optimizers: Sequence[str]) -> bool:
    """Tell whether a model returned steps, and not one output."""
    # One name in common will do, so that a misspelt one beside it is reported as such.
    return isinstance(output, Mapping) and not set(output).isdisjoint(optimizers)


def is_lazy(step: Any) -> bool:
    """Tell whether a step is still to be computed."""
    return callable(step)


def compute(step: Any) -> Any:
    """Return the output of a step, which is computed only now if the step is a function."""
    return step() if is_lazy(step) else step


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
    # An output of Hugging Face without labels lacks the key, but has the attribute, which is None.
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
    return loss.reshape(()) if loss.ndim else loss


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
    if not isinstance(value, Tensor):
        return float(value)
    return value.detach().reshape(()) if value.ndim else value.detach()


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

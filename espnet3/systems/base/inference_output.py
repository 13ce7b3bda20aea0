"""From what a model returns to the fields that are kept of an item."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from espnet3.errors import ConfigError, suggest
from espnet3.io.scp import RecordError


@dataclass(frozen=True)
class OutputSettings:
    """What the hooks of an `InferenceRunner` must know; small, and part of the fingerprint."""

    input_keys: tuple[str, ...] = ("speech",)
    idx_key: str = "utt_id"
    hyp_key: str = "hyp"
    ref_key: str = "ref"
    output_fn: str | None = None
    output_keys: tuple[str, ...] | None = None
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)
    results: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return asdict(self)


def inputs_of(data: Mapping[str, Any], settings: OutputSettings) -> dict[str, Any]:
    """Return the fields of a sample that the model is called with.

    Raises:
        ConfigError: naming the fields that there are.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"A sample of the dataset is {data!r:.80}, of type {type(data).__name__}. Return a "
            f'dict, such as {{"{settings.idx_key}": ..., "{settings.input_keys[0]}": ...}}, from '
            "its __getitem__, or set a transform that does."
        )
    missing = [key for key in settings.input_keys if key not in data]
    if missing:
        raise ConfigError(
            f"input_key is {missing[0]!r}, but a sample of the dataset has "
            f"{', '.join(map(repr, data))}.{suggest(missing[0], data)} Write: input_key: NAME"
        )
    return {key: data[key] for key in settings.input_keys}


@cache
def load_function(path: str, key: str = "output_fn", where: str = "") -> Callable[..., Any]:
    """Import what a dotted path names; `where` says where it was set.

    Raises:
        ConfigError: if it does not exist or cannot be called.
    """
    from espnet3.config.targets import BadTarget, locate

    try:
        function = locate(path)
    except BadTarget as error:
        reason = str(error).replace("_target_: ", f"{key}: ")
        raise ConfigError(f"{key} is {path!r}{where}, but {reason}") from None
    if not callable(function):
        raise ConfigError(
            f"{key} is {path!r}{where}, which is {type(function).__name__}, not a function. Write: "
            f"{key}: src.inference.output_fn"
        )
    loaded: Callable[..., Any] = function
    return loaded


def to_record(output: Any, data: Any, idx: Any, settings: OutputSettings) -> dict[str, Any]:
    """Return the fields of one item, its id first.

    Args:
        output: what the model, or `output_fn`, returned for the item.
        data: the item's sample.
        idx: its index, which is its id if the sample has none.
        settings: names of the fields.
    """
    sample = data if isinstance(data, Mapping) else {}
    fields = dict(output) if isinstance(output, Mapping) else {settings.hyp_key: output}
    id = fields.pop(settings.idx_key, sample.get(settings.idx_key, idx))
    known = {**sample, **fields}
    if id is idx and settings.idx_key not in ("utt_id", *known):
        raise ConfigError(
            f"idx_key is {settings.idx_key!r}, but a sample has {', '.join(map(repr, known))}."
            f"{suggest(settings.idx_key, known)} Write: idx_key: utt_id"
        )
    if id is None:
        raise RecordError(
            f"{settings.idx_key} of item {idx!r} is None. Give each sample an id, or name the "
            "field that has it: idx_key: NAME"
        )
    record = {settings.idx_key: str(id), **fields}
    if settings.output_fn is None and not isinstance(output, Mapping) and "text" in sample:
        record.setdefault(settings.ref_key, sample["text"])
    return record if settings.output_keys is None else _select(record, sample, settings)


def _select(
    record: dict[str, Any], sample: Mapping[str, Any], settings: OutputSettings
) -> dict[str, Any]:
    known = {**sample, **record}
    missing = [key for key in settings.output_keys or () if key not in known]
    if missing:
        raise ConfigError(
            f"output_keys has {missing[0]!r}, but the output and the sample have "
            f"{', '.join(map(repr, known))}.{suggest(missing[0], known)} Correct it or delete it."
        )
    keys = [key for key in settings.output_keys or () if key != settings.idx_key]
    return {settings.idx_key: record[settings.idx_key], **{key: known[key] for key in keys}}


def to_records(
    outputs: Any, data: Sequence[Any], idx: Sequence[Any], settings: OutputSettings
) -> list[dict[str, Any]]:
    """Return the fields of each item of a batch.

    Raises:
        ConfigError: if there is not one output per item.
    """
    is_list = isinstance(outputs, Sequence) and not isinstance(outputs, str | bytes)
    if not is_list or len(outputs) != len(idx):
        found = f"{len(outputs)} outputs" if is_list else type(outputs).__name__
        who = f"output_fn {settings.output_fn}" if settings.output_fn else "The model"
        raise ConfigError(
            f"{who} got a batch of {len(idx)} items and returned {found}. Return a list with one "
            "output per item, or leave batch_size and batch_seconds unset."
        )
    return [to_record(*item, settings) for item in zip(outputs, data, idx, strict=True)]


def to_texts(value: Any, name: str, id: str) -> list[str]:
    """Return the text of a field, or those of an n-best list, the best first.

    Raises:
        RecordError: if the value is neither; it says how to keep it.
    """
    if is_nbest(value):
        return [_to_text(_first(entry), name, id) for entry in value]
    return [_to_text(_first(value), name, id)]


def is_nbest(value: Any) -> bool:
    """Tell a list of hypotheses from one hypothesis with its score, such as `("a b", -3.2)`."""
    if isinstance(value, tuple):
        return bool(value) and all(isinstance(entry, str | list | tuple) for entry in value)
    return isinstance(value, list)


def _first(entry: Any) -> Any:
    """Return the text of a hypothesis that comes with its score or its tokens."""
    return entry[0] if isinstance(entry, list | tuple) and entry else entry


def _to_text(value: Any, name: str, id: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    if hasattr(value, "ndim") and value.ndim == 0:  # a number of numpy or torch
        return str(value.item())
    if value is None:
        raise RecordError(f"{name} of {id!r} is None. Does the model, or output_fn, return it?")
    kind = "npy" if hasattr(value, "shape") else "json"
    raise RecordError(
        f"{name} of {id!r} is {value!r:.80}, of type {type(value).__name__}, which is no text. To "
        f"write it to a file of its own, set output_artifacts: {{{name}: {{type: {kind}}}}}; to "
        "leave it out, list the others in output_keys."
    )

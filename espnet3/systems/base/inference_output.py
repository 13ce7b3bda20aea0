"""Convert the output of a model to the fields kept of an item."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Self

from espnet3.errors import ConfigError, ProviderError, RecordError, suggest
from espnet3.parallel.tasks import split_batch


@dataclass(frozen=True)
class Need:
    """A field that a later stage reads."""

    field: str
    key: str
    """By which the reader knows it."""
    reader: str
    """Such as `metrics.0 (WER)`."""


@dataclass(frozen=True)
class OutputSettings:
    """Settings for the hooks of an `InferenceRunner`; small, and part of the fingerprint."""

    needs: ClassVar[tuple[Need, ...]] = ()
    """Fields that a stage after this one reads. No field of the dataclass: results do not depend on
    it, so it must not be part of the fingerprint."""
    is_completed: ClassVar[bool] = False
    """Whether `complete` chooses among the fields: a `forward` of one's own that calls ours may add
    some before. No field either."""

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

    def of_run(self, needs: Sequence[Need], *, is_completed: bool) -> Self:
        """Return a copy that also knows what later stages read, and where the fields are chosen."""
        copy = replace(self)
        # `replace` knows no class variables, and the dataclass is frozen.
        object.__setattr__(copy, "needs", tuple(needs))
        object.__setattr__(copy, "is_completed", is_completed)
        return copy


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
            key="input_key",
            value=missing[0],
            problem=f"but a sample of the dataset has {', '.join(map(repr, data))}",
            fix=f"{suggest(missing[0], data)} Write: input_key: NAME",
        )
    return {key: data[key] for key in settings.input_keys}


# `forward` asks for it with each item.
@cache
def load_function(path: str) -> Callable[..., Any]:
    """Import the function that `output_fn` names.

    Raises:
        ConfigError: if it does not exist or cannot be called.
    """
    from espnet3.config.instantiate import find_function

    function = find_function(path, key="output_fn")
    if not callable(function):
        raise ConfigError(
            key="output_fn",
            value=path,
            problem=f"which is {type(function).__name__}, not a function",
            fix="Write: output_fn: src.inference.output_fn",
        )
    loaded: Callable[..., Any] = function
    return loaded


def to_record(
    output: Any, data: Any, idx: Any, settings: OutputSettings, *, selects: bool = True
) -> dict[str, Any]:
    """Return the fields of one item, its id first.

    Args:
        output: what the model, or `output_fn`, returned for the item.
        data: the item's sample.
        idx: its index, which is its id if the sample has none.
        settings: names of the fields.
        selects: leave out what `output_keys` does not name.
    """
    sample = data if isinstance(data, Mapping) else {}
    fields = dict(output) if isinstance(output, Mapping) else {settings.hyp_key: output}
    id = fields.pop(settings.idx_key, sample.get(settings.idx_key, idx))
    known = {**sample, **fields}
    # The index as an id is fine by default, but not where the user has named a field.
    if id is idx and settings.idx_key not in ("utt_id", *known):
        raise ConfigError(
            key="idx_key",
            value=settings.idx_key,
            problem=f"but a sample has {', '.join(map(repr, known))}",
            fix=f"{suggest(settings.idx_key, known)} Write: idx_key: utt_id",
        )
    record = {settings.idx_key: id_text(id, idx, settings), **fields}
    # A dict says itself what is to be written, so nothing is added to it.
    if settings.output_fn is None and not isinstance(output, Mapping) and "text" in sample:
        record.setdefault(settings.ref_key, sample["text"])
    is_chosen = selects and settings.output_keys is not None
    return _select(record, sample, settings) if is_chosen else record


def id_text(id: Any, idx: Any, settings: OutputSettings) -> str:
    """Return the id of an item as text; a number is one as well.

    Raises:
        RecordError: if it is nothing that can stand at the start of a line.
    """
    if isinstance(id, str):
        return id
    plain = id.item() if _is_zero_dimensional(id) else id
    if isinstance(plain, bytes):
        plain = _decoded(plain)
    if (
        plain is None
        or isinstance(plain, Mapping | list | tuple | set | bytes)
        or (hasattr(plain, "ndim"))
    ):
        what = "None" if plain is None else f"{plain!r:.80}, of type {type(plain).__name__}"
        raise RecordError(
            f"{settings.idx_key} of item {idx!r} is {what}.",
            fix="Give each sample an id, or name the field that has it: idx_key: NAME",
        )
    return str(plain)


def _select(
    record: dict[str, Any], sample: Mapping[str, Any], settings: OutputSettings
) -> dict[str, Any]:
    known = {**sample, **record}
    missing = [key for key in settings.output_keys or () if key not in known]
    if missing:
        raise ConfigError(
            f"output_keys has {missing[0]!r}",
            key="output_keys",
            problem=f"but the output and the sample have {', '.join(map(repr, known))}",
            fix=f"{suggest(missing[0], known)} Correct it or delete it.",
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
    what = f"output_fn {settings.output_fn}" if settings.output_fn else "The model"
    try:
        split = split_batch(outputs, len(idx), what)
    except ProviderError as error:
        # It names providers, but the model or `output_fn` of the config is at fault.
        raise ConfigError(str(error)) from None
    selects = not settings.is_completed
    return [
        to_record(*item, settings, selects=selects) for item in zip(split, data, idx, strict=True)
    ]


def complete(result: Any, idx: Any, outputs: OutputSettings, dataset: Any = None) -> Any:
    """Return the record of an item, or those of a batch, from what one's own `forward` returned.

    What it left out, the id, the reference or a field of `output_keys`, is taken from the sample,
    which is only then read again.
    """
    if isinstance(idx, list):
        items = zip(split_batch(result, len(idx), "forward()"), idx, strict=True)
        return [_complete_one(output, index, outputs, dataset) for output, index in items]
    # A `forward` that serves batches may return a list for a single item, too.
    is_batch_of_one = isinstance(result, list) and len(result) == 1
    return _complete_one(result[0] if is_batch_of_one else result, idx, outputs, dataset)


def _complete_one(output: Any, idx: Any, settings: OutputSettings, dataset: Any) -> dict[str, Any]:
    if inspect.isgenerator(output):
        raise ConfigError("forward() is a generator.", fix="Write return in place of yield.")
    if isinstance(output, tuple) and all(isinstance(entry, str) for entry in output):
        raise ConfigError(
            f"forward() returned {output!r:.80} for item {idx!r}: whether that is an id and its "
            f'text or two hypotheses is not known. Return a dict: {{"{settings.idx_key}": ..., '
            f'"{settings.hyp_key}": ...}}'
        )
    if isinstance(output, list | tuple) and any(isinstance(entry, Mapping) for entry in output):
        raise ConfigError(
            f"forward() returned {len(output)} records for item {idx!r}. Return one dict per item, "
            "or set batch_size, with which it gets a list of items."
        )
    fields = output if isinstance(output, Mapping) else {}
    wanted = {settings.idx_key, *(settings.output_keys or ())}
    is_whole = isinstance(output, Mapping) and all(key in fields for key in wanted)
    # Decoding audio again is expensive, so it is only done if something is missing.
    data = {} if is_whole or dataset is None else _sample(dataset, idx, settings)
    return to_record(output, data, idx, settings)


def _sample(dataset: Any, idx: Any, settings: OutputSettings) -> Any:
    try:
        return dataset[idx]
    except (LookupError, TypeError) as error:
        raise ConfigError(
            f"forward() did not return all of {settings.idx_key!r} and output_keys, and the "
            f"dataset has no item {idx!r} to take them from ({type(error).__name__}: {error}). "
            f'Return them: {{"{settings.idx_key}": ..., "{settings.hyp_key}": ...}}'
        ) from error


def to_texts(value: Any, name: str, id: str) -> list[str]:
    """Return the text of a field, or those of an n-best list, the best first.

    Raises:
        RecordError: if the value is neither; it says how to keep it.
    """
    found = hypotheses(value)
    if found is None:
        return [_to_text(value, name, id)]
    return [_to_text(_first(entry), name, id) for entry in found]


def hypotheses(value: Any) -> list[Any] | None:
    """Return the entries of an n-best list; None for one value, such as a list of token ids.

    An entry is a text, or a text with its score, tokens or what else comes with it. One such entry
    by itself, `("a b", -3.2)`, is a list of one.
    """
    if not isinstance(value, list | tuple):
        return None
    if all(_is_text(entry) or _has_text(entry) for entry in value):
        if not (_has_text(value) and any(map(_has_text, value))):
            return [*value]
        # A text and its tokens look like two hypotheses; a tuple says that they belong together.
        return [value] if isinstance(value, tuple) else None
    others = value[1:] if isinstance(value, list) else ()
    is_one = _has_text(value) and not any(_is_text(e) or _has_text(e) for e in others)
    return [value] if is_one else None


def _is_text(entry: Any) -> bool:
    return isinstance(entry, str | bytes)


def _has_text(entry: Any) -> bool:
    """Tell a text with its company, such as a score, from other lists."""
    return isinstance(entry, list | tuple) and bool(entry) and _is_text(entry[0])


def _first(entry: Any) -> Any:
    """Return the text of a hypothesis that comes with its score or its tokens."""
    return entry[0] if isinstance(entry, list | tuple) else entry


def _to_text(value: Any, name: str, id: str) -> str:
    if isinstance(value, str):
        return value
    if _is_number(value):
        # str() of a tensor would be `tensor(3)`.
        return str(value.item() if hasattr(value, "item") else value)
    if isinstance(value, list | tuple) and value and all(map(_is_number, value)):
        return " ".join(_to_text(entry, name, id) for entry in value)
    if _is_row_of_integers(value):
        return " ".join(map(str, value.tolist()))
    if isinstance(value, bytes) and (text := _decoded(value)) is not None:
        return text
    if isinstance(value, os.PathLike):
        return str(value)
    if isinstance(text := getattr(value, "text", None), str):  # what recognisers return
        return text
    if value is None:
        raise RecordError(
            f"{name} of {id!r} is None. Does the model, output_fn or forward return it?"
        )
    kind = "npy" if hasattr(value, "shape") else "pickle" if isinstance(value, bytes) else "json"
    raise RecordError(
        f"{name} of {id!r} is {value!r:.80}, of type {type(value).__name__}, which is no text. To "
        f"write it to a file of its own, set output_artifacts: {{{name}: {{type: {kind}}}}}; to "
        "write a part of it, return that from output_fn; to leave it out, list the others in "
        "output_keys."
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) or _is_zero_dimensional(value)


def _is_zero_dimensional(value: Any) -> bool:
    """Tell a number of numpy or torch."""
    return hasattr(value, "ndim") and value.ndim == 0 and hasattr(value, "item")


def _is_row_of_integers(value: Any) -> bool:
    """Tell token ids and the like from audio and features, which belong in files of their own."""
    if not hasattr(value, "ndim") or value.ndim != 1 or not hasattr(value, "tolist"):
        return False
    # By name, as torch and numpy have different types of dtype.
    return any(kind in str(getattr(value, "dtype", "")) for kind in ("int", "bool"))


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None

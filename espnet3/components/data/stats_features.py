"""What statistics are taken of: the arrays of a sample, or what `model.collect_feats` returns."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espnet3.components.data.errors import DataError
from espnet3.components.data.stats import Moments
from espnet3.errors import ProviderError
from espnet3.io.scp import check_id

_LENGTHS = "_lengths"
_FORM = '{"feats": tensor of [batch, time, dim], "feats_lengths": tensor of [batch]}'


@dataclass(frozen=True)
class ItemStats:
    """What is kept of one item."""

    index: int
    """Its position in the dataset."""
    id: str
    """Its `utt_id`, or else its position."""
    shapes: dict[str, tuple[int, ...]]
    """Of each array of the sample and of each feature; without padding."""
    moments: dict[str, Moments]
    """Of the features."""


def stats_of_samples(indices: Sequence[int], samples: Sequence[Any]) -> list[ItemStats]:
    """Take the statistics of the samples' own arrays: shapes of all, moments of real numbers."""
    found = []
    for index, sample in zip(indices, samples, strict=True):
        arrays = arrays_of(sample)
        real = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
        found.append(_item_stats(index, sample, arrays, real))
    return found


def stats_of_features(
    indices: Sequence[int],
    samples: Sequence[Any],
    model: Any,
    collate_fn: Callable[[list[Any]], Any],
) -> list[ItemStats]:
    """Take the statistics of what `model.collect_feats(**batch)` returns, and the samples' shapes.

    Raises:
        ProviderError: It returns something else than features of the items of the batch.
    """
    device = _device_of(model)
    batch = collate_fn(list(samples))
    # The collate functions of ESPnet2 return the ids as well.
    fields = batch[1] if isinstance(batch, tuple) and len(batch) == 2 else batch
    features = model.collect_feats(**_accepted(model.collect_feats, _on_device(fields, device)))
    per_item = _split(features, len(samples), type(model).__qualname__)
    return [
        _item_stats(index, sample, arrays_of(sample), own)
        for index, sample, own in zip(indices, samples, per_item, strict=True)
    ]


def arrays_of(sample: Any) -> dict[str, NDArray[Any]]:
    """Return the fields of a sample that have a length: arrays, tensors and lists of numbers.

    Raises:
        DataError: The sample is no mapping.
    """
    if not isinstance(sample, Mapping):
        raise DataError(
            f"A sample is {sample!r:.80}, of type {type(sample).__name__}. Return a dict, such as "
            '{"utt_id": "a", "speech": array}.'
        )
    found = {str(name): _as_array(value) for name, value in sample.items()}
    return {name: array for name, array in found.items() if array is not None and array.ndim}


def _item_stats(
    index: int,
    sample: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    features: Mapping[str, NDArray[Any]],
) -> ItemStats:
    id = sample.get("utt_id", str(index))
    check_id(id)
    moments = {name: _moments(name, array, id) for name, array in features.items()}
    shapes = {name: array.shape for name, array in {**arrays, **features}.items()}
    return ItemStats(index, id, shapes, moments)


def _moments(name: str, array: NDArray[Any], id: str) -> Moments:
    is_finite = np.isfinite(array)
    if not is_finite.all():
        where = np.argwhere(~is_finite)[0].tolist()
        raise DataError(
            f"{name} of {id!r} is {array[tuple(where)]} at {where}, so there is no mean. Mend the "
            "item or what computes it, or leave such items out: collect_stats.on_error=skip"
        )
    return Moments.of(array)


def _as_array(value: Any) -> NDArray[Any] | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        # numpy knows no bfloat16.
        tensor = value.detach().cpu()
        tensor = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
        array: NDArray[Any] = tensor.numpy()
        return array
    if isinstance(value, list | tuple):
        numbers = all(isinstance(item, int | float | np.number) for item in value)
        # An empty list is most likely one of tokens.
        return np.asarray(value, dtype=None if value else np.int64) if numbers else None
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return value
    return None


def _split(features: Any, n_items: int, model: str) -> list[dict[str, NDArray[Any]]]:
    """Return the features of each item, without padding."""
    if not isinstance(features, Mapping) or not features:
        raise ProviderError(
            f"{model}.collect_feats returned {type(features).__name__}. Return {_FORM}."
        )
    arrays = {str(name): _as_array(value) for name, value in features.items()}
    for name, array in arrays.items():
        if array is None or not array.ndim or len(array) != n_items:
            found = "no array" if array is None else f"of the shape {list(array.shape)}"
            raise ProviderError(
                f"{model}.collect_feats got a batch of {n_items} items, and {name!r} of what it "
                f"returned is {found}. Return {_FORM}."
            )
    items: list[dict[str, NDArray[Any]]] = [{} for _ in range(n_items)]
    for name, array in arrays.items():
        if array is None or (name.endswith(_LENGTHS) and name.removesuffix(_LENGTHS) in arrays):
            continue
        lengths = arrays.get(name + _LENGTHS)
        for i, own in enumerate(items):
            # Without a length, the whole of it is one vector.
            own[name] = array[i][None] if lengths is None else _cut(array[i], lengths[i], name)
    return items


def _cut(array: NDArray[Any], length: Any, name: str) -> NDArray[Any]:
    if not 0 <= int(length) <= len(array):
        raise ProviderError(
            f"collect_feats returned {name}{_LENGTHS} with {int(length)} for features of "
            f"{len(array)} frames. Return the number of frames of each item, without padding."
        )
    return array[: int(length)]


def _accepted(function: Callable[..., Any], batch: Any) -> dict[str, Any]:
    """Return the fields of a batch that a function takes."""
    if not isinstance(batch, Mapping):
        raise ProviderError(
            f"dataloader.collate_fn returned {type(batch).__name__}. Return the batch as a dict of "
            "what the model takes, or (ids, that dict)."
        )
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(batch)
    names = {p.name for p in parameters}
    return {name: value for name, value in batch.items() if name in names}


def _device_of(model: Any) -> Any:
    tensors = [*getattr(model, "parameters", tuple)(), *getattr(model, "buffers", tuple)()]
    return tensors[0].device if tensors else None


def _on_device(batch: Any, device: Any) -> Any:
    if device is None or device.type == "cpu" or not isinstance(batch, Mapping):
        return batch
    return {k: v.to(device) if hasattr(v, "to") else v for k, v in batch.items()}

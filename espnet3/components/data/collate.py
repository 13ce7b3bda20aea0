"""Make one batch of several samples: arrays of different lengths are padded to the longest."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from espnet3.components.data.errors import DataError
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    import torch

Batch = dict[str, Any]
CollateFn = Callable[[list[Any]], Any]

# Sources have them, few models take them: as tensors they would be in their way.
_KEPT = ("sample_rate", "duration")


class PadCollate:
    """Collects the fields of samples into the fields of a batch.

    - Arrays and tensors, and lists of numbers, are padded along their first axis and stacked:
      `<key>` is [batch, longest, ...] and `<key>_lengths` holds the lengths, as int64.
    - Numbers, and arrays without an axis, are stacked to [batch].
    - All else, such as texts and `utt_id`, is a list. So are the numbers `sample_rate` and
      `duration`, which manifests have.

    Args:
        pad_values: What to pad the field of that name with, such as `{"labels": -100}`.
        float_pad: What to pad other fields of real numbers with.
        int_pad: What to pad other fields of integers with: no index of a token, so that a model
            that forgets the lengths fails at once. Booleans are padded with False.
        lengths: Whether to add `<key>_lengths`: for all padded fields, none, or those named.
        masks: Fields to add a mask for, and its name: `{"input_values": "attention_mask"}` adds an
            int64 [batch, longest] with 1 for what is not padding.
        drop: Fields to leave out.

    Raises:
        DataError: Samples have different fields, or arrays that differ in more than their length.

    Example:
        >>> batch = PadCollate()([{"text": [1, 2, 3]}, {"text": [4]}])
        >>> batch["text"].tolist(), batch["text_lengths"].tolist()
        ([[1, 2, 3], [4, -1, -1]], [3, 1])
    """

    def __init__(
        self,
        pad_values: Mapping[str, float] | None = None,
        float_pad: float = 0.0,
        int_pad: int = -1,
        *,
        lengths: bool | Collection[str] = True,
        masks: Mapping[str, str] | None = None,
        drop: Collection[str] = (),
    ) -> None:
        self.pad_values = dict(pad_values or {})
        self.float_pad = float_pad
        self.int_pad = int_pad
        self.lengths = lengths if isinstance(lengths, bool) else _names("lengths", lengths)
        self.masks = dict(masks or {})
        self.drop = _names("drop", drop)

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> Batch:
        """Return the batch; its fields have the order of those of the first sample."""
        batch: Batch = {}
        for key in _common_fields(samples):
            if key not in self.drop:
                self._collect(key, [sample[key] for sample in samples], samples, batch)
        return batch

    def _collect(
        self, key: str, values: list[Any], samples: Sequence[Mapping[str, Any]], batch: Batch
    ) -> None:
        is_kept = key in _KEPT and all(isinstance(value, int | float) for value in values)
        tensors = None if is_kept else [as_tensor(value) for value in values]
        if tensors is None or any(tensor is None for tensor in tensors):
            batch[key] = values
            return
        found = [tensor for tensor in tensors if tensor is not None]
        _check_shapes(key, found, samples)
        if found[0].ndim == 0:
            batch[key] = _stacked(found)
            return
        batch[key] = _padded(found, self._pad_value(key, found[0]))
        self._add_lengths(key, [len(tensor) for tensor in found], batch)

    def _add_lengths(self, key: str, lengths: list[int], batch: Batch) -> None:
        import torch

        counts = torch.tensor(lengths, dtype=torch.int64)
        if self.lengths is True or (self.lengths and key in self.lengths):
            batch[f"{key}_lengths"] = counts
        if key in self.masks:
            positions = torch.arange(max(lengths))
            batch[self.masks[key]] = (positions < counts[:, None]).to(torch.int64)

    def _pad_value(self, key: str, tensor: "torch.Tensor") -> float:
        import torch

        if key in self.pad_values:
            return self.pad_values[key]
        if tensor.dtype == torch.bool:
            return False
        return self.float_pad if tensor.is_floating_point() or tensor.is_complex() else self.int_pad


def as_tensor(value: Any) -> "torch.Tensor | None":
    """Return numbers of any kind as a tensor, sharing memory where possible; None for all else."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, list | tuple):
        # An empty list is most likely one of tokens.
        if not all(isinstance(item, int | float | np.number) for item in value):
            return None
        return torch.as_tensor(value) if value else torch.empty(0, dtype=torch.int64)
    if isinstance(value, int | float | complex):
        return torch.as_tensor(value)
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biufc":
        return None
    array = np.asarray(value)
    # torch refuses a negative step, warns of read-only memory, and knows few unsigned types.
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        return torch.from_numpy(array.astype(np.int64))
    return torch.from_numpy(array if _is_plain(array) else array.copy())


def _is_plain(array: Any) -> bool:
    return bool(array.flags.writeable and all(step >= 0 for step in array.strides))


def _padded(tensors: list["torch.Tensor"], pad: float) -> "torch.Tensor":
    import torch

    dtype = _common_dtype(tensors)
    shape = (len(tensors), max(map(len, tensors)), *tensors[0].shape[1:])
    padded = torch.full(shape, pad, dtype=dtype)
    for row, tensor in zip(padded, tensors, strict=True):
        row[: len(tensor)] = tensor
    return padded


def _stacked(tensors: list["torch.Tensor"]) -> "torch.Tensor":
    import torch

    dtype = _common_dtype(tensors)
    return torch.stack([tensor.to(dtype) for tensor in tensors])


def _common_dtype(tensors: list["torch.Tensor"]) -> "torch.dtype":
    from functools import reduce

    import torch

    # The type of an empty list is unknown: it must not make integers of the others' floats.
    filled = [tensor.dtype for tensor in tensors if tensor.numel()] or [tensors[0].dtype]
    return reduce(torch.promote_types, filled)


def _common_fields(samples: Sequence[Mapping[str, Any]]) -> list[str]:
    for i, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise DataError(
                f"A sample is {sample!r:.80}, of type {type(sample).__name__}. Return a dict, such "
                'as {"utt_id": "a", "speech": array}, or set a dataloader.collate_fn of your own.'
            )
        if sample.keys() != samples[0].keys():
            odd = sorted(map(str, sample.keys() ^ samples[0].keys()))
            raise DataError(
                f"{_name(samples, 0)} and {_name(samples, i)} are in one batch, but only one of "
                f"them has {', '.join(odd)}.",
                fix="Give all samples the same fields, in the datasets or "
                f"with a transform, or leave them out: collate_fn: {{_target_: {_TARGET}, "
                f"drop: [{', '.join(odd)}]}}",
            )
    return list(samples[0])


def _check_shapes(
    key: str, tensors: list["torch.Tensor"], samples: Sequence[Mapping[str, Any]]
) -> None:
    first = tensors[0]
    for i, tensor in enumerate(tensors):
        if tensor.ndim != first.ndim or tensor.shape[1:] != first.shape[1:]:
            raise DataError(
                f"{key} is {list(first.shape)} in {_name(samples, 0)} but {list(tensor.shape)} in "
                f"{_name(samples, i)}; only the first axis may differ. For audio with several "
                "channels choose one in the dataset: data_src_args: {channel: 0}"
            )


def _name(samples: Sequence[Mapping[str, Any]], position: int) -> str:
    return f"sample {samples[position].get('utt_id', f'{position} of a batch')}"


def _names(argument: str, names: Collection[str]) -> frozenset[str]:
    if isinstance(names, str):
        raise ConfigError(f"{argument} is {names!r}, but must be a list: {argument}: [{names}]")
    return frozenset(names)


_TARGET = f"{__name__}.PadCollate"

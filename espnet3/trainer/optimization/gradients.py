"""Gradients of one optimizer's parameters: their mean over the ranks, their norm, clipping."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

_BUCKET_BYTES = 25 * 2**20


def average_over_ranks(parameters: Sequence[nn.Parameter]) -> None:
    """Replace each gradient by the mean over all ranks.

    It is what DDP does in a backward pass, for gradients that came about without one: those of one
    of several optimizers, or of a window whose last batch was skipped. A parameter without gradient
    counts as zero, unless no rank has one.
    """
    for bucket in _buckets(parameters):
        flags = [p.new_tensor(float(p.grad is not None)) for p in bucket]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([*(part.reshape(-1) for part in parts), torch.stack(flags)])
        torch.distributed.all_reduce(flat)
        flat[: -len(bucket)] /= torch.distributed.get_world_size()
        _unpack(flat, bucket)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield groups of one type and at most 25 MB: few collectives, and little memory."""
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        bucket: list[nn.Parameter] = []
        size = 0
        for parameter in (p for p in parameters if p.dtype == dtype):
            if bucket and size + parameter.nbytes > _BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
            bucket.append(parameter)
            size += parameter.nbytes
        yield bucket


def _unpack(flat: Tensor, bucket: Sequence[nn.Parameter]) -> None:
    has_gradient = iter(flat[-len(bucket) :].tolist())
    chunks = torch.split(flat, [*(p.numel() for p in bucket), len(bucket)])
    for parameter, chunk in zip(bucket, chunks, strict=False):
        if next(has_gradient) == 0:
            parameter.grad = None
        elif parameter.grad is None:
            parameter.grad = chunk.view_as(parameter).clone()
        else:
            parameter.grad.copy_(chunk.view_as(parameter))


def has_gradients(module: nn.Module) -> bool:
    """Tell whether gradients wait for more batches: an accumulation, which no checkpoint holds.

    Our own module is asked, whose answer is the same on all ranks: of the parts into which FSDP
    cuts a model, that of one rank may be empty.
    """
    known: bool | None = getattr(module, "has_open_window", None)
    if known is not None:
        return known
    return any(parameter.grad is not None for parameter in module.parameters())


def scale_gradients(parameters: Sequence[nn.Parameter], factor: float) -> None:
    """Multiply the gradients in place."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, factor)


def total_norm(parameters: Sequence[nn.Parameter], root: Any = None) -> Tensor:
    """Return the 2-norm of all gradients together.

    Args:
        parameters: those of the optimizer.
        root: the module whose parameters FSDP has spread over the ranks, where it has.
    """
    clip = getattr(root, "clip_grad_norm_", None)
    if clip is not None:  # of FSDP, which alone knows the parts of the others
        norm: Tensor = clip(float("inf"))
        return norm
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    whole = getattr(norm, "full_tensor", None)  # of a DTensor
    return whole() if whole is not None else norm


def clip_gradients(
    parameters: Sequence[nn.Parameter], limit: float, algorithm: str, norm: Tensor
) -> None:
    """Limit the gradients, all together by their known norm or each by its value."""
    if algorithm == "value":
        torch.nn.utils.clip_grad_value_(parameters, limit)
    else:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)

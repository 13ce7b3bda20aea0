"""Deal the batches of an epoch to the ranks: all get the same number of steps."""

from collections.abc import Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    Ints = np.ndarray[Any, np.dtype[np.int64]]


def world() -> tuple[int, int]:
    """Return the number of ranks and our own: of the process group, or 1 and 0 without one."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), distributed.get_rank()
    return 1, 0


def in_steps(batches: Sequence["Ints"], n_ranks: int, *, drop_last: bool) -> list["Ints"]:
    """Return the batches such that their number is a multiple of the number of ranks.

    Step s of rank r is batch `s * n_ranks + r`. Only batches near the end are changed: the largest
    are split until there are enough, or, if they are single samples, some are joined.

    Raises:
        ConfigError: There is no batch, or there are fewer samples than ranks.
    """
    if not batches:
        raise ConfigError(
            "drop_last leaves no batch of an epoch. Use smaller batches or more data, or write: "
            "drop_last: false"
        )
    n_rest = len(batches) % n_ranks
    n_whole = len(batches) - n_rest
    if n_rest == 0 or (drop_last and n_whole):
        return list(batches[:n_whole])
    n_samples = sum(map(len, batches))
    if n_samples < n_ranks or drop_last:
        raise ConfigError(
            f"There are {n_ranks} ranks, but only {len(batches)} batches with {n_samples} samples "
            "of an epoch are left for them. Use fewer devices or more data, or smaller batches: "
            "batch_size: 1"
        )
    tail = n_whole
    n_in_tail = sum(map(len, batches[tail:]))
    while tail and n_in_tail < n_whole + n_ranks - tail:
        n_in_tail += sum(map(len, batches[tail - n_ranks : tail]))
        tail -= n_ranks
    if n_in_tail < n_whole + n_ranks - tail:
        return _joined(list(batches), n_whole)
    return [*batches[:tail], *_split(list(batches[tail:]), n_whole + n_ranks - tail)]


def _split(batches: list["Ints"], n_wanted: int) -> list["Ints"]:
    while len(batches) < n_wanted:
        i = max(range(len(batches)), key=lambda i: len(batches[i]))
        half = (len(batches[i]) + 1) // 2
        batches[i : i + 1] = [batches[i][:half], batches[i][half:]]
    return batches


def _joined(batches: list["Ints"], n_wanted: int) -> list["Ints"]:
    import numpy as np

    rest, batches = batches[n_wanted:], batches[:n_wanted]
    smallest = nsmallest(len(rest), range(n_wanted), key=lambda i: (len(batches[i]), -i))
    for i, batch in zip(smallest, rest, strict=True):
        batches[i] = np.concatenate([batches[i], batch])
    return batches

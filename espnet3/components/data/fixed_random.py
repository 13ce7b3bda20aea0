"""Random numbers, and rounding, that depend on the item alone, not on who computes it."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def fixed_random() -> Iterator[Callable[[int], None]]:
    """Yield a function that seeds Python, numpy and torch; all are as before when the block ends.

    Within the block torch uses one thread: with another number it adds up in another order, so
    that the last digits would tell how many workers a machine had.

    Example:
        >>> with fixed_random() as seed:
        ...     seed(3)
        ...     first = random.random()
        ...     seed(3)
        ...     first == random.random()
        True
    """
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state()
    torch_state = _enter(torch) if torch else None
    try:
        yield _seed
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch and torch_state:
            _leave(torch, torch_state)


def _seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number % 2**32)
    if torch := sys.modules.get("torch"):
        # `torch.manual_seed` would note a call, with its stack, for each GPU driver not started.
        torch.default_generator.manual_seed(number)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(number)


def _enter(torch: Any) -> tuple[Any, Any, int]:
    # Asking a GPU that nobody uses would start its driver.
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    state = torch.get_rng_state(), cuda, torch.get_num_threads()
    torch.set_num_threads(1)
    return state


def _leave(torch: Any, state: tuple[Any, Any, int]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
    torch.set_num_threads(state[2])

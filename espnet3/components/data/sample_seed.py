"""Random numbers of a sample: the same in each run, whatever the workers, ranks or a resume."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from espnet3.config.targets import signature_of

if TYPE_CHECKING:
    import numpy as np

_WORD = 2**64 - 1


def sample_rng(seed: int, epoch: int, index: int, copy: int = 0) -> "np.random.Generator":
    """Return the generator of one reading of a sample.

    Args:
        seed: That of the experiment.
        epoch: Counted from 0; always 0 where nothing is trained.
        index: Of the sample in its dataset.
        copy: 0 for the first time it comes in this epoch, 1 for the second one.
    """
    import numpy as np

    return np.random.default_rng([seed & _WORD, epoch, index, copy])


def takes_rng(step: Callable[..., Any]) -> bool:
    """Tell whether a transform has a parameter `rng`."""
    signature = signature_of(step)
    return signature is not None and "rng" in signature.parameters


def sample_of(dataset: Any, index: int, rng: "np.random.Generator") -> Any:
    """Return a sample, with random choices from `rng` if the dataset makes any."""
    draw = getattr(dataset, "sample_with", None)
    return draw(index, rng) if callable(draw) else dataset[index]


def uses_rng(dataset: Any) -> bool:
    """Tell whether a dataset makes random choices: without them, no generator need be made."""
    own = getattr(dataset, "uses_rng", None)
    return bool(own()) if callable(own) else callable(getattr(dataset, "sample_with", None))


@contextmanager
def global_rngs_kept() -> Iterator[Callable[..., None]]:
    """Yield a function that seeds Python, NumPy and PyTorch; all are as before at the end.

    Code that draws from these global generators is reproducible then, and does not change what
    the model draws, such as dropout, where samples are read in the training process.

    Example:
        >>> with global_rngs_kept() as seed:
        ...     seed(3, 14)
        ...     first = random.random()
        ...     seed(3, 14)
        ...     first == random.random()
        True
    """
    import numpy as np

    # A process that has not imported torch draws nothing from it, and it takes seconds to import.
    torch = sys.modules.get("torch")
    before = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()
    try:
        yield _seed
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        if torch:
            torch.set_rng_state(before[2])


@contextmanager
def fixed_random() -> Iterator[Callable[..., None]]:
    """As `global_rngs_kept`, for a GPU as well, and so that torch rounds the same everywhere.

    Within the block torch uses one thread: with another number it adds up in another order, so
    that the last digits would tell how many workers a machine had.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        with global_rngs_kept() as seed:
            yield seed
        return
    # Asking a GPU that is not in use would start its driver.
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with global_rngs_kept():
            yield lambda *words: _seed_with_gpu(torch, words)
    finally:
        torch.set_num_threads(n_threads)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda)


def _seed(*words: int) -> None:
    """Give each generator a seed of its own: two with the same one draw the same numbers."""
    import numpy as np

    mixed = np.random.SeedSequence([word & _WORD for word in words]).generate_state(3)
    seeds = [int(word) for word in mixed]
    random.seed(seeds[0])
    np.random.seed(seeds[1])
    if torch := sys.modules.get("torch"):
        # `torch.manual_seed` would note a call, with its stack, for each GPU driver not started.
        torch.default_generator.manual_seed(seeds[2])


def _seed_with_gpu(torch: Any, words: tuple[int, ...]) -> None:
    _seed(*words)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(torch.initial_seed())

"""Random numbers of a sample: the same in each run, whatever the workers, ranks or a resume."""

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
        epoch: Counted from 0.
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
def global_rngs_seeded(rng: "np.random.Generator") -> Iterator[None]:
    """Seed the generators of Python, NumPy and PyTorch from `rng`; give them back as they were.

    Code that draws from these global generators is reproducible then, and does not change what
    the model draws, such as dropout, where samples are read in the training process.
    """
    import random

    import numpy as np
    import torch

    words = [int(word) for word in rng.integers(0, 2**32, size=3)]
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(words[0])
    np.random.seed(words[1])
    torch.default_generator.manual_seed(words[2])
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])

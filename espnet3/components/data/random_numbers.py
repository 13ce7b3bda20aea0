"""Random numbers of samples: their own generators, and the global ones kept for the model."""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_WORD = 2**64 - 1
_POSITION = 624
"""Words of NumPy's global generator, and the place of the position after them."""


def sample_rng(seed: int, epoch: int, index: int, copy: int = 0) -> "np.random.Generator":
    """Return the generator of one reading of a sample.

    Args:
        seed: That of the experiment.
        epoch: Counted from 0; always 0 where nothing is trained.
        index: Of the sample in its dataset.
        copy: 0 for the first time it comes in this epoch, 1 for the second one.
    """
    import numpy as np

    # Words, not a sum: epoch 1 of seed 0 must not repeat epoch 0 of seed 1.
    return np.random.default_rng([seed & _WORD, epoch, index, copy])


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
    # A process that has not imported torch draws nothing from it, and it takes seconds to import.
    torch = sys.modules.get("torch")
    generator = torch and torch.default_generator
    before = random.getstate(), _NUMPY.state(), generator and generator.get_state()
    try:
        yield _seed
    finally:
        random.setstate(before[0])
        _NUMPY.restore(before[1])
        if generator:
            generator.set_state(before[2])


class _GlobalNumpy:
    """Saves and restores NumPy's global generator, in a few microseconds.

    `np.random.get_state` and `set_state` copy 624 words one by one, 0.1 ms for both, and there is a
    batch to be read in each step. So the words are copied as one block of memory, whose address
    NumPy publishes. The second number of a pair of normal ones, which the generator may hold back,
    has no address: it is drawn, which takes no word if there is one.
    """

    def __init__(self) -> None:
        self._bits: Any = None
        self._words: Any = None

    def state(self) -> Any:
        """Return what `restore` takes, and leave the generator as it is."""
        import numpy as np

        generators: Any = np.random  # whose types leave out the next two functions
        bits = generators.get_bit_generator()
        words = self._words_of(bits)
        if words is None:
            return bits, np.random.get_state(legacy=False)
        before = words.copy()
        held_back = np.random.standard_normal()
        if words[_POSITION] == before[_POSITION]:
            state = ("MT19937", before[:_POSITION], int(before[_POSITION]), 1, held_back)
            np.random.set_state(state)
            return bits, state
        words[:] = before
        generators.set_bit_generator(bits)  # which forgets the number that was held back just now
        return bits, before

    def restore(self, saved: Any) -> None:
        """Put the generator where it was, also if another one has taken its place."""
        import numpy as np

        generators: Any = np.random
        bits, state = saved
        generators.set_bit_generator(bits)
        if isinstance(state, np.ndarray):
            self._words_of(bits)[:] = state
        else:
            np.random.set_state(state)

    def _words_of(self, bits: Any) -> Any:
        """Return the words and the position of a generator as they are in memory.

        None if it is of another kind, or a NumPy to come has them elsewhere.
        """
        import ctypes

        import numpy as np

        if bits is not self._bits:
            self._bits, self._words = bits, None
            if type(bits) is np.random.MT19937:
                kind: Any = ctypes.c_uint32 * (_POSITION + 1)
                words = np.frombuffer(kind.from_address(bits.ctypes.state_address), np.uint32)
                known = bits.state["state"]
                is_known = np.array_equal(words[:-1], known["key"]) and words[-1] == known["pos"]
                self._words = words if is_known else None
        return self._words


_NUMPY = _GlobalNumpy()


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


def seeds_of(*words: int) -> tuple[int, ...]:
    """Return a seed for each generator: two with the same one draw the same numbers."""
    import numpy as np

    mixed = np.random.SeedSequence([word & _WORD for word in words]).generate_state(3)
    return tuple(mixed.tolist())


def _seed(*words: int) -> None:
    seed_each(seeds_of(*words))


def seed_each(seeds: Sequence[int]) -> None:
    """Do what the function of `global_rngs_kept` does, with what `seeds_of` returned."""
    import numpy as np

    random.seed(seeds[0])
    np.random.seed(seeds[1])
    if torch := sys.modules.get("torch"):
        # `torch.manual_seed` would note a call, with its stack, for each GPU driver not started.
        torch.default_generator.manual_seed(seeds[2])


def _seed_with_gpu(torch: Any, words: tuple[int, ...]) -> None:
    _seed(*words)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(torch.initial_seed())

"""How many threads torch uses on the CPU in each process."""

import logging
import os

logger = logging.getLogger(__name__)

_FEW_CORES = 4


def count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_threads(n_cores: int, n_processes: int, n_loader_workers: int) -> int:
    """Return the number of threads for one of the training processes of a machine.

    Threads of torch wait for each other by spinning. On few cores, which the loader's workers and
    other people share, one that is late holds up all: two threads on two cores were 3 to 4 times
    slower than one. On many, each process gets its share, less what its loader needs.

    Args:
        n_cores: that this process may use.
        n_processes: that train on this machine.
        n_loader_workers: of each process.
    """
    share = n_cores // max(1, n_processes) - n_loader_workers
    return share if share > _FEW_CORES else 1


def set_threads(num_threads: int | None, n_processes: int, n_loader_workers: int) -> int:
    """Set the number of threads of this process, unless `OMP_NUM_THREADS` says it.

    Args:
        num_threads: what the config says; None to choose.
        n_processes: that train on this machine.
        n_loader_workers: of each process.

    Returns:
        The number in force.
    """
    import torch

    if num_threads is None and "OMP_NUM_THREADS" not in os.environ:
        num_threads = choose_threads(count_cores(), n_processes, n_loader_workers)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
        # Lightning would set its own number in processes that it starts, and so would libraries.
        os.environ["OMP_NUM_THREADS"] = str(num_threads)
    logger.debug("torch uses %d thread(s)", torch.get_num_threads())
    return torch.get_num_threads()

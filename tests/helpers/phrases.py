"""Phrases of messages that tests of many modules look for: reworded, they change here alone."""

import re

RERUN = "(?i)run the same command again"
"""For `match`: the way out of whatever a second call mends."""


def says_to_rerun(text: str, then: str = "") -> bool:
    """Tell whether a message says to run the same command again, and what that does."""
    return re.search(RERUN + re.escape(then), text) is not None


def too_few_gpus(n_workers: int, n_gpus: int) -> str:
    """Return what is said of more workers than GPUs."""
    return f"parallel.n_workers is {n_workers} but {n_gpus} GPU(s) are visible"

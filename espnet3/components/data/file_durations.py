"""Durations of many audio files, for builders of datasets, on the configured workers."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from espnet3.components.data.audio import read_duration
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.env_provider import EnvironmentProvider


class _Nothing(EnvironmentProvider):
    """Provider without an environment: the items hold all that a worker needs."""

    def build_env_local(self) -> dict[str, Any]:
        return {}

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        return dict


class FileDurations(BaseRunner):
    """Reads the header of a file; the items are paths."""

    can_detach = False  # the caller needs what it returns

    @staticmethod
    def forward(idx: str) -> float:  # type: ignore[override]
        """Return the seconds of one file."""
        return read_duration(idx)


def measure_files(paths: Iterable[str | os.PathLike[str]]) -> list[float]:
    """Return the seconds of each file, from their headers, in order.

    The `parallel` block in force says on how many workers; in a recipe, that of the config.

    Raises:
        ItemError: A file cannot be read; the message names it.

    Example:
        >>> measure_files([])
        []
    """
    items = [os.fspath(path) for path in paths]
    return list(FileDurations(_Nothing({}))(items)) if items else []

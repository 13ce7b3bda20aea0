"""Detached workers for several runs, submitted once when all of them are prepared."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


class SharedWorkers:
    """Give it to each runner as `client`; at the end of its `with` block workers are submitted.

    They serve the runs one after the other. If a runner refuses, nothing is submitted for any.

    Args:
        config: where workers run; its mode is `async`.

    Example:
        ```python
        with SharedWorkers(config) as workers:
            for runner, items in runs:
                runner(items, client=workers)
        ```
    """

    def __init__(self, config: "ParallelConfig") -> None:
        self.config = config
        self.roots: list[Path] = []
        """The folders of the runs that were not complete."""
        self._n_shards = 0

    def add(self, root: Path, n_shards: int) -> None:
        """Let the workers serve a run that has so many shards left."""
        self.roots.append(root)
        self._n_shards += n_shards

    def __enter__(self) -> "SharedWorkers":
        return self

    def __exit__(self, error: object, *exc_info: object) -> None:
        if error is None and self.roots:
            from espnet3.parallel.detached.launch import submit_missing

            submit_missing(self.roots, self.config, self._n_shards)

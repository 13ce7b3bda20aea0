"""One cluster for several runs, started by the first of them that has work to do."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from espnet3.parallel.config import ParallelConfig


class SharedCluster:
    """Give it to each runner as `client`; use it in a `with` block, at whose end it is closed.

    Args:
        config: where workers run.
        n_tasks: how many tasks there can be at most; no more workers are started.

    Example:
        >>> with SharedCluster(ParallelConfig(env="slurm", n_workers=8), n_tasks=200) as cluster:
        ...     pass  # runner_a(items, client=cluster); runner_b(others, client=cluster)
    """

    def __init__(self, config: ParallelConfig, n_tasks: int) -> None:
        self.config = config.model_copy(update={"n_workers": min(config.n_workers, n_tasks)})
        self._stack = ExitStack()
        self._client: Any = None

    def connect(self, log_dir: Path | None = None) -> Any:
        """Return the client; the first call starts the cluster, whose jobs log into `log_dir`."""
        from espnet3.parallel.clusters.job_options import with_log_folder
        from espnet3.parallel.parallel import get_client

        if self._client is None:
            config = with_log_folder(self.config, log_dir)
            self._client = self._stack.enter_context(get_client(config))
        return self._client

    def __enter__(self) -> "SharedCluster":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client = None
        self._stack.close()

"""Python handle of a detached run, returned by a runner with `parallel.mode: async`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.parallel.detached.folder_access import reached

if TYPE_CHECKING:
    from espnet3.findings import Finding
    from espnet3.parallel.detached.cancel import Cancelled
    from espnet3.parallel.detached.overview import Overview
    from espnet3.parallel.detached.resume import Resumed, Retried


class DetachedRun:
    """A run that continues without this program; the verbs are those of the `espnet3` command.

    It holds nothing but the folder: make one in any program, on any machine that sees the folder.

    Args:
        run_dir: the run folder, that with `manifest.json`.

    Example:
        ```python
        run = runner(range(1000))       # parallel.mode: async
        print(run.status().state)
        text = run.wait()               # what a synchronous run would have returned
        ```
    """

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        self.run_dir = Path(run_dir)

    def __repr__(self) -> str:
        """Return how to make it again."""
        return f"DetachedRun({str(self.run_dir)!r})"

    def status(self) -> "Overview":
        """Return the state of the run: `.state`, `.status` (counts), `.workforce`, `.avoided`."""
        from espnet3.parallel.detached.overview import look

        with reached(self.run_dir):
            return look(self.run_dir)

    def logs(
        self, *, shard: int | None = None, worker: str | None = None, failed: bool = False
    ) -> str:
        """Return what workers wrote: those at work, or one, or at a shard, or what failed."""
        from espnet3.parallel.detached import logs

        with reached(self.run_dir):
            if shard is not None:
                parts = logs.logs_of_shard(self.run_dir, shard)
            elif failed:
                parts = logs.logs_of_failed(self.run_dir)
            else:
                parts = logs.logs_of_workers(self.run_dir, worker)
        return "\n".join(f"==> {part.title} <==\n" + "\n".join(part.lines) for part in parts)

    def cancel(self, reason: str = "") -> "Cancelled":
        """Stop all workers and jobs; finished shards are kept. Returns those that are left."""
        from espnet3.parallel.detached.cancel import cancel_runs

        with reached(self.run_dir):
            (cancelled,) = cancel_runs([self.run_dir], reason=reason)
        return cancelled

    def resume(
        self,
        parallel: Mapping[str, Any] | None = None,
        *,
        n_more: int | None = None,
        trust: str | None = None,
    ) -> "Resumed":
        """Give the run more workers.

        Args:
            parallel: keys of the `parallel` block to change, such as `{"env": "local"}`.
            n_more: how many to add; if None, as many as are missing to `n_workers`.
            trust: a user whose code may be run as well as one's own.
        """
        from espnet3.parallel.detached.resume import resume_runs

        with reached(self.run_dir):
            return resume_runs([self.run_dir], parallel, n_more=n_more, trust=trust)

    def retry(
        self,
        parallel: Mapping[str, Any] | None = None,
        *,
        n_more: int | None = None,
        trust: str | None = None,
    ) -> "Retried":
        """Run the shards with failed items again, and resume."""
        from espnet3.parallel.detached.resume import retry_runs

        with reached(self.run_dir):
            return retry_runs([self.run_dir], parallel, n_more=n_more, trust=trust)

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the end, and return what a synchronous run would have returned.

        Raises:
            TimeoutError: after so many seconds; the run continues.
            EspnetError: if the run failed, was cancelled, or if no worker is left.
        """
        from espnet3.parallel.detached.overview import failure_of, wait_for

        seen = wait_for(self.run_dir, timeout)
        if seen.state != "complete":
            raise failure_of(seen)
        return self.result()

    def merge(self, *, trust: str | None = None) -> Any:
        """Join the shards of a run whose workers died before they could; return its result."""
        from espnet3.parallel.detached.merging import merge_detached

        with reached(self.run_dir):
            return merge_detached(self.run_dir, trust=trust)

    def result(self) -> Any:
        """Return what `merge` returned.

        Raises:
            IncompleteRunError: if the run is not complete; see `wait`.
        """
        from espnet3.parallel.detached.merging import result_of

        with reached(self.run_dir):
            return result_of(self.run_dir)

    def explain(self) -> "list[Finding]":
        """Diagnose a stalled run: findings, the worst first, each with what to do about it."""
        from espnet3.parallel.detached.explain import explain_run

        with reached(self.run_dir):
            return explain_run(self.run_dir)

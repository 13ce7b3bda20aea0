"""Python handle of a detached run, returned by a runner with `parallel.mode: async`; its merge."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import IncompleteRunError, RunFolderError
from espnet3.parallel.detached.description import load_runner
from espnet3.parallel.detached.folder_access import reached
from espnet3.parallel.folder_run import Merger, finished_result, folder_errors, unpack_run
from espnet3.shards.lease import Lease, claims, living_owners, refuse_other_versions
from espnet3.shards.manifest import require_manifest
from espnet3.shards.merge import check_complete, read_success

if TYPE_CHECKING:
    from espnet3.findings import Finding
    from espnet3.parallel.detached.control import Cancelled, Resumed, Retried
    from espnet3.parallel.detached.overview import Overview


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
        from espnet3.parallel.detached.control import cancel_runs

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
        from espnet3.parallel.detached.control import resume_runs

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
        from espnet3.parallel.detached.control import retry_runs

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
        with reached(self.run_dir):
            return merge_detached(self.run_dir, trust=trust)

    def result(self) -> Any:
        """Return what `merge` returned.

        Raises:
            IncompleteRunError: if the run is not complete; see `wait`.
        """
        with reached(self.run_dir):
            return result_of(self.run_dir)

    def explain(self) -> "list[Finding]":
        """Diagnose a stalled run: findings, the worst first, each with what to do about it."""
        from espnet3.parallel.detached.explain import explain_run

        with reached(self.run_dir):
            return explain_run(self.run_dir)


def merge_detached(run_dir: Path, *, trust: str | None = None) -> Any:
    """Merge a run whose shards are all done, and return what `merge` returns.

    Nothing is done if it is merged already and its files are as they were.

    Raises:
        IncompleteRunError: with what is missing.
        RunFolderError: if another process is merging it, or if its code is another user's.
    """
    manifest = require_manifest(run_dir)
    answer = finished_answer(run_dir)
    if answer is not None:
        return answer[0]
    refuse_other_versions(run_dir)
    unpack_run(run_dir, manifest)
    coverage = check_complete(run_dir, manifest, contents=False)  # before the code is loaded
    runner = load_runner(run_dir, trust=trust)
    # A lease as any worker has: its heartbeat keeps the merge claim from being taken over.
    with folder_errors(run_dir), Lease(run_dir.resolve()) as lease:
        if not lease.claim("merge"):
            raise RunFolderError(f"{_merger(run_dir)} is merging {run_dir} just now.")
        merger = Merger(
            run_dir, runner.output_dir, manifest, lease, runner.merge, coverage=coverage
        )
        return merger.merge()


def finished_answer(run_dir: Path) -> tuple[Any] | None:
    """Return what `merge` returned, in a tuple, if it is known and its files are as they were."""
    manifest = require_manifest(run_dir)
    output_dir = Path(os.path.normpath(run_dir / manifest.output_dir))
    return finished_result(run_dir, manifest, output_dir)


def result_of(run_dir: Path, *, trust: str | None = None) -> Any:
    """Return what `merge` returned; merge again if that could not be noted.

    Raises:
        IncompleteRunError: if the run is not complete.
    """
    manifest = require_manifest(run_dir)
    if read_success(manifest.layout(run_dir), manifest.run_id) is None:
        raise IncompleteRunError(
            f"The run in {run_dir} is not complete, so it has no result yet. Wait for it: "
            f"espnet3 wait {shlex.quote(str(run_dir))}, or in Python: run.wait()"
        )
    answer = finished_answer(run_dir)
    return answer[0] if answer is not None else merge_detached(run_dir, trust=trust)


def _merger(run_dir: Path) -> str:
    layout = require_manifest(run_dir).layout(run_dir)
    holder = claims(layout.leases).get("merge", "")
    return next(
        (str(owner) for owner in living_owners(layout.leases) if owner.owner_id == holder),
        "Another process",
    )

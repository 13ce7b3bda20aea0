"""Sinks for the results of a shard: memory, or a folder that is committed."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from espnet3.errors import RunFolderError
from espnet3.io.tables import JsonlWriter
from espnet3.parallel.hooks import bind
from espnet3.parallel.tasks import Cells, Failure, RunSpec, ShardTask, failure_record
from espnet3.shards.commit import Done, commit, discard_attempt, finish_attempt
from espnet3.shards.layout import FAILED, POSITION, RunLayout
from espnet3.shards.manifest import read_run_id
from espnet3.shards.owner import node_name
from espnet3.shards.position import Position
from espnet3.shards.reachable import is_there
from espnet3.shards.sharing import share_folder


@dataclass(frozen=True)
class Outcome:
    """How an attempt went."""

    failures: list[Failure]
    seconds: float
    load_seconds: float
    n_halved: int


class MemorySink:
    """Keeps results with their positions."""

    def __init__(self, task: ShardTask) -> None:
        self.results: list[tuple[int, Any]] | None = []
        self.done: Done | None = None
        self._position = Position(Path(task.attempt)) if task.attempt else None
        self.cells: Cells = self._position.cells if self._position else [-1, 1]
        append = self.results.append
        self.write: Callable[[int, Any], object] = lambda position, result: append(
            (position, result)
        )

    def finish(self, outcome: Outcome) -> None:
        """Nothing is left to do: results are handed over as they are."""

    def is_lost(self, error: Exception) -> bool:
        """Return False: memory cannot be lost to another process."""
        return False

    def abandon(self) -> None:
        """Forget the results."""
        self.results = None

    def close(self) -> None:
        """Unmap the position."""
        if self._position:
            self._position.close()
            self.cells = [-1, 1]


class FolderSink:
    """Writes results with the runner's hooks into a folder of its own, then commits it."""

    def __init__(self, spec: RunSpec, env: dict[str, Any], task: ShardTask) -> None:
        assert spec.run_dir is not None
        self.results: list[tuple[int, Any]] | None = None
        self.done: Done | None = None
        self._spec, self._task = spec, task
        self._layout = RunLayout(spec.run_dir, spec.n_shards)
        self._folder = self._make_folder()
        self._position = Position(self._folder)
        self.cells: Cells = self._position.cells
        state: dict[str, Any] = {}
        open_writers = bind(spec.hooks.open_writers, ["shard_dir"], env)
        self._writers = open_writers(self._folder)
        close_writers = bind(spec.hooks.close_writers, ["writers", "state"], env)
        self._close_writers = partial(close_writers, self._writers, state)
        write_record = bind(spec.hooks.write_record, ["writers", "result", "state"], env)
        writers = self._writers
        self.write: Callable[[int, Any], object] = lambda _, result: write_record(
            writers, result, state
        )

    def _make_folder(self) -> Path:
        # A scheduler may run a task twice; the second must not step into the first one's folder.
        if self._task.attempt is not None:
            try:
                folder = Path(self._task.attempt)
                folder.mkdir()
                share_folder(folder)
                return folder
            except FileExistsError:
                pass
        folder = self._layout.new_attempt(self._task.shard)
        folder.mkdir()
        share_folder(folder)
        return folder

    def finish(self, outcome: Outcome) -> None:
        """Close the writers, list the failures, make all durable and publish the shard."""
        started = time.time() - outcome.seconds - outcome.load_seconds
        close, self._close_writers = self._close_writers, partial(bool)
        summary = close()
        if outcome.failures:
            with JsonlWriter(self._folder / FAILED) as writer:
                for failure in sorted(outcome.failures, key=lambda failure: failure.position):
                    writer.write(failure_record(failure, self._layout.root))
        done = finish_attempt(
            self._folder,
            Done(
                run_id=self._spec.run_id,
                shard=self._task.shard,
                start=self._task.start,
                stop=self._task.stop,
                n_failed=len(outcome.failures),
                seconds=outcome.seconds,
                load_seconds=outcome.load_seconds,
                host=node_name(),
                pid=os.getpid(),
                summary=summary,
                n_halved=outcome.n_halved,
                started=round(started, 3),
                n_deaths=self._task.n_deaths,
                owner_id=self._task.owner_id,
            ),
        )
        is_ours = commit(self._folder, self._layout, done)
        if not is_ours and read_run_id(self._layout.root) != self._spec.run_id:
            raise RunFolderError(
                f"Another driver restarted the run in {self._layout.root} meanwhile. Its "
                "results are kept; choose another output_dir for these."
            )
        self.done = done

    def is_lost(self, error: Exception) -> bool:
        """Tell whether an error means that the attempt was taken for dead and removed."""
        return isinstance(error, FileNotFoundError) and not is_there(self._folder / POSITION)

    def abandon(self) -> None:
        """Remove the unfinished attempt."""
        with suppress(Exception):  # the reason for abandoning is reported; this is only tidying up
            self._close_writers()
        discard_attempt(self._folder)

    def close(self) -> None:
        """Unmap the position."""
        self.cells = [self.cells[0], self.cells[1]]
        self._position.close()


def open_sink(spec: RunSpec, env: dict[str, Any], task: ShardTask) -> MemorySink | FolderSink:
    """Return the sink that the run asks for."""
    return MemorySink(task) if spec.run_dir is None else FolderSink(spec, env, task)

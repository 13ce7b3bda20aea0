"""Run one shard: the loop that calls `forward` and writes results."""

import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from espnet3.errors import ConfigError, ProviderError, RunFolderError
from espnet3.io.atomic import is_folder_trouble
from espnet3.parallel.held_secrets import secrets_held
from espnet3.parallel.hooks import bind, split_batch
from espnet3.parallel.machine_errors import free_memory, is_machine_trouble, is_out_of_memory
from espnet3.parallel.sinks import FolderSink, MemorySink, Outcome, open_sink
from espnet3.parallel.tasks import (
    Cells,
    Failure,
    RunSpec,
    ShardResult,
    ShardTask,
    Stopped,
    digests_of,
    scrub,
    user_traceback,
)
from espnet3.shards.reachable import is_of_node

logger = logging.getLogger(__name__)
_ODD_RESULTS = 2


def check_env(env: Any, built_by: str) -> dict[str, Any]:
    """Return the provider's environment if it is a dict with names as keys.

    Raises:
        ProviderError: saying what was returned instead.
    """
    if isinstance(env, dict) and all(isinstance(key, str) for key in env):
        return env
    raise ProviderError(
        f"{built_by} returned {type(env).__name__}, but must return a dict of what forward() "
        'takes, such as {"dataset": dataset, "model": model}.'
    )


def _joined(env: dict[str, Any], spec: RunSpec) -> dict[str, Any]:
    """Return all that hooks get by name.

    Raises:
        ProviderError: the environment has a name that the runner gives itself.
    """
    taken = sorted(env.keys() & spec.settings.keys())
    if taken:
        raise ProviderError(
            f"The provider's environment has {taken[0]!r}, which the runner hands to forward() "
            f"itself. Give it another name: {taken[0]}_ in the provider's params or environment."
        )
    given = spec.params or {}
    for name, digest in digests_of({key: env[key] for key in given if key in env}).items():
        if digest != given[name]:
            logger.warning(
                "params of the provider has another %s than the environment that it built, which "
                "is used. Give one of the two another name, or leave it out of params",
                name,
            )
    return {**env, **spec.settings}


def _bound_forward(spec: RunSpec, env: dict[str, Any]) -> Callable[[Any], Any]:
    forward = bind(spec.hooks.forward, ["idx"], env)
    if spec.hooks.complete is None:
        return forward
    complete = bind(spec.hooks.complete, ["result", "idx"], env)
    return lambda idx: complete(forward(idx), idx)


class ShardLoop:
    """Runs shards with one environment; made once per worker and run."""

    def __init__(self, spec: RunSpec, env: dict[str, Any], *, log: str = "") -> None:
        env = _joined(env, spec)
        self._spec = spec
        self._env = env
        self._log = log
        self._forward = _bound_forward(spec, env)
        self._attempt: _Attempt | None = None
        self._secrets: frozenset[str] | None = None

    def run(self, task: ShardTask, *, load_seconds: float = 0.0) -> ShardResult:
        """Run an attempt to its end, commit it, and tell how it went."""
        self._attempt = _Attempt(
            self._spec, self._env, self._forward, task, self._log, self.secrets
        )
        try:
            return self._attempt.run(load_seconds)
        finally:
            self._attempt = None

    def secrets(self) -> frozenset[str]:
        """Return what must not be written down of an error; looked for once something fails."""
        if self._secrets is None:
            self._secrets = secrets_held(self._spec.setup_fn, self._env)
        return self._secrets

    def position(self) -> int:
        """Return the position of the running batch, for another thread to tell; -1 if none runs."""
        attempt = self._attempt
        try:
            return attempt.cells[0] if attempt else -1
        except ValueError:  # the attempt ended between the two
            return -1


class _GiveUp(Exception):
    """Carries the reason why an attempt stops; never leaves this module."""

    def __init__(self, stopped: Stopped) -> None:
        super().__init__(stopped.kind)
        self.stopped = stopped


class _Attempt:
    def __init__(
        self,
        spec: RunSpec,
        env: dict[str, Any],
        forward: Callable[[Any], Any],
        task: ShardTask,
        log: str,
        secrets: Callable[[], frozenset[str]],
    ) -> None:
        self._spec, self._env, self._forward, self._task, self._log = spec, env, forward, task, log
        self._secrets = secrets
        self._failures: list[Failure] = []
        self._n_halved = 0
        self._pid = os.getpid()
        self.cells: Cells = [-1, 1]

    def run(self, load_seconds: float) -> ShardResult:
        begin = time.monotonic()
        try:
            sink = open_sink(self._spec, self._env, self._task)
        except Exception as error:
            kind = _trouble_with(self._spec.run_dir, error) or "provider"
            return self._stopped(Stopped(kind, self._failure(error, self._task.start), error))
        self.cells = sink.cells
        try:
            self._loop(sink)
            seconds = time.monotonic() - begin
            sink.finish(Outcome(self._failures, seconds, load_seconds, self._n_halved))
        except _GiveUp as error:
            sink.abandon()
            return self._stopped(error.stopped)
        except Exception as error:
            kind = _kind_of(error, sink, self._task, self._spec)
            sink.abandon()
            return self._stopped(Stopped(kind, self._failure(error, sink.cells[0]), error))
        except BaseException:
            sink.abandon()
            raise
        finally:
            sink.close()
        return ShardResult(self._task, sink.results, self._failures, sink.done)

    def _stopped(self, stopped: Stopped) -> ShardResult:
        return ShardResult(self._task, failures=self._failures, stopped=stopped)

    def _loop(self, sink: MemorySink | FolderSink) -> None:
        task = self._task
        if self._spec.is_batched or task.skip:
            self._run_batches(sink)
            return
        # The hot loop: a store to a mapped cell, the user's function, the writer, nothing else.
        cells, forward, write = sink.cells, self._forward, sink.write
        cells[1] = 1
        for position, item in zip(itertools.count(task.start), task.items, strict=False):
            cells[0] = position
            try:
                result = forward(item)
            except BaseException as error:
                self._give_up_on(position, _refuse_interrupt(error, self._pid))
                continue
            write(position, result)
        cells[0] = task.stop

    def _run_batches(self, sink: MemorySink | FolderSink) -> None:
        for position, failure in sorted(self._task.skip.items()):
            self._failures.append(replace(failure, position=position))
        for batch in _batches(self._task, self._spec.batch_size):
            self._run_batch(batch, sink)
        sink.cells[0] = self._task.stop

    def _run_batch(self, batch: list[int], sink: MemorySink | FolderSink) -> None:
        cells = sink.cells
        cells[1] = batch[-1] + 1 - batch[0]
        cells[0] = batch[0]
        results = None
        is_memory = False
        try:
            results = self._forward_batch(batch)
        except BaseException as error:
            is_memory = is_out_of_memory(_refuse_interrupt(error, self._pid))
            if not self._is_worth_halving(batch, error, is_memory):
                return
        if results is None:  # outside of the except block: the error held the batch's memory
            if is_memory:  # else not worth its time, up to a tenth of a second beside torch
                free_memory()
            self._run_halves(batch, sink)
            return
        cells[1] = 1  # from here on, what goes wrong is about one result
        for position, result in zip(batch, results, strict=True):
            cells[0] = position
            sink.write(position, result)

    def _forward_batch(self, batch: list[int]) -> Any:
        items = [self._task.items[position - self._task.start] for position in batch]
        if not self._spec.is_batched:
            return [self._forward(items[0])]
        return split_batch(self._forward(items), len(items), "forward()")

    def _is_worth_halving(self, batch: list[int], error: BaseException, is_memory: bool) -> bool:
        """Tell whether to try the halves of a failed batch; if not, it is given up on."""
        can_help = is_memory or self._spec.skip_errors
        is_hopeless = isinstance(error, ProviderError) or (
            not self._task.blames_item and is_machine_trouble(error, self._spec.run_dir)
        )
        if len(batch) == 1 or not can_help or is_hopeless:
            self._give_up_on(batch[0], error, batch)
            return False
        reason = "does not fit into memory" if is_memory else "failed"
        told = scrub(str(error), self._secrets())
        logger.warning("A batch of %d items %s (%s); trying its halves", len(batch), reason, told)
        self._n_halved += is_memory
        return True

    def _run_halves(self, batch: list[int], sink: MemorySink | FolderSink) -> None:
        middle = len(batch) // 2
        self._run_batch(batch[:middle], sink)
        self._run_batch(batch[middle:], sink)

    def _give_up_on(
        self, position: int, error: BaseException, batch: list[int] | None = None
    ) -> None:
        failure = self._failure(error, position, batch)
        if isinstance(error, ProviderError):
            raise _GiveUp(Stopped("provider", failure, error))
        if not self._task.blames_item and is_machine_trouble(error, self._spec.run_dir):
            raise _GiveUp(Stopped("machine", failure, error))
        if not self._spec.skip_errors:
            # A wrong setting fails with every item: nothing is gained by going on without this one.
            kind = "config" if isinstance(error, ConfigError) else "item"
            raise _GiveUp(Stopped(kind, failure, error))
        self._failures.append(failure)

    def _failure(
        self, error: BaseException, position: int, batch: list[int] | None = None
    ) -> Failure:
        items = self._task.items
        offset = min(max(position - self._task.start, 0), len(items) - 1)
        position, index = self._task.start + offset, items[offset]
        if batch is not None and len(batch) > 1:
            index = [items[p - self._task.start] for p in batch]
        shard, secrets = self._task.shard, self._secrets()
        return Failure.of(error, position, index, shard, log=self._log, secrets=secrets)


def _kind_of(
    error: Exception, sink: MemorySink | FolderSink, task: ShardTask, spec: RunSpec
) -> str:
    """Tell what an error outside `forward` is about: the folder, the disk, us, or the record."""
    if sink.is_lost(error):
        return "lost"
    if trouble := _trouble_with(spec.run_dir, error):
        return trouble
    if isinstance(error, ConfigError) and (not spec.skip_errors or _is_usual(error, task)):
        return "config"
    # Behind the last item the writers are closed: without this item or that it would fail again.
    is_closing = sink.cells[0] >= task.stop
    if is_closing or isinstance(error, ProviderError | RunFolderError):
        return "provider"
    return "write"


def _is_usual(error: Exception, task: ShardTask) -> bool:
    """Tell whether two results before failed alike: each costs a new attempt at the shard."""
    before = [failure for failure in task.skip.values() if failure.error.endswith(str(error))]
    return len(before) >= _ODD_RESULTS


def _trouble_with(run_dir: str | None, error: Exception) -> str | None:
    """Tell whether this node cannot reach the run folder, or nobody can write there."""
    if run_dir is not None and is_of_node(error, run_dir):
        return "node"
    return "disk" if is_folder_trouble(error, run_dir) else None


def _refuse_interrupt(error: BaseException, pid: int) -> BaseException:
    """Let Ctrl-C through; `sys.exit()` or asyncio's cancelling is a failed item like any other."""
    if os.getpid() != pid:
        # A child that forward() forked: it must not go on as a second one of us.
        sys.stderr.write(user_traceback(error))
        sys.stderr.flush()
        os._exit(0 if isinstance(error, SystemExit) and not error.code else 1)
    if isinstance(error, KeyboardInterrupt):
        raise error
    return error


def _batches(task: ShardTask, batch_size: int | None) -> Iterator[list[int]]:
    """Yield the positions of each batch, without skipped ones and cut where the task says."""
    by_number = range(task.start, task.stop, batch_size or 1)
    planned = by_number if task.edges is None else task.edges
    inside = {edge for edge in (*planned, *task.cuts) if task.start < edge < task.stop}
    edges = sorted({task.start, task.stop, *inside})
    for first, last in itertools.pairwise(edges):
        batch = [position for position in range(first, last) if position not in task.skip]
        if batch:
            yield batch

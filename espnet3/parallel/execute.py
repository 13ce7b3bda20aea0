"""Run one shard: build the environment, call `forward`, write the results, commit them."""

import errno
import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from espnet3.errors import ConfigError, ProviderError, RunFolderError
from espnet3.io.atomic import JsonlWriter, is_folder_trouble
from espnet3.io.shared_files import is_of_node, is_there
from espnet3.memory import free_memory, is_out_of_memory
from espnet3.parallel.tasks import (
    N_SHOWN,
    Cells,
    Failure,
    RunSpec,
    ShardAttempt,
    ShardResult,
    Stopped,
    bind,
    digests_of,
    failure_record,
    scrub,
    secrets_held,
    split_batch,
    user_traceback,
)
from espnet3.schedulers import node_name
from espnet3.shards.commit import (
    Done,
    Position,
    commit,
    discard_attempt,
    finish_attempt,
    make_attempt,
)
from espnet3.shards.layout import FAILED, POSITION, RunLayout
from espnet3.shards.manifest import read_run_id

logger = logging.getLogger(__name__)
_ODD_RESULTS = 2
_MACHINE_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE}


@dataclass(frozen=True)
class AttemptOutcome:
    """Result of an attempt."""

    failures: list[Failure]
    seconds: float
    load_seconds: float
    n_halved: int


class MemorySink:
    """Keeps results with their positions."""

    def __init__(self, task: ShardAttempt) -> None:
        self.results: list[tuple[int, Any]] | None = []
        self.done: Done | None = None
        self._position = Position(Path(task.attempt)) if task.attempt else None
        self.cells: Cells = self._position.cells if self._position else [-1, 1]
        append = self.results.append
        self.write: Callable[[int, Any], object] = lambda position, result: append(
            (position, result)
        )

    def finish(self, outcome: AttemptOutcome) -> None:
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

    def __init__(self, spec: RunSpec, env: dict[str, Any], task: ShardAttempt) -> None:
        assert spec.run_dir is not None
        self.results: list[tuple[int, Any]] | None = None
        self.done: Done | None = None
        self._spec, self._task = spec, task
        self._layout = RunLayout(spec.run_dir, spec.n_shards, spec.group_size)
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
        attempt = self._task.attempt
        folder = Path(attempt) if attempt else self._layout.new_attempt(self._task.shard)
        try:
            make_attempt(folder)
        except FileExistsError:
            # A scheduler may run a task twice; the second must not step into the first's folder.
            folder = self._layout.new_attempt(self._task.shard)
            make_attempt(folder)
        return folder

    def finish(self, outcome: AttemptOutcome) -> None:
        """Close the writers, list the failures, make all durable and publish the shard."""
        started = time.time() - outcome.seconds - outcome.load_seconds
        # Closed once: `abandon` would call it again if committing fails.
        close, self._close_writers = self._close_writers, partial(bool)
        summary = close()
        if outcome.failures:
            with JsonlWriter(self._folder / FAILED) as writer:
                # Halving and skipping add failures out of order.
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
        # False is no error: a backup attempt was first, and its results are as good.
        is_ours = commit(self._folder, self._layout, done)
        if not is_ours and read_run_id(self._layout.root) != self._spec.run_id:
            raise RunFolderError(
                f"Another driver restarted the run in {self._layout.root} meanwhile. Its "
                "results are kept; choose another output_dir for these."
            )
        self.done = done

    def is_lost(self, error: Exception) -> bool:
        """Tell whether an error means that the attempt was taken for dead and removed."""
        # By the position file, which each attempt has: a file that the user's code misses is
        # another matter.
        return isinstance(error, FileNotFoundError) and not is_there(self._folder / POSITION)

    def abandon(self) -> None:
        """Remove the unfinished attempt."""
        with suppress(Exception):  # the reason for abandoning is reported; this is only tidying up
            self._close_writers()
        discard_attempt(self._folder)

    def close(self) -> None:
        """Unmap the position."""
        # A copy: the thread that reports the position may read it once more.
        self.cells = [self.cells[0], self.cells[1]]
        self._position.close()


Sink = MemorySink | FolderSink


def open_sink(spec: RunSpec, env: dict[str, Any], task: ShardAttempt) -> Sink:
    """Return the sink that the run asks for."""
    return MemorySink(task) if spec.run_dir is None else FolderSink(spec, env, task)


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
            "itself.",
            fix=f"Give it another name: {taken[0]}_ in the provider's params or environment.",
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
        self.spec = spec
        self.env = env
        self.log = log
        self.forward = _bound_forward(spec, env)
        self._attempt: _Attempt | None = None
        self._secrets: frozenset[str] | None = None

    def run(self, task: ShardAttempt, *, load_seconds: float = 0.0) -> ShardResult:
        """Run an attempt to its end, commit it, and tell how it went."""
        self._attempt = _Attempt(self, task)
        try:
            return self._attempt.run(load_seconds)
        finally:
            self._attempt = None

    def secrets(self) -> frozenset[str]:
        """Return what must not be written down of an error; looked for once something fails."""
        if self._secrets is None:
            self._secrets = secrets_held(self.spec.setup_fn, self.env)
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
    def __init__(self, loop: ShardLoop, task: ShardAttempt) -> None:
        self._spec, self._env, self._log, self._task = loop.spec, loop.env, loop.log, task
        self._forward, self._secrets = loop.forward, loop.secrets
        self._failures: list[Failure] = []
        self._n_halved = 0
        self._pid = os.getpid()
        self.cells: Cells = [-1, 1]

    def run(self, load_seconds: float) -> ShardResult:
        begin = time.monotonic()
        try:
            sink = open_sink(self._spec, self._env, self._task)
        except Exception as error:
            kind = _kind_of_machine_error(self._spec.run_dir, error) or "provider"
            return self._stopped(Stopped(kind, self._failure(error, self._task.start), error))
        self.cells = sink.cells
        try:
            self._loop(sink)
            seconds = time.monotonic() - begin
            sink.finish(AttemptOutcome(self._failures, seconds, load_seconds, self._n_halved))
        except _GiveUp as error:
            sink.abandon()
            return self._stopped(error.stopped)
        except Exception as error:
            # Before `abandon`, which removes the file that `is_lost` looks for.
            kind = _kind_of(error, sink, self._task, self._spec)
            sink.abandon()
            return self._stopped(Stopped(kind, self._failure(error, sink.cells[0]), error))
        except BaseException:
            # Ctrl-C in a run in this very process; worker processes ignore SIGINT.
            sink.abandon()
            raise
        finally:
            sink.close()
        return ShardResult(self._task, sink.results, self._failures, sink.done)

    def _stopped(self, stopped: Stopped) -> ShardResult:
        return ShardResult(self._task, failures=self._failures, stopped=stopped)

    def _loop(self, sink: Sink) -> None:
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
        # From here on, what fails is the closing of the writers; see `_kind_of`.
        cells[0] = task.stop

    def _run_batches(self, sink: Sink) -> None:
        for position, failure in sorted(self._task.skip.items()):
            self._failures.append(replace(failure, position=position))
        for batch in _batches(self._task, self._spec.batch_size):
            self._run_batch(batch, sink)
        sink.cells[0] = self._task.stop

    def _run_batch(self, batch: list[int], sink: Sink) -> None:
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
            not self._task.blames_item and is_machine_error(error, self._spec.run_dir)
        )
        if len(batch) == 1 or not can_help or is_hopeless:
            self._give_up_on(batch[0], error, batch)
            return False
        reason = "does not fit into memory" if is_memory else "failed"
        text = scrub(str(error), self._secrets())
        logger.warning("A batch of %d items %s (%s); trying its halves", len(batch), reason, text)
        # Counted for the end of the run, which then suggests smaller batches.
        self._n_halved += is_memory
        return True

    def _run_halves(self, batch: list[int], sink: Sink) -> None:
        middle = len(batch) // 2
        self._run_batch(batch[:middle], sink)
        self._run_batch(batch[middle:], sink)

    def _give_up_on(
        self, position: int, error: BaseException, batch: list[int] | None = None
    ) -> None:
        failure = self._failure(error, position, batch)
        if isinstance(error, ProviderError):
            raise _GiveUp(Stopped("provider", failure, error))
        if not self._task.blames_item and is_machine_error(error, self._spec.run_dir):
            raise _GiveUp(Stopped("machine", failure, error))
        if not self._spec.skip_errors:
            # A wrong setting fails with every item: skipping this one gains nothing.
            kind = "config" if isinstance(error, ConfigError) else "item"
            raise _GiveUp(Stopped(kind, failure, error))
        self._failures.append(failure)

    def _failure(
        self, error: BaseException, position: int, batch: list[int] | None = None
    ) -> Failure:
        items = self._task.items
        # The position is -1 before the first item, and `stop` behind the last one.
        offset = min(max(position - self._task.start, 0), len(items) - 1)
        position, index = self._task.start + offset, items[offset]
        if batch is not None and len(batch) > 1:
            index = [items[p - self._task.start] for p in batch]
        shard, secrets = self._task.shard, self._secrets()
        ids = self._ids(index) if not isinstance(error, ProviderError | RunFolderError) else []
        return Failure.of(error, position, index, shard, log=self._log, ids=ids, secrets=secrets)

    def _ids(self, index: Any) -> list[str]:
        """Return the ids that users know items by, without those that are not known."""
        if self._spec.hooks.identify is None:
            return []
        identify = bind(self._spec.hooks.identify, ["idx"], self._env)
        found = []
        for each in (index if isinstance(index, list) else [index])[:N_SHOWN]:
            try:
                found.append(str(identify(each)))
            except (Exception, SystemExit):  # what cannot be read is reported by its own error
                return []
        return found


def _kind_of(error: Exception, sink: Sink, task: ShardAttempt, spec: RunSpec) -> str:
    """Tell what an error outside `forward` is about: the folder, the disk, us, or the record."""
    if sink.is_lost(error):
        return "lost"
    if kind := _kind_of_machine_error(spec.run_dir, error):
        return kind
    if isinstance(error, ConfigError) and (not spec.skip_errors or _is_usual(error, task)):
        return "config"
    # Behind the last item the writers are closed: without this item or that it would fail again.
    is_closing = sink.cells[0] >= task.stop
    if is_closing or isinstance(error, ProviderError | RunFolderError):
        return "provider"
    return "write"


def _is_usual(error: Exception, task: ShardAttempt) -> bool:
    """Tell whether two results before failed alike: each costs a new attempt at the shard."""
    before = [failure for failure in task.skip.values() if failure.error.endswith(str(error))]
    return len(before) >= _ODD_RESULTS


def _kind_of_machine_error(run_dir: str | None, error: Exception) -> str | None:
    """Tell whether this node cannot reach the run folder, or no node can write there."""
    if run_dir is not None and is_of_node(error, run_dir):
        return "node"
    return "disk" if is_folder_trouble(error, run_dir) else None


def _refuse_interrupt(error: BaseException, pid: int) -> BaseException:
    """Let Ctrl-C through; `sys.exit()` or asyncio's cancelling is a failed item like any other."""
    if os.getpid() != pid:
        # A child that forward() forked: it must not continue as a second worker.
        sys.stderr.write(user_traceback(error))
        sys.stderr.flush()
        # Not sys.exit: the child has copies of the parent's writers, and would flush their buffers
        # again.
        os._exit(0 if isinstance(error, SystemExit) and not error.code else 1)
    if isinstance(error, KeyboardInterrupt):
        raise error
    return error


def _batches(task: ShardAttempt, batch_size: int | None) -> Iterator[list[int]]:
    """Yield the positions of each batch, without skipped ones and cut where the task says."""
    by_number = range(task.start, task.stop, batch_size or 1)
    planned = by_number if task.edges is None else task.edges
    inside = {edge for edge in (*planned, *task.cuts) if task.start < edge < task.stop}
    edges = sorted({task.start, task.stop, *inside})
    for first, last in itertools.pairwise(edges):
        batch = [position for position in range(first, last) if position not in task.skip]
        if batch:
            yield batch


def is_machine_error(error: BaseException, run_dir: str | None) -> bool:
    """Tell whether an error of the user's code says that a disk of this machine is full or broken.

    The run folder is no part of the machine: all workers share it, and another one would find it
    as full. Errors of `write` name no file; they are taken to be about the machine.
    """
    if not isinstance(error, OSError) or error.errno not in _MACHINE_ERRNOS:
        return False
    if run_dir is None or not isinstance(error.filename, str | bytes | os.PathLike):
        return True
    # The error has the path as the user's code spelled it, perhaps through a link.
    path = os.path.realpath(os.fsdecode(error.filename))
    return not path.startswith(os.path.join(os.path.realpath(run_dir), ""))


_WHOLE = ""
_MOST_ENTRIES = 200  # of a folder that a config names; more are data, which is built again


class BuiltParts:
    """Environment that a process built for one run, for the next one that needs the same.

    One of each name: two models may not fit on one GPU.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, Any]] = {}
        self._keys: Mapping[str, str] = {}

    def expect(self, keys: Mapping[str, str] | None) -> bool:
        """Forget what a run with these keys does not need; tell whether that was all there was."""
        self._keys = keys or {}
        had_any = bool(self._kept)
        self._kept = {k: part for k, part in self._kept.items() if part[0] == self._keys.get(k)}
        return had_any and not self._kept

    def environment(self, build: Callable[[], Any]) -> Any:
        """Return the environment of the run that is expected, built as far as it is not there."""
        token = _parts.set(self)
        try:
            return self.part(_WHOLE, build)
        finally:
            _parts.reset(token)

    def part(self, name: str, build: Callable[[], Any]) -> Any:
        """Return what is kept under a name, or build it."""
        if name not in self._kept:
            value = build()
            key = self._keys.get(name)
            if not key:
                return value
            self._kept[name] = (key, value)
        return self._kept[name][1]

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()


# Set while a worker builds; a provider that is called by others builds all.
_parts: ContextVar[BuiltParts | None] = ContextVar("espnet3_parts", default=None)


def build_part(name: str, build: Callable[[], Any]) -> Any:
    """Build a part of an environment, unless this worker has it from a run before.

    For set-up functions with a method `part_keys`, which says by name what makes each part what it
    is; see `part_key`.
    """
    parts = _parts.get()
    return build() if parts is None else parts.part(name, build)


def environment_keys(
    provider: Any, setup_fn: Callable[[], Any], build: Callable[[], Any]
) -> dict[str, str]:
    """Return the keys under which workers keep what a provider builds.

    Args:
        provider: of the run.
        setup_fn: what it sends to workers.
        build: what is called: that, or its counterpart in this process.
    """
    own = getattr(setup_fn, "part_keys", None)
    whole = part_key(build, getattr(provider, "__dict__", {}))
    return {**(own() if callable(own) else {}), _WHOLE: whole}


def part_key(thing: Any, named_in: Mapping[str, Any]) -> str:
    """Return a text that is the same for equal things only; empty if there is none.

    Args:
        thing: what is built from: a config, or a function with what it carries.
        named_in: values that may name files; if one of those has changed, the key has too.
    """
    import cloudpickle

    from espnet3.config.fingerprint import flatten, named_paths  # of drivers only

    try:
        data = cloudpickle.dumps(thing)
        paths = sorted({named.path for named in named_paths(flatten(named_in, with_state=True))})
        stamps = [_stamp(path) for path in paths]
    except Exception:  # it is then built again, and what is wrong with it is said there
        return ""
    return sha256(repr((data, paths, stamps)).encode()).hexdigest()


def _stamp(path: str) -> list[tuple[str, int, int, int]]:
    """Return what tells whether a file, or one below a folder, was written since.

    Raises:
        OSError: something cannot be looked at, or there is too much.
    """
    found, todo = [], [path]
    while todo:
        name = todo.pop()
        stat = os.stat(name)
        # Not the time alone: copies may keep it.
        found.append((name, stat.st_ino, stat.st_size, stat.st_ctime_ns))
        if len(found) > _MOST_ENTRIES:
            raise OSError(f"{path} has more than {_MOST_ENTRIES} entries")
        if os.path.isdir(name) and not os.path.islink(name):
            todo += [entry.path for entry in os.scandir(name)]
    return found

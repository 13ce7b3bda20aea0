"""Fault policy of a run, and the errors raised when it is exceeded."""

from dataclasses import dataclass
from pathlib import Path

from espnet3.errors import (
    ConfigError,
    EspnetError,
    FileSystemError,
    ItemError,
    ProviderError,
    RunFolderError,
    WorkerError,
)
from espnet3.parallel.deaths import Death
from espnet3.parallel.pools import Died
from espnet3.parallel.tasks import Failure, ShardTask, Stopped
from espnet3.text import end_of_log

MAX_EARLY_DEATHS = 3
"""Workers in a row that may die before their first item: then it is not the item."""


class EarlyDeaths(WorkerError):
    """Workers die before their first item: it is their machine, or the code."""


@dataclass(frozen=True)
class FaultPolicy:
    """Which faults a run tolerates."""

    skip_errors: bool = False
    max_errors: int | None = None
    retries: int = 3
    item_timeout: float | None = None
    start_timeout: float = 3600.0
    config_block: str = ""
    """Where the runner's settings come from, if from a config."""

    def setting(self, name: str, value: str) -> str:
        """Return how to change a setting of the runner."""
        block = self.config_block
        return f"set {block}.{name}={value}" if block else f"set the runner's {name} to {value}"


def keeps_dying(task: ShardTask, event: Death) -> str:
    """Say that a shard's workers die at no particular item."""
    log = f" Log: {event.log}" if event.log else ""
    return (
        f"The workers of shard {task.shard} (items {task.start} to {task.stop - 1}) keep dying, "
        f"at different items or in close_writers; the last one: {event.reason}. If memory grows "
        f"from item to item, use more and smaller shards: shards_per_worker: 64.{log}"
    )


def no_worker_message(policy: FaultPolicy, waiting: str) -> str:
    """Say that no worker came in time, and why, as far as that is known."""
    advice = waiting or "Look at the logs of the workers' jobs."
    return (
        f"No worker was there for {policy.start_timeout:g} s. {advice} To wait for longer, raise "
        "parallel.start_timeout."
    )


def too_many_message(n_failed: int, policy: FaultPolicy) -> str:
    """Say that more items failed than may."""
    return (
        f"{n_failed} items failed, more than max_errors={policy.max_errors}. Raise max_errors, or "
        f"fix the cause and run them again: {policy.setting('retry_failed', 'true')}."
    )


def skip_advice(policy: FaultPolicy) -> str:
    """Say how to continue where an item kills its worker."""
    return (
        f" To continue without it, {policy.setting('on_error', 'skip')}; if memory runs out, use "
        "fewer workers or smaller batches."
    )


def describe_failure(failure: Failure) -> str:
    """Return what failed, where, and the user's traceback."""
    log = f", log {failure.log}" if failure.log else ""
    is_batch = isinstance(failure.index, list)
    what = (
        f"The batch {failure.index!r}, given to forward() as a list,"
        if is_batch
        else (f"Item {failure.index!r} (position {failure.position})")
    )
    head = (
        f"{what} of shard {failure.shard} failed on "
        f"{failure.host}, pid {failure.pid}{log}: {failure.error}"
    )
    return f"{head}\n\n{failure.traceback.rstrip()}\n" if failure.traceback else head


def error_of(stopped: Stopped, policy: FaultPolicy) -> EspnetError:
    """Return the error with which a run stops, built from one message."""
    failure = stopped.failure
    if stopped.kind == "config":
        # As it was raised, it knows its key; but not if a secret was taken out of its text.
        own = stopped.original
        if isinstance(own, ConfigError) and str(own) == failure.error:
            return own
        return ConfigError(failure.error)
    if stopped.kind in ("provider", "load"):
        if not failure.traceback:
            return ProviderError(failure.error)
        where = f"on {failure.host}{', log ' + failure.log if failure.log else ''}"
        return ProviderError(
            f"The provider or runner failed {where}: {failure.error}\n\n{failure.traceback}"
        )
    if stopped.kind == "node":
        return FileSystemError(
            f"Shard {failure.shard} could not be written or published on {failure.host}: "
            f"{failure.error}. Finished shards are kept, as they are.",
            fix="Run the same command again when the file system is back.",
        )
    if stopped.kind in ("disk", "lost"):
        return RunFolderError(
            f"Shard {failure.shard} could not be written on {failure.host}: {failure.error}.",
            fix="Make "
            "room or fix the folder, then run the same command again: finished shards are kept.",
        )
    return ItemError(
        f"{describe_failure(failure)}\nFinished shards are kept. To skip failing items, "
        f"{policy.setting('on_error', 'skip')}."
    )


def dies_at_once(event: Died) -> str:
    """Say that workers cannot even start, with the end of the last one's log."""
    return (
        f"{MAX_EARLY_DEATHS} workers died before their first item, the last one: {event.reason}. "
        f"Look at {event.log or 'the messages above'}; to see the error in this process, set "
        f"parallel.n_workers: 1.{end_of_log(Path(event.log) if event.log else None)}"
    )

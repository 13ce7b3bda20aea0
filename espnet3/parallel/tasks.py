"""Dataclasses exchanged between driver and worker."""

import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from types import TracebackType
from typing import Any

from espnet3.errors import EspnetError
from espnet3.parallel.hooks import RunnerHooks
from espnet3.shards.commit import Done
from espnet3.shards.owner import node_name
from espnet3.text import folded

Cells = memoryview | list[int]
"""First position and length of the running batch."""


@dataclass(frozen=True)
class RunSpec:
    """What a worker must know of a run; sent once to each worker."""

    run_id: str
    hooks: RunnerHooks
    setup_fn: Callable[[], Any]
    batch_size: int | None
    skip_errors: bool
    run_dir: str | None = None
    """The folder of the shards; None keeps results in memory."""
    n_shards: int = 0
    batch_seconds: float | None = None
    """Batches are sorted by length; each task then lists their edges."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the runner's hooks get by name, beside the provider's environment."""
    params: dict[str, str] | None = None
    """Digests of the plain ones among the provider's `params`; see `digests_of`."""

    @property
    def is_batched(self) -> bool:
        """Tell whether `forward` gets lists of items."""
        return self.batch_size is not None or self.batch_seconds is not None


def digests_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each text or number: enough to compare, and no secret."""
    plain = {k: v for k, v in values.items() if isinstance(v, str | int | float)}
    return {key: sha256(repr(value).encode()).hexdigest() for key, value in plain.items()}


@dataclass(frozen=True)
class ShardTask:
    """One attempt at a shard, or in memory at a part of one."""

    shard: int
    start: int
    items: Sequence[Any]
    attempt: str | None = None
    """The folder of this attempt; in memory, a scratch folder for its position, if any."""
    edges: tuple[int, ...] | None = None
    """Positions between which the batches are; None if all have the same size."""
    cuts: tuple[int, ...] = ()
    """Positions at which a batch must end: how a batch that kills its worker is taken apart."""
    skip: "dict[int, Failure]" = field(default_factory=dict)
    """Positions given up on, with the reason; they are listed, not run."""
    n_deaths: int = 0
    """Workers that died at this shard before."""
    blames_item: bool = False
    """Whether trouble of the machine counts as the item's: several machines had it."""
    owner_id: str = ""
    """Owner of the shard's claim; `done` keeps it, for the accounting."""

    @property
    def stop(self) -> int:
        """The position behind the last item."""
        return self.start + len(self.items)


@dataclass(frozen=True)
class Failure:
    """An item that was given up on: a line of `failed.jsonl`."""

    position: int
    index: Any
    shard: int
    error: str
    traceback: str
    host: str = field(default_factory=node_name)
    pid: int = field(default_factory=os.getpid)
    log: str = ""

    @classmethod
    def of(
        cls,
        error: BaseException,
        position: int,
        index: Any,
        shard: int,
        *,
        log: str = "",
        secrets: Iterable[str] = (),
    ) -> "Failure":
        """Describe an exception, with the user's part of its traceback; ours say all themselves.

        Secrets of the environment, what looks like one, and the given ones are left out: it is
        written to files that others can read.
        """
        if isinstance(error, EspnetError):
            return cls(position, index, shard, scrub(str(error), secrets), "", log=log)
        told, trace = describe_error(error, secrets), user_traceback(error, secrets)
        return cls(position, index, shard, told, trace, log=log)


def failure_record(failure: Failure, run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a line of `failed.jsonl`, with the log relative to the run folder, which may move."""
    log = os.path.relpath(failure.log, run_dir) if failure.log else ""
    return {**asdict(failure), "log": log}


def describe_error(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """Return type and message of an error on one line, without secrets."""
    return scrub(describe_plainly(error), secrets)


def describe_plainly(error: BaseException) -> str:
    """Return type and message of an error on one line, as they are."""
    return folded("".join(traceback.format_exception_only(error)))


def user_traceback(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """Return the traceback without the frames of ours that called the user's function."""
    trace: TracebackType | None = error.__traceback__
    here = os.path.dirname(__file__)
    while trace and trace.tb_next and trace.tb_frame.f_code.co_filename.startswith(here):
        trace = trace.tb_next
    return scrub("".join(traceback.format_exception(type(error), error, trace)), secrets)


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without secrets: see `scrub_text`."""
    from espnet3.config.redact import scrub_text  # only where something failed

    return scrub_text(text, secrets)


@dataclass(frozen=True)
class ShardResult:
    """What an attempt ended with: it is finished, or `stopped` says what ended it."""

    task: ShardTask
    results: list[tuple[int, Any]] | None = None
    """Position and result of each item, where results are kept in memory."""
    failures: list[Failure] = field(default_factory=list)
    done: Done | None = None
    stopped: "Stopped | None" = None


@dataclass(frozen=True)
class Stopped:
    """Why an attempt could not continue.

    `kind` is item, write, config, provider, load (the provider, before the first item), disk (of
    the run folder), node (which cannot reach the run folder), lost or machine.
    """

    kind: str
    failure: Failure
    original: BaseException | None = None
    """The exception itself, in the driver's own process, and where it is about a setting."""

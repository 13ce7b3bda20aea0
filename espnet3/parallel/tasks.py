"""Messages between driver and workers: the run and its hooks, attempts, results and failures.

They are free of secrets. A driver hands attempts to a `WorkerPool`, whose events say what became of
them. Hooks are called with the arguments that their signatures name.
"""

import inspect
import os
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from hashlib import sha256
from itertools import islice
from keyword import iskeyword
from types import FunctionType, MethodType, ModuleType, TracebackType
from typing import Any, Protocol

from espnet3.errors import EspnetError, ProviderError, suggest
from espnet3.schedulers import node_name
from espnet3.shards.commit import Done
from espnet3.text import folded

# Of what a provider holds: deeper, longer or more is data, and no setting.
_MAX_DEPTH = 6
_MAX_PARTS = 1000  # of one container
_MAX_VALUES = 20_000
_PLAIN = (int, float, complex, bytes, bytearray, type(None), type, ModuleType)
_MAX_BYTES = 1_000_000
"""Beyond this, objects belong into the provider's build functions."""

Cells = memoryview | list[int]
"""First position and length of the running batch."""


@dataclass(frozen=True)
class RunSpec:
    """Description of a run for a worker; sent once to each."""

    run_id: str
    hooks: "RunnerHooks"
    setup_fn: Callable[[], Any]
    batch_size: int | None
    skip_errors: bool
    run_dir: str | None = None
    """The folder of the shards; None keeps results in memory."""
    n_shards: int = 0
    group_size: int | None = None
    """Shards per sub-folder of the run folder; see `RunLayout`."""
    batch_seconds: float | None = None
    """Batches are sorted by length; each task then lists their edges."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the runner's hooks get by name, beside the provider's environment."""
    params: dict[str, str] | None = None
    """Digests of the plain ones among the provider's `params`; see `digests_of`."""
    keys: dict[str, str] | None = None
    """What a worker built for another run under the same key is used again; see `BuiltParts`."""

    @property
    def is_batched(self) -> bool:
        """Tell whether `forward` gets lists of items."""
        return self.batch_size is not None or self.batch_seconds is not None


def digests_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each text or number: enough to compare, and no secret."""
    plain = {k: v for k, v in values.items() if isinstance(v, str | int | float)}
    # `repr`, so that 1 and "1" differ.
    return {key: sha256(repr(value).encode()).hexdigest() for key, value in plain.items()}


@dataclass(frozen=True)
class ShardAttempt:
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
    """Whether a machine error counts as the item's: several machines had it."""
    owner_id: str = ""
    """Owner of the shard's claim; `done` keeps it, for the accounting."""

    @property
    def stop(self) -> int:
        """The position behind the last item."""
        return self.start + len(self.items)


N_SHOWN = 3
"""How many items of a failed batch are named."""


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
    ids: list[str] = field(default_factory=list)
    """Ids of the item, or of the first of a batch, as far as the runner knows them."""

    @property
    def name(self) -> str:
        """Description of what failed: an item with its id, or the first three of a batch."""
        if isinstance(self.index, list):
            known = self.ids or [repr(index) for index in self.index[:N_SHOWN]]
            rest = len(self.index) - len(known)
            more = f" and {rest} more" if rest > 0 else ""
            return f"The batch of {len(self.index)} items ({', '.join(known)}{more})"
        return f"Item {self.index!r}{f' ({self.ids[0]})' if self.ids else ''}"

    @classmethod
    def of(
        cls,
        error: BaseException,
        position: int,
        index: Any,
        shard: int,
        *,
        log: str = "",
        ids: Sequence[str] = (),
        secrets: Iterable[str] = (),
    ) -> "Failure":
        """Describe an exception, with the user's part of its traceback; ours say all themselves.

        Secrets of the environment, what looks like one, and the given ones are left out: it is
        written to files that others can read.
        """
        if isinstance(error, EspnetError):
            text = scrub(str(error), secrets)
            return cls(position, index, shard, text, "", log=log, ids=list(ids))
        message, trace = describe_error(error, secrets), user_traceback(error, secrets)
        return cls(position, index, shard, message, trace, log=log, ids=list(ids))


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
    """End of an attempt: it is finished, or `stopped` says what ended it."""

    task: ShardAttempt
    results: list[tuple[int, Any]] | None = None
    """Position and result of each item, where results are kept in memory."""
    failures: list[Failure] = field(default_factory=list)
    done: Done | None = None
    stopped: "Stopped | None" = None


@dataclass(frozen=True)
class Stopped:
    """Reason why an attempt could not continue.

    `kind` is item, write, config, provider, load (the provider, before the first item), disk (of
    the run folder), node (which cannot reach the run folder), lost or machine.
    """

    kind: str
    failure: Failure
    original: BaseException | None = None
    """The exception itself, in the driver's own process, and where it is about a setting."""


def pack_spec(spec: RunSpec, provider: Any) -> bytes:
    """Serialise a run for its workers.

    Raises:
        ProviderError: naming what is too large, or cannot be sent at all.
    """
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(spec)
    except Exception as error:
        sizes = _sizes(spec.setup_fn, provider)
        broken = ((name, size) for name, size in sizes if isinstance(size, Exception))
        culprit, reason = next(broken, ("The runner or provider", error))
        raise ProviderError(
            f"{culprit} cannot be sent to a worker ({type(reason).__name__}: {reason}). Open "
            "files, locks and connections belong in the provider's build functions."
        ) from error
    if len(data) > _MAX_BYTES:
        check_size(spec.setup_fn, provider)
        raise _too_large("What the runner and provider capture from the script", len(data))
    return data


class _ForFolder:
    """A packed spec that, once it is loaded, says of which run it is.

    Only the process that runs the items loads it, and with it the user's modules. It is here, and
    not where detached runs are described, because that process must not import pydantic.
    """

    def __init__(self, packed: bytes, changes: dict[str, Any]) -> None:
        self._arguments = (packed, changes)

    def __reduce__(self) -> Any:
        return _load_spec, self._arguments


def spec_for_folder(packed: bytes, run_dir: os.PathLike[str], **changes: Any) -> bytes:
    """Return a packed spec like the given one, for the run in `run_dir`, with other fields."""
    return pickle.dumps(_ForFolder(packed, {**changes, "run_dir": str(run_dir)}))


def _load_spec(packed: bytes, changes: dict[str, Any]) -> RunSpec:
    spec: RunSpec = pickle.loads(packed)
    return replace(spec, **changes)


def check_size(setup_fn: Callable[[], Any], provider: Any) -> None:
    """Refuse a provider that is too large to travel, also where it need not.

    What cannot be serialised at all is let through: in this process it does no harm.
    """
    for name, size in _sizes(setup_fn, provider):
        if isinstance(size, int) and size > _MAX_BYTES:
            raise _too_large(name, size)


def _sizes(setup_fn: Callable[[], Any], provider: Any) -> Iterator[tuple[str, int | Exception]]:
    """Yield how many bytes each thing that a set-up function carries has, or why it has none."""
    import cloudpickle

    for name, value in _captured(setup_fn, provider):
        try:
            yield name, len(cloudpickle.dumps(value))
        except Exception as error:
            yield name, error


def _captured(setup_fn: Callable[[], Any], provider: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a set-up function carries, the innermost names first."""
    for name, value in getattr(provider, "__dict__", {}).items():
        if isinstance(value, dict):
            for key, entry in value.items():
                yield f"{name}[{key!r}]", entry
        yield f"{type(provider).__name__}.{name}", value
    code = getattr(setup_fn, "__code__", None)
    for name, cell in zip(
        getattr(code, "co_freevars", ()), getattr(setup_fn, "__closure__", None) or (), strict=False
    ):
        try:
            yield f"{name!r}, which the set-up function captures,", cell.cell_contents
        except ValueError:  # a cell that is not filled yet
            continue
    functions = getattr(setup_fn, "__globals__", {}) if code else {}
    for name in getattr(code, "co_names", ()):
        # Workers import the globals of other modules; only those of the script travel.
        if name in functions and functions.get("__name__") == "__main__":
            yield f"the global {name!r}", functions[name]


def _too_large(name: str, size: int) -> ProviderError:
    return ProviderError(
        f"{name} is {size / 1e6:.1f} MB, and would be sent to every worker; the limit is "
        f"{_MAX_BYTES / 1e6:.0f} MB. Keep its path in the config, and load it in the provider's "
        "build functions (build_dataset, build_model, or what build_worker_setup_fn returns)."
    )


def secrets_held(*things: Any) -> frozenset[str]:
    """Return the texts that objects, dicts, configs and functions hold under names of secrets.

    Attributes, keys, arguments of `functools.partial`, and what a function has taken from around
    it; a few levels deep. An exception may say with which token it was refused, and its message and
    traceback are written to `failed.jsonl` and to logs, which others can read.
    """
    from espnet3.config.redact import is_secret, secrets_in  # not on the start-up path of workers

    found: set[str] = set()
    for name, value in _named_values(things):
        if isinstance(value, str) and is_secret(name):
            found |= secrets_in({name: value})
    return frozenset(found)


def targets_of(*things: Any) -> set[str]:
    """Return the dotted names that configs in what a set-up function carries are built from."""
    return {value for name, value in _named_values(things) if name == "_target_"}


def _named_values(things: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Yield what is reachable, each with the name under which it is."""
    todo: list[tuple[str, Any, int]] = [("", thing, 0) for thing in things]
    seen: set[int] = set()
    n_values = 0
    while todo and n_values < _MAX_VALUES:
        name, value, depth = todo.pop()
        n_values += 1
        if isinstance(value, str):
            yield name, value
        elif depth < _MAX_DEPTH and not isinstance(value, _PLAIN) and id(value) not in seen:
            seen.add(id(value))
            todo += [(key, child, depth + 1) for key, child in _children(name, value)]


def _children(name: str, value: Any) -> list[tuple[str, Any]]:
    try:
        return list(islice(_inner_values(name, value), _MAX_PARTS))
    except Exception:  # an object of the user's that does not like to be looked at
        return []


def _inner_values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if type(value).__module__.startswith("omegaconf."):
        from omegaconf import OmegaConf

        value = OmegaConf.to_container(value, resolve=True)
    if isinstance(value, dict):  # other mappings may read files at each step
        yield from ((str(key), child) for key, child in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((name, child) for child in value)  # named like the list
    elif isinstance(value, MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, partial):
        yield from [(name, value.func), (name, value.args), ("", value.keywords)]
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        yield from ((variable, cell.cell_contents) for variable, cell in cells)
        yield from (("", value.__kwdefaults__ or {}),)
    else:
        yield from vars(value).items()


@dataclass(frozen=True)
class PoolWorker:
    """A worker that is there, as others should know it."""

    name: str
    host: str
    pid: int = 0
    job_id: str = ""
    log: str = ""


@dataclass(frozen=True)
class Finished:
    """A worker ended an attempt, well or not, and is free again."""

    worker: str
    result: ShardResult


@dataclass(frozen=True)
class Died:
    """A worker is gone. `task` is what it was doing, if anything."""

    worker: str
    task: ShardAttempt | None
    reason: str
    log: str = ""
    was_running: bool = True
    """Whether the worker died at `task`; not if that waited behind another, or was over."""
    went_with_others: bool = False
    """Whether others left at the same moment: then it was their node, and not what they did."""
    was_disconnected: bool = False
    """Whether only the way to the worker broke: it may be well, and no item is to blame."""
    host: str = ""
    """Its node, by the name that other records give it; empty if that is not known."""


Event = Finished | Died


class WorkerPool(Protocol):
    """Workers that run one attempt at a time.

    A pool that is slow to hand over may let attempts wait at a worker, behind the running one; to
    the dispatcher such a place in the queue is a worker with a name of its own.
    """

    def idle(self) -> list[str]:
        """Return the workers that can take an attempt now."""

    def submit(self, worker: str, task: ShardAttempt) -> None:
        """Give an attempt to an idle worker."""

    def poll(self, timeout: float) -> list[Event]:
        """Wait up to `timeout` seconds for something to happen, and return what did."""

    def expect(self, n_left: int) -> None:
        """Hear how many shards are queued or running: there is no use for more workers."""

    def waiting(self) -> str:
        """Return why workers are missing and what to try; empty if that is not known."""

    def workers(self) -> list[PoolWorker]:
        """Return the workers that are there; none where this process does the work itself."""

    def positions(self) -> dict[str, int]:
        """Return the item position that each busy worker has reached; -1 before the first."""

    def kill(self, worker: str, reason: str) -> None:
        """Get rid of a worker that hangs; it is reported as died."""

    def stop(self) -> None:
        """End all workers at once; what they had not committed is lost."""


Hook = Callable[..., Any]
WRITER_HOOKS = ("open_writers", "write_record", "close_writers")
_ITEM = "idx"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class RunnerHooks:
    """The static functions of a runner: all that a worker needs of it."""

    forward: Hook
    open_writers: Hook
    write_record: Hook
    close_writers: Hook
    complete: Hook | None = None
    """Called with what `forward` returned and its index; what it returns is the result."""
    identify: Hook | None = None
    """Called with the index of an item that failed; returns the id that users know it by."""

    @classmethod
    def of(cls, runner: type) -> "RunnerHooks":
        """Take the hooks from a runner class.

        Raises:
            ProviderError: if one of them is not static, and so could not travel to a worker.
        """
        return cls(**{name: _static(runner, name) for name in ("forward", *WRITER_HOOKS)})


def _static(runner: type, name: str) -> Hook:
    # An ordinary `getattr` returns the bare function, with or without @staticmethod.
    attribute = inspect.getattr_static(runner, name)
    if not isinstance(attribute, staticmethod):
        raise ProviderError(
            f"{runner.__name__}.{name} is not static. Workers get the function, not the runner; "
            f"write @staticmethod above 'def {name}' and take no 'self'."
        )
    function: Hook = attribute.__func__
    return function


def overridden(runner: type, base: type, names: Sequence[str]) -> list[str]:
    """Return those of the names that `runner` defines differently from `base`."""
    return [
        name
        for name in names
        if inspect.getattr_static(runner, name) is not inspect.getattr_static(base, name)
    ]


def split_batch(results: Any, n_items: int, who: str) -> Any:
    """Return the results of a batch, one per item: those of a list, or of a dict of lists.

    Args:
        results: what came back for the batch; lists may be tuples, arrays or tensors.
        n_items: of the batch.
        who: returned it, for the error.

    Raises:
        ProviderError: there is not one per item, or it is not clear which belongs to which.
    """
    begin = f"{who} got a batch of {n_items} items and returned"
    if isinstance(results, Mapping) and results:
        odd = next((key for key, value in results.items() if _length(value) != n_items), None)
        if odd is None:
            rows = zip(*results.values(), strict=True)
            return [dict(zip(results, row, strict=True)) for row in rows]
        raise ProviderError(
            f"{begin} a dict, of which {odd!r} is {_described(results[odd])}. Return a dict of "
            f"lists with one value per item, or a list with one output per item{_OR_UNBATCHED}"
        )
    if _length(results) != n_items:
        raise ProviderError(
            f"{begin} {_described(results)}. Return a list with one output per item, in the same "
            f"order{_OR_UNBATCHED}"
        )
    # A tuple of tuples is one record per item; a tuple of lists may be the fields of all.
    is_ambiguous = isinstance(results, tuple) and n_items > 1
    if is_ambiguous and all(_length(e) == n_items and type(e) is not tuple for e in results):
        raise ProviderError(
            f"{begin} a tuple of {n_items} with {n_items} values each: whether each belongs to an "
            "item or to a field is not known. Return a list with one output per item, or a dict of "
            'lists: {"hyp": [...], "score": [...]}'
        )
    return results


_OR_UNBATCHED = ", or leave batch_size and batch_seconds unset."


def _length(value: Any) -> int | None:
    """Return how many values a list, or what stands for one, has; None for one value."""
    # These have a length, but are one value each.
    if isinstance(value, Mapping | str | bytes | set | frozenset):
        return None
    try:
        return len(value)
    except TypeError:  # also of a tensor without dimensions
        return None


def _described(value: Any) -> str:
    length = _length(value)
    return type(value).__name__ if length is None else f"{length} outputs"


def bind(function: Hook, leading: Sequence[str], env: Mapping[str, Any]) -> Hook:
    """Return a callable that takes the leading arguments and gives the function what it accepts.

    Leading arguments are passed by position, as many as the function has positional parameters
    that are not keys of `env`; keys of `env` are passed by name, all of them to a function with
    `**env`. They take the place of defaults, which are for environments that lack the name.

    Raises:
        ProviderError: if the function has a parameter without default that neither provides, has
            no place for the item, or was given an argument that `env` has as well.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin that does not tell
        return function
    _check_clashes(function, list(parameters), leading, env)
    accepts_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    takes_args = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    positional = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        and (p.name not in env or p.kind is p.POSITIONAL_ONLY)
    ]
    n_leading = len(leading) if takes_args else min(len(leading), len(positional))
    taken = {p.name for p in positional[:n_leading]}
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    kwargs = {k: v for k, v in env.items() if k not in taken and (accepts_all or k in named)}
    unmet = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and p.name not in taken
        and p.name not in kwargs
    ]
    if unmet:
        raise ProviderError(_unmet(function, unmet[0], env))
    if n_leading == len(leading) and not kwargs:
        return function  # nothing to add: spare the call of a wrapper for each item
    return _fix(function, len(leading), n_leading, kwargs)


def _fix(function: Hook, n_given: int, n_passed: int, kwargs: dict[str, Any]) -> Hook:
    """Return a callable that passes on the first of its arguments, and always the same kwargs.

    Compiled for these very names, as dataclasses are: a `partial` copies its dict at each call,
    which is as long as a trivial item takes.
    """
    # Such names reach a function through `**env` only, and cannot be written in source code.
    if not all(name.isidentifier() and not iskeyword(name) for name in kwargs):
        return lambda *leading: function(*leading[:n_passed], **kwargs)
    call: Hook = _compile(n_given, n_passed, tuple(kwargs))(function, *kwargs.values())
    return call


@cache
def _compile(n_given: int, n_passed: int, names: tuple[str, ...]) -> Callable[..., Hook]:
    given = ", ".join(f"a{i}" for i in range(n_given))
    values = "".join(f", v{i}" for i in range(len(names)))
    passed = [f"a{i}" for i in range(n_passed)] + [f"{name}=v{i}" for i, name in enumerate(names)]
    source = f"lambda f{values}: lambda {given}: f({', '.join(passed)})"
    # Under the name of this file, so that tracebacks for users leave it out like the rest of ours.
    make: Callable[..., Hook] = eval(compile(source, __file__, "eval"))
    return make


def _check_clashes(
    function: Hook,
    parameters: Sequence[inspect.Parameter],
    leading: Sequence[str],
    env: Mapping[str, Any],
) -> None:
    """Refuse what could only be settled by leaving out, in silence, what was given."""
    name = _name(function)
    given = function.keywords if isinstance(function, partial) else {}
    twice = [key for key in given if key in env]
    if twice:
        raise ProviderError(
            f"{name} was given {twice[0]}={given[twice[0]]!r:.60}, and the environment has "
            f"{twice[0]!r} as well. Leave it out of one of the two, such as: "
            f"partial({name}, ...) without {twice[0]}="
        )
    if [*leading] != [_ITEM] or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    first = next((p for p in parameters if p.kind in _POSITIONAL), None)
    if first is None:
        raise ProviderError(f"{name} takes no item.", fix=f"Write: {_definition(name, _ITEM)}")
    if first.name in env and first.kind is not first.POSITIONAL_ONLY:
        raise ProviderError(
            f"{name} takes the item as its first argument, {first.name!r}, and the environment has "
            f"{first.name!r} as well.",
            fix=f"Write: {_definition(name, _free_name(env))}, or give it "
            "another name in the provider's params or environment.",
        )


def _definition(name: str, item: str) -> str:
    return f"lambda {item}, ...: ..." if name == "<lambda>" else f"def {name}({item}, ...)"


def _free_name(env: Mapping[str, Any]) -> str:
    return next(name for name in (_ITEM, "item", "item_index", f"{_ITEM}_") if name not in env)


def _name(function: Hook) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__)).rpartition(".")[2]


def _unmet(function: Hook, name: str, env: Mapping[str, Any]) -> str:
    shown = getattr(function, "__qualname__", _name(function))
    return (
        f"{shown} needs {name!r}, but the provider's environment has "
        f"{', '.join(map(repr, env)) or 'nothing'}.{suggest(name, env)} Add it to the provider's "
        f"params or environment, or give it a default: {name}=None."
    )

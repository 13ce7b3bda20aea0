"""Base class of runners: the work for one item, and the merge of all results.

Workers import this module for the user's class, and the user waits for them: what only the driver
needs is imported when a run begins.
"""

import inspect
import logging
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from espnet3 import logs
from espnet3.errors import ConfigError, EspnetError, ProviderError, RunInterrupted
from espnet3.io.atomic import JsonlWriter
from espnet3.parallel.signals import say_how_to_resume
from espnet3.parallel.tasks import WRITER_HOOKS, RunnerHooks, RunSpec, digests_of, overridden
from espnet3.shards.manifest import check_unique, collect_items

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig
    from espnet3.parallel.faults import FaultPolicy

logger = logging.getLogger(__name__)
_RESULTS = "results.jsonl"


class BaseRunner:
    """Applies `forward` to many items, wherever `set_parallel` says.

    Subclass it and write a static `forward(idx, ...)` that takes what the provider builds. Without
    `output_dir`, calling the runner returns the results in order. With it, results are written as
    shards that survive any crash, the same call resumes where it stopped, and the call
    returns what `merge` returns.

    Args:
        provider: builds what `forward` needs; see `EnvironmentProvider`.
        batch_size: give `forward` lists of this many indices; it returns a list as long.
        batch_seconds: give it lists of items of similar duration instead, whose padded length is at
            most so many seconds; `batch_size` then is the most items of a batch. Needs `durations`
            in the call. `shard_dirs` then are in the order of length: see `merge`.
        output_dir: where shards and merged files go; runs that share it need a `shard_subdir`
            each, and other names for their merged files.
        shard_subdir: folder below `output_dir` for the shards and the rest of the protocol.
        resume: continue a run with the same fingerprint; False removes it and starts from scratch.
        on_error: `raise` stops at the first item that fails, `skip` lists it and continues.
        max_errors: with `skip`, how many items may fail.
        retry_failed: run the shards again in which items were skipped.
        accept_changes: keys, as a refusal names them, that may differ from those of the results so
            far, such as `runner.code` after mending `forward`.
        depends_on: what else the results depend on, such as a digest of the dataset.

    Example:
        >>> class Length(BaseRunner):
        ...     @staticmethod
        ...     def forward(idx, words):
        ...         return len(words[idx])
        >>> class Words:
        ...     def build_env_local(self):
        ...         return {"words": ["speech", "is", "silver"]}
        ...
        ...     def build_worker_setup_fn(self):
        ...         return self.build_env_local
        >>> Length(Words())(range(3))
        [6, 2, 6]
    """

    not_results: tuple[str, ...] = ()
    """Keys that the results do not depend on, such as `config.exp_tag`."""
    can_detach = True
    """Whether `parallel.mode: async` may leave the run to its workers; set it to False where the
    program needs the return value of `merge`."""
    config_block, elsewhere = "", ""
    """For errors: the block of a config with the settings, if any, and the key of the folder."""

    def __init__(  # noqa: PLR0913 - the settings that users know by these names
        self,
        provider: Any,
        batch_size: int | None = None,
        output_dir: str | Path | None = None,
        shard_subdir: str = "",
        resume: bool = True,
        *,
        batch_seconds: float | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        max_errors: int | None = None,
        retry_failed: bool = False,
        accept_changes: str | Sequence[str] = (),
        depends_on: Mapping[str, Any] | None = None,
    ) -> None:
        self.provider = provider
        self.batch_size = batch_size
        self.batch_seconds = batch_seconds
        self.output_dir = Path(output_dir) if output_dir is not None else None
        self.shard_subdir = shard_subdir
        self.resume = resume
        self.on_error = on_error
        self.max_errors = max_errors
        self.retry_failed = retry_failed
        self.accept_changes = one_or_more(accept_changes)
        self.depends_on = dict(depends_on or {})
        _check_settings(self)

    @staticmethod
    def forward(idx: Any, **env: Any) -> Any:
        """Compute the result of one item, or of a list of items if `batch_size` is set."""
        raise NotImplementedError("Write a static forward(idx, ...) in your runner.")

    @staticmethod
    def open_writers(shard_dir: Path, **env: Any) -> Any:
        """Open what `write_record` writes to, inside `shard_dir`."""
        return JsonlWriter(shard_dir / _RESULTS)

    @staticmethod
    def write_record(writers: Any, result: Any, state: dict[str, Any], **env: Any) -> None:
        """Write one result. `state` is a dict that lives as long as the shard."""
        writers.write(result)

    @staticmethod
    def close_writers(writers: Any, state: dict[str, Any], **env: Any) -> Any:
        """Close the writers; plain data that is returned is kept as the shard's `summary`."""
        writers.close()

    def merge(self, shard_dirs: Sequence[Path]) -> Any:
        """Join the shards, which come in dataset order and are proven complete.

        By default joins `results.jsonl` and returns its path; with writer hooks of your own, write
        this too. With `batch_seconds` the shards are in the order of length; `join_files` and
        `join_scp` of `espnet3.shards` put lines back into dataset order.
        """
        from espnet3.shards.merge import join_files  # at the end only

        if self._own_writers():
            return list(shard_dirs)
        assert self.output_dir is not None
        target = self.output_dir / _RESULTS
        join_files(shard_dirs, _RESULTS, target)
        return target

    def result_settings(self) -> dict[str, Any]:
        """Return the settings that the results depend on, which a resumed run compares."""
        settings: dict[str, Any] = {"batch_size": self.batch_size}
        if self.batch_seconds is not None:
            settings["batch_seconds"] = self.batch_seconds
        return {**settings, **self.settings(), **self.depends_on}

    def settings(self) -> dict[str, Any]:
        """Return small values that all hooks get by name, beside what the provider builds."""
        return {}

    def cost(self, idx: Any) -> float | None:
        """Return how much work an item is, in any unit, such as seconds of audio; None if unknown.

        Long items are started first and shards are balanced by it.
        """
        return None

    def __call__(
        self,
        indices: Iterable[Any],
        *,
        costs: Iterable[float] | None = None,
        durations: Iterable[float] | None = None,
        client: Any = None,
    ) -> Any:
        """Run all items.

        Args:
            indices: what `forward` is called with, each once: integers, or any JSON values.
            costs: how much work each item is; the `cost` hook if None.
            durations: seconds of audio of each item: costs that also let the run tell its speed.
            client: a Dask client, `SharedCluster` or `SharedWorkers` to run on; else that of the
                enclosing `get_client` or `use_parallel`, else what the active config says.

        Returns:
            Without `output_dir` the results in order, a `Failure` in place of a skipped item; with
            it, what `merge` returns; with `parallel.mode: async` a `DetachedRun`, at once.
        """
        from espnet3.parallel.open_pool import client_for
        from espnet3.parallel.parallel import get_parallel_config
        from espnet3.shards.plan import check_costs

        logs.make_visible()
        config = get_parallel_config()
        client = client or client_for(config)
        try:
            # Only for its errors: a hook that is not static is refused before anything is written.
            RunnerHooks.of(type(self))
            items = collect_items(indices)
            seconds = None if durations is None else check_costs(durations, len(items))
            costs = seconds if costs is None else costs
            costs = self.costs_of(items) if costs is None else costs
            self._check_batches(costs)
            if self.output_dir is None:
                # Only for its errors: without a folder there is nothing to detach.
                self._is_detached(config, client)
                return self._run_in_memory(items, config, client, costs)
            total = None if seconds is None else float(seconds.sum())
            return self._run_in_folder(items, config, client, costs, total)
        except EspnetError as error:
            # Its message says all; a traceback through our frames would hide it.
            raise error.with_traceback(None) from error.__cause__
        except RunInterrupted:
            say_how_to_resume(self.output_dir)
            raise

    def _check_batches(self, costs: Any) -> None:
        if self.batch_seconds is not None and costs is None:
            raise ConfigError(
                f"batch_seconds is {self.batch_seconds:g}, but the durations of the items are not "
                "known.",
                fix="Give them: runner(indices, durations=[...]); in a dataset, write "
                "durations(self), which returns the seconds of each item; or set batch_size.",
            )

    def costs_of(self, items: Any) -> list[float] | None:
        """Return what `cost` says of each item; None if it is not known of all."""
        if not overridden(type(self), BaseRunner, ["cost"]):
            return None
        known = [cost for item in items if (cost := self.cost(item)) is not None]
        return known if len(known) == len(items) else None

    def _run_in_memory(self, items: Any, config: "ParallelConfig", client: Any, costs: Any) -> Any:
        from espnet3.parallel.driver import run_in_memory

        return run_in_memory(
            self._spec(),
            self.provider,
            items,
            config,
            self._policy(config),
            client=client,
            costs=costs,
            label=type(self).__name__,
        )

    def _policy(self, config: "ParallelConfig") -> "FaultPolicy":
        from espnet3.parallel.open_pool import fault_policy

        skip, limit, block = self.on_error == "skip", self.max_errors, self.config_block
        return fault_policy(config, skip_errors=skip, max_errors=limit, config_block=block)

    def _spec(self) -> RunSpec:
        params = getattr(self.provider, "params", None)
        return RunSpec(
            run_id=uuid.uuid4().hex,
            hooks=RunnerHooks.of(type(self)),
            setup_fn=dict,
            batch_size=self.batch_size,
            batch_seconds=self.batch_seconds,
            skip_errors=self.on_error == "skip",
            settings=self.settings(),
            params=digests_of(params) if isinstance(params, Mapping) else None,
        )

    def _run_in_folder(
        self,
        items: Any,
        config: "ParallelConfig",
        client: Any,
        costs: Any,
        audio_seconds: float | None,
    ) -> Any:
        from espnet3.parallel.driver import FolderDriver
        from espnet3.parallel.folder_run import RunRequest
        from espnet3.parallel.identity import describe_run, not_results_of
        from espnet3.parallel.own_modules import note_changes_of_run

        assert self.output_dir is not None
        self._warn_about_merge()
        check_unique(items)
        request = RunRequest(
            root=self.output_dir / self.shard_subdir,
            output_dir=self.output_dir,
            name=type(self).__name__,
            items=items,
            batch_size=self.batch_size,
            batch_seconds=self.batch_seconds,
            described=describe_run(self, items),
            costs=costs,
            audio_seconds=audio_seconds,
            resume=self.resume,
            retry_failed=self.retry_failed,
            accept_changes=self.accept_changes,
            config_block=self.config_block,
            elsewhere=self.elsewhere,
            not_results=not_results_of(self),
        )
        if self._is_detached(config, client):
            from espnet3.parallel.detached.control import start_detached
            from espnet3.parallel.detached.handle import DetachedRun

            start_detached(self, request, self._spec(), config, self._policy(config), client)
            return DetachedRun(request.root.resolve())
        driver = FolderDriver(request, self._spec(), self.provider, config, client)
        try:
            return driver.run(self._policy(config), self.merge)
        finally:
            note_changes_of_run()  # a cache that `forward` filled here is no change of the code

    def _is_detached(self, config: "ParallelConfig", client: Any) -> bool:
        """Tell whether workers are submitted, and not waited for.

        Raises:
            ConfigError: if they should be, but what they need would end with this program.
        """
        if config.mode == "sync":
            return False
        name = type(self).__name__
        if not self.can_detach:
            logger.warning(
                "parallel.mode is 'async', but what %s returns is needed at once: it runs as with "
                "mode: sync",
                name,
            )
            return False
        if self.output_dir is None:
            raise ConfigError(
                f"parallel.mode is 'async', but {name} has no output_dir, and results in memory "
                "end with this program.",
                fix=f"Write: {name}(provider, output_dir=...), or parallel.mode: sync",
            )
        from espnet3.parallel.detached.control import SharedWorkers

        if client is not None and not isinstance(client, SharedWorkers):
            raise ConfigError(
                f"parallel.mode is 'async', but {name} was given a Dask client, whose workers end "
                "with this program. Leave out client and get_client(), or write parallel.mode: sync"
            )
        return True

    def _own_writers(self) -> list[str]:
        return overridden(type(self), BaseRunner, WRITER_HOOKS)

    def _warn_about_merge(self) -> None:
        own = self._own_writers()
        if own and not overridden(type(self), BaseRunner, ["merge"]):
            logger.warning(
                "%s overrides %s but not merge(): its outputs will stay in %s/split.N/ and will "
                "not be joined",
                type(self).__name__, own[0], self.output_dir,
            )  # fmt: skip


def one_or_more(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names of which one may be given by itself."""
    if isinstance(names, str):
        return (names,)
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{names!r} is no list of names; write one, such as ['runner.code'].")
    return tuple(names)


def _check_settings(runner: BaseRunner) -> None:
    """Refuse settings that cannot be meant.

    Raises:
        ConfigError: naming the setting and what to write.
        ProviderError: if the provider lacks a method.
    """
    if runner.batch_size is not None and not _is_count(runner.batch_size, least=1):
        raise ConfigError(
            f"batch_size is {runner.batch_size!r}; write batch_size=1 or more, or None."
        )
    if runner.batch_seconds is not None and not _is_positive(runner.batch_seconds):
        raise ConfigError(
            f"batch_seconds is {runner.batch_seconds!r}; write batch_seconds=60, or None."
        )
    if runner.on_error not in ("raise", "skip"):
        raise ConfigError(
            f'on_error is {runner.on_error!r}; write on_error="raise" or on_error="skip".'
        )
    for name in ("resume", "retry_failed"):
        if not isinstance(getattr(runner, name), bool):
            raise ConfigError(
                f"{name} is {getattr(runner, name)!r}; write {name}=True or {name}=False."
            )
    _check_max_errors(runner)
    for name in ("build_env_local", "build_worker_setup_fn"):
        if not callable(getattr(runner.provider, name, None)):
            raise ProviderError(
                f"{type(runner.provider).__name__} has no {name}(). A provider needs "
                "build_env_local() and build_worker_setup_fn(); see EnvironmentProvider."
            )


def apply_settings(runner: BaseRunner, given: Mapping[str, Any]) -> None:
    """Set what the `__init__` of a runner of one's own did not pass on to that of its base class.

    Args:
        runner: as it was built.
        given: settings that a config has; those of other names are the runner's own.

    Raises:
        ConfigError: a value cannot be meant.
    """
    for name, parameter in inspect.signature(BaseRunner.__init__).parameters.items():
        if name in given and given[name] is not None and hasattr(runner, name):
            value = one_or_more(given[name]) if name == "accept_changes" else given[name]
            if getattr(runner, name) == parameter.default != value:
                setattr(runner, name, value)
                _check_settings(runner)


def _check_max_errors(runner: BaseRunner) -> None:
    limit = runner.max_errors
    if limit is None:
        return
    if not _is_count(limit, least=0):
        raise ConfigError(f"max_errors is {limit!r}; write max_errors=0 or more, or None.")
    if runner.on_error != "skip":
        logger.warning('max_errors=%d is ignored: it needs on_error="skip"', limit)


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf

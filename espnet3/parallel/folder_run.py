"""Steps of a run in a folder: plan, find missing shards, verify, merge."""

import logging
import os
import platform
import random
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3 import __version__
from espnet3.commands import same_command
from espnet3.errors import FileSystemError, RunFolderError, StaleRunError
from espnet3.io.atomic import dump_json, folder_trouble, is_folder_trouble, is_temp_name, write_text
from espnet3.io.shared_files import (
    count_free_files,
    is_of_node,
    is_there,
    look_time,
    names_in,
    share_files,
    unreachable,
)
from espnet3.parallel.faults import record_deaths
from espnet3.parallel.signals import ReleaseClaims
from espnet3.shards.accounting import cost_facts
from espnet3.shards.commit import (
    SETTLE_SECONDS,
    attempts,
    discard_attempt,
    named_shards,
    names_by_group,
    remove_set_aside,
    restore_set_aside,
    set_aside,
    set_aside_damaged,
)
from espnet3.shards.layout import (
    RunLayout,
    backup_name,
    group_size,
    is_group,
    is_protocol_name,
    is_set_aside,
    leases_folder,
    manifest_path,
    shard_of,
)
from espnet3.shards.lease import Lease, living_owners
from espnet3.shards.manifest import (
    Manifest,
    load_manifest,
    publish_manifest,
    refuse_foreign,
    run_order,
)
from espnet3.shards.merge import (
    Coverage,
    check_complete,
    failures_of,
    known_result,
    outputs_of,
    read_accounting,
    read_coverage,
    read_success,
    write_success,
)
from espnet3.shards.pack import unpack_shards
from espnet3.shards.plan import make_plan
from espnet3.text import count, duration

if TYPE_CHECKING:
    from espnet3.shards.manifest import Items

logger = logging.getLogger(__name__)
Merge = Callable[[Sequence[Path]], Any]
TIDY = "tidy"
"""The claim of the process that packs the shards of a run, or takes them out."""
_FIRST_PAUSE, _MAX_PAUSE = 0.2, 5.0
_FILES_PER_SHARD = 3  # its folder, `done`, and a file of results
_FILES_PER_WORKER = 4  # its owner file, its record, its log, the record of its job
_MANY_FILES = 500_000
_LATE_SECONDS = 3.0


@dataclass(frozen=True)
class RunRequest:
    """Request of a runner to a run folder."""

    root: Path
    output_dir: Path
    name: str
    items: "Items"
    batch_size: int | None
    described: dict[str, Any]
    costs: Iterable[float] | None
    batch_seconds: float | None = None
    audio_seconds: float | None = None
    resume: bool = True
    retry_failed: bool = False
    accept_changes: Sequence[str] = ()
    config_block: str = ""
    """Where the runner's settings come from, if from a config; see `BaseRunner`."""
    elsewhere: str = ""
    """The override that would write to another folder, for the same; see `BaseRunner`."""
    not_results: Sequence[str] = ()
    """Keys that results do not depend on, also where a manifest has them."""

    def finished_result(self, manifest: Manifest) -> tuple[Any] | None:
        """Return the result of a run that is complete; see the function of this name."""
        return finished_result(self.root, manifest, self.output_dir, retry_failed=self.retry_failed)

    @property
    def outputs(self) -> tuple[Path, ...]:
        """The folders that the run writes."""
        return (self.root, self.output_dir)


@contextmanager
def folder_errors(root: Path) -> Iterator[None]:
    """Turn errors of the file system into errors that say what to do."""
    try:
        yield
    except OSError as error:
        is_of_user = isinstance(error, PermissionError)
        if is_of_node(error, root) and not is_of_user:
            raise unreachable(error, error.filename or root, "used") from error
        if not is_folder_trouble(error):
            raise  # not diagnosed here: it may come from the user's merge()
        where = f" ({error.filename})" if error.filename else ""
        raise RunFolderError(
            f"The run folder {root} cannot be used: {folder_trouble(error)}{where}.",
            fix="Make room, "
            "fix the permissions or choose another output_dir, then run the same command again: "
            "finished shards are kept.",
        ) from error


def open_run(request: RunRequest, n_shards: Callable[[], int]) -> Manifest:
    """Continue the run in a folder, or plan a new one of about `n_shards()` shards.

    Raises:
        StaleRunError: if the folder holds a run with other items, code, config or files.
        RunFolderError: if the folder cannot be used.
        ConfigError: a file or folder that a value names cannot be read.
    """
    from espnet3.parallel.identity import changes  # a worker, whose folder is open, has no use

    _make_folder(request.root)
    if not request.resume:
        remove_run(request.root)
    manifest = load_manifest(request.root) or _plan(request, n_shards())
    changed = changes(
        manifest, request.described, outputs=request.outputs, ignored=request.not_results
    )
    if changed and not _is_begun(request.root, manifest):
        remove_run(request.root)  # nothing is lost: what stopped it at once was mended
        return _plan(request, n_shards())
    _check_changes(request, changed)
    return manifest


def _is_begun(root: Path, manifest: Manifest) -> bool:
    """Tell whether a run has results, or an owner that is working on them."""
    names = (name for found in names_by_group(manifest.layout(root)).values() for name in found)
    # Also what was set aside: it may turn out to be good.
    if any(shard_of(name) is not None or is_set_aside(name) for name in names):
        return True
    return manifest.n_items == 0 or bool(living_owners(manifest.layout(root).leases))


def _make_folder(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is a file" if root.is_file() else folder_trouble(error, root)
        raise RunFolderError(
            f"{root} cannot be the output folder: {reason}. Please choose another output_dir."
        ) from error


def _check_changes(request: RunRequest, changed: list[str]) -> None:
    from espnet3.parallel.identity import is_below

    keys = {line: line.partition(":")[0] for line in changed}
    refused = [line for line in changed if not is_below(keys[line], request.accept_changes)]
    if refused:
        listing = "\n".join(f"  {line}" for line in refused)
        raise StaleRunError(
            f"{request.root} holds results of another run:\n{listing}\n"
            f"{_ways_on(request, [keys[line] for line in refused])}"
        )
    if changed:
        logger.warning("Accepted, so results are of both: %s", "; ".join(changed))


def _ways_on(request: RunRequest, changed: list[str]) -> str:
    block = request.config_block
    if not block:
        return (
            "Keep them and choose another output_dir; or delete them and start over: resume=False; "
            f"or keep what is done and do the rest with the change: accept_changes={changed}"
        )
    accept = f"{block}.accept_changes=[{','.join(changed)}]"
    return (
        f"Keep them, and write the new ones elsewhere:\n  {same_command(request.elsewhere)}\n"
        f"or delete them and start over:\n  {same_command(f'{block}.resume=false')}\n"
        f"or keep what is done and do the rest with the change:\n  {same_command(accept)}"
    )


def _plan(request: RunRequest, n_shards: int) -> Manifest:
    from espnet3.config.fingerprint import files_in
    from espnet3.config.redact import mask
    from espnet3.parallel.identity import RULES

    plan = make_plan(
        len(request.items),
        n_shards,
        batch_size=request.batch_size,
        batch_seconds=request.batch_seconds,
        costs=request.costs,
    )
    _warn_of_files(request.root, plan.n_shards)
    manifest = Manifest(
        items={},
        n_items=len(request.items),
        bounds=plan.bounds,
        costs=[round(cost, 3) for cost in plan.costs],
        batch_size=request.batch_size,
        batch_seconds=request.batch_seconds,
        audio_seconds=request.audio_seconds,
        fingerprint=mask(request.described),  # others read it
        files=files_in(request.described, outputs=request.outputs, with_parts=True),
        name=request.name,
        created=look_time(request.root),  # as the times of its shards
        # Relative, because run folder and outputs may be moved together.
        output_dir=os.path.relpath(request.output_dir, request.root),
        group_size=group_size(plan.n_shards),
        versions={"espnet3": __version__, "python": platform.python_version(), **RULES},
    )
    return publish_manifest(request.root, manifest, request.items, plan.batches)


def count_files(n_shards: int, n_workers: int = 0) -> int:
    """Return about how many files and folders a run makes, with one file of results per shard."""
    return n_shards * _FILES_PER_SHARD + n_workers * _FILES_PER_WORKER


def file_limit(root: Path) -> tuple[int, str]:
    """Return how many files a run in a folder should make at most, and why."""
    free = count_free_files(root)
    if free is not None and free < _MANY_FILES:
        return free, f"the file system has room for {free:,} more"
    return _MANY_FILES, "quotas of a million are common"


def _warn_of_files(root: Path, n_shards: int) -> None:
    n_files, (limit, reason) = count_files(n_shards), file_limit(root)
    if n_files > limit:
        logger.warning(
            "%d shards are some %d files and folders in %s, and %s. Larger shards are fewer: a "
            "smaller parallel.shards_per_worker, with resume=False. Once it is merged: "
            "espnet3 tidy %s", n_shards, n_files, root, reason, shlex.quote(str(root)),
        )  # fmt: skip


def remove_run(root: Path) -> None:
    """Remove a run from its folder: what the protocol owns, and nothing else.

    Raises:
        RunFolderError: if another driver is working in the folder.
    """
    if not is_there(manifest_path(root)):
        return
    refuse_foreign(root)
    with Lease(root) as lease:
        owners = lease.others()
    if owners:
        raise RunFolderError(
            f"resume=False would remove the run in {root}, but {owners[0]} is working there. "
            "Stop it first, or choose another output_dir."
        )
    # Without its manifest the rest is no run any more, whatever happens in between.
    manifest_path(root).unlink(missing_ok=True)
    # Listed first: what an open listing returns after a removal is not defined.
    _remove_protocol(root)


def _remove_protocol(folder: str | os.PathLike[str]) -> None:
    for entry in list(os.scandir(folder)):
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_folder and is_group(entry.name):
            # The user's own folder may have such a name: only what the protocol owns goes.
            _remove_protocol(entry.path)
            with suppress(OSError):
                os.rmdir(entry.path)
        elif not is_protocol_name(entry.name):
            continue
        elif is_folder:
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def finished_result(
    root: Path, manifest: Manifest, output_dir: Path, *, retry_failed: bool = False
) -> tuple[Any] | None:
    """Return what `merge` returned, in a tuple, if the run is complete and its outputs exist.

    With `retry_failed`, a run in which items failed is not complete.
    """
    success = read_success(manifest.layout(root), manifest.run_id)
    if success is None or (retry_failed and success["n_failed"]):
        return None
    return known_result(success, manifest.layout(root), output_dir)


def sweep(layout: RunLayout, lease: Lease) -> None:
    """Remove what dead processes left behind, and note at what detached workers died."""
    for shard, folders in attempts(layout).items():
        name = layout.shard_name(shard)
        # Only getting the claim proves that it was free: another's may not be seen here yet.
        if lease.is_held(backup_name(name)) or not lease.claim(name):
            continue
        # Before the owner files are removed, which prove that the owners are dead.
        record_deaths(layout.root, folders, lease)
        # The claim is ours: what `record_deaths` left alone has no living owner either.
        for folder in folders:
            discard_attempt(folder)
        lease.release(name)
    lease.sweep()
    # A temp file does not tell on which machine its writer is, so only the last one may sweep.
    if not lease.others():
        _sweep_temporary(layout.root)


def sweep_complete(layout: RunLayout) -> None:
    """Remove what processes left in a complete run that died before they had signed off.

    A folder that cannot be written to from here stays as it is: its results are whole.
    """
    with suppress(OSError, FileSystemError):
        if names_in(leases_folder(layout.root)):
            with Lease(layout.root) as lease:
                sweep(layout, lease)


def shards_to_run(layout: RunLayout, manifest: Manifest, *, retry_failed: bool) -> list[int]:
    """Return the shards that are not done, the costliest first; set damaged ones aside.

    Raises:
        FileSystemError: if it cannot be read from here which ones are done.
    """
    unpack_run(layout.root, manifest)
    coverage = read_coverage(layout.root, manifest)
    bounds = {shard: manifest.bounds[shard : shard + 2] for shard in coverage.missing}
    # One listing: a question for each shard would be most of what the start of a run asks.
    present = named_shards(layout) if coverage.missing else set()
    for shard in coverage.missing:
        if shard in present:
            logger.warning("%s is damaged and will be computed again", layout.shard(shard))
            set_aside_damaged(layout, shard, bounds[shard])
    restored = restore_set_aside(layout, bounds)
    missing = [shard for shard in coverage.missing if shard not in restored]
    if retry_failed:
        failed = [shard for shard, done in coverage.committed.items() if done.n_failed]
        for shard in failed:
            set_aside(layout, shard)
        missing += failed
    if missing:
        # While shards are missing, no reader may take the run for complete.
        layout.success.unlink(missing_ok=True)
    wanted = set(missing)
    return [shard for shard in run_order(manifest.costs) if shard in wanted]


def count_failed(layout: RunLayout, manifest: Manifest) -> int:
    """Return how many items of committed shards were given up on."""
    committed = read_coverage(layout.root, manifest).committed
    return sum(done.n_failed for done in committed.values())


def _sweep_temporary(root: Path) -> None:
    for entry in os.scandir(root):
        if entry.is_file(follow_symlinks=False) and is_temp_name(entry.name):
            os.unlink(entry.path)
        elif entry.name.startswith(".merge-") and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)


def unpack_run(root: Path, manifest: Manifest) -> None:
    """Take the shards out that `espnet3 tidy` packed, before any is computed or merged again."""
    layout = manifest.layout(root)
    if not is_there(layout.packed_index):
        return
    with Lease(root) as lease:
        # One at a time, and not while they are being packed.
        while not lease.claim(TIDY):
            time.sleep(_FIRST_PAUSE)
        unpack_shards(layout, manifest.run_id)


def merge_run(
    root: Path,
    output_dir: Path,
    manifest: Manifest,
    merge: Merge,
    *,
    keep_result: bool = True,
    coverage: Coverage | None = None,
) -> Any:
    """Prove that the run is complete, merge it, and write `_SUCCESS.json`.

    Without `keep_result` what `merge` returns is not noted there, and the runner will merge again.
    With `coverage`, what was read a moment ago is not read again.

    Raises:
        IncompleteRunError: with what is missing.
    """
    layout = manifest.layout(root)
    unpack_run(root, manifest)
    coverage = check_complete(root, manifest, coverage=coverage)
    write_failures(layout, failures_of(layout, coverage.committed.values()))
    before = outputs_of(output_dir)
    with coverage.at_hand(layout):
        result = merge([layout.shard(shard) for shard in range(manifest.n_shards)])
    outputs = {
        name: stat
        for name, stat in outputs_of(output_dir, before).items()
        if not (output_dir == root and is_protocol_name(name))
    }
    write_success(
        layout,
        manifest,
        coverage.committed.values(),
        output_dir=output_dir,
        outputs=outputs,
        result=result,
        keep_result=keep_result,
    )
    made = [layout.success, layout.failed, *(output_dir / name for name in outputs)]
    share_files(made, root, layout.success)
    # Not before: until the run is merged, a folder that was set aside may turn out to be good.
    remove_set_aside(layout)
    return result


def write_failures(layout: RunLayout, records: Sequence[dict[str, Any]]) -> None:
    """Write `failed.jsonl`, or remove it if nothing failed."""
    if not records:
        layout.failed.unlink(missing_ok=True)
        return
    write_text(layout.failed, "".join(dump_json(record) + "\n" for record in records))


class Merger:
    """Merges a run once, whichever of its drivers and detached workers gets the turn.

    Args:
        root: the run folder.
        output_dir: where `merge` writes.
        manifest: the plan.
        lease: this process's presence in the folder.
        merge: of the runner.
        needs_result: whether it must know what `merge` returned, as a driver does. If another one
            merged and that could not be noted, the run is merged again.
        retry_failed: a run in which items failed does not count as merged.
        coverage: what the caller has read of the shards just now.
    """

    def __init__(
        self,
        root: Path,
        output_dir: Path,
        manifest: Manifest,
        lease: Lease,
        merge: Merge,
        *,
        needs_result: bool = False,
        retry_failed: bool = False,
        coverage: Coverage | None = None,
    ) -> None:
        self._root, self._output_dir, self._merge = root, output_dir, merge
        self._manifest, self._layout, self._lease = manifest, manifest.layout(root), lease
        self._needs_result, self._retry_failed = needs_result, retry_failed
        self._coverage = coverage

    def answer(self) -> tuple[Any] | None:
        """Return what `merge` returned, in a tuple, if the run is merged; see `needs_result`."""
        if self._needs_result:
            return finished_result(
                self._root, self._manifest, self._output_dir, retry_failed=self._retry_failed
            )
        is_merged = read_success(self._layout, self._manifest.run_id) is not None
        return (None,) if is_merged else None

    def await_turn(
        self, on_turn: Callable[[], object], stands_by: Callable[[], bool] | None = None
    ) -> tuple[Any] | None:
        """Wait until it is ours to merge; return the answer if another one did it.

        Args:
            on_turn: called before each pause; it may raise to end the wait.
            stands_by: tells whether to wait at all while another one merges.

        Raises:
            ReleaseClaims: if others merge, and enough wait in case that they die.
        """
        pause = _FIRST_PAUSE
        while (answer := self.answer()) is None:
            if self._lease.claim("merge"):
                return self._late_answer()
            if stands_by is not None and not stands_by():
                raise ReleaseClaims("nothing to take: another worker is merging", ends_all=False)
            on_turn()
            # At random: all processes began to wait for the merge at the same moment.
            time.sleep(pause * random.uniform(0.7, 1.3))
            pause = min(pause * 1.5, _MAX_PAUSE)
        return answer

    def _late_answer(self) -> tuple[Any] | None:
        """Return the answer of one that merged before we could, which may be seen late."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (answer := self.answer()) is None:
            # It was looked for in vain a moment ago, which a file system may remember.
            is_listed = self._layout.success.name in names_in(self._root)
            is_late = is_listed and read_success(self._layout, self._manifest.run_id) is None
            if not is_late or time.monotonic() > deadline:
                break
            time.sleep(_FIRST_PAUSE)
        return answer

    def missing(self) -> list[int]:
        """Return the shards that are damaged or gone, and set them aside; the turn is then over."""
        deadline = time.monotonic() + _LATE_SECONDS
        while (coverage := read_coverage(self._root, self._manifest)).missing:
            if time.monotonic() > deadline:  # not only seen late
                self._lease.release("merge")
                return shards_to_run(self._layout, self._manifest, retry_failed=False)
            time.sleep(_FIRST_PAUSE)
        self._coverage = coverage
        return []

    def merge(self) -> Any:
        """Prove that all is there, merge, remove what is left of attempts, and sum up."""
        begin = time.monotonic()
        result = merge_run(
            self._root, self._output_dir, self._manifest, self._merge, coverage=self._coverage
        )
        # No attempt is needed any more, not even that of a slow backup.
        for folders in attempts(self._layout).values():
            for folder in folders:
                discard_attempt(folder)
        sweep(self._layout, self._lease)
        _log_summary(self._root, self._manifest, time.monotonic() - begin)
        return result


def _log_summary(root: Path, manifest: Manifest, merge_seconds: float) -> None:
    """Log the content of `_SUCCESS.json`; called by the process that wrote it."""
    success = read_success(manifest.layout(root), manifest.run_id) or {}
    n_failed = success.get("n_failed", 0)
    logger.info(
        "%s is complete: %s, %d failed, %s since the plan, merged in %.1f s",
        root, count(manifest.n_items, "item"), n_failed, duration(success.get("seconds", 0.0)),
        merge_seconds,
    )  # fmt: skip
    for name, fact in cost_facts(read_accounting(root, manifest)):
        logger.info("%s: %s", name, fact)
    if success.get("n_halved"):
        logger.warning(
            "%d batches did not fit into memory and were halved, which takes time; set a "
            "smaller batch_seconds or batch_size", success["n_halved"],
        )  # fmt: skip
    if n_failed:
        logger.warning("Failed items: %d; see: espnet3 failed %s", n_failed, shlex.quote(str(root)))

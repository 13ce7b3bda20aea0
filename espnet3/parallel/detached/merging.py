"""Merge a detached run: by one of its workers, while a few wait for it, or by `espnet3 merge`."""

import logging
import os
import random
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from espnet3.errors import EspnetError, IncompleteRunError, ProviderError, RunFolderError
from espnet3.io.atomic import is_folder_trouble
from espnet3.parallel.detached.description import load_runner
from espnet3.parallel.end_of_run import tell_the_end
from espnet3.parallel.folder_run import (
    finished_result,
    folder_errors,
    merge_run,
    shards_to_run,
    sweep,
)
from espnet3.parallel.signals import EndSignals, HandBack
from espnet3.parallel.tasks import describe_error, secrets_held, user_traceback
from espnet3.shards.commit import SETTLE_SECONDS, attempts, discard_attempt
from espnet3.shards.lease import Lease, claims, living_owners
from espnet3.shards.manifest import Manifest
from espnet3.shards.merge import check_complete, read_coverage
from espnet3.shards.reachable import is_of_node
from espnet3.shards.status import require_manifest
from espnet3.shards.success import read_success

logger = logging.getLogger(__name__)
_FIRST_PAUSE, _MAX_PAUSE = 0.2, 5.0
_LATE_SECONDS = 3.0


class Merger:
    """Merges a run whose shards are all committed, unless another worker does.

    Args:
        root: the run folder.
        manifest: its plan.
        lease: this worker's presence in it.
        signals: may interrupt the merge.
        trust: a user whose code may be run as well as one's own.
    """

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        lease: Lease,
        signals: EndSignals,
        *,
        trust: str | None = None,
    ) -> None:
        self._root, self._manifest, self._lease = root, manifest, lease
        self._signals, self._trust = signals, trust

    def is_merged(self) -> bool:
        """Tell whether the run is complete."""
        layout = self._manifest.layout(self._root)
        return read_success(layout, self._manifest.run_id) is not None

    def await_turn(self, stands_by: Callable[[], bool], on_turn: Callable[[], object]) -> bool:
        """Wait until it is ours to merge; False if another one did it.

        Raises:
            HandBack: if others merge, and enough wait in case that they die.
        """
        pause = _FIRST_PAUSE
        while not self.is_merged():
            if self._lease.claim("merge"):
                return not self._is_merged_by_another()
            if not stands_by():
                raise HandBack("nothing to take: another worker is merging", ends_all=False)
            on_turn()
            time.sleep(pause * random.uniform(0.7, 1.3))
            pause = min(pause * 1.5, _MAX_PAUSE)
        return False

    def _is_merged_by_another(self) -> bool:
        """Tell whether somebody merged before we could; give their proof time to be seen."""
        deadline = time.monotonic() + SETTLE_SECONDS
        name = self._manifest.layout(self._root).success.name
        while not self.is_merged():
            # It was looked for in vain a moment ago, which a file system may remember.
            if name not in os.listdir(self._root) or time.monotonic() > deadline:
                return False
            time.sleep(_FIRST_PAUSE)
        return True

    def merge(self) -> list[int]:
        """Prove that all is there, and merge; else return the shards to be computed anew."""
        missing = self._missing()
        if missing:
            self._lease.release("merge")
            return missing
        begin = time.monotonic()
        logger.info("All %d shards are done; merging", self._manifest.n_shards)
        with self._signals.raised_at_once():
            self._merge_as_user()
        self._tidy_up()
        tell_the_end(self._root, self._manifest, time.monotonic() - begin)
        return []

    def _tidy_up(self) -> None:
        """Remove what is left of attempts: nobody needs another one, a slow twin's neither."""
        for folders in attempts(self._root).values():
            for folder in folders:
                discard_attempt(folder)
        sweep(self._manifest.layout(self._root), self._lease)

    def _missing(self) -> list[int]:
        """Return the shards that are damaged or gone, and set them aside."""
        deadline = time.monotonic() + _LATE_SECONDS
        while read_coverage(self._root, self._manifest).missing:
            if time.monotonic() > deadline:  # not only seen late
                layout = self._manifest.layout(self._root)
                return shards_to_run(layout, self._manifest, retry_failed=False)
            time.sleep(_FIRST_PAUSE)
        return []

    def _merge_as_user(self) -> None:
        runner = None
        try:
            runner = load_runner(self._root, trust=self._trust)
            merge_run(self._root, runner.output_dir, self._manifest, runner.merge)
        except EspnetError:
            raise
        except Exception as error:
            if is_folder_trouble(error) or is_of_node(error, self._root):
                raise  # a full disk, or one that is away: the caller says what to do
            secrets = secrets_held(runner)
            raise ProviderError(
                f"merge() failed on {self._lease.owner}: {describe_error(error, secrets)}. Mend it "
                "and run the same command again; all shards are done and kept.\n\n"
                f"{user_traceback(error, secrets)}"
            ) from error


def merge_detached(run_dir: Path, *, trust: str | None = None) -> Any:
    """Merge a run whose shards are all done, and return what `merge` returns.

    Nothing is done if it is merged already and its files are as they were.

    Raises:
        IncompleteRunError: with what is missing.
        RunFolderError: if somebody is merging it just now, or if its code is somebody else's.
    """
    manifest = require_manifest(run_dir)
    answer = finished_answer(run_dir)
    if answer is not None:
        return answer[0]
    check_complete(run_dir, manifest, contents=False)  # before the code is loaded
    runner = load_runner(run_dir, trust=trust)
    with folder_errors(run_dir), Lease(run_dir.resolve()) as lease:
        if not lease.claim("merge"):
            raise RunFolderError(f"{_merger(run_dir)} is merging {run_dir} just now.")
        result = merge_run(run_dir, runner.output_dir, manifest, runner.merge)
        sweep(manifest.layout(run_dir), lease)
    return result


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
        "Somebody",
    )

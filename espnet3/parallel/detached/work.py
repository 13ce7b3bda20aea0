"""The program of a detached worker: `python -m espnet3.parallel.detached.work RUN_DIR ...`."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from espnet3 import logs
from espnet3.errors import EspnetError, FileSystemError
from espnet3.io.shared_files import MAX_SKEW, clock_skew, describe_skew, steady_time
from espnet3.parallel.clusters.gpus import REQUESTED, VARIABLE, Pinning, choose_gpus
from espnet3.parallel.detached.description import decode_folder, load_trusted
from espnet3.parallel.detached.worker import DetachedWorker, Outcome, Successors, find_end
from espnet3.parallel.folder_run import folder_errors
from espnet3.parallel.open_pool import KeptPool
from espnet3.parallel.process_pool import Spare, fork_spares
from espnet3.parallel.shard_queue import find_walltime, process_start
from espnet3.parallel.signals import EndSignals
from espnet3.schedulers import JOB_ID, node_name, scheduler_of
from espnet3.shards.layout import RunLayout
from espnet3.shards.lease import Owner
from espnet3.shards.records import Identity, RecordPaths, complete_own_job

logger = logging.getLogger(__name__)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m espnet3.parallel.detached.work")
    parser.add_argument("run_dirs", nargs="+", type=decode_folder, metavar="RUN_DIR")
    parser.add_argument("--env", default="local", help="the backend of this worker's job")
    parser.add_argument("--job", default="", help="its number, if no variable has it")
    parser.add_argument("--generation", type=int, default=0, help="jobs before it in its chain")
    parser.add_argument("--submitted", type=float, help="when, in seconds since 1970")
    parser.add_argument("--walltime", type=float, help="seconds, if the scheduler does not tell")
    parser.add_argument("--tag", default="", help="of its submission; see the job's record")
    parser.add_argument("--trust", help="a user whose code may be run as well as one's own")
    return parser


def _ahead(root: Path) -> float:
    """Return how far this machine's clock is ahead of the folder's, if that is more than usual."""
    with suppress(OSError):
        skew = clock_skew(root)
        if abs(skew) > MAX_SKEW:
            logger.warning("%s", describe_skew(root, skew))
            return skew
    return 0.0


def main(arguments: Sequence[str] | None = None, spares: Sequence[Spare] = ()) -> int:
    """Work on the folders, one after the other; return the exit code.

    Args:
        arguments: those of the command line.
        spares: processes that wait to become the child that does the work, and the successor
            program.
    """
    options = _parser().parse_args(arguments)
    roots = [root.resolve() for root in options.run_dirs]
    logs.log_to_stderr()
    # Before any work, so that an early signal ends the worker in good order, too.
    with EndSignals().installed() as signals:
        worker = _Worker(roots, options, signals, spares)
        try:
            return worker.work()
        except (EspnetError, OSError) as error:
            logger.error("On %s: %s", node_name(), error)
            return 1
        finally:
            # Also after an error: a submission under way must note its job.
            worker.successors.close()
            worker.kept.close()
            for spare in spares:
                spare.close()


class _Worker:
    """This process: its job, its folders, and what became of them."""

    def __init__(
        self,
        roots: list[Path],
        options: argparse.Namespace,
        signals: EndSignals,
        spares: Sequence[Spare],
    ) -> None:
        of_child, of_successors = spares or (None, None)
        self._roots, self._options, self._signals = roots, options, signals
        owner = Owner.of_this_process()
        # The argument first: variables may be those of another job, from which this was submitted.
        self._job_id = options.job or os.environ.get(JOB_ID, "") or owner.job_id
        stamp = self._job_id or f"{owner.host}-{owner.pid}"
        # The number is a text of the scheduler's, and must not lead into another folder.
        self._log_name = f"detached-{options.env}-{stamp}.log".replace(os.sep, "_")
        self._submitted: float | None = options.submitted
        self._pinning: Pinning | None = None
        self.kept = KeptPool(spare=of_child)  # one process, and one model, for all folders
        self.successors = Successors(
            roots,
            env=options.env,
            job_id=self._job_id,
            generation=options.generation,
            trust=options.trust,
            spare=of_successors,
        )

    def _complete_record(self) -> None:
        """Record the number of this job, if its submitter was killed before it could."""
        if not self._options.tag or not self._job_id:
            return
        for root in self._roots:
            with suppress(OSError, EspnetError):  # it is for others; the work does not need it
                paths = RecordPaths(root)
                complete_own_job(paths, self._options.env, self._options.tag, self._job_id)

    def work(self) -> int:
        """Finish the folders in their order; wait for others only when none has work left."""
        self._complete_record()
        outcomes: dict[Path, Outcome] = {}
        for root in self._roots:
            if over := find_end(root):
                outcomes[root] = replace(over, code=0)  # not for anything that happened here
                logger.info("%s: %s", root, over.reason)
        if len(outcomes) == len(self._roots):
            return 0
        self._prepare()
        for is_patient in (False, True) if len(self._roots) > 1 else (True,):
            for root in self._roots:
                if root in outcomes and outcomes[root].is_over:
                    continue
                self.kept.is_open = any(
                    not (other in outcomes and outcomes[other].is_over)
                    for other in self._roots
                    if other != root
                )
                outcomes[root] = self._try_to_work_on(root, is_patient)
                if outcomes[root].ends_all:
                    return self._code_to_go_on(outcomes[root])
        if all(outcome.is_over for outcome in outcomes.values()):
            self.successors.finish()
        # One bad folder must show in the job's exit code, whatever the others did.
        return max(outcome.code for outcome in outcomes.values())

    def _code_to_go_on(self, outcome: Outcome) -> int:
        """Return the exit code of a worker that ends while there is work for another."""
        scheduler = scheduler_of(self._options.env)
        if outcome.code or scheduler is None or scheduler.has_successors:
            return outcome.code
        # One that knows no successors may put a job back that ends with a certain code.
        return scheduler.requeue_code or 0

    def _prepare(self) -> None:
        self._pin_gpus()
        ahead = _ahead(self._roots[0])
        self._walltime = find_walltime(
            process_start(), self._options.walltime, ahead=ahead, env=self._options.env
        )

    def _pin_gpus(self) -> None:
        """Show the child those of its GPUs, where a scheduler or the job's script names any."""
        if not os.environ.keys() & {VARIABLE, REQUESTED}:
            return
        # Before the child starts: CUDA reads the variable once, at its first use.
        self._pinning = choose_gpus(os.environ, "0")  # kept: its locks are
        if self._pinning.visible is not None:
            os.environ[VARIABLE] = self._pinning.visible
        if self._pinning.message:
            level = logging.WARNING if self._pinning.is_warning else logging.INFO
            logger.log(level, "%s", self._pinning.message)

    def _try_to_work_on(self, root: Path, is_patient: bool) -> Outcome:
        """Work on a folder; if this node cannot even sign in there, say so and leave."""
        try:
            with folder_errors(root):
                return self._work_on(root, is_patient)
        except FileSystemError as error:
            logger.error("%s", error)
            return Outcome(f"{type(error).__name__}: {error}", 1, ends_all=True)

    def _work_on(self, root: Path, is_patient: bool) -> Outcome:
        identity = Identity(
            env=self._options.env,
            job_id=self._job_id,
            generation=self._options.generation,
            submitted=self._submitted,
            log=self._log_to(root),
        )
        self._submitted = None  # the wait in the queue counts once
        # For relative paths of the user's code. What is wrong with the file, the worker says.
        with suppress(OSError, EspnetError):
            os.chdir(load_trusted(root, trust=self._options.trust).cwd)
        until = self._walltime.limit
        logger.info(
            "Worker of %s, pid %d%s%s", root, os.getpid(),
            f", job {self._job_id}" if self._job_id else "",
            f", {until - steady_time():.0f} s until it is ended" if until else "",
        )  # fmt: skip
        worker = DetachedWorker(
            root,
            identity,
            self._signals,
            walltime=self._walltime,
            on_turn=self.successors.tick,
            kept=self.kept,
            trust=self._options.trust,
        )
        outcome = worker.work(is_patient=is_patient)
        logger.info("Worker ends with code %d: %s", outcome.code, outcome.reason)
        return outcome

    def _log_to(self, root: Path) -> Path:
        """Let all that this process and its children say go into the folder's log."""
        log = RunLayout(root, 0).logs / self._log_name
        log.parent.mkdir(exist_ok=True)
        # Append mode: a requeued job has the same number, and must not overwrite its first log.
        with log.open("ab") as file:
            sys.stdout.flush()
            sys.stderr.flush()
            # At the descriptor: output of children and of C libraries must follow.
            os.dup2(file.fileno(), sys.stdout.fileno())
            os.dup2(file.fileno(), sys.stderr.fileno())
        return log


if __name__ == "__main__":
    # Before anything else: later there are threads, handlers of signals, files of the run.
    sys.exit(main(spares=fork_spares(2)))

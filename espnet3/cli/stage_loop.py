"""Run stages one after the other: headers, logs, records, a summary, and the way on."""

import logging
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from espnet3.cli.console import print_error
from espnet3.cli.detach import what_comes_after
from espnet3.cli.failure import describe_failure
from espnet3.cli.recipe_options import Options
from espnet3.cli.stage_selection import Selected, spell_stages
from espnet3.errors import (
    ConfigError,
    EspnetError,
    RunFolderError,
    RunInterrupted,
    StaleRunError,
)
from espnet3.io.folders import folder_trouble
from espnet3.logs import StageLog, open_stage_log
from espnet3.systems.base.context import context_value
from espnet3.systems.base.provenance import Invocation, StageRecord
from espnet3.systems.base.readers import unread_overrides
from espnet3.systems.base.stages import Detached, Skipped, Stage, stages_of
from espnet3.systems.base.system import BaseSystem
from espnet3.text import on_one_line

logger = logging.getLogger(__name__)


@dataclass
class Outcome:
    """How a stage ended."""

    stage: Stage
    state: str = "done"
    reason: str = ""
    seconds: float | None = None
    log: Path | None = None
    exit_code: int = 0
    is_refused: bool = False
    """The config is wrong, or does not fit the results that are there."""
    run_dirs: tuple[Path, ...] = ()
    """Where its work goes on without this program."""


@dataclass(frozen=True)
class StageLoop:
    """Runs what was selected; a failure or an interrupt ends it."""

    system: BaseSystem
    selected: Sequence[Selected]
    options: Options
    invocation: Invocation
    program: Sequence[str]
    """How the recipe is called, without its arguments."""
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self) -> int:
        """Run the stages, and return the exit code."""
        code = 0
        skipped = [str(entry.stage) for entry in self.selected if entry.skipped]
        if skipped:
            logger.info("Skipped, because the system does not have them: %s", ", ".join(skipped))
        for position, entry in enumerate(self.selected):
            outcome = self._run_stage(entry)
            self.outcomes.append(outcome)
            code = outcome.exit_code
            if code or outcome.run_dirs:
                self._not_run(self.selected[position + 1 :])
                break
        self._summarise()
        self._say_what_comes_after()
        if code and not self._was_wrong_from_the_start():
            self._say_how_to_go_on()
        return code

    def _not_run(self, left: Sequence[Selected]) -> None:
        last = self.outcomes[-1]
        why = "goes on without this program" if last.run_dirs else "did not end well"
        for entry in left:
            reason = entry.skipped or f"{last.stage.name} {why}"
            self.outcomes.append(Outcome(entry.stage, "skipped", reason))

    def _run_stage(self, entry: Selected) -> Outcome:
        outcome = Outcome(entry.stage)
        if entry.skipped:
            outcome.state, outcome.reason = "skipped", entry.skipped
            return outcome
        begin = time.monotonic()
        exp_dir = Path(context_value(self.system.config_for(entry.stage.name), "exp_dir"))
        try:
            self._run_recorded(outcome, exp_dir)
        except OSError as error:  # of the log or the record, not of the stage
            _fail(outcome, _unwritable(exp_dir, error))
        outcome.seconds = time.monotonic() - begin
        return outcome

    def _run_recorded(self, outcome: Outcome, exp_dir: Path) -> None:
        stage = outcome.stage
        loaded = self.system.config_for(stage.name)
        record = StageRecord(exp_dir / "config", stage, loaded, self.invocation)
        record.begin()
        outcome.log = exp_dir / f"{stage.name}.log"
        with open_stage_log(outcome.log, self.invocation.hidden()) as log:
            logger.info("Stage %s: %s (log: %s)", stage, stage.help, on_one_line(log.path))
            begin = time.monotonic()
            self.system.on_work, self.system.found_all_done = record.publish, False
            self._call(outcome, log)
            nothing = outcome.state == "skipped" or self.system.found_all_done
            record.finish(outcome.state, changed_nothing=nothing or outcome.is_refused)
            _log_end(outcome, time.monotonic() - begin)

    def _call(self, outcome: Outcome, log: StageLog) -> None:
        try:
            with sigterm_interrupts():
                result = getattr(self.system, outcome.stage.name)()
        except KeyboardInterrupt as error:
            outcome.state = "interrupted"
            outcome.exit_code = exit_code_of(error)
        except (Exception, SystemExit) as error:
            log.write_traceback(__name__, error)
            _fail(outcome, error)
        else:
            if isinstance(result, Skipped):
                outcome.state, outcome.reason = "skipped", result.reason
            elif isinstance(result, Detached):
                outcome.state, outcome.run_dirs = "submitted", result.run_dirs
        finally:
            os.chdir(self.invocation.recipe_dir)  # a stage may have gone elsewhere

    def _summarise(self) -> None:
        from espnet3.cli.stage_summary import print_summary

        print_summary(self.outcomes)

    def _was_wrong_from_the_start(self) -> bool:
        """Tell whether the very command must be changed, and nothing was done that could go on."""
        began = [outcome for outcome in self.outcomes if outcome.log is not None]
        return len(began) == 1 and began[0].is_refused

    def _say_how_to_go_on(self) -> None:
        ended_here = next(i for i, outcome in enumerate(self.outcomes) if outcome.exit_code)
        left = [outcome.stage for outcome in self.outcomes[ended_here:]]
        detach = ["--detach"] if self.options.detach and left[0].can_detach else []
        sys.stdout.flush()
        line = shlex.join([*self._command(left), *detach])
        print(f"To go on: {on_one_line(line)}", file=sys.stderr)

    def _say_what_comes_after(self) -> None:
        """Tell how to run what was left out because a stage's work goes on elsewhere."""
        last = next((i for i, outcome in enumerate(self.outcomes) if outcome.run_dirs), None)
        if last is None:
            return
        left = [outcome.stage for outcome in self.outcomes[last + 1 :] if outcome.stage.is_defined]
        if left:
            line = what_comes_after(self.outcomes[last].run_dirs, self._command(left))
            print(f"When it has ended: {line}")

    def _command(self, stages: Sequence[Stage]) -> list[str]:
        words = spell_stages(stages, stages_of(type(self.system)))
        # What only the other stages read would be refused.
        unread = unread_overrides(self.system, stages, self.options.overrides)
        return [*self.program, *self.options.without(unread).arguments(words)]


def _fail(outcome: Outcome, error: BaseException) -> None:
    outcome.state, outcome.exit_code = "failed", 1
    outcome.is_refused = isinstance(error, ConfigError | StaleRunError)
    print_error(EspnetError(describe_failure(outcome.stage, error, outcome.log)))


def _unwritable(exp_dir: Path, error: OSError) -> RunFolderError:
    where = f" ({error.filename})" if error.filename else ""
    return RunFolderError(
        f"the log and config of a stage cannot be written to {exp_dir}: "
        f"{folder_trouble(error, exp_dir)}{where}. Mend that, or choose another folder: "
        "exp_dir=FOLDER"
    )


def _log_end(outcome: Outcome, seconds: float) -> None:
    from espnet3.text import duration

    why = f": {outcome.reason}" if outcome.reason else ""
    logger.info("Stage %s %s after %s%s", outcome.stage, outcome.state, duration(seconds), why)


def exit_code_of(error: KeyboardInterrupt) -> int:
    """Return the exit code after Ctrl-C, or that which a signal asks for."""
    code: Any = getattr(error, "code", None)
    return code if isinstance(code, int) else 128 + signal.SIGINT


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM end a stage as Ctrl-C does, so that its record and the way on are written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise RunInterrupted(128 + number)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)

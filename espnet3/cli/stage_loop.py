"""Run stages one after the other: headers, logs, records, a summary, and how to continue."""

import logging
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from espnet3.cli.console import make_console, make_table, print_error
from espnet3.cli.recipe_configs import TypedLine
from espnet3.cli.recipe_options import Selected, what_comes_after
from espnet3.errors import (
    ConfigError,
    EspnetError,
    IncompleteRunError,
    ProviderError,
    RunFolderError,
    RunInterrupted,
    StaleRunError,
)
from espnet3.io.atomic import folder_trouble
from espnet3.logs import StageLog, open_stage_log
from espnet3.parallel.signals import sent_again_if_ignored
from espnet3.systems.base.context import context_value
from espnet3.systems.base.stages import Detached, Invocation, Skipped, Stage, StageRecord, has_own
from espnet3.systems.base.system import BaseSystem
from espnet3.text import duration, on_one_line, printable
from espnet3.trainer.launching.process_rank import ProcessRank

logger = logging.getLogger(__name__)
_STYLES = {"done": "green", "failed": "red", "interrupted": "yellow", "skipped": "dim"}


@dataclass
class StageOutcome:
    """Result of one stage."""

    stage: Stage
    state: str = "done"
    reason: str = ""
    seconds: float | None = None
    log: Path | None = None
    exit_code: int = 0
    is_refused: bool = False
    """The config is wrong, or does not fit the results that are there."""
    fails_again: bool = False
    """The same command would fail in the same way."""
    says_what_to_type: bool = False
    """The error has lines of its own: the same command would be refused again."""
    run_dirs: tuple[Path, ...] = ()
    """Where its work continues without this program."""


@dataclass(frozen=True)
class StageLoop:
    """Runs what was selected; a failure or an interrupt ends it."""

    system: BaseSystem
    selected: Sequence[Selected]
    line: TypedLine
    """The line that asked for it."""
    invocation: Invocation
    outcomes: list[StageOutcome] = field(default_factory=list)

    def run(self) -> int:
        """Run the stages, and return the exit code."""
        code = 0
        skipped = [f"{entry.stage}, {entry.skipped}" for entry in self.selected if entry.skipped]
        if skipped:
            logger.info("Skipped: %s", "; ".join(skipped))
        for position, entry in enumerate(self.selected):
            outcome = self._run_stage(entry)
            self.outcomes.append(outcome)
            code = outcome.exit_code
            if code or outcome.run_dirs:
                self._not_run(self.selected[position + 1 :])
                break
        _print_summary(self.outcomes)
        self._say_what_comes_after()
        if code and not self._is_told_what_to_type():
            self._say_how_to_continue()
        return code

    def _not_run(self, left: Sequence[Selected]) -> None:
        last = self.outcomes[-1]
        why = "continues without this program" if last.run_dirs else "did not end well"
        for entry in left:
            reason = entry.skipped or f"{last.stage.name} {why}"
            self.outcomes.append(StageOutcome(entry.stage, "skipped", reason))

    def _run_stage(self, entry: Selected) -> StageOutcome:
        outcome = StageOutcome(entry.stage)
        if entry.skipped:
            outcome.state, outcome.reason = "skipped", entry.skipped
            return outcome
        begin = time.monotonic()
        exp_dir = Path(context_value(self.system.config_for(entry.stage.name), "exp_dir"))
        try:
            self._run_recorded(outcome, exp_dir)
        except OSError as error:  # of the log or the record, not of the stage
            # A stage that failed has reported why; a full disk would be reported twice.
            if not outcome.exit_code:
                _fail(outcome, _unwritable(exp_dir, error))
        outcome.seconds = time.monotonic() - begin
        return outcome

    def _run_recorded(self, outcome: StageOutcome, exp_dir: Path) -> None:
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

    def _call(self, outcome: StageOutcome, log: StageLog) -> None:
        try:
            with _sigterm_interrupts():
                result = getattr(self.system, outcome.stage.name)()
        # First, because RunInterrupted is a SystemExit as well.
        except KeyboardInterrupt as error:
            outcome.state = "interrupted"
            outcome.exit_code = _exit_code_of(error)
        # A recipe may call `sys.exit`; the record and the line to continue must still be written.
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

    def _is_told_what_to_type(self) -> bool:
        """Tell whether the command itself must be changed, as the error says."""
        began = [outcome for outcome in self.outcomes if outcome.log is not None]
        if any(outcome.says_what_to_type for outcome in began):
            return True
        return len(began) == 1 and began[0].is_refused

    def _say_how_to_continue(self) -> None:
        ended_here = next(i for i, outcome in enumerate(self.outcomes) if outcome.exit_code)
        left = [outcome.stage for outcome in self.outcomes[ended_here:]]
        # The line belongs below the table, which is on the other stream.
        sys.stdout.flush()
        line = shlex.join(self._command(left))
        fails_again = self.outcomes[ended_here].fails_again
        begin = "When that is changed" if fails_again else "To continue"
        print(f"{begin}: {on_one_line(line)}", file=sys.stderr)

    def _say_what_comes_after(self) -> None:
        """Tell how to run what was left out because a stage's work continues elsewhere."""
        last = next((i for i, outcome in enumerate(self.outcomes) if outcome.run_dirs), None)
        if last is None:
            return
        left = [outcome.stage for outcome in self.outcomes[last + 1 :] if outcome.stage.is_defined]
        if left:
            line = what_comes_after(self.outcomes[last].run_dirs, self._command(left))
            print(f"When it has ended: {line}")

    def _command(self, stages: Sequence[Stage]) -> list[str]:
        return self.line.for_stages([stage.name for stage in stages])


def _fail(outcome: StageOutcome, error: BaseException) -> None:
    outcome.state, outcome.exit_code = "failed", 1
    outcome.is_refused = isinstance(error, ConfigError | StaleRunError)
    # A model that cannot be built stays so, too.
    outcome.fails_again = outcome.is_refused or isinstance(error, ProviderError)
    is_ours = outcome.is_refused or isinstance(error, IncompleteRunError)
    # A note with a line is about this error, whatever it is; the text may be that of a tool.
    texts = [*([str(error)] if is_ours else ()), *getattr(error, "__notes__", ())]
    outcome.says_what_to_type = any(
        line in text for text in texts for line in ("run.py --st", " run --st")
    )
    print_error(EspnetError(describe_failure(outcome.stage, error, outcome.log)))


def _unwritable(exp_dir: Path, error: OSError) -> RunFolderError:
    where = f" ({error.filename})" if error.filename else ""
    return RunFolderError(
        f"the log and config of a stage cannot be written to {exp_dir}: "
        f"{folder_trouble(error, exp_dir)}{where}.",
        fix="Fix that, or choose another folder: exp_dir=FOLDER",
    )


def _log_end(outcome: StageOutcome, seconds: float) -> None:
    why = f": {outcome.reason}" if outcome.reason else ""
    logger.info("Stage %s %s after %s%s", outcome.stage, outcome.state, duration(seconds), why)


def _exit_code_of(error: KeyboardInterrupt) -> int:
    """Return the exit code after Ctrl-C, or that which a signal asks for."""
    code: Any = getattr(error, "code", None)
    return code if isinstance(code, int) else 128 + signal.SIGINT


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM end a stage as Ctrl-C does: its record and the line to continue are written."""
    # Python lets only the main thread set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise RunInterrupted(128 + number)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        with sent_again_if_ignored(RunInterrupted, lambda: signal.SIGTERM):
            yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _print_summary(outcomes: Sequence[StageOutcome]) -> None:
    """Print a line for each stage: how it ended, how long it took, and its log."""
    from rich.text import Text

    table = make_table("Stage", "State", "Time", "Log", right=["Time"])
    for outcome in outcomes:
        log = "" if outcome.log is None else on_one_line(outcome.log)
        table.add_row(
            str(outcome.stage),
            Text(outcome.state, style=_STYLES.get(outcome.state, "")),
            "" if outcome.seconds is None else duration(outcome.seconds),
            "; ".join(filter(None, [on_one_line(outcome.reason), log])),
        )
    console = make_console()
    console.print()
    console.print(table)


def describe_failure(stage: Stage, error: BaseException, log: Path | None) -> str:
    """Return what to show of an error; our own say all themselves, others have a traceback."""
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, EspnetError):
        return f"Stage {stage} failed: {error}{notes}"
    if isinstance(error, SystemExit):
        what = f"it called sys.exit({error.code!r})"
    else:
        what = f"{type(error).__name__}: {error}"
        # What is to be a folder, and is something else. Of other files this would say nothing.
        if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
            what += f": {folder_trouble(error)}"
    see = f" Traceback: {log}" if log else ""
    return f"Stage {stage} failed: {what}{_place(error)}.{see}{notes}"


def _place(error: BaseException) -> str:
    """Return the innermost line of the recipe that led to the error."""
    here = os.getcwd()
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.startswith(here + os.sep)]
    if not own:
        return ""
    return f" ({os.path.relpath(own[-1].filename, here)}:{own[-1].lineno})"


def run_rank(
    system: BaseSystem, selected: Sequence[Selected], rank: ProcessRank, invocation: Invocation
) -> int:
    """Run the stages of a process that is not the first; it has a log, but writes no records.

    Returns:
        The exit code.
    """
    code = 0
    for entry in selected:
        exp_dir = Path(context_value(system.config_for(entry.stage.name), "exp_dir"))
        # The first rank may not have come so far yet.
        exp_dir.mkdir(parents=True, exist_ok=True)
        log_path = exp_dir / f"{entry.stage.name}.rank{rank.rank}.log"
        with open_stage_log(log_path, invocation.hidden()) as log:
            try:
                with _sigterm_interrupts():
                    getattr(system, entry.stage.name)()
            except KeyboardInterrupt as error:
                code = _exit_code_of(error)
            except (Exception, SystemExit) as error:
                log.write_traceback(__name__, error)
                text = describe_failure(entry.stage, error, log_path)
                print_error(EspnetError(f"Rank {rank.rank} of {rank.world_size}: {text}"))
                code = 1
        if code:
            break
    return code


def print_plan(system: BaseSystem, selected: Sequence[Selected]) -> None:
    """Print what would be done; nothing is run or written."""
    earlier = ""
    for entry in selected:
        print(f"Stage {entry.stage}: {entry.stage.help}")
        if entry.skipped:
            print(f"  skipped: {entry.skipped}")
            continue
        for line in _describe(system, entry.stage, earlier):
            print(f"  {printable(line)}")
        earlier = entry.stage.name


def _describe(system: BaseSystem, stage: Stage, earlier: str) -> Iterator[str]:
    loaded = system.config_for(stage.name)
    exp_dir = Path(context_value(loaded, "exp_dir"))
    yield f"config: {' + '.join(on_one_line(file) for file in loaded.files)}"
    yield f"log: {on_one_line(exp_dir / stage.name)}.log"
    try:
        yield from _own_words(system, stage)
    except (EspnetError, OSError) as error:
        if not earlier:
            raise
        # An earlier stage may make what this one looks for.
        yield f"more is known after {earlier}; now: {on_one_line(error)}"


def _own_words(system: BaseSystem, stage: Stage) -> list[str]:
    describe = f"describe_{stage.name}"
    if not has_own(type(system), stage.name, describe):
        return [f"runs {type(system).__name__}.{stage.name}()"]
    return [line for text in getattr(system, describe)() for line in text.split("\n")]

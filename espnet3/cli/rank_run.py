"""A recipe in one of several processes that train together: who runs which stage, who speaks."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from espnet3.cli.console import UsageError, print_error
from espnet3.cli.failure import describe_failure
from espnet3.cli.stage_loop import exit_code_of, sigterm_interrupts
from espnet3.cli.stage_selection import Selected
from espnet3.errors import EspnetError
from espnet3.logs import open_stage_log
from espnet3.systems.base.context import context_value
from espnet3.systems.base.provenance import Invocation
from espnet3.systems.base.system import BaseSystem
from espnet3.trainer.launching.process_rank import LAUNCHED, ProcessRank

logger = logging.getLogger(__name__)


def stages_of_rank(selected: Sequence[Selected], rank: ProcessRank) -> Sequence[Selected]:
    """Return the stages that this process runs.

    Raises:
        UsageError: srun or torchrun started a stage in many processes that runs in one.
    """
    running = [entry for entry in selected if not entry.skipped]
    if rank.is_external:
        alone = [entry.stage.name for entry in running if not entry.stage.is_distributed]
        if alone:
            raise UsageError(_not_together(alone, rank))
    if rank.is_first:
        return selected
    launched = os.environ.get(LAUNCHED)
    names = [launched] if launched else [e.stage.name for e in running if e.stage.is_distributed]
    return [entry for entry in running if entry.stage.name in names]


def _not_together(alone: Sequence[str], rank: ProcessRank) -> str:
    return (
        f"{rank.launcher} started {rank.world_size} processes, but {', '.join(alone)} must run in "
        f"one, and does so on its own workers. Run --stages {' '.join(alone)} without "
        f"{rank.launcher}, and only --stages train with it."
    )


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
        exp_dir.mkdir(parents=True, exist_ok=True)
        log_path = exp_dir / f"{entry.stage.name}.rank{rank.rank}.log"
        with open_stage_log(log_path, invocation.hidden()) as log:
            try:
                with sigterm_interrupts():
                    getattr(system, entry.stage.name)()
            except KeyboardInterrupt as error:
                code = exit_code_of(error)
            except (Exception, SystemExit) as error:
                log.write_traceback(__name__, error)
                text = describe_failure(entry.stage, error, log_path)
                print_error(EspnetError(f"Rank {rank.rank} of {rank.world_size}: {text}"))
                code = 1
        if code:
            break
    return code

"""`--detach`: which stages can leave their work to others, and what to type afterwards."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from espnet3.cli.console import UsageError
from espnet3.systems.base.stages import Stage
from espnet3.text import on_one_line

_INSTEAD = {"train": "a training goes on alone as a job: espnet3 launch"}


def check_detach(stages: Sequence[Stage], known: Sequence[Stage]) -> None:
    """Refuse `--detach` before anything starts, unless the first stage can do so.

    Those after it are not run.

    Raises:
        UsageError: with the stages that can.
    """
    able = [position for position, stage in enumerate(stages) if stage.can_detach]
    if not stages or able[:1] == [0]:
        return
    first = stages[0].name
    instead = f"; {_INSTEAD[first]}" if first in _INSTEAD else ""
    if able:
        before = " ".join(stage.name for stage in stages[: able[0]])
        way = f"Run first: --stages {before}, and then: --stages {stages[able[0]].name} --detach"
    else:
        way = f"It is for: {', '.join(stage.name for stage in known if stage.can_detach)}"
    raise UsageError(f"--detach: the stage {first!r} cannot go on alone{instead}. {way}")


def what_comes_after(run_dirs: Sequence[Path], command: Sequence[str]) -> str:
    """Return the line that runs the other stages when the workers of the last one have ended."""
    folders = shlex.join(os.path.relpath(run_dir) for run_dir in run_dirs)
    return on_one_line(f"espnet3 wait {folders} && {shlex.join(command)}")

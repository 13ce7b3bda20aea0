"""The failure of a stage in a few lines: what, where in the recipe, and where to read on."""

import os
import traceback
from pathlib import Path

from espnet3.errors import EspnetError
from espnet3.io.folders import folder_trouble
from espnet3.systems.base.stages import Stage


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

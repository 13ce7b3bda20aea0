"""Whether the scheduler's commands are here, and whether it answers."""

import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from espnet3.findings import Finding, never_raises
from espnet3.text import folded

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

TIMEOUT = 30.0
"""Seconds; a busy scheduler answers late, and one that is away never does."""

COMMANDS = {
    "slurm": ("sbatch", "scancel", "squeue"),
    "pbs": ("qsub", "qdel", "qstat"),
    "sge": ("qsub", "qdel", "qstat"),
    "lsf": ("bsub", "bkill", "bjobs"),
    "oar": ("oarsub", "oardel", "oarstat"),
    "htcondor": ("condor_submit", "condor_rm", "condor_q"),
    "moab": ("msub", "canceljob", "showq"),
}
"""Of each backend with jobs: to submit, to cancel, and to look."""

_QUESTIONS = {
    "slurm": "sinfo --noheader --format %P",
    "pbs": "qstat -B",
    "sge": "qstat -g c",
    "lsf": "lsid",
    "oar": "oarstat --version",
    "htcondor": "condor_q -totals",
    "moab": "showq -c",
}


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int | None
    """None if it did not answer in time, or is not here."""
    out: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def said(self) -> str:
        """All of it on one line, errors first."""
        return folded(f"{self.error}\n{self.out}")


def ask(words: Sequence[str], *, text: str | None = None, timeout: float = TIMEOUT) -> Answer:
    """Run a command and wait for its answer; never raises."""
    begin = time.monotonic()
    try:
        told = subprocess.run(
            list(words),
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return Answer(None, error=f"no answer in {timeout:.0f} s", seconds=timeout)
    except OSError as error:
        return Answer(None, error=str(error))
    return Answer(told.returncode, told.stdout, told.stderr, time.monotonic() - begin)


@never_raises("commands")
def check_commands(config: "ParallelConfig") -> list[Finding]:
    """Find the scheduler's commands, and ask it something that costs nothing."""
    commands = COMMANDS.get(config.env)
    if commands is None:
        return []
    missing = [name for name in commands if shutil.which(name) is None]
    if missing:
        return [_missing(config.env, missing)]
    question = _QUESTIONS[config.env]
    answer = ask(shlex.split(question))
    if answer.code == 0:
        told = f"{', '.join(commands)} are here; {question.split()[0]} answered "
        return [Finding("ok", "commands", f"{told}in {answer.seconds:.1f} s")]
    return [
        Finding(
            "problem",
            "commands",
            f"{', '.join(commands)} are here, but the scheduler does not answer: `{question}` "
            f"said: {answer.said or f'exit code {answer.code}'}",
            "Run it yourself until it answers; on a machine that is no login node, log in to one.",
        )
    ]


def _missing(env: str, missing: Sequence[str]) -> Finding:
    first = missing[0]
    return Finding(
        "problem",
        "commands",
        f"parallel.env is {env!r}, but {', '.join(missing)} cannot be found on PATH",
        f"Run it where `{first}` works, such as a login node; or load it: module load {env}; or "
        "on this machine: parallel.env=local",
    )

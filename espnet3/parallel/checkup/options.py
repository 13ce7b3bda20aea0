"""Whether the backend and the scheduler take the options."""

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from espnet3.errors import EspnetError
from espnet3.findings import Finding, never_raises
from espnet3.parallel.checkup.commands import Answer, ask
from espnet3.parallel.clusters.requested import left_out
from espnet3.parallel.clusters.table import check_resources, render_job_script
from espnet3.text import folded

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

_TRIALS = {"slurm": ("sbatch", "--test-only"), "sge": ("qsub", "-w", "v")}
"""Commands that judge a job script and submit nothing."""

_ADVICE = {
    "invalid partition": "Write under options: queue: NAME, one that sinfo lists",
    "node configuration is not available": (
        "Ask for less of one node, as `sinfo -N -o '%P %N %c %m %G'` shows it: cores, memory, or "
        "--gres under job_extra_directives"
    ),
    "time limit": 'Write under options: walltime: "HH:MM:SS", within what `sinfo -o "%P %l"` shows',
    "account": "Write under options: account: NAME, one that `sacctmgr show associations` lists",
    "invalid generic resource": (
        "Write under options: job_extra_directives: [--gres=...] with what `sinfo -o '%P %G'` shows"
    ),
    "no suitable queues": "Ask for what a queue has: qconf -sq QUEUE, qhost -F",
    "unknown resource": "Write what `qconf -sc` lists, under resource_spec or job_extra_directives",
    "unknown queue": "Write under options: queue: NAME, one that qconf -sql lists",
}


def render(config: "ParallelConfig") -> tuple[str | None, list[Finding]]:
    """Return the job script, and whether the backend takes the options."""
    scripts: list[str | None] = []
    findings = _render(config, scripts)
    return (scripts[0] if scripts else None), findings


@never_raises("options")
def _render(config: "ParallelConfig", scripts: list[str | None]) -> list[Finding]:
    with _warnings_heard() as findings:
        check_resources(config)
        scripts.append(script := render_job_script(config))
    if script is not None:
        findings.append(Finding("ok", "options", f"each job asks for {_asked(script)}"))
        findings += [Finding.of("options", EspnetError(n), "warning") for n in left_out(config)]
    return [*findings, *_workers(config, is_told=bool(findings))]


def _asked(script: str) -> str:
    """Return the options of a job script, but for those of its name and logs."""
    lines = re.findall(r"^#(?:SBATCH|PBS|\$|BSUB|OAR) (.*)$", script, re.MULTILINE)
    lines = lines or re.findall(
        r"^(?:MY\.DaskWorker(?!Name)|[Rr]equest_?)\S+ = .*$", script, re.MULTILINE
    )
    kept = [line for line in lines if not re.match(r"-[JNoejVr]\b|-cwd|-n [a-z]", line)]
    return ", ".join(kept) or "nothing"


@contextmanager
def _warnings_heard() -> Iterator[list[Finding]]:
    """Collect what the checks of a run would log as warnings."""
    findings: list[Finding] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            findings.append(Finding.of("options", EspnetError(record.getMessage()), "warning"))

    source, handler = logging.getLogger("espnet3.parallel"), Keep(logging.WARNING)
    propagate, source.propagate = source.propagate, False
    source.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            yield findings
    finally:
        source.removeHandler(handler)
        source.propagate = propagate
    for warning in caught:  # of the cluster class, such as an option under its older name
        if issubclass(warning.category, UserWarning | FutureWarning):
            findings.append(Finding("warning", "options", folded(warning.message)))
    findings[:] = dict.fromkeys(findings)  # a script may be rendered twice


def _workers(config: "ParallelConfig", *, is_told: bool) -> list[Finding]:
    """Compare the workers with this machine, where that is where they run."""
    if config.env == "local_gpu" and not is_told:
        return [Finding("ok", "workers", f"n_workers: {config.n_workers}, one for each GPU")]
    if config.env != "local":
        return []
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    told = f"n_workers: {config.n_workers} on {n_cores} core(s) of this machine"
    if n_cores and config.n_workers > n_cores:
        fix = f"Write: n_workers: {n_cores}"
        return [Finding("warning", "workers", f"{told}: they will wait for each other", fix)]
    return [Finding("ok", "workers", told)]


@never_raises("scheduler")
def try_script(config: "ParallelConfig", script: str | None) -> list[Finding]:
    """Let the scheduler judge the job script, where it has a way to; nothing is submitted."""
    words = _TRIALS.get(config.env)
    if words is None or script is None:
        return []
    answer = ask(words, text=script)
    command = " ".join(words)
    if _accepts(config.env, answer):
        return [Finding("ok", "scheduler", f"{command}: {_essence(answer.said)}")]
    told = f"{command} refuses the job script: {_essence(answer.said)}"
    known = (advice for words, advice in _ADVICE.items() if words in answer.said.lower())
    return [Finding("problem", "scheduler", told, next(known, "Change parallel.options."))]


def _accepts(env: str, answer: Answer) -> bool:
    if env == "sge":  # whose exit code does not always tell
        return answer.code == 0 and "no suitable queues" not in answer.said
    return answer.code == 0


def _essence(said: str) -> str:
    """Leave out who says it, and how the script was handed over."""
    return re.sub(r"\b(?:sbatch|qsub): (?:error: )?", "", said) or "it said nothing"

"""Whether the backend takes the options."""

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from espnet3.errors import EspnetError
from espnet3.findings import Finding, never_raises
from espnet3.parallel.clusters.table import check_resources, left_out, render_job_script
from espnet3.schedulers import scheduler_of
from espnet3.text import folded

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


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
        findings.append(Finding("ok", "options", f"each job asks for {_asked(config, script)}"))
        findings += [Finding.of("options", EspnetError(n), "warning") for n in left_out(config)]
    return [*findings, *_workers(config, is_told=bool(findings))]


def _asked(config: "ParallelConfig", script: str) -> str:
    """Return the options of a job script, but for those of its name and logs."""
    scheduler = scheduler_of(config.env)
    lines = scheduler.asked(script) if scheduler else []
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

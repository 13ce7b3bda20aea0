"""The header of a worker's job script: the options as directives, each once.

`plain_header` makes it without dask-jobqueue, for detached workers, which need nothing else of it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from espnet3.parallel.clusters.dask_config import is_default, settings
from espnet3.parallel.clusters.registry import warn_once
from espnet3.schedulers import Scheduler
from espnet3.schedulers.base import Made, WorkerRequest
from espnet3.schedulers.script import Header, render_header

WHERE = "parallel.options.job_extra_directives"
_KNOWN = (
    "cores", "memory", "processes", "python", "name", "job_name", "queue", "walltime", "shebang",
    "job_extra_directives", "job_script_prologue", "job_directives_skip", "log_directory",
)  # fmt: skip
_BYTES = {
    "": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9,
    "t": 10**12, "tb": 10**12, "ki": 2**10, "kib": 2**10, "mi": 2**20, "mib": 2**20,
    "gi": 2**30, "gib": 2**30, "ti": 2**40, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([A-Za-z]*)", re.ASCII)


def plain_header(scheduler: Scheduler, options: Mapping[str, Any]) -> str | None:
    """Return the header that dask-jobqueue would write; None if only itself can tell.

    That is so for options that are rare, wrong or missing, for what the user's configuration of
    Dask says, and for schedulers whose class has no `worker_directives`.

    Raises:
        ConfigError: it asks for what a job cannot have together.
    """
    known = {*_KNOWN, *scheduler.worker_options}
    if not scheduler.worker_options or not is_default(scheduler.name) or not known >= {*options}:
        return None
    cores, n_bytes = options.get("cores"), parse_bytes(options.get("memory"))
    if type(cores) is not int or cores < 1 or n_bytes is None or options.get("processes") != 1:
        return None
    directives, skipped = options["job_extra_directives"], options.get("job_directives_skip") or ()
    if not all(isinstance(each, list | tuple) for each in (directives, skipped)):
        return None
    common = {name.replace("-", "_"): value for name, value in settings(scheduler.name).items()}
    given = {name: value for name, value in options.items() if value is not None}
    said = {name: value for name, value in {**common, **given}.items() if value is not None}
    said.setdefault("job_name", common["name"])
    request = WorkerRequest(cores, n_bytes, said)
    made = [f"{scheduler.mark} {line}" for line in scheduler.worker_directives(request)]
    made = [line for line in made if not any(str(skip) in line for skip in skipped)]
    lines = [*made, *(f"{scheduler.mark} {line}" for line in directives)]
    return merge_header(scheduler, "\n".join(lines), directives, options)


def parse_bytes(size: object) -> int | None:
    """Return a size such as `16GB` in bytes, as Dask reads it; None if it is spelled otherwise."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    unit = _BYTES.get(match[2].lower()) if match else None
    return int(float(match[1]) * unit) if match and unit else None


def merge_header(
    scheduler: Scheduler, header: str, directives: Sequence[str], given: Mapping[str, object]
) -> str:
    """Return the header of a job script with each option once, and warn of what is not used.

    Args:
        scheduler: of the job.
        header: as dask-jobqueue writes it: what it makes of the options, then the directives.
        directives: those.
        given: the options that the job class got.

    Raises:
        ConfigError: it asks for what a job cannot have together.
    """
    if not directives:
        return header
    lines = [line.removeprefix(f"{scheduler.mark} ") for line in header.splitlines()]
    own = [str(each) for each in directives]
    n_made = next((i for i in range(len(lines)) if lines[i : i + len(own)] == own), len(lines))
    behind = lines[n_made + len(own) :]
    if behind:  # memory of OAR, which has taken the user's properties in
        own = [line for line in own if not line.startswith("-p")]
    made = [_made(scheduler, line, given) for line in (*lines[:n_made], *behind)]
    return told(render_header(scheduler, made, own, WHERE))


def told(header: Header) -> str:
    """Return the text of a header, and warn of what is not used."""
    for note in header.notes:
        warn_once(note)
    return "\n".join(header.lines)


def _made(scheduler: Scheduler, line: str, given: Mapping[str, object]) -> Made:
    """Return a line of dask-jobqueue with the options that it follows from."""

    def setting(name: str) -> str:
        return f"parallel.options.{name}" if name and given.get(name) is not None else ""

    settings = scheduler.settings
    # The longest is the most specific: `-l walltime` goes before `-l`.
    beginning = max((b for b in settings if re.match(rf"{b}(?:[ =]|$)", line)), key=len, default="")
    parts = {part: setting(name) for part, name in scheduler.part_settings.items()}
    return Made(line, setting(settings.get(beginning, "")), parts)

"""What the options of a worker's job ask for: GPUs, and time."""

import logging
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from espnet3.parallel.clusters.table import BACKENDS
from espnet3.schedulers import Scheduler, known_scheduler, scheduler_of

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)
_GPUS = (r"\bn?gpus?=(\d+)",)
"""How nearly all schedulers take them, and pods; others stand in their classes."""
_KUBE_GPU = "/gpu"  # nvidia.com/gpu, amd.com/gpu
_DEFAULT_TIMES = ("00:30:00", "00:30")
"""Of dask-jobqueue."""


def gpus_per_job(config: "ParallelConfig") -> int:
    """Return how many GPUs each worker's job asks for; 0 if its options name none."""
    if config.env == "local_gpu":
        return 1
    texts = list(_texts(config.options))
    scheduler = scheduler_of(config.env)
    for pattern in (*(scheduler.gpu_options if scheduler else ()), *_GPUS):
        for text in texts:
            if match := re.search(pattern, text):
                return int(match[1] or 1)
    return 0


def walltime_seconds(config: "ParallelConfig") -> float | None:
    """Return after how many seconds a scheduler ends a worker's job; None if nothing says."""
    scheduler = scheduler_of(config.env) or Scheduler()
    # Directives first: they take the place of what the options say.
    for pattern in scheduler.time_options:
        for text in _texts(config.options):
            if match := re.search(pattern, text):
                return scheduler.parse_time(match[1])
    walltime = config.options.get("walltime")
    return None if walltime is None else scheduler.parse_time(str(walltime))


def left_out(config: "ParallelConfig") -> list[str]:
    """Return what jobs get because the options do not say, each with the line that says it.

    Options without which nothing works, such as `cores`, are refused elsewhere.
    """
    if BACKENDS[config.env].module != "jobqueue":
        return []
    scheduler = known_scheduler(config.env)
    texts = list(_texts(config.options))
    notes = [_default_time(config, scheduler), *scheduler.unasked(config.options, texts)]
    return [note for note in notes if note]


def warn_of_defaults(config: "ParallelConfig") -> None:
    """Log what jobs get because the options do not say."""
    for note in left_out(config):
        _warn_once(note)


@cache  # a run may submit jobs many times: once is enough
def _warn_once(note: str) -> None:
    logger.warning("%s", note)


def _default_time(config: "ParallelConfig", scheduler: Scheduler) -> str:
    """Tell of half an hour, which is what dask-jobqueue asks for."""
    import dask

    default = dask.config.get(f"jobqueue.{config.env}.walltime", None)
    said = config.options.get("walltime") is not None
    said = said or any(re.search(scheduler.asks_for_time, text) for text in _texts(config.options))
    # A time in Dask's own files is the user's; HTCondor has none.
    if said or default not in _DEFAULT_TIMES or config.options.get("job_directives_skip"):
        return ""
    return (
        "parallel.options.walltime is not set, so each job ends after 30 minutes, the default of "
        f"dask-jobqueue; one that had work is replaced. Write, for longer ones: walltime: "
        f'"{scheduler.example_time}"'
    )


def _texts(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield all texts of the options, at any depth; `name = value` for those with a name."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _texts(value)
        elif isinstance(value, list | tuple):
            yield from map(str, value)
        elif isinstance(name, str) and name.endswith(_KUBE_GPU):
            yield f"gpu={value}"
        else:
            yield f"{name} = {value}"

"""What the options of a job ask for, in the words of each scheduler: GPUs, and time."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from espnet3.parallel.clusters.table import BACKENDS

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

# Each scheduler's way to ask for GPUs; the number may be left out where that means one.
_GPUS = (
    r"--gres[= ](?:\S*,)?gpu(?::[A-Za-z][\w.-]*)?(?::(\d+))?",  # Slurm
    r"(?:--gpus(?:-per-(?:node|task|socket))?[= ]|-G ?)(?:[A-Za-z][\w.-]*:)?(\d+)",
    r"\bngpus=(\d+)",  # PBS
    r"\bgpus=(\d+)",  # Moab
    r"-gpu +\"?(?:\S*:)?num=(\d+)",  # LSF
    r"/gpu=(\d+)",  # OAR
    r"\bgpu=(\d+)",  # Grid Engine, where the centre calls it so
    r"\brequest_gpus *= *(\d+)",  # HTCondor
)
_KUBE_GPU = "/gpu"  # nvidia.com/gpu, amd.com/gpu
_TIME_OPTIONS = (
    r"(?:--time[= ]|-t ?)([\d:-]+)",  # Slurm
    r"^-W ?(\d+(?::\d+)?)\b",  # LSF
    r"\b(?:h_rt|walltime)=([\d:]+)",  # Grid Engine; PBS
    r"\ballowed_(?:job|execute)_duration *= *(\d+)",  # HTCondor
)
_ASKS_FOR_TIME = re.compile(r"--time\b|^-t|\b(?:h_rt|s_rt|walltime)=|^-W")
_DEFAULT_TIMES = ("00:30:00", "00:30")
"""Of dask-jobqueue."""
_MEMORY_OF_SGE = re.compile(r"\b(?:h_|s_)?(?:vmem|rss|mem\w*|ram\w*)=")
_UNITS = (3600.0, 60.0, 1.0)
_MINUTE, _SECOND = 1, 2  # what the last part of a time counts
_SLURM_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?")


def gpus_per_job(config: "ParallelConfig") -> int:
    """Return how many GPUs each worker's job asks for; 0 if its options name none."""
    if config.env == "local_gpu":
        return 1
    texts = list(_texts(config.options))
    for pattern in _GPUS:
        for text in texts:
            if match := re.search(pattern, text):
                return int(match[1] or 1)
    return 0


def walltime_seconds(config: "ParallelConfig") -> float | None:
    """Return after how many seconds a scheduler ends a worker's job; None if nothing says."""
    # Directives first: they take the place of what the options say.
    for pattern in _TIME_OPTIONS:
        for text in _texts(config.options):
            if match := re.search(pattern, text):
                return _seconds(match[1], config.env)
    walltime = config.options.get("walltime")
    return None if walltime is None else _seconds(str(walltime), config.env)


def left_out(config: "ParallelConfig") -> list[str]:
    """Return what jobs get because the options do not say, each with the line that says it.

    Options without which nothing works, such as `cores`, are refused elsewhere.
    """
    if BACKENDS[config.env].module != "jobqueue":
        return []
    notes = [_default_time(config)]
    if config.env == "sge":
        notes += _not_asked_of_sge(config)
    return [note for note in notes if note]


def _default_time(config: "ParallelConfig") -> str:
    """Tell of half an hour, which is what dask-jobqueue asks for."""
    import dask

    default = dask.config.get(f"jobqueue.{config.env}.walltime", None)
    said = config.options.get("walltime") is not None
    said = said or any(map(_ASKS_FOR_TIME.search, _texts(config.options)))
    # A time in Dask's own files is the user's; HTCondor has none.
    if said or default not in _DEFAULT_TIMES or config.options.get("job_directives_skip"):
        return ""
    example = "04:00" if config.env == "lsf" else "04:00:00"
    return (
        "parallel.options.walltime is not set, so each job ends after 30 minutes, the default of "
        f"dask-jobqueue; one that had work is replaced. Write, for longer ones: walltime: "
        f'"{example}"'
    )


def _not_asked_of_sge(config: "ParallelConfig") -> list[str]:
    """Tell what Grid Engine is not asked for: cores and memory have names of the centre there."""
    options, notes = config.options, []
    texts = [text for text in _texts(options) if not text.startswith(("memory =", "cores ="))]
    cores = options.get("cores")
    if isinstance(cores, int) and cores > 1 and not any("-pe " in text for text in texts):
        notes.append(
            f"parallel.options.cores is {cores}, which Grid Engine is not told: each job has one "
            f'slot. Write, with the name that qconf -spl shows: job_extra_directives: ["-pe smp '
            f'{cores}"]'
        )
    if options.get("memory") and not any(map(_MEMORY_OF_SGE.search, texts)):
        notes.append(
            f"parallel.options.memory is {options['memory']}, which Grid Engine is not told: it is "
            "what the worker may take. If your centre counts memory, write such as: "
            "resource_spec: h_vmem=8G (for each slot)"
        )
    return notes


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


def _seconds(text: str, env: str) -> float | None:
    """Read a time as the scheduler would; None if it is none."""
    if match := _SLURM_DAYS.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    parts = text.split(":")
    if not all(part.isdigit() for part in parts) or len(parts) > len(_UNITS):
        return None
    last = _MINUTE if env == "lsf" or (env == "slurm" and len(parts) == 1) else _SECOND
    units = _UNITS[: last + 1][-len(parts) :]
    return sum(int(part) * unit for part, unit in zip(parts, units, strict=True))

"""What the options of a job ask for, in the words of each scheduler: GPUs, and time."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

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

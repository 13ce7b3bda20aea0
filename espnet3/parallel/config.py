"""The `parallel` block of a config: where workers run, and how many."""

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from espnet3.config.schema import FrozenConfig
from espnet3.parallel.clusters.table import check_env_name


class ParallelConfig(FrozenConfig):
    """Where and how a runner's items are spread; nothing in it changes the results."""

    env: str = "local"
    """local, local_gpu, slurm, pbs, sge, lsf, oar, htcondor, moab, ssh, kube, or dask."""
    n_workers: PositiveInt = 1
    """Worker processes to start; unrelated to `trainer.devices`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Handed verbatim to the backend's cluster class."""
    mode: Literal["sync"] = "sync"
    """The driver waits for its workers."""
    shards_per_worker: PositiveInt = 16
    """How finely the work is cut; more lets workers finish together, fewer costs less."""
    retries: NonNegativeInt = 3
    """How often a batch may lose its worker before it is taken to be the reason."""
    item_timeout: PositiveFloat | None = None
    """Seconds that one item, or batch, may take before its worker is replaced."""
    worker_timeout: PositiveFloat = 300.0
    """Seconds without a sign of life after which a local worker is replaced."""
    start_timeout: PositiveFloat = 3600.0
    """Seconds to wait for the first worker."""

    @field_validator("env")
    @classmethod
    def _is_known(cls, env: str) -> str:
        return check_env_name(env)

    @field_validator("options")
    @classmethod
    def _is_quoted(cls, options: dict[str, Any]) -> dict[str, Any]:
        walltime = options.get("walltime")
        if isinstance(walltime, int | float) and not isinstance(walltime, bool):
            hours, rest = divmod(int(walltime), 3600)
            spelled = f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
            raise ValueError(
                f"walltime is the number {walltime}: YAML reads an unquoted {spelled} as seconds; "
                f'quote it: walltime: "{spelled}"'
            )
        return options

"""The `parallel` block of a config: where workers run, and how many."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from espnet3.config.schema import FrozenConfig
from espnet3.parallel.clusters.registry import BACKENDS, Backend, can_detach, check_env_name
from espnet3.text import find_control_characters, first_control_character, hms

_MOST_WORKERS = 100_000
_LEAST_BYTES = 1 << 20
_NO_BACKEND = Backend()
Workers = Annotated[PositiveInt, Field(le=_MOST_WORKERS)]
Seconds = Annotated[PositiveFloat, Field(allow_inf_nan=False)]
SHELL_LINES = ("job_script_prologue", "env_extra")
"""Options that are lines of shell, as many as one likes."""


def describe_control_characters(key: str, text: str) -> str:
    """Say which character an option of a job must not have, and how to write it."""
    shown = f"{text!r:.80}"
    return (
        f"{key} is {shown}, with the control character {first_control_character(text)!r}. Each "
        "option goes into a line of the job script, and what follows a line break would be an "
        f"option of its own. Write it on one line, and several directives as several list items; "
        f"for lines of shell there is {SHELL_LINES[0]}"
    )


class AdaptiveConfig(FrozenConfig):
    """Limits between which the number of jobs follows the work that is left."""

    minimum: Workers = 1
    """Jobs that are kept during the run."""
    maximum: Workers
    """Jobs that are submitted while there are as many shards to run."""
    idle_seconds: Annotated[NonNegativeFloat, Field(allow_inf_nan=False)] = 30.0
    """Seconds without work after which a job above the minimum is ended."""

    @model_validator(mode="after")
    def _is_a_range(self) -> "AdaptiveConfig":
        if self.minimum > self.maximum:
            raise ValueError(
                f"minimum is {self.minimum}, which is more than maximum: {self.maximum}; write for "
                f"example: {{minimum: 1, maximum: {self.maximum}}}"
            )
        return self


class ParallelConfig(FrozenConfig):
    """The `parallel` block: backend and workers of a run; nothing in it changes the results."""

    env: str = "local"
    """local, local_gpu, slurm, pbs, sge, lsf, oar, htcondor, moab, ssh, kube, dask, ray, or a
    scheduler that another package brings."""
    n_workers: Workers = 1
    """Worker processes to start; unrelated to `trainer.devices`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Handed verbatim to the backend's cluster class."""
    mode: Literal["sync", "async"] = "sync"
    """sync: the driver waits for its workers; async: it submits them and ends."""
    shards_per_worker: Workers = 16
    """How finely the work is cut; more lets workers finish together, fewer costs less. If not set,
    less than 16 for more than 6,750 workers."""
    retries: NonNegativeInt = 3
    """How often a batch may lose its worker before it is taken to be the reason."""
    item_timeout: Seconds | None = None
    """Seconds that one item, or batch, may take before its worker is replaced."""
    worker_timeout: Seconds = 300.0
    """Seconds without a sign of life after which a local worker is replaced."""
    start_timeout: Seconds = 3600.0
    """Seconds to wait for the first worker."""
    adaptive: AdaptiveConfig | None = None
    """Lets the number of jobs shrink as the work runs out; in place of `n_workers`."""
    max_lost_jobs: NonNegativeInt | None = None
    """Lost jobs that are replaced in one run. If not set: all that had finished a shard, and of
    the others 3 for each worker."""
    max_successors: NonNegativeInt | None = None
    """With mode async: jobs that may follow a job one after the other, each when the last one has
    ended while work remains. If not set: as many as it takes; 0: none."""

    @model_validator(mode="before")
    @classmethod
    def _plan_for_all(cls, values: Any) -> Any:
        """Take `adaptive.maximum` as the number of workers, for which the work is cut."""
        if not isinstance(values, Mapping) or not isinstance(values.get("adaptive"), Mapping):
            return values
        maximum = values["adaptive"].get("maximum")
        # A number of the user's own is kept, so that `_can_adapt` can point out the contradiction.
        return {"n_workers": maximum, **values} if isinstance(maximum, int) else values

    @model_validator(mode="after")
    def _can_adapt(self) -> "ParallelConfig":
        if self.adaptive is None:
            return self
        if self.n_workers != self.adaptive.maximum:
            raise ValueError(
                f"n_workers is {self.n_workers}, but adaptive.maximum is {self.adaptive.maximum}; "
                "leave out n_workers: with adaptive, the maximum is the number of workers"
            )
        if BACKENDS[self.env].module != "jobqueue":
            raise ValueError(
                f"adaptive is for backends that submit jobs, such as slurm, and env is "
                f"{self.env!r}; write instead: n_workers: {self.adaptive.maximum}"
            )
        return self

    @model_validator(mode="after")
    def _can_detach(self) -> "ParallelConfig":
        if self.mode == "async" and not can_detach(self.env):
            known = ", ".join(filter(can_detach, BACKENDS))
            raise ValueError(
                f"mode is 'async', but workers of env: {self.env} cannot work without the program "
                f"that started them; write mode: sync, or one of env: {known}"
            )
        return self

    @field_validator("env")
    @classmethod
    def _is_known(cls, env: str) -> str:
        return check_env_name(env)

    @field_validator("options")
    @classmethod
    def _is_quoted(cls, options: dict[str, Any]) -> dict[str, Any]:
        walltime = options.get("walltime")
        if isinstance(walltime, int | float) and not isinstance(walltime, bool):
            spelled = hms(walltime)
            raise ValueError(
                f"walltime is the number {walltime}, which some schedulers take for minutes and "
                f"others for seconds (and plain YAML takes an unquoted {spelled} for such a one); "
                f'spell it out, and quote it: walltime: "{spelled}"'
            )
        return options

    @field_validator("options")
    @classmethod
    def _memory_has_a_unit(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Refuse `memory: 32`, which is 32 bytes."""
        memory = options.get("memory")
        # Without an `env`, that was refused itself, and its error is enough.
        is_job = BACKENDS.get(info.data.get("env", ""), _NO_BACKEND).module == "jobqueue"
        if is_job and str(memory).isdecimal() and int(str(memory)) < _LEAST_BYTES:
            raise ValueError(
                f"memory is {memory!r}, which is so many bytes; give its unit: memory: {memory}GB"
            )
        return options

    @field_validator("options")
    @classmethod
    def _are_no_fields(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Refuse what has its place beside the options: a cluster class would take it as well."""
        for name in cls.model_fields:
            if name in options and name not in ("env", "options"):  # pods have an env of their own
                raise ValueError(
                    f"{name} stands beside options, not in it; write: parallel: {{{name}: "
                    f"{options[name]}, options: {{...}}}}"
                )
        return options

    @field_validator("options")
    @classmethod
    def _stay_on_their_lines(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Refuse what would become an option of its own: each goes into a line of a job script."""
        backend = BACKENDS.get(info.data.get("env", ""))
        if backend is None or backend.module != "jobqueue":
            return options
        for key, text in find_control_characters(options, allowed=SHELL_LINES):
            raise ValueError(describe_control_characters(key, text))
        return options

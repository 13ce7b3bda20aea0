"""A scheduler that does not exist: what another package would install, in one file.

Shown in docs/clusters/adding-a-scheduler.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from espnet3.schedulers import JobState, Scheduler
from espnet3.schedulers.base import JobRequest, Made
from espnet3.schedulers.command import ask
from espnet3.schedulers.script import optional, quoted, safe_name

_PHASES = {"NESTING": "pending", "FLYING": "running", "LANDED": "ended", "SHOT": "ended"}


class Pigeon(Scheduler):
    name = "pigeon"  # parallel.env and launch.scheduler
    title = "Pigeon"
    submit = ("pgsub",)
    job_id_pattern = r"pigeon (\d+) is yours"
    cancel = ("pgdel",)
    status_command = "pgstat"
    ping = ("pgstat",)

    mark = "#PG"
    after = "--after {job}"
    after_pattern = r"--after\b"
    number_in_path = "%n"
    job_variables = ("PIGEON_ID",)

    gpu_options = (r"--gpus (\d+)",)
    time_options = (r"--time ([\d:]+)",)
    asks_for_time = r"--time\b"
    waits = {"resources": r"no wind"}
    ends = {"cancelled": r"SHOT"}
    success = r"LANDED"

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        told = ask("pgstat", *job_ids)
        if told is None:
            return {}  # no answer: nothing is known of any of them
        rows = [line.split(maxsplit=2) for line in told.splitlines()]
        found = {
            row[0]: JobState(_PHASES.get(row[1], "unknown"), row[1], row[2] if row[2:] else "")
            for row in rows
        }
        return {job: found.get(job, JobState("unknown", "")) for job in job_ids}

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        return ["127.0.0.1"]

    def queues(self) -> list[str] | None:
        return ["barn", "roof"]

    def directives(self, request: JobRequest) -> Iterator[Made]:
        yield Made(f"--name {safe_name(request.name)}")
        yield from optional("--queue {}", request.queue, "queue")
        yield Made(f"--cpus {request.n_cpus}", "n_cpus")
        if request.n_gpus:
            yield Made(f"--gpus {request.n_gpus}", "n_gpus")
        if request.megabytes is not None:
            yield Made(f"--memory {request.megabytes}M", "megabytes")
        if request.seconds is not None:
            yield Made(f"--time {self.spell_time(request.seconds)}", "time")
        if request.log is not None:
            yield Made(f"--log {quoted(request.log)}")

"""What we want to know of a scheduler's jobs, whichever scheduler it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

Phase = Literal["pending", "running", "ended", "unknown"]


@dataclass(frozen=True)
class JobState:
    """What a scheduler says of one job."""

    phase: Phase
    word: str
    """The scheduler's own: PENDING, qw, NODE_FAIL."""
    reason: str = ""
    """Why it waits, or how it ended."""


class Scheduler(Protocol):
    """Asks a scheduler by its own commands."""

    status_command: str
    """What a user would type to see the jobs."""

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Return what is known of these jobs; one that has been forgotten is `unknown`.

        Empty if the scheduler does not answer: then nothing is known of any of them.
        """

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return names or addresses of nodes that a job with these options could get.

        Empty if it cannot be told.
        """

    def queues(self) -> list[str] | None:
        """Return the names that `options.queue` may have; None if it cannot be told."""


@runtime_checkable
class FindsTags(Protocol):
    """A scheduler that can be asked for jobs by a mark that they were submitted with."""

    def find_tags(self, tags: Sequence[str]) -> dict[str, str] | None:
        """Return the numbers of the jobs that have one of these tags, by tag.

        None if the scheduler does not answer, or not in its own words.
        """

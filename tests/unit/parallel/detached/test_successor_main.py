"""Which jobs are cancelled when there is nothing left to do."""

import pytest

from espnet3.parallel.detached.successor_main import _is_needless
from espnet3.parallel.detached.workforce import Job
from espnet3.schedulers import JobState, Phase
from espnet3.shards.records import JobRecord, WorkerRecord

RECORD = JobRecord(env="slurm", job_id="7", submitted=0.0)
WORKER = WorkerRecord(owner_id="0123456789abcdef", host="node1", pid=1, started=0.0)


@pytest.mark.parametrize(
    ("phase", "word", "workers", "expected"),
    [
        ("pending", "PENDING", (), True),
        ("pending", "PENDING", (WORKER,), True),  # requeued: what it brought is gone
        ("running", "COMPLETING", (), True),  # its node was lost: it will be in the queue again
        ("running", "RUNNING", (WORKER,), False),  # ends by itself, and may be merging
        ("ended", "COMPLETED", (), False),
        ("unknown", "", (), False),
    ],
)
def test_jobs_that_wait_or_will_wait_are_needless(
    phase: Phase, word: str, workers: tuple[WorkerRecord, ...], expected: bool
):
    assert _is_needless(Job(RECORD, JobState(phase, word), workers)) is expected

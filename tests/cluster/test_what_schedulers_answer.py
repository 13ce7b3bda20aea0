"""What a real Slurm and a real Grid Engine answer, as docs/clusters/what-schedulers-answer.md says.

HTCondor is in test_htcondor.py.
"""

import json
import sys

import pytest

from espnet3.schedulers import ask_jobs, known_scheduler
from tests.cluster.clients import PAUSE
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
_PATIENCE = 120.0  # seconds; other programs share the machine
UNKNOWN = "999999"
ASK = """
import json, sys
from espnet3.schedulers import ask_jobs, known_scheduler
scheduler, (env, queue, *jobs) = known_scheduler(sys.argv[1]), sys.argv[1:]
states = ask_jobs(env, jobs)
found = {job: [state.phase, scheduler.kind_of_end(state)] for job, state in states.items()}
print(json.dumps([found, scheduler.closed_queue(queue)]))
"""


def test_slurm_answers_for_the_jobs_that_it_knows(slurm):
    job = slurm.tell("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 100").strip()
    states = ask_jobs("slurm", [UNKNOWN, job])
    assert states[UNKNOWN].phase == "unknown"
    assert states[job].phase in ("pending", "running")
    assert ask_jobs("slurm", [UNKNOWN])[UNKNOWN].phase == "unknown"
    slurm.cancel(job)
    wait_until(lambda: ask_jobs("slurm", [job])[job].phase == "ended", _PATIENCE, PAUSE)
    assert known_scheduler("slurm").kind_of_end(ask_jobs("slurm", [job])[job]) == "cancelled"


@pytest.mark.parametrize("state", ["DOWN", "DRAIN", "INACTIVE"])
def test_slurm_tells_of_a_partition_that_is_not_up(slurm, state):
    scheduler = known_scheduler("slurm")
    assert scheduler.closed_queue("long") == ""
    try:
        slurm.tell("scontrol", "update", "PartitionName=long", f"State={state}")
        assert scheduler.closed_queue("long").startswith(f"partition long is {state.lower()}")
    finally:
        slurm.tell("scontrol", "update", "PartitionName=long", "State=UP")
    assert scheduler.closed_queue("no-such-partition") == ""


def ask(sge, *jobs: str, queue: str = "long.q") -> tuple[dict[str, list[str]], str]:
    """Ask on the head, where the commands of Grid Engine work."""
    found, closed = json.loads(sge.tell(sys.executable, "-c", ASK, "sge", queue, *jobs))
    return found, closed


def submit(sge, *options: str) -> str:
    words = ["-b", "y", "-cwd", "-o", "/dev/null", "-j", "y", "-q", "long.q", *options]
    return sge.tell("qsub", "-terse", *words, "sleep", "100").strip()


def test_grid_engine_tells_walltime_from_memory(sge):
    job, other = submit(sge, "-l", "h_rt=3"), submit(sge)
    wait_until(lambda: ask(sge, job)[0][job][0] == "ended", _PATIENCE, PAUSE)
    found, _ = ask(sge, job, other, UNKNOWN)
    assert found[job] == ["ended", "walltime"]
    assert found[other][0] in ("pending", "running")
    assert found[UNKNOWN][0] == "unknown"


@pytest.mark.parametrize(("close", "open_"), [("-d", "-e"), ("-s", "-us")])
def test_grid_engine_tells_of_a_queue_that_starts_nothing(sge, close, open_):
    assert ask(sge)[1] == ""
    try:
        sge.tell("qmod", close, "long.q")
        assert "instances are" in ask(sge)[1]
        sge.tell("qmod", open_, "long.q@node1")
        assert ask(sge)[1] == ""
    finally:
        sge.run("qmod", open_, "long.q")
    assert ask(sge, queue="no-such.q")[1] == ""

"""What Slurm says of its jobs; the texts are those of Slurm 22.05."""

import pytest

from espnet3.schedulers import scheduler_of
from espnet3.schedulers.slurm import parse_sacct, parse_squeue


def line(job, state, reason, code, nodes):
    return f"{job:40}{state:40}{reason:80}{code:40}{nodes:200}\n"


@pytest.mark.parametrize(
    ("columns", "phase", "told"),
    [
        (("PENDING", "Resources", "0", "(Resources)"), "pending", "Resources"),
        (
            (
                "PENDING",
                "ReqNodeNotAvail",
                "0",
                "(ReqNodeNotAvail, UnavailableNodes:node[1-2])",
            ),
            "pending",
            "ReqNodeNotAvail, UnavailableNodes:node[1-2]",
        ),
        (("RUNNING", "None", "0", "node2"), "running", ""),
        (("COMPLETING", "None", "0", "node2"), "running", ""),
        (("FAILED", "NonZeroExitCode", "768", "(NonZeroExitCode)"), "ended", "exit code 3"),
        (("CANCELLED", "None", "15", "node1"), "ended", "signal 15"),
        (("TIMEOUT", "TimeLimit", "0", "node1"), "ended", "its walltime was over"),
        (("NODE_FAIL", "NodeDown", "0", "node1"), "ended", "its node failed"),
        (("PREEMPTED", "None", "0", "node1"), "ended", "of higher priority"),
        (("OUT_OF_MEMORY", "OutOfMemory", "32000", "node1"), "ended", "more memory than it had"),
        (("COMPLETED", "None", "0", "node1"), "ended", "exit code 0"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_squeue_is_read(columns, phase, told):
    state = parse_squeue(line("12", *columns))["12"]
    assert (state.phase, state.word) == (phase, columns[0])
    assert told in state.reason if told else state.reason == ""


def test_sacct_tells_who_cancelled_a_job():
    states = parse_sacct("12|CANCELLED by 1000|0:15\n13|FAILED|1:0\n14|RUNNING|0:0\n")
    assert states["12"].word == "CANCELLED by 1000"
    assert states["12"].phase == "ended"
    assert states["13"].reason == "exit code 1"
    assert states["14"].phase == "running"


def test_nothing_is_known_where_there_is_no_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    slurm = scheduler_of("slurm")
    assert slurm.jobs(["1", "2"]) == {}
    assert slurm.nodes({"queue": "gpu"}) == []
    assert slurm.queues() is None

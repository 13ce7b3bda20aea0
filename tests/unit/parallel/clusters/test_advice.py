"""What to try when jobs wait, for the words of all schedulers."""

import pytest

from espnet3.parallel.clusters.advice import find_advice


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("Resources", "Nothing is free"),
        ("Priority", "Others are first"),
        ("QOSMaxJobsPerUserLimit", "lower parallel.n_workers"),
        ("AssocMaxJobsLimit", "lower parallel.n_workers"),
        ("AssocGrpGRES", "another parallel.options.account"),
        ("QOSGrpCpuLimit", "another parallel.options.account"),
        ("PartitionTimeLimit", "never start: set a shorter parallel.options.walltime"),
        ("ReqNodeNotAvail, UnavailableNodes:node[1-2]", "down, drained or reserved"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
            "partitions",
            "down, drained or reserved",
        ),
        ("InvalidAccount", "parallel.options.account"),
        ("JobHeldUser", "Somebody holds these jobs; see squeue --me"),
        ("BeginTime", "start by themselves"),
        ("Not Running: Insufficient amount of resource: ngpus", "Nothing is free"),
        ("Not Running: User has reached server running job limit.", "lower parallel.n_workers"),
        ("Can Never Run: Insufficient amount of resource: ngpus", "never start"),
        ("Job slot limit reached;", "lower parallel.n_workers"),
        ("Not enough job slot(s);", "Nothing is free"),
        ("error: can't chdir to /nowhere", "could not start them"),
        ("Eqw", "could not start them"),
        ("hqw", "Somebody holds"),
        ("held: memory usage exceeded", "Somebody holds"),
        (
            '(-l gpu=1) cannot run at host "node1" because it offers only hc:gpu=0',
            "Nothing is free",
        ),
    ],
)
def test_well_known_reasons_have_advice(reason, advice):
    assert advice in find_advice(reason, "squeue --me")


def test_of_an_unknown_reason_nothing_is_said():
    assert find_advice("Sunspots", "squeue --me") == ""

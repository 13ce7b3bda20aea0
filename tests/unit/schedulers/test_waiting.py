"""What to try when jobs wait, for the words of all schedulers."""

import pytest

from espnet3.schedulers import known_scheduler


@pytest.mark.parametrize(
    ("env", "reason", "advice"),
    [
        ("slurm", "Resources", "Nothing is free"),
        ("slurm", "Priority", "Others are first"),
        ("slurm", "QOSMaxJobsPerUserLimit", "lower parallel.n_workers"),
        ("slurm", "AssocMaxJobsLimit", "lower parallel.n_workers"),
        ("slurm", "AssocGrpGRES", "another parallel.options.account"),
        ("slurm", "QOSGrpCpuLimit", "another parallel.options.account"),
        ("slurm", "PartitionTimeLimit", "never start: set a shorter parallel.options.walltime"),
        ("slurm", "ReqNodeNotAvail, UnavailableNodes:node[1-2]", "down, drained or reserved"),
        (
            "slurm",
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
            "partitions",
            "down, drained or reserved",
        ),
        ("slurm", "InvalidAccount", "parallel.options.account"),
        ("slurm", "JobHeldUser", "These jobs are held; see squeue --me"),
        ("slurm", "BeginTime", "start by themselves"),
        ("pbs", "Not Running: Insufficient amount of resource: ngpus", "Nothing is free"),
        (
            "pbs",
            "Not Running: User has reached server running job limit.",
            "lower parallel.n_workers",
        ),
        ("pbs", "Can Never Run: Insufficient amount of resource: ngpus", "never start"),
        ("lsf", "Job slot limit reached;", "lower parallel.n_workers"),
        ("lsf", "Not enough job slot(s);", "Nothing is free"),
        ("sge", "error: can't chdir to /nowhere", "could not start them"),
        ("sge", "Eqw", "could not start them"),
        ("sge", "hqw", "These jobs are held"),
        ("htcondor", "held: memory usage exceeded", "These jobs are held"),
        (
            "sge",
            '(-l gpu=1) cannot run at host "node1" because it offers only hc:gpu=0',
            "Nothing is free",
        ),
    ],
)
def test_well_known_reasons_have_advice(env, reason, advice):
    assert advice in known_scheduler(env).advice(reason)


def test_of_an_unknown_reason_nothing_is_said():
    assert known_scheduler("slurm").advice("Sunspots") == ""

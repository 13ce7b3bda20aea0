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
        ("pbs", "Not Running: Queue not started.", "your administrators open it"),
        ("pbs", "job held, too many failed attempts to run", "your home and the logs' folder"),
        ("pbs", "Job held by anna on Tue Nov 17 at 20:00", "These jobs are held"),
        ("pbs", "Not Running: Node is in an ineligible state: down", "Nodes are down"),
        ("pbs", "Not Running: Job would cross dedicated time boundary", "a shorter parallel"),
        ("pbs", "Not Running: Host set host=node1 has too few free resources", "Nothing is free"),
        ("pbs", "Not Running: Draining system to allow starving job to run", "Others are first"),
        (
            "pbs",
            "Not Running: Queue gpu per-user limit reached on resource ngpus",
            "lower parallel",
        ),
        ("slurm", "launch failed requeued held", "your home and the logs' folder"),
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


@pytest.mark.parametrize(
    ("env", "reason", "is_vain"),
    [
        ("slurm", "PartitionTimeLimit", True),
        ("slurm", "InvalidAccount", True),
        ("slurm", "Resources", False),
        ("pbs", "Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 4 T: 4)", True),
        ("pbs", "job held, too many failed attempts to run", True),
        ("pbs", "Job held by anna on Tue Nov 17 at 20:00", False),
        ("pbs", "Not Running: Insufficient amount of resource: ncpus (R: 4 A: 0 T: 4)", False),
        ("pbs", "Not Running: Queue not started.", False),
        ("pbs", "", False),
    ],
)
def test_jobs_that_wait_in_vain_are_known(env, reason, is_vain):
    assert known_scheduler(env).never_starts(reason) is is_vain


def test_of_an_unknown_reason_nothing_is_said():
    assert known_scheduler("slurm").advice("Sunspots") == ""

"""What a run survives on real schedulers: jobs, nodes and cables that are taken away from it."""

import json
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from tests.helpers.job_runs import JOB, Job
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
_PATIENCE = 180.0  # seconds; other programs share the machine
N_ITEMS = 3000


class Run:
    """A run that goes on until it is told to hurry, with all it says in a file."""

    def __init__(
        self, clients, folder: Path, n_workers: int, adaptive=None, lock_seconds=0, **options
    ) -> None:
        self.clients = clients
        self.out = folder / "out"
        self.hurry, self.last = folder / "hurry", folder / "last"
        self.log = folder / "log"
        parallel = clients.parallel(n_workers, **options)
        parallel["shards_per_worker"] = 24
        if adaptive:
            parallel |= {"n_workers": adaptive["maximum"], "adaptive": adaptive}
        settings = {
            "n_items": N_ITEMS,
            "seconds": 0.2,
            "hurry": str(self.hurry),
            "last": str(self.last),
            "lock_seconds": lock_seconds,
            "parallel": parallel,
        }
        self.job = Job(self.out, **settings)
        self.begin = time.time()
        with self.log.open("w") as log:
            self.driver = clients.start(
                sys.executable, JOB, self.out, json.dumps(settings),
                stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip

    @property
    def told(self) -> str:
        return self.log.read_text()

    def wait_for(self, condition) -> None:
        """Wait until a condition holds while the driver runs."""
        is_over = lambda: condition() or self.driver.poll() is not None  # noqa: E731
        wait_until(is_over, _PATIENCE, report=lambda: self.told)
        assert self.driver.poll() is None, self.told

    def wait_for_words(self, pattern: str) -> None:
        self.wait_for(lambda: re.search(pattern, self.told))

    def wait_for_attempts(self, n_running: int) -> None:
        self.wait_for(lambda: len(list(self.out.glob("split.*.part-*/.position"))) >= n_running)

    def replaced(self) -> dict[str, str]:
        """Return which job replaced which."""
        found = re.findall(r"Job (\d+) was submitted in place of job (\d+)", self.told)
        return {lost: new for new, lost in found}

    def finish(self) -> None:
        self.hurry.touch()
        self.driver.wait(_PATIENCE)
        self.ended = time.time()
        assert self.driver.returncode == 0, self.told
        assert "Traceback" not in self.told
        print("\n" + self.told)

    def seconds_until(self, since: float, pattern: str) -> float:
        """Return how long after a moment something was told."""
        clock = re.search(rf"^(\d\d:\d\d:\d\d) .*{pattern}", self.told, re.M)[1]
        day = datetime.fromtimestamp(since)
        told = datetime.combine(day, datetime.strptime(clock, "%H:%M:%S").time())
        return told.timestamp() - since

    def report(self, fault: str, since: float, job: str) -> None:
        """Print a line of the table in docs/reliability.md."""
        noticed = self.seconds_until(since, f"Job {job} (was lost|is back in the queue)")
        replaced = "the same job"
        if job in self.replaced():
            replaced = f"{self.seconds_until(since, f'in place of job {job}'):.0f} s"
        print(f"| {fault} | {noticed:.0f} s | {replaced} | {self.ended - self.begin:.0f} s |")


@pytest.fixture(scope="session")
def long_reference(tmp_path_factory) -> bytes:
    """Return the output of an undisturbed run of the same items."""
    undisturbed = Job(tmp_path_factory.mktemp("reference") / "out", n_workers=2, n_items=N_ITEMS)
    undisturbed.succeed(seconds=0.0)
    return undisturbed.text


def jobs_on(slurm, number: int) -> list[str]:
    return slurm.tell("squeue", "-h", "-t", "R", "-w", f"node{number}", "-o", "%i").split()


@contextmanager
def patient(slurm):
    """Let Slurm wait for silent nodes as long as it does by default, which is five minutes."""
    file = slurm.cluster.folder / "slurm.conf"
    hasty = file.read_text()
    assert "SlurmdTimeout=10\n" in hasty
    try:
        file.write_text(hasty.replace("SlurmdTimeout=10\n", "SlurmdTimeout=300\n"))
        slurm.tell("scontrol", "reconfigure")
        yield
    finally:
        file.write_text(hasty)
        slurm.tell("scontrol", "reconfigure")


def test_jobs_nodes_and_cables_that_are_lost_are_replaced(slurm_net, tmp_path, long_reference):
    cluster = slurm_net.cluster
    with patient(slurm_net):
        run = Run(slurm_net, tmp_path, n_workers=6)
        run.wait_for_attempts(6)
        (cancelled, drained), killed, cut = (jobs_on(slurm_net, number) for number in (1, 2, 3))
        try:
            since = time.time()
            cluster.node("drain", 1)
            slurm_net.cancel(cancelled)
            cluster.node("kill", 2)
            cluster.cable("cut", 3)
            run.wait_for(lambda: set(run.replaced()) == {cancelled, *killed, *cut})
            # The only node that is left has room for two of the five.
            run.wait_for_words(
                r"3 workers are at work\. 3 of 6 jobs are pending for .*: .*\(\d\)\."
            )
            run.finish()
        finally:
            cluster.node("up", 2)
            cluster.cable("heal", 3)
            cluster.node("resume", 1)
    assert run.job.text == long_reference
    assert re.search(rf"Job {cancelled} was lost .* CANCELLED.*Log: .*-{cancelled}.err", run.told)
    assert re.search(rf"Job {killed[0]} was lost .*its worker is gone .*RUNNING", run.told)
    assert re.search(rf"Job {cut[0]} was lost .*its node cannot be reached .*RUNNING", run.told)
    assert f"Job {drained} was lost" not in run.told
    assert slurm_net.left_behind() == {}
    run.report("`scancel` of a job", since, cancelled)
    run.report("a node is killed", since, killed[0])
    run.report("a node's cable is cut", since, cut[0])
    assert run.seconds_until(since, f"Job {cut[0]} was lost") < 60


def test_requeued_jobs_stay_the_same_and_never_run_twice(slurm_net, tmp_path, long_reference):
    cluster = slurm_net.cluster
    requeue = {"job_extra_directives": ["--gres=gpu:1", "--requeue"]}
    run = Run(slurm_net, tmp_path, n_workers=4, **requeue)
    run.wait_for_attempts(4)
    split, killed = (jobs_on(slurm_net, number) for number in (1, 2))
    since = time.time()
    try:
        # Slurm believes both nodes lost and restarts their jobs; on one of them they still run.
        cluster.node("kill-daemon", 1)
        cluster.node("kill", 2)
        for job in (*split, *killed):
            run.wait_for_words(f"Job {job} is back in the queue")
            slurm_net.tell("scontrol", "update", f"JobId={job}", "StartTime=now+2")
        run.wait_for(lambda: len(jobs_on(slurm_net, 3) + jobs_on(slurm_net, 4)) == 4)
        begun = len(list(run.out.glob("split.*/done")))
        run.wait_for(lambda: len(list(run.out.glob("split.*/done"))) > begun + 4)
        run.finish()
    finally:
        cluster.node("up", 1)
        cluster.node("up", 2)
    assert run.job.text == long_reference
    assert set(slurm_net.submitted()) == {*split, *killed}  # the same jobs, and no others
    assert re.search(rf"given job {split[0]} up .*, but its worker still runs", run.told)
    assert slurm_net.left_behind() == {}
    run.report("a node's slurmd is killed (split brain), jobs requeued", since, split[0])
    run.report("a node is killed, jobs requeued", since, killed[0])


def test_jobs_whose_walltime_is_over_are_replaced_and_idle_ones_ended(
    slurm, tmp_path, long_reference
):
    adaptive = {"minimum": 1, "maximum": 3, "idle_seconds": 2}
    # Meanwhile one worker is silent for longer than one whose machine is gone may be.
    run = Run(slurm, tmp_path, n_workers=3, adaptive=adaptive, lock_seconds=35, walltime="00:01:00")
    run.wait_for_attempts(3)
    jobs = list(slurm.active())
    run.wait_for(lambda: set(run.replaced()) == set(jobs))
    # Now the other shards are done at once, but the last one holds the run up.
    run.last.touch()
    run.hurry.touch()
    run.wait_for(lambda: run.told.count("there is no work left for it") == 2)
    run.wait_for(lambda: len(slurm.left_behind()) == 1)
    run.last.unlink()
    run.finish()
    assert run.job.text == long_reference
    assert run.told.count("was lost") == 2 * len(jobs)  # each job, and its worker
    for job in jobs:
        assert re.search(rf"Job {job} was lost .*TIMEOUT, its walltime was over", run.told)
    assert "DUE TO TIME LIMIT" in run.told
    assert Path(f"{run.out}.faults/lock").exists()
    assert slurm.left_behind() == {}
    ended = slurm.tell("squeue", "-h", "-t", "all", "-j", jobs[0], "-O", "EndTime:40").strip()
    run.report("walltime", datetime.fromisoformat(ended).timestamp(), jobs[0])


def test_grid_engine_loses_a_job_and_a_node(sge, tmp_path, long_reference):
    run = Run(sge, tmp_path, n_workers=3)
    run.wait_for_attempts(3)
    places = re.findall(r"^ *(\d+) .* gpu.q@node(\d)", sge.tell("qstat"), re.M)
    (cancelled, _), (killed, node) = places[0], places[-1]
    assert node != places[0][1]
    try:
        since = time.time()
        sge.cancel(cancelled)
        sge.cluster.node("kill", int(node))
        lost = {job for job, where in places if where == node} | {cancelled}
        run.wait_for(lambda: set(run.replaced()) == lost)
        run.finish()
    finally:
        sge.cluster.node("up", int(node))
    sge.wait_until_empty(_PATIENCE)  # a cancelled job of the host is there until that is back
    assert run.job.text == long_reference
    assert re.search(rf"Job {cancelled} was lost .*: ended, .*(not in qstat|exit status)", run.told)
    # Grid Engine keeps a job of a dead host as running until the host is back.
    assert re.search(rf"Job {killed} was lost .*its worker is gone .*state is r\.", run.told)
    run.report("`qdel` of a job", since, cancelled)
    run.report("a node is killed (Grid Engine)", since, killed)

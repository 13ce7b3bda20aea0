"""The monitor's decisions, with a cluster and a scheduler that say what the test lets them say."""

import logging
from pathlib import Path

import pytest

from espnet3.errors import ResourceError, WorkerError
from espnet3.parallel.clusters import job_monitor
from espnet3.parallel.clusters.job_cluster import Change, ConnectedWorker
from espnet3.parallel.clusters.job_monitor import GONE_SECONDS, Answer, JobLimits, JobMonitor
from espnet3.schedulers import FORGOTTEN, JobState, known_scheduler

RUNNING = JobState("running", "RUNNING")
PENDING = JobState("pending", "PENDING", "Resources")
FAILED = JobState("ended", "FAILED", "exit code 1")
NODE_FAIL = JobState("ended", "NODE_FAIL", "its node failed")


class World:
    """Jobs, workers, a clock, and a scheduler that answers at once."""

    n_processes = 1

    def __init__(self, monkeypatch, folder, n_jobs=2, env="slurm", **staffing) -> None:
        self.now = 1000.0
        monkeypatch.setattr(job_monitor.time, "monotonic", lambda: self.now)
        self.folder = folder
        self.n_submitted = 0
        self.cancelled = []
        self.refusal = ""
        self.states = {}
        self.there = {}
        self.unreachable = frozenset()
        self.closed = ""
        self.removed = []
        self._change = None
        staffing = {"maximum": n_jobs, "minimum": n_jobs, "max_lost": 6, **staffing}
        self.monitor = JobMonitor(self, known_scheduler(env), JobLimits(**staffing))
        monkeypatch.setattr(self.monitor, "_poller", self)
        self._asked = None
        self.monitor.begin(n_jobs)
        self.monitor.settle(self.outcome())

    # what the monitor asks of a cluster

    def workers(self):
        return {
            f"tcp://{name}": ConnectedWorker(name, silent) for name, silent in self.there.items()
        }

    def change(self, *, drop, n_more):
        self.cancelled += drop
        names = [f"w-{self.n_submitted + number + 1}" for number in range(n_more)]
        self.n_submitted += 0 if self.refusal else n_more
        ids = {} if self.refusal else {name: name.removeprefix("w-") for name in names}
        self.states.update(dict.fromkeys(ids.values(), PENDING))
        self._change = Change(ids, self.refusal)
        return names

    def outcome(self):
        change, self._change = self._change, None
        return change

    def remove_worker(self, address):
        self.removed.append(address.removeprefix("tcp://"))
        self.there.pop(address.removeprefix("tcp://"), None)

    def find_log(self, job_id) -> Path:
        log = self.folder / f"dask-worker-{job_id}.err"
        log.write_text(f"ModuleNotFoundError: No module named 'recipe{job_id}'\n")
        return log

    # what it asks of a poller

    is_running = False

    def ask(self, job_ids, silent):
        known = {job: self.states.get(job, JobState("unknown", "")) for job in job_ids}
        self._asked = Answer(self.now, known, self.unreachable & set(silent), self.closed)

    def take(self):
        answer, self._asked = self._asked, None
        return answer

    # what happens

    def connect(self, *numbers) -> None:
        for number in numbers:
            self.states[str(number)] = RUNNING
            self.there[f"w-{number}"] = 0.0

    def end(self, number, state=FAILED) -> None:
        self.states[str(number)] = state
        self.there.pop(f"w-{number}", None)

    def look(self, seconds=1, n_left=10, busy=()) -> None:
        """Let time pass, and the monitor look every second."""
        for _ in range(seconds):
            self.now += 1
            self.monitor.look(n_left, [f"tcp://w-{number}" for number in busy])


@pytest.fixture
def make_world(monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger=job_monitor.__name__)
    return lambda **kwargs: World(monkeypatch, tmp_path, **kwargs)


def test_a_run_without_faults_is_quiet(make_world, caplog):
    world = make_world()
    world.look(5)
    world.connect(1, 2)
    world.look(100)
    assert world.n_submitted == 2
    assert world.cancelled == world.removed == []
    assert caplog.messages == []
    assert world.monitor.waiting() == ""


def test_a_lost_job_is_replaced_and_all_is_told(make_world, caplog):
    world = make_world()
    world.connect(1, 2)
    world.look(30)
    world.end(1, NODE_FAIL)
    world.look(5)
    assert world.n_submitted == 3
    assert world.cancelled == ["w-1"]
    told = " ".join(caplog.messages)
    assert "Job 1 was lost" in told
    assert "NODE_FAIL, its node failed. Log: " in told
    assert "dask-worker-1.err" in told
    assert "Job 3 was submitted in place of job 1" in told


def test_no_job_is_replaced_without_work_for_it(make_world):
    world = make_world()
    world.connect(1, 2)
    world.look(30, n_left=1)
    world.end(1)
    world.look(30, n_left=1)
    assert world.n_submitted == 2
    world.look(30, n_left=5)  # the next test set on the same cluster
    assert world.n_submitted == 3


def test_a_worker_that_its_nanny_restarts_is_awaited(make_world):
    world = make_world()
    world.connect(1, 2)
    world.look(10)
    del world.there["w-1"]
    world.look(int(GONE_SECONDS) - 5)
    world.connect(1)
    world.look(100)
    assert world.n_submitted == 2


def test_a_job_without_its_worker_is_a_ghost(make_world, caplog):
    world = make_world()
    world.connect(1, 2)
    world.look(10)
    del world.there["w-1"]
    world.look(int(GONE_SECONDS) + 5)
    assert world.n_submitted == 3
    assert world.cancelled == ["w-1"]
    assert "its worker is gone for 45 s, while its state is RUNNING" in caplog.text


def test_a_silent_worker_is_given_up_if_its_machine_is_not_there(make_world, caplog):
    world = make_world()
    world.connect(1, 2)
    world.look(10)
    world.there["w-1"] = 30.0
    world.look(30)
    assert world.removed == []  # only busy
    world.unreachable = frozenset({"tcp://w-1"})
    world.look(20)
    assert world.removed == ["w-1"]
    assert world.n_submitted == 3
    assert "cannot be reached" in caplog.text


def test_a_requeued_job_is_the_same_job(make_world, caplog):
    world = make_world()
    world.connect(1, 2)
    world.look(30)
    world.end(1, JobState("pending", "PENDING", "BeginTime"))
    world.look(200)
    assert "Job 1 is back in the queue (BeginTime)" in caplog.text
    assert "1 of 2 jobs are pending" in world.monitor.waiting()
    world.connect(1)
    world.look(100)
    assert world.n_submitted == 2
    assert world.cancelled == []


def test_a_job_that_was_last_seen_pending_and_loses_its_worker_is_replaced(make_world, caplog):
    world = make_world()
    world.look(2)  # the scheduler answers: both are pending
    world.connect(1, 2)  # before it is asked again
    world.look(1)
    world.there.pop("w-1")  # its node dies; the scheduler does not notice
    world.look(int(GONE_SECONDS) + 5)
    assert "back in the queue" not in caplog.text
    assert "Job 1 was lost" in caplog.text
    assert world.n_submitted == 3


def test_a_worker_whose_job_was_given_up_is_told_to_end(make_world, caplog):
    world = make_world()
    world.connect(1, 2)
    world.look(30)
    world.states["1"] = PENDING  # requeued, while its processes go on
    world.look(60)
    assert world.removed == ["w-1"]
    assert "given job 1 up (PENDING), but its worker still runs" in caplog.text
    assert world.n_submitted == 2
    world.states["2"] = NODE_FAIL
    world.look(60)
    assert world.removed == ["w-1", "w-2"]
    assert world.n_submitted == 3
    world.there["w-2"] = 0.0  # its nanny has restarted it
    world.look(2)
    assert "w-2" not in world.there


def test_jobs_that_end_at_once_stop_the_run_with_their_log(make_world):
    world = make_world(n_jobs=1)
    for number in (1, 2):
        world.look(5)
        world.end(number)
    world.look(5)
    world.end(3)
    with pytest.raises(WorkerError, match="3 jobs in a row ended before") as error:
        world.look(5)
    assert world.n_submitted == 3
    assert "FAILED, exit code 1" in str(error.value)
    assert "No module named 'recipe3'" in str(error.value)
    assert "espnet3 doctor" in str(error.value)


def test_jobs_that_did_something_do_not_stop_the_run(make_world):
    world = make_world(n_jobs=1, max_lost=20)
    for number in range(1, 10):
        world.look(5)
        world.connect(number)
        world.look(5)
        world.monitor.note_finished(f"tcp://w-{number}")
        world.end(number)
    world.look(5)
    assert world.n_submitted == 10


@pytest.mark.parametrize(
    ("env", "state"),
    [
        ("slurm", NODE_FAIL),
        ("slurm", JobState("ended", "PREEMPTED", "a job of higher priority took its place")),
        ("slurm", JobState("ended", "REVOKED")),
        ("pbs", JobState("ended", "F", "its node was lost, exit status -20, and failed")),
    ],
)
def test_jobs_lost_with_their_nodes_do_not_count_as_early(make_world, env, state):
    world = make_world(n_jobs=4, env=env)
    for number in range(1, 5):
        world.end(number, state)
    world.look(5)
    assert world.n_submitted == 8


def test_no_more_than_the_limit_are_replaced(make_world, caplog):
    world = make_world(n_jobs=2, max_lost=1)
    world.connect(1, 2)
    world.look(100)
    world.end(1, NODE_FAIL)
    world.look(5)
    world.connect(3)
    world.look(100)
    world.end(3, NODE_FAIL)
    world.look(20)
    assert world.n_submitted == 3
    assert caplog.text.count("2 jobs were lost, more than parallel.max_lost_jobs") == 1
    world.end(2, NODE_FAIL)
    with pytest.raises(WorkerError, match=r"raise parallel\.max_lost_jobs"):
        world.look(5)


def test_jobs_that_were_of_use_are_always_replaced(make_world):
    world = make_world(n_jobs=1, max_lost=1, spares_useful=True)
    for number in range(1, 10):
        world.look(5)
        world.connect(number)
        world.look(3600)
        world.monitor.note_finished(f"tcp://w-{number}")
        world.end(number, JobState("ended", "TIMEOUT", "its walltime was over"))
    world.look(5)
    assert world.n_submitted == 10


def test_a_refused_replacement_stops_the_run_in_the_words_of_the_scheduler(make_world):
    world = make_world()
    world.connect(1, 2)
    world.look(100)
    world.refusal = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
    world.end(1, NODE_FAIL)
    with pytest.raises(ResourceError, match=r"QOSMaxSubmit.*max_lost_jobs: 0"):
        world.look(5)


def test_a_scheduler_that_is_busy_is_asked_again(make_world, caplog):
    world = make_world()
    world.connect(1, 2)
    world.look(100)
    world.refusal = "sbatch: error: Socket timed out on send/recv operation"
    world.end(1, NODE_FAIL)
    world.look(5)
    world.refusal = ""
    world.look(20)
    assert world.n_submitted == 3
    assert "is tried again" in caplog.text
    assert "Job 3 was submitted in place of job 1" in caplog.text


def test_what_was_cancelled_and_not_seen_to_end_is_remembered(make_world):
    world = make_world()
    world.connect(1, 2)
    world.look(10)
    del world.there["w-1"]
    world.look(int(GONE_SECONDS) + 5)
    assert world.monitor.not_seen_to_end() == ["1"]  # to be cancelled again at the end
    world.states["1"] = JobState("ended", "CANCELLED")
    world.look(60)
    assert world.monitor.not_seen_to_end() == []


def test_a_closed_queue_is_the_reason_that_is_told(make_world):
    world = make_world()
    world.states = dict.fromkeys("12", JobState("pending", "Q"))
    world.closed = "queue gpu is stopped: it starts no jobs"
    world.look(30)
    told = world.monitor.waiting()
    assert "2 of 2 jobs are pending for 30 s: queue gpu is stopped: it starts no jobs." in told
    assert "set another parallel.options.queue" in told


def test_jobs_that_never_start_are_hopeless_and_others_are_not(make_world):
    world = make_world(env="pbs")
    never = JobState("pending", "Q", "Can Never Run: Insufficient amount of resource: ncpus")
    world.states = {"1": never, "2": JobState("pending", "Q", "Not Running: ...")}
    world.look(5)
    assert world.monitor.hopeless() == ""
    world.states["2"] = never
    world.look(5)
    assert world.monitor.hopeless() == never.reason
    world.connect(1, 2)
    world.look(5)
    assert world.monitor.hopeless() == ""
    assert world.monitor.began == ["1", "2"]


def test_what_can_never_run_is_waited_for_where_a_job_of_the_run_has_run(make_world):
    """PBS says so while the nodes that have such a resource are down."""
    world = make_world(n_jobs=1, env="pbs")
    world.connect(1)
    world.look(90)
    world.end(1, JobState("ended", "F", "its node was lost, exit status -20"))
    world.look(5)
    world.states["2"] = JobState("pending", "Q", "Can Never Run: Insufficient amount of resource")
    world.look(9)
    assert world.n_submitted == 2
    assert world.monitor.hopeless() == ""
    assert "Can Never Run" in world.monitor.waiting()


def test_a_job_that_the_scheduler_denies_is_replaced(make_world, caplog):
    world = make_world(n_jobs=1, env="pbs")
    world.connect(1)
    world.look(90)
    world.end(1, FORGOTTEN)
    world.look(5)
    assert world.n_submitted == 2
    assert "the scheduler knows no such job any more" in caplog.text


def test_a_job_that_the_scheduler_denies_once_is_left_alone(make_world):
    """As a scheduler may that was restarted a moment ago."""
    world = make_world(n_jobs=1, env="pbs")
    world.states["1"] = FORGOTTEN
    world.look(2)
    world.states["1"] = RUNNING
    world.look(5)
    assert world.n_submitted == 1
    world.states["1"] = FORGOTTEN
    world.look(5)
    world.look(40)
    assert world.n_submitted == 2


def test_waiting_tells_why_and_what_to_try(make_world):
    world = make_world(n_jobs=4)
    world.connect(1, 2)
    world.look(180)
    assert world.monitor.waiting() == (
        "2 of 4 jobs are pending for 3 min: Resources (2). Nothing is free: ask for less (memory, "
        "cores, GPUs, walltime), or set another parallel.options.queue."
    )
    world.states["3"] = RUNNING
    world.look(60)
    assert "1 of 4 jobs run, but their workers have not connected" in world.monitor.waiting()


def test_adaptive_jobs_follow_the_work(make_world, caplog):
    world = make_world(n_jobs=4, minimum=1, idle_seconds=30)
    world.connect(1, 2, 3)
    world.look(100, n_left=10, busy=(1, 2, 3))
    assert world.cancelled == []
    world.look(10, n_left=3, busy=(1, 2, 3))
    assert world.cancelled == ["w-4"]  # it has never started
    world.look(20, n_left=2, busy=(1, 2))
    assert world.cancelled == ["w-4"]  # idle, but not for long
    world.look(20, n_left=2, busy=(1, 2))
    assert world.cancelled == ["w-4", "w-3"]
    assert "Job 3 is ended: there is no work left for it" in caplog.text
    assert world.monitor.is_leaving("tcp://w-3")
    assert not world.monitor.is_leaving("tcp://w-1")
    world.look(100, n_left=0)
    assert world.cancelled == ["w-4", "w-3", "w-1"]  # the minimum stays
    world.look(5, n_left=10)
    assert world.n_submitted == 7
    assert "lost" not in caplog.text


def test_jobs_with_several_workers_are_counted_as_jobs(make_world):
    world = make_world(n_jobs=2)
    world.n_processes = 2
    for worker in ("w-1-0", "w-1-1", "w-2-0"):
        world.there[worker] = 0.0
    world.states.update({"1": RUNNING, "2": RUNNING})
    world.look(60)
    assert world.monitor.waiting() == ""
    world.end(1, NODE_FAIL)
    world.there = {"w-2-0": 0.0}
    world.look(5, n_left=2)  # one job has room for both
    assert world.n_submitted == 2
    world.look(5, n_left=3)
    assert world.n_submitted == 3

"""Whether a worker's machine is there, and who answers meanwhile."""

import socket
import time

from espnet3.parallel.clusters.job_monitor import StatusPoller, is_reachable
from espnet3.schedulers import JobState
from tests.helpers.waiting import wait_until


def test_a_process_that_is_too_busy_to_answer_is_reachable():
    with socket.socket() as listener:  # nobody ever accepts
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert is_reachable(f"tls://127.0.0.1:{listener.getsockname()[1]}")


def test_a_machine_without_the_process_is_reachable():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert is_reachable(f"tls://127.0.0.1:{unused.getsockname()[1]}")


def test_a_machine_that_is_not_there_is_not_reachable(monkeypatch):
    def connect(address, timeout):
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    assert not is_reachable("tls://node1:8786")


def test_an_address_of_another_kind_is_left_alone():
    assert is_reachable("inproc://10.0.0.1/1/2")


class SlowScheduler:
    status_command = "squeue --me"

    def jobs(self, job_ids):
        time.sleep(0.3)
        return {job: JobState("running", "RUNNING") for job in job_ids}


def test_nobody_waits_for_an_answer():
    poller = StatusPoller(SlowScheduler())
    poller.ask(["1", "2"], [])
    assert poller.is_running
    assert poller.take() is None
    wait_until(lambda: not poller.is_running)
    assert set(poller.take().states) == {"1", "2"}
    assert poller.take() is None


def test_without_a_scheduler_only_machines_are_asked():
    poller = StatusPoller(None)
    poller.ask(["1"], [])
    wait_until(lambda: not poller.is_running)
    assert poller.take().states == {}


class ClosedScheduler:
    n_asked = 0

    def __init__(self, phase):
        self.phase = phase

    def jobs(self, job_ids):
        return {job: JobState(self.phase, "") for job in job_ids}

    def closed_queue(self, queue):
        self.n_asked += 1
        return f"queue {queue} is closed"


def test_whether_the_queue_is_open_is_asked_while_jobs_wait_and_not_each_time():
    scheduler = ClosedScheduler("pending")
    poller = StatusPoller(scheduler, "gpu")
    for _ in range(2):
        poller.ask(["1"], [])
        wait_until(lambda: not poller.is_running)
        assert poller.take().closed == "queue gpu is closed"
    assert scheduler.n_asked == 1
    scheduler.phase = "running"
    poller.ask(["1"], [])
    wait_until(lambda: not poller.is_running)
    assert poller.take().closed == ""

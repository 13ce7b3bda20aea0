"""Detached runs on real schedulers: without their driver, shared, and moved elsewhere."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster.detached_run import DetachedRun
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
SCHEDULERS = pytest.mark.parametrize("scheduler", ["slurm", "sge"])
SLOW = {"seconds": 0.4}


@pytest.fixture
def clients(scheduler, request):
    """Return the clients of a scheduler."""
    return request.getfixturevalue(scheduler)


@SCHEDULERS
def test_a_run_is_finished_though_its_driver_is_killed_at_once(clients, awkward, reference):
    run = DetachedRun(awkward / "out", clients, seconds=0.1)
    driver = run.start()
    wait_until(lambda: clients.active() or driver.poll() is not None, 120, 0.05)
    assert clients.active(), driver.communicate()
    run.kill(driver)
    run.wait_for_end()
    assert run.text == reference
    assert run.computed_twice() == set(), run.state
    run.assert_tidy()


@SCHEDULERS
def test_a_cancelled_run_is_finished_on_this_machine(clients, tmp_path, reference):
    run = DetachedRun(tmp_path / "out", clients, **SLOW)
    run.submit()
    n_there = cancel_at_half(run)
    run.hurry.touch()
    run.tell("resume", "--env", "local", "--workers", "2")
    run.tell("wait", "--timeout", "120")
    assert run.text == reference
    hosts = [done["host"] for done in run.owners().values()]
    assert sum(host.startswith("node") for host in hosts) == n_there < len(hosts)
    assert clients.active() == {}


@SCHEDULERS
def test_a_run_of_this_machine_is_finished_by_jobs(clients, tmp_path, reference):
    here = {"env": "local", "n_workers": 2, "mode": "async"}
    run = DetachedRun(tmp_path / "out", clients, parallel=here, **SLOW)
    run.submit()
    n_here = cancel_at_half(run)
    run.hurry.touch()
    run.tell("resume", run.write_block(clients.parallel(2)))
    run.wait_for_end()
    assert run.text == reference
    hosts = [done["host"] for done in run.owners().values()]
    assert sum(not host.startswith("node") for host in hosts) == n_here < len(hosts)


def cancel_at_half(run) -> int:
    """Cancel a run that is half done, and return how many shards are committed for good."""
    run.wait_for(lambda: run.n_committed >= 8)
    run.tell("cancel")
    run.clients.wait_until_empty()
    wait_until(lambda: not run.pids(), 60, 0.2)
    committed = run.n_committed
    assert 8 <= committed < 32, run.state
    assert "cancelled" in run.tell("status")
    return committed


@pytest.mark.parametrize(
    ("scheduler", "second"), [("slurm", "local"), ("slurm", ""), ("sge", "local")]
)
def test_two_people_resume_at_once_and_share_the_work(clients, second, tmp_path, reference):
    run = DetachedRun(tmp_path / "out", clients, **SLOW)
    run.submit()
    before = cancel_at_half(run)
    run.trace.unlink()  # of what they compute from now on, nothing twice
    elsewhere = ["--env", "local", "--workers", "2"] if second == "local" else []
    with ThreadPoolExecutor() as two:
        calls = [two.submit(run.tell, "resume", *words) for words in ([], elsewhere)]
        for call in calls:
            call.result()
    run.wait_for(lambda: len(workers_of(run, before)) >= 2)
    run.hurry.touch()
    run.wait_for_end()
    assert run.text == reference
    assert run.computed_twice() == set(), run.state
    if second == "local":
        hosts = {done["host"] for done in run.owners().values()}
        assert any(not host.startswith("node") for host in hosts), hosts


def workers_of(run, n_before: int) -> set[str]:
    """Return who committed the shards after the first ones."""
    owners = sorted(run.owners().values(), key=lambda done: done["finished"])
    return {json.dumps([done["host"], done["pid"]]) for done in owners[n_before:]}

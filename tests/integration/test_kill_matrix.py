"""Kill anything at any step: the same command again ends with every item exactly once.

The faults are real signals to real processes; see `job.py`. The outcomes are the rows of the
table in docs/reliability.md.
"""

import signal

import pytest

from tests.helpers.exhaustive import few, pairs
from tests.helpers.waiting import wait_for_end, wait_until, worker_pids

DRIVER_FAULTS = [
    "driver after plan",
    "driver in attempt",
    "driver before rename",
    "driver between commits",
    "driver in merge",
    "driver after merge",
]
# Ctrl-C ends a run within 5 s; here others may use the machine as well.
PATIENCE = 30
BOTH_FAULTS = ["both in attempt", "both before rename"]
WORKER_FAULTS = ["worker in attempt", "worker before rename"]


@pytest.mark.parametrize(
    ("fault", "n_workers"),
    [
        *((fault, 2) for fault in DRIVER_FAULTS + BOTH_FAULTS),
        *few([(fault, 1) for fault in DRIVER_FAULTS + BOTH_FAULTS], 3),
    ],
)
def test_sigkill_then_the_same_command_finishes(job, reference, fault, n_workers):
    run = job(fault=fault, n_workers=n_workers)
    killed = run.run()
    assert killed.returncode == -signal.SIGKILL
    assert not (run.out / "_SUCCESS.json").exists()
    n_before = run.n_committed
    run.succeed()
    assert run.text == reference
    assert run.n_committed >= n_before
    run.assert_tidy()


@pytest.mark.parametrize("n_workers", few([2, 1], 1))
def test_a_driver_that_was_killed_when_all_was_written_leaves_nothing_to_the_next(
    job, reference, n_workers
):
    run = job(fault="driver after success", n_workers=n_workers)
    assert run.run().returncode == -signal.SIGKILL
    written = (run.out / "_SUCCESS.json").read_bytes()
    assert "is complete already" in run.succeed()
    assert run.text == reference
    assert (run.out / "_SUCCESS.json").read_bytes() == written
    run.assert_tidy()


@pytest.mark.parametrize(
    "fault",
    ["both before rename", "driver in merge", *few(["driver in attempt", "driver after plan"], 1)],
)
def test_shards_in_groups_survive_a_sigkill_as_well(job, reference, fault):
    run = job(fault=fault, group_size=3)
    assert run.run().returncode == -signal.SIGKILL
    n_before = run.n_committed
    run.succeed()
    assert run.text == reference
    assert run.n_committed >= n_before
    assert not list(run.out.glob("split.*"))
    run.assert_tidy()


@pytest.mark.parametrize("fault", WORKER_FAULTS)
def test_sigkill_of_a_worker_does_not_stop_the_run(job, reference, fault):
    run = job(fault=fault)
    told = run.succeed()
    assert "died: it was ended by SIGKILL" in told
    assert run.text == reference
    run.assert_tidy()


@pytest.mark.parametrize("fault", ["driver in attempt", "driver before rename"])
def test_workers_die_with_their_driver(job, fault):
    run = job(fault=fault, seconds=0.01)
    process = run.start()
    wait_until(lambda: len(worker_pids(process.pid)) == 2)
    workers = worker_pids(process.pid)
    process.communicate(timeout=60)
    wait_for_end(workers)
    assert not set(workers) & set(worker_pids())


@pytest.mark.parametrize("n_workers", few([2, 1], 1))
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_with_its_code_and_the_line_to_resume(
    job, reference, number, code, n_workers
):
    run = job(n_workers=n_workers, seconds=0.02)
    process = run.start()
    wait_until(lambda: run.n_committed >= 2)
    workers = worker_pids(process.pid)
    process.send_signal(number)
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert not any(pid in worker_pids() for pid in workers)
    assert "to resume, run again: python" in told
    assert "job.py" in told
    assert "Traceback" not in told
    assert not list(run.out.glob("*.part-*"))
    run.succeed()
    assert run.text == reference


@pytest.mark.parametrize("n_workers", [1, 2])
def test_ctrl_c_is_not_held_up_by_a_forward_that_does_not_return(job, n_workers):
    run = job(n_workers=n_workers, seconds=100)
    process = run.start()
    wait_until(lambda: list(run.out.glob("split.*.part-*/.position")))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130


@pytest.mark.parametrize("n_workers", few([2, 1], 1))
def test_two_drivers_share_the_work(job, reference, n_workers):
    run = job(n_workers=n_workers, seconds=0.01)
    drivers = [run.start() for _ in range(2)]
    outcomes = [driver.communicate(timeout=60) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], outcomes
    assert outcomes[0][0] == outcomes[1][0]
    assert run.text == reference
    run.assert_tidy()


def test_of_two_drivers_one_is_killed_and_the_other_takes_over(job, reference):
    run = job(seconds=0.02)
    first, second = run.start(), run.start()
    wait_until(lambda: run.n_committed >= 4)
    first.kill()
    first.communicate()
    _, told = second.communicate(timeout=60)
    assert second.returncode == 0, told
    # Not always tidy: the dead driver's workers may begin an attempt in the moment they die.
    assert run.text == reference


def test_a_worker_that_is_stopped_is_replaced(job, reference):
    run = job(fault="worker stops", parallel={"worker_timeout": 1.5})
    told = run.succeed()
    assert "frozen: no sign of life for 1.5 s" in told
    assert run.text == reference


def test_an_item_that_hangs_is_tried_again_on_another_worker(job, reference):
    run = job(fault="item hangs", parallel={"item_timeout": 1.0})
    told = run.succeed()
    assert "no item was finished in 1 s (item_timeout)" in told
    assert run.text == reference


@pytest.mark.parametrize(("how", "batch_size"), pairs(["exit", "kill"], [None, 8]))
def test_an_item_that_kills_its_worker_is_isolated_and_skipped(job, reference, how, batch_size):
    run = job(bad=[13, 40], how=how, on_error="skip", batch_size=batch_size, seconds=0)
    run.succeed(parallel={"retries": 1})
    expected = [
        line for i, line in enumerate(reference.splitlines(keepends=True)) if i not in (13, 40)
    ]
    assert run.text.splitlines(keepends=True) == expected
    assert [failure["index"] for failure in run.failures()] == [13, 40]
    reason = "it exited with code 3" if how == "exit" else "it was ended by SIGKILL"
    assert reason in run.failures()[0]["error"]


@pytest.mark.parametrize("batch_size", few([8, None], 1))
def test_an_item_that_kills_its_worker_is_named_when_errors_are_raised(job, batch_size):
    run = job(bad=[13], how="exit", batch_size=batch_size, seconds=0, parallel={"retries": 1})
    process = run.run()
    assert process.returncode == 1
    assert "Item 13 (position 13) of shard" in process.stderr
    assert "it exited with code 3" in process.stderr
    assert "set the runner's on_error to skip" in " ".join(process.stderr.split())
    assert run.failures()[0]["index"] == 13


@pytest.mark.parametrize("batch_size", few([8, None], 1))
def test_an_item_that_runs_out_of_memory_costs_one_item(job, reference, batch_size):
    run = job(bad=[13], how="memory", on_error="skip", batch_size=batch_size, n_workers=2)
    run.succeed()
    assert run.text == b"".join(
        line for i, line in enumerate(reference.splitlines(keepends=True)) if i != 13
    )
    assert "MemoryError" in run.failures()[0]["error"]

"""Detached workers as real processes: killed, stopped, in trouble, late; the run is complete."""

import json
import os
import signal
import time

import pytest

from espnet3.shards.records import CrashNote, RecordPaths, StopMark, write_death, write_stop
from tests.helpers.detached_parts import DetachedFolder, expected
from tests.helpers.waiting import is_alive, wait_for_end, wait_until, worker_pids


@pytest.fixture
def folder(tmp_path):
    """Return a function that plans a run; its workers are gone at the end of the test."""
    made = []

    def make(name='it\'s "a" run', **settings):
        made.append(DetachedFolder(tmp_path / name, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_one_worker_does_all_and_merges(folder):
    run = folder()
    assert run.run("--submitted", str(time.time() - 5)) == 0
    run.assert_complete()
    (worker,) = run.records("workers")
    assert (worker["n_shards"], worker["n_items"], worker["exit_code"]) == (6, 24, 0)
    assert worker["started"] - worker["submitted"] > 4
    log = (run.out / worker["log"]).read_text()
    assert "shard 3 begins (attempt split.3.part-" in log
    assert "shard 3 ends: done, items: 3" in log


def test_a_worker_that_comes_too_late_ends_at_once(folder):
    run = folder()
    assert run.run() == 0
    assert run.run() == 0
    assert len(run.records("workers")) == 1


def test_two_workers_share_the_work_and_one_merges(folder, tmp_path):
    gate = tmp_path / "gate"
    run = folder(n_items=40, n_shards=10, seconds=0.05, gate=str(gate))
    agents = [run.start(), run.start()]
    wait_until(lambda: len(list(run.out.glob("split.*.part-*/.position"))) == 2, 60)
    gate.touch()
    assert [agent.wait(120) for agent in agents] == [0, 0]
    run.assert_complete()
    workers = run.records("workers")
    assert sum(worker["n_shards"] for worker in workers) == 10
    assert all(worker["n_shards"] for worker in workers)
    assert run.log().count("; merging") == 1


def test_an_item_that_kills_its_worker_is_isolated(folder):
    run = folder(on_error="skip", faults={"7": "exit"})
    assert run.run() == 0
    run.assert_complete(without=[7])
    (failure,) = run.failures()
    assert failure["index"] == 7
    assert "2 times: it exited with code 3" in failure["error"]
    assert len(run.records("deaths")) == 2


def test_a_process_that_is_killed_once_is_replaced(folder, tmp_path):
    run = folder(faults={"7": f"kill child@{tmp_path / 'mark'}"})
    assert run.run() == 0
    run.assert_complete()
    (note,) = run.records("deaths")
    assert (note["start"], note["kind"]) == (7, "died")
    assert "SIGKILL" in note["reason"]
    assert run.records("workers")[0]["lost_seconds"] > 0


def test_an_item_that_ends_the_whole_job_is_isolated_by_those_that_follow(folder):
    """As when memory runs out and the job is killed: nobody is left to tell."""
    run = folder(on_error="skip", faults={"9": "kill agent"})
    codes = [run.run() for _ in range(3)]
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]
    run.assert_complete(without=[9])
    assert [failure["index"] for failure in run.failures()] == [9]
    notes = run.records("deaths")
    assert [(note["start"], note["stop"], note["kind"]) for note in notes] == [(9, 10, "died")] * 2
    assert len({note["owner_id"] for note in notes}) == 2


def test_an_item_that_exhausts_memory_is_listed(folder):
    run = folder(on_error="skip", faults={"9": "memory"})
    assert run.run() == 0
    run.assert_complete(without=[9])


def test_the_default_stops_at_the_first_failure_for_all(folder):
    run = folder(faults={"20": "raise"}, seconds=0.02)
    agents = [run.start(), run.start()]
    assert 1 in [agent.wait(120) for agent in agents]
    assert [failure["index"] for failure in run.failures()] == [20]
    assert run.stop()["kind"] == "failed"
    assert "this item is bad" in run.stop()["reason"]
    assert not (run.out / "_SUCCESS.json").exists()
    n_workers = len(run.records("workers"))
    assert run.run() == 0  # nothing happens any more
    assert len(run.records("workers")) == n_workers


def test_too_many_failures_of_several_workers_stop_the_run(folder):
    faults = {str(item): "raise" for item in range(0, 24, 3)}
    run = folder(on_error="skip", max_errors=3, faults=faults)
    assert run.run() == 1
    assert "more than max_errors=3" in run.stop()["reason"]


def test_all_workers_killed_at_a_random_moment_and_others_finish(folder, tmp_path):
    hurry = tmp_path / "hurry"
    run = folder(n_items=120, n_shards=12, seconds=0.2, hurry=str(hurry))
    agents = [run.start(), run.start()]
    wait_until(lambda: run.n_committed() >= 2, 60)
    children = [pid for agent in agents for pid in worker_pids(agent.pid)]
    for agent in agents:
        agent.kill()
        agent.wait()
    wait_for_end(children, 60)
    assert run.n_committed() < 12
    hurry.touch()
    assert run.run() == 0
    run.assert_complete()
    assert run.log().count("ends: done") <= 12  # nothing that was committed was done again


def test_a_killed_worker_loses_its_shard_to_a_living_one(folder, tmp_path):
    gate = tmp_path / "gate"
    run = folder(n_items=12, n_shards=2, gate=str(gate))
    first, second = run.start(), run.start()
    wait_until(lambda: len(list(run.out.glob("split.*.part-*/.position"))) == 2, 60)
    first.kill()
    first.wait()
    gate.touch()
    assert second.wait(120) == 0
    run.assert_complete()
    assert "vanished without a word" in run.log()


def test_sigterm_hands_the_shard_back_at_once(folder, tmp_path):
    gate = tmp_path / "gate"
    run = folder(gate=str(gate))
    agent = run.start()
    wait_until(lambda: list(run.out.glob("split.*.part-*/.position")), 60)
    children = worker_pids(agent.pid)
    agent.terminate()
    assert agent.wait(60) == 0
    wait_for_end(children, 60)
    assert not list(run.out.glob("*.part-*"))
    assert not list((run.out / "leases").iterdir())
    assert not run.records("deaths")  # nobody is to blame
    (worker,) = run.records("workers")
    assert worker["reason"] == "it got SIGTERM"
    assert worker["lost_seconds"] > 0
    gate.touch()
    assert run.run() == 0
    run.assert_complete()


def test_a_signal_to_all_processes_of_a_job_is_no_death(folder, tmp_path):
    run = folder(gate=str(tmp_path / "gate"))
    agent = run.start()
    wait_until(lambda: list(run.out.glob("split.*.part-*/.position")), 60)
    for pid in [*worker_pids(agent.pid), agent.pid]:
        os.kill(pid, signal.SIGTERM)
    assert agent.wait(60) == 0
    assert not run.records("deaths")


@pytest.mark.parametrize(("kind", "code"), [("cancelled", 0), ("failed", 1)])
def test_a_stop_mark_ends_a_worker_in_the_middle_of_a_shard(folder, tmp_path, kind, code):
    run = folder(gate=str(tmp_path / "gate"))
    agent = run.start()
    wait_until(lambda: list(run.out.glob("split.*.part-*/.position")), 60)
    children = worker_pids(agent.pid)
    write_stop(RecordPaths(run.out), StopMark(kind, "somebody said so"))
    assert agent.wait(60) == code
    assert not any(is_alive(pid) for pid in children)
    assert not list(run.out.glob("*.part-*"))
    (worker,) = run.records("workers")
    assert "somebody said so" in worker["reason"]


def test_shards_that_do_not_fit_into_the_time_left_are_left_to_others(folder, tmp_path):
    # Six shards of about 4 s; margin 5 s: one worker of 24 s cannot do them all.
    hurry = tmp_path / "hurry"
    run = folder(n_items=12, n_shards=6, seconds=2.0, hurry=str(hurry))
    assert run.run("--walltime", "24") == 0
    n_first = run.n_committed()
    assert 1 <= n_first < 6
    assert not list(run.out.glob("*.part-*"))
    (worker,) = run.records("workers")
    assert worker["n_shards"] == n_first
    assert "s left" in worker["reason"] or "walltime" in worker["reason"]
    hurry.touch()
    assert run.run() == 0
    run.assert_complete()


def test_a_shard_that_is_too_long_for_any_worker_stops_the_run(folder):
    run = folder(n_items=2, n_shards=1, seconds=60.0)
    for _ in range(5):  # more than once only if it takes the machine seconds to start a process
        assert run.run("--walltime", "12") == 0
        if run.records("deaths"):
            break
    (note,) = run.records("deaths")
    assert (note["kind"], note["reason"]) == ("walltime", "the walltime was over")
    assert note["seconds"] > 0
    assert not list(run.out.glob("*.part-*"))
    for _ in range(2):
        write_death(RecordPaths(run.out), CrashNote(0, "a", "x", kind="walltime", seconds=59.0))
    assert run.run("--walltime", "60") == 1
    assert "within the walltime of 60 s: 2 attempts were cut off" in run.stop()["reason"]
    assert "options.walltime='00:02:00'" in run.stop()["reason"]


def test_a_slow_shard_is_started_a_second_time_and_the_first_commit_wins(folder, tmp_path):
    """The first attempt at an item hangs; nobody dies."""
    run = folder(n_items=24, n_shards=8, seconds=0.1, faults={"1": f"hang@{tmp_path / 'mark'}"})
    agents = [run.start(), run.start()]
    assert [agent.wait(120) for agent in agents] == [0, 0]
    run.assert_complete()
    assert "is started a second time" in run.log()
    assert "another worker was done sooner" in run.log()
    assert sum(worker["n_shards"] for worker in run.records("workers")) == 8
    assert not run.records("deaths")


def test_a_full_disk_is_a_fault_of_the_item_only_if_it_stays(folder, tmp_path):
    faults = {"0": f"full@{tmp_path / 'mark'}", "5": "full"}
    run = folder(n_items=8, n_shards=4, on_error="skip", faults=faults)
    assert run.run() == 0
    run.assert_complete(without=[5])
    notes = run.records("deaths")
    assert {note["kind"] for note in notes} == {"machine"}
    assert len({note["shard"] for note in notes}) == 2
    assert "No space left" in notes[0]["reason"]


def test_nodes_on_which_nothing_works_are_avoided_while_another_gets_on(folder, tmp_path):
    """With `on_error: raise`, which a single item that is to blame would stop."""
    bad = {"full": "full", "kills": "exit", "broken": "no start", "bare": "no load"}
    hurry = tmp_path / "hurry"
    run = folder(n_items=300, n_shards=300, seconds=0.5, bad_nodes=bad, hurry=str(hurry))
    good = run.start(SLURMD_NODENAME="good")
    wait_until(lambda: run.n_committed() >= 1, 60)
    agents = [run.start(SLURMD_NODENAME=node) for node in bad]
    assert [agent.wait(120) for agent in agents] == [1, 1, 1, 1]
    assert run.run(SLURMD_NODENAME="broken") == 1  # as a successor would be
    assert good.poll() is None
    hurry.touch()
    assert good.wait(120) == 0
    run.assert_complete()
    notes = run.records("deaths")
    assert {note["host"] for note in notes} == set(bad)
    assert len({(note["shard"], note["host"]) for note in notes}) == len(notes)
    reasons = [worker["reason"] for worker in run.records("workers")]
    for node in bad:
        assert any(reason.startswith(f"{node} is avoided: attempts at ") for reason in reasons)


def test_several_folders_are_finished_one_after_the_other(folder):
    first, second = folder("first"), folder("second", faults={"3": "raise"})
    third = folder("third")
    agent = first.start(also=[second.out, third.out])
    assert agent.wait(120) == 1  # one of them failed
    first.assert_complete()
    third.assert_complete()
    assert second.stop()["kind"] == "failed"
    (worker,) = third.records("workers")
    assert json.loads((third.out / "_SUCCESS.json").read_text())["n_items"] == 24
    assert "shard 0 begins" in (third.out / worker["log"]).read_text()


def test_a_damaged_shard_is_computed_again_before_the_merge(folder, tmp_path):
    hurry = tmp_path / "hurry"
    run = folder(n_items=12, n_shards=3, seconds=0.5, hurry=str(hurry))
    agent = run.start()
    wait_until(lambda: run.n_committed() >= 1, 60)
    agent.terminate()
    assert agent.wait(60) == 0
    done = next(path for path in run.out.glob("split.*/done") if ".part-" not in str(path))
    done.write_text("{")
    hurry.touch()
    assert run.run() == 0
    run.assert_complete()
    assert "is damaged" in run.log()


def test_a_merge_that_fails_stops_the_run_with_its_traceback(folder):
    run = folder()
    (run.out / "text").mkdir()  # merge() cannot write its file there
    assert run.run() == 1
    assert run.stop()["kind"] == "failed"
    (run.out / "text").rmdir()
    (run.out / "detached" / "stop.json").unlink()
    assert run.run() == 0
    assert run.text == expected(24)

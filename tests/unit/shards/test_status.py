import json
import os
import shutil

import pytest

from espnet3.errors import RunFolderError
from espnet3.shards.commit import Position, begin_attempt, commit
from espnet3.shards.layout import FAILED
from espnet3.shards.lease import Lease, claim_path
from espnet3.shards.manifest import require_manifest
from espnet3.shards.merge import read_failures, write_success
from espnet3.shards.status import read_status


def quiet_lease(root) -> Lease:
    return Lease(root, heartbeat=1000.0, timeout=60.0)


def failure(run, position: int, error: str = "ValueError: x", shard: int | None = None):
    if shard is None:
        shard = next(s for s in range(run.n_shards) if position in run.items(s))
    return {"position": position, "shard": shard, "error": error}


def write_lines(path, records) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_folder_without_a_run_is_refused_with_what_to_give(folder):
    with pytest.raises(RunFolderError, match=r"no manifest\.json in it\. Give the output_dir"):
        read_status(folder)
    with pytest.raises(RunFolderError, match="Give the output_dir of a runner"):
        require_manifest(folder / "absent")


def test_folder_above_a_run_is_refused_with_the_run_that_may_be_meant(folder, run):
    with pytest.raises(RunFolderError) as error:
        read_failures(folder.parent)
    assert f"Did you mean {folder}?" in str(error.value)


def test_planned_run_is_stopped_at_nothing(run):
    status = read_status(run.root)
    assert (status.state, status.name, status.n_items, status.n_shards) == (
        "stopped", "Decode", 10, 4,
    )  # fmt: skip
    assert (status.n_done, status.n_failed, status.n_shards_done, status.running) == (0, 0, 0, [])
    assert (status.items_per_second, status.eta_seconds) == (None, None)
    assert json.loads(json.dumps(status.as_dict()))["run_dir"] == str(run.root)


def test_done_and_failed_items_are_counted(run):
    run.commit(0, n_failed=1, seconds=2.0)
    status = read_status(run.root)
    assert (status.n_done, status.n_failed, status.n_shards_done) == (len(run.items(0)), 1, 1)
    assert status.items_per_second == pytest.approx(len(run.items(0)) / 2.0, rel=0.01)
    assert status.eta_seconds is None, "nobody is working"


def test_complete_run_is_not_merged_until_success_is_written(run):
    run.commit_all()
    assert read_status(run.root).state == "not merged"
    write_success(run.layout, run.manifest, [], output_dir=run.root, outputs={}, result=None)
    status = read_status(run.root)
    assert (status.state, status.n_done, status.n_shards_done) == ("complete", 10, 4)


def test_success_of_an_earlier_run_is_not_that_of_this_one(run):
    write_success(run.layout, run.manifest, [], output_dir=run.root, outputs={}, result=None)
    assert read_status(run.start_anew().root).state == "stopped"


def test_damaged_shard_is_not_done(run):
    run.commit_all()
    (run.layout.shard(0) / "done").write_text("{")
    status = read_status(run.root)
    assert (status.state, status.n_shards_done) == ("stopped", 3)


def test_running_shards_show_who_works_on_them_and_how_far(run):
    run.commit(1, seconds=1.0)
    with quiet_lease(run.root) as lease:
        lease.claim(run.layout.shard_name(0))
        position = Position(begin_attempt(run.layout, 0))
        position.cells[0] = 2
        status = read_status(run.root)
        position.close()
    assert status.state == "running"
    (running,) = status.running
    assert (running.shard, running.n_done, running.n_items) == (0, 2, len(run.items(0)))
    assert running.owner == str(lease.owner)
    n_left = 10 - len(run.items(1)) - 2
    assert status.items_per_second == pytest.approx(len(run.items(1)))
    assert status.eta_seconds == pytest.approx(n_left / len(run.items(1)))


def test_attempt_that_has_not_begun_is_at_nothing(run):
    with quiet_lease(run.root) as lease:
        lease.claim(run.layout.shard_name(0))
        begin_attempt(run.layout, 0)
        (running,) = read_status(run.root).running
    assert running.n_done == 0


@pytest.mark.parametrize("at", [-5, 10_000])
def test_attempt_of_another_run_does_not_count_more_items_than_there_are(run, at):
    with quiet_lease(run.root) as lease:
        lease.claim(run.layout.shard_name(1))
        position = Position(begin_attempt(run.layout, 1))
        position.cells[0] = at
        (running,) = read_status(run.root).running
        position.close()
    assert running.n_done == 0


def test_attempts_of_the_dead_are_not_running(run):
    with quiet_lease(run.root) as lease:
        begin_attempt(run.layout, 0)  # nobody's
        lease.claim(run.layout.shard_name(1))
        begin_attempt(run.layout, 1)
        os.utime(lease.folder / f"{lease.owner.owner_id}.owner", (0, 0))
        status = read_status(run.root)
    assert (status.state, status.running) == ("stopped", [])


def test_attempt_at_a_shard_that_the_plan_does_not_have_is_ignored(run):
    with quiet_lease(run.root) as lease:
        lease.claim("split.9")
        begin_attempt(run.layout, 9)
        assert read_status(run.root).running == []


def test_reading_the_status_changes_nothing(run):
    run.commit(0)
    run.begin(1)
    before = {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}
    read_status(run.root)
    read_failures(run.root)
    assert {path: path.stat().st_mtime_ns for path in run.root.rglob("*")} == before


def test_failures_of_shards_come_in_dataset_order(run):
    for shard in reversed(range(run.n_shards)):
        attempt = run.begin(shard)
        write_lines(attempt / FAILED, [failure(run, run.items(shard).start)])
        commit(attempt, run.layout, run.finish(attempt, shard, n_failed=1))
    positions = [record["position"] for record in read_failures(run.root)]
    assert positions == [run.items(shard).start for shard in range(run.n_shards)]


def test_error_that_stopped_the_run_is_shown_until_its_shard_is_committed(run):
    write_lines(run.layout.failed, [failure(run, 0, "first"), failure(run, 9, "second")])
    assert [record["error"] for record in read_failures(run.root)] == ["first", "second"]
    run.commit(0)
    assert [record["error"] for record in read_failures(run.root)] == ["second"]


def test_half_a_line_of_a_killed_writer_is_skipped(run):
    write_lines(run.layout.failed, [failure(run, 0)])
    with run.layout.failed.open("a") as file:
        file.write('{"position": 1, "sha')
    assert [record["position"] for record in read_failures(run.root)] == [0]


def test_run_without_failures_has_none(run):
    run.commit_all()
    assert read_failures(run.root) == []


def test_shards_that_were_removed_after_the_merge_still_count(run):
    run.commit_all()
    write_success(run.layout, run.manifest, [], output_dir=run.root, outputs={}, result=None)
    for shard in range(run.n_shards):
        shutil.rmtree(run.layout.shard(shard))
    status = read_status(run.root)
    assert (status.state, status.n_done, status.n_shards_done) == ("complete", 10, 4)


def test_the_time_between_a_stop_and_the_resume_does_not_slow_the_rate(run):
    for shard, finished in enumerate([100.0, 101.0, 500.0, 501.0]):
        set_times(run, shard, finished=finished, seconds=1.0)
    status = read_status(run.root)
    last_two = len(run.items(2)) + len(run.items(3))
    assert status.items_per_second == pytest.approx(last_two / 2)


def set_times(run, shard, **times):
    run.commit(shard)
    done = run.layout.shard(shard) / "done"
    done.write_text(json.dumps({**json.loads(done.read_text()), **times}))


def taken_before(lease: Lease, name: str, seconds: float) -> None:
    """Claim a shard as if that had been some seconds ago."""
    assert lease.claim(name)
    path = claim_path(lease.folder, name)
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_a_shard_that_is_taken_and_not_begun_waits_for_its_environment(run):
    with quiet_lease(run.root) as lease, quiet_lease(run.root) as other:
        taken_before(lease, run.layout.shard_name(1), 35)
        taken_before(lease, run.layout.shard_name(2), 20)
        taken_before(lease, "merge", 20)
        assert other.claim(run.layout.shard_name(3))  # just now: its attempt is about to begin
        building = read_status(run.root).building
        assert [(each.shard, each.owner_id) for each in building] == [
            (1, lease.owner.owner_id), (2, lease.owner.owner_id),
        ]  # fmt: skip
        assert [round(each.seconds) for each in building] == [35, 20]
        begin_attempt(run.layout, 1)
        assert read_status(run.root).building == [], "one of its workers has begun"
    assert read_status(run.root).building == [], "the owner is gone"

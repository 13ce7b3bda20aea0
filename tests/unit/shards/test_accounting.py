import json
import os
from dataclasses import replace

import pytest

from espnet3.shards.accounting import Accounting, Usage, account, add_up
from espnet3.shards.commit import DONE
from espnet3.shards.merge import (
    check_complete,
    read_accounting,
    read_coverage,
    read_success,
    write_success,
)
from espnet3.shards.records import (
    CrashNote,
    JobRecord,
    WorkerRecord,
    make_folders,
    write_death,
    write_job,
    write_worker,
)


def shard(run, number, *, start, load=0.0, compute=1.0, write=0.0, host="a", pid=1, owner="d"):
    """Commit a shard that took what is given, from `start` on."""
    run.commit(number, owner_id=owner, host=host, pid=pid, seconds=compute, load_seconds=load)
    path = run.layout.shard(number) / DONE
    finished = start + load + compute + write
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "started": start, "finished": finished})
    )


def worker(run, owner_id, started, **values):
    record = WorkerRecord(owner_id, values.pop("host", "a"), values.pop("pid", 1), started)
    write_worker(make_folders(run.root), replace(record, **values))


def death(run, number, **values):
    write_death(make_folders(run.root), CrashNote(number, "a", "killed", **values))


def of(run):
    return account(run.root, run.manifest, read_coverage(run.root, run.manifest).committed.values())


def test_a_run_without_any_shard_cost_nothing(run):
    found = of(run)
    assert found.worker_hours == 0
    assert found.workers == found.nodes == []
    assert found.total.idle_share == 0
    json.dumps(found.as_dict(), allow_nan=False)


def test_parts_of_a_workers_time_add_up(run):
    shard(run, 0, start=100, load=5, compute=3, write=1)
    shard(run, 1, start=110, compute=4)
    (found,) = of(run).workers
    assert (found.name, found.n_shards) == ("a:1", 2)
    assert found.n_items == len(run.items(0)) + len(run.items(1))
    assert found.seconds == 14
    assert (found.load_seconds, found.compute_seconds, found.write_seconds) == (5, 7, 1)
    assert found.idle_seconds == 1
    assert found.busy_seconds + found.idle_seconds == found.seconds


def test_a_drivers_worker_waits_for_the_last_shard_of_the_others(run):
    shard(run, 0, start=100, compute=10, pid=1)
    shard(run, 1, start=100, compute=4, pid=2)
    found = of(run)
    assert [usage.seconds for usage in found.workers] == [10, 10]
    assert found.total.idle_seconds == 6


def test_a_drivers_worker_that_was_gone_is_not_counted_on(run):
    """A job that ended at its walltime did not wait until the next day."""
    shard(run, 0, start=100, compute=10, pid=1)
    shard(run, 1, start=90_000, compute=10, pid=2)
    assert [usage.seconds for usage in of(run).workers] == [20, 10]


def test_the_night_between_two_drivers_is_nobodys_time(run):
    shard(run, 0, start=100, compute=10, owner="first")
    shard(run, 1, start=90_000, compute=10, owner="second")  # the pid came up again
    assert [usage.seconds for usage in of(run).workers] == [10, 10]


def test_folders_of_older_versions_have_neither_owner_nor_begin(run):
    shard(run, 0, start=100, compute=10, owner="")
    path = run.layout.shard(0) / DONE
    values = json.loads(path.read_text())
    del values["owner_id"], values["started"]
    path.write_text(json.dumps(values))
    assert of(run).total.seconds == 10


def test_a_detached_worker_has_the_shards_of_all_its_processes(run):
    worker(run, "w", 90.0, ended=130.0, submitted=60.0, job_id="7", n_shards=2)
    shard(run, 0, start=100, load=2, compute=8, pid=11, owner="w")
    shard(run, 1, start=115, load=2, compute=8, pid=12, owner="w")
    (found,) = of(run).workers
    assert (found.job_id, found.n_shards, found.seconds, found.queue_seconds) == ("7", 2, 40, 30)
    assert found.idle_seconds == 20


def test_nodes_are_the_sums_of_their_workers(run):
    worker(run, "w1", 100.0, ended=110.0, host="a")
    worker(run, "w2", 100.0, ended=120.0, host="a", pid=2)
    shard(run, 0, start=100, compute=9, owner="w1")
    shard(run, 1, start=100, compute=9, host="b", owner="driver")
    found = of(run)
    assert [(node.name, node.n_workers, node.n_shards) for node in found.nodes] == [
        ("a", 2, 1),
        ("b", 1, 1),
    ]
    assert [node.seconds for node in found.nodes] == [30, 9]
    assert found.total.seconds == 39


def test_a_successor_does_not_queue_while_its_predecessor_works(run):
    paths = make_folders(run.root)
    write_job(paths, JobRecord("slurm", "1", 10.0))
    write_job(paths, JobRecord("slurm", "2", 20.0, after="1", generation=1))
    worker(run, "w1", 20.0, env="slurm", job_id="1", submitted=10.0, ended=80.0)
    worker(run, "w2", 83.0, env="slurm", job_id="2", submitted=20.0, ended=90.0, generation=1)
    found = of(run)
    assert [usage.queue_seconds for usage in found.workers] == [10, 3]
    assert (found.total.queue_seconds, found.longest_queue_seconds) == (13, 10)
    assert (found.n_queued, found.n_generations) == (2, 2)


def test_a_job_that_is_queued_again_did_not_wait_while_it_ran_first(run):
    worker(run, "w1", 20.0, env="slurm", job_id="1", submitted=10.0, seen=80.0)
    worker(run, "w2", 200.0, env="slurm", job_id="1", submitted=10.0, ended=210.0)
    assert [usage.queue_seconds for usage in of(run).workers] == [10, 120]


def test_a_worker_that_comes_back_from_another_run_is_one_worker(run):
    worker(run, "w1", 100.0, submitted=90.0, ended=110.0, pid=7)
    worker(run, "w2", 150.0, ended=152.0, pid=7)
    worker(run, "w3", 500.0, submitted=490.0, ended=501.0, pid=7)  # the pid came up again
    found = of(run)
    assert [usage.seconds for usage in found.workers] == [12, 1]
    assert (found.total.n_workers, found.nodes[0].n_workers) == (2, 2)
    assert found.workers[0].queue_seconds == 10


def test_clocks_that_differ_make_no_negative_wait(run):
    worker(run, "w", 100.0, submitted=130.0, ended=110.0)
    assert of(run).workers[0].queue_seconds == 0


def test_what_a_killed_worker_could_not_say_is_in_the_note_of_its_death(run):
    worker(run, "w", 100.0, seen=130.0, lost_seconds=5.0)
    death(run, 0, owner_id="w", seconds=5.0, time=129.0)  # its child's, which it counted itself
    death(run, 1, owner_id="w", seconds=40.0, time=200.0)
    found = of(run)
    assert found.workers[0].lost_seconds == 45
    assert found.workers[0].seconds == 45
    assert found.workers[0].n_deaths == 2
    assert found.deaths == {"died": 2}


def test_notes_about_a_worker_that_ended_by_itself_are_in_its_own_count(run):
    worker(run, "w", 100.0, ended=200.0, lost_seconds=5.0)
    death(run, 0, owner_id="w", seconds=5.0, time=210.0, kind="walltime")
    found = of(run)
    assert found.workers[0].lost_seconds == 5
    assert found.deaths == {"walltime": 1}


def attempt(run, number, owner_id, began):
    (run.root / f"{run.layout.shard_name(number)}.part-{owner_id}-{began:08x}-0123").mkdir()


def beat(run, owner_id, when):
    run.layout.leases.mkdir(exist_ok=True)
    path = run.layout.leases / f"{owner_id}.owner"
    path.touch()
    os.utime(path, (when, when))


OWNER = "0123456789abcdef"


def test_the_attempt_that_runs_is_neither_idle_nor_lost(run):
    worker(run, OWNER, 100.0, seen=101.0)
    beat(run, OWNER, 140.0)
    attempt(run, 0, OWNER, 110)
    (found,) = of(run).workers
    assert (found.seconds, found.running_seconds) == (40, 30)
    assert (found.idle_seconds, found.lost_seconds) == (10, 0)


def test_an_attempt_at_a_shard_that_is_done_already_is_lost(run):
    """As of a slow worker whose twin came first, when the twin merges."""
    worker(run, OWNER, 100.0, seen=101.0)
    beat(run, OWNER, 140.0)
    attempt(run, 0, OWNER, 110)
    shard(run, 0, start=120, compute=10, owner="twin")
    found = next(usage for usage in of(run).workers if not usage.n_shards)
    assert (found.seconds, found.lost_seconds, found.running_seconds) == (40, 30, 0)


def test_what_a_worker_says_at_its_end_counts_more_than_what_it_left_behind(run):
    worker(run, OWNER, 100.0, ended=120.0, lost_seconds=1.0)
    attempt(run, 0, OWNER, 110)
    (found,) = of(run).workers
    assert (found.seconds, found.lost_seconds, found.running_seconds) == (20, 1, 0)


def test_a_worker_was_there_at_least_until_its_last_commit(run):
    worker(run, "w", 100.0, seen=101.0)
    shard(run, 0, start=110, compute=10, owner="w")
    assert of(run).workers[0].seconds == 20


def test_shards_that_were_computed_anew_were_lost(run):
    worker(run, "w", 100.0, ended=120.0, n_shards=2, load_seconds=2.0, compute_seconds=16.0)
    shard(run, 0, start=102, compute=8, load=2, owner="w")
    assert of(run).workers[0].lost_seconds == 8


def test_deaths_in_synchronous_runs_are_those_that_shards_tell(run):
    run.commit(0, n_deaths=2)
    assert of(run).deaths == {"died": 2}


def test_real_time_factor_is_by_the_audio_of_each_worker(make_run):
    run = make_run(n_items=8, n_shards=4, audio_seconds=80.0)
    share = [cost / sum(run.manifest.costs) for cost in run.manifest.costs]
    shard(run, 0, start=100, compute=4, pid=1)
    shard(run, 1, start=100, compute=8, pid=2)
    found = of(run)
    factors = [usage.real_time_factor for usage in found.workers]
    assert factors == [pytest.approx(4 / (80 * share[0])), pytest.approx(8 / (80 * share[1]))]
    assert found.total.real_time_factor == pytest.approx(12 / (80 * (share[0] + share[1])))


def test_without_durations_there_is_no_real_time_factor(run):
    shard(run, 0, start=100)
    assert "real_time_factor" not in of(run).as_dict()


def finish(run):
    for number in range(run.n_shards):
        shard(run, number, start=100 + number, compute=2, load=0.25, pid=number)
    done = check_complete(run.root, run.manifest).committed.values()
    write_success(run.layout, run.manifest, done, output_dir=run.root, outputs={}, result=None)
    return of(run)


def test_success_tells_the_same_once_the_shards_are_removed(make_run):
    run = make_run(audio_seconds=60.0, padded_share=0.02)
    before = finish(run)
    for path in run.shard_dirs():
        (path / DONE).unlink()
    after = read_accounting(run.root, run.manifest)
    assert after.as_dict() == before.as_dict()
    assert after.padded_share == 0.02
    assert [usage.name for usage in after.workers] == [usage.name for usage in before.workers]


def test_success_of_an_older_version_is_made_up_for(run):
    before = finish(run)
    values = read_success(run.layout, run.manifest.run_id)
    del values["accounting"]
    run.layout.success.write_text(json.dumps(values))
    assert read_accounting(run.root, run.manifest).as_dict() == before.as_dict()


def test_a_thousand_workers_do_not_make_success_large():
    workers = [Usage(f"node{n}:1", host=f"node{n}", seconds=1.0) for n in range(1000)]
    found = Accounting(add_up("", workers), workers, workers)
    values = found.as_dict()
    assert len(json.dumps(values)) < 100_000
    for rows in (values["workers"], values["nodes"]):
        assert len(rows) == 65
        assert rows[-1]["name"] == "936 more"
        assert sum(row["n_workers"] for row in rows) == 1000
        assert sum(row["seconds"] for row in rows) == 1000


def test_a_record_from_a_newer_version_is_no_reason_to_fail(run):
    paths = make_folders(run.root)
    (paths.workers / "x.json").write_text('{"new": 1}')
    (paths.deaths / "0-x.json").write_text("{")
    assert of(run).workers == []

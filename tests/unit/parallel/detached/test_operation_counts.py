"""File operations of the queue as a function of its workers W and shards S: none grows with W."""

import json
import os
import time
from dataclasses import asdict, replace

import pytest

from benchmarks.file_operations import FileOperations
from espnet3.errors import ItemError
from espnet3.parallel import shard_queue
from espnet3.parallel.detached.overview import Observer
from espnet3.parallel.faults import FaultPolicy
from espnet3.parallel.folder_run import shards_to_run
from espnet3.parallel.shard_queue import ShardQueue
from espnet3.parallel.signals import EndSignals, ReleaseClaims
from espnet3.shards import open_shards as board_module
from espnet3.shards.commit import Position
from espnet3.shards.layout import leases_folder
from espnet3.shards.lease import Lease, Owner, owner_path
from espnet3.shards.records import (
    CrashNote,
    Identity,
    OwnRecord,
    WorkerRecord,
    make_folders,
    write_death,
    write_worker,
)
from tests.helpers.planned_run import Run

FEW, MANY = 16, 256


class Crowd:
    """A run in which `n_workers` others are at work, each at a shard; the rest is free."""

    def __init__(self, root, n_workers, n_free=0):
        root.mkdir()
        n_shards = n_workers + n_free
        self.run = Run(root, n_items=2 * n_shards, n_shards=n_shards)
        self.paths = make_folders(root)
        leases_folder(root).mkdir()
        for shard in range(n_workers):
            self._add(shard)
        for path in leases_folder(root).glob("*.owner"):  # where this took long, they still live
            os.utime(path)

    def _add(self, shard):
        owner = replace(Owner.of_this_process(), host=f"node{shard}", machine="another")
        layout = self.run.layout
        owner_path(layout.leases, owner.owner_id).write_text(json.dumps(asdict(owner)))
        layout.claim(layout.shard_name(shard)).write_text(owner.owner_id)
        layout.new_attempt(shard, owner.owner_id).mkdir()
        record = WorkerRecord(owner.owner_id, owner.host, owner.pid, started=time.time())
        write_worker(self.paths, record)

    def queue(self, lease, *, is_driver=False, **policy):
        return ShardQueue(
            self.run.root,
            self.run.manifest,
            None,
            lease,
            record=OwnRecord(self.run.root, lease.owner, Identity()),
            policy=FaultPolicy(retries=3, **policy),
            signals=None if is_driver else EndSignals(),
        )


@pytest.fixture
def crowd(tmp_path, monkeypatch):
    """Return a function that makes such a run, and the lease of one more worker."""
    monkeypatch.setattr(board_module, "_LOOK_SECONDS", 0.0)
    leases = []

    def make(n_workers, n_free=0):
        made = Crowd(tmp_path / f"{n_workers} and {n_free}", n_workers, n_free)
        leases.append(Lease(made.run.root, heartbeat=1000, timeout=1e6))
        return made, leases[-1].__enter__()

    yield make
    for lease in leases:
        lease.__exit__()


def count(run, call):
    """Return how many operations a call takes."""
    with FileOperations(run.root) as operations:
        call()
    return operations.counts.total()


def test_driver_that_looks_what_is_to_be_done_does_not_ask_for_each_shard(crowd):
    counts = []
    for n_free in (FEW, MANY):
        new, _ = crowd(0, n_free=n_free)
        layout, manifest = new.run.layout, new.run.manifest
        counts.append(
            count(new.run, lambda: shards_to_run(layout, manifest, retry_failed=False))  # noqa: B023
        )
    assert counts[1] == counts[0] < 12, counts


@pytest.mark.parametrize("max_errors", [None, 5])
def test_start_of_a_worker_does_not_grow_with_the_workers(crowd, max_errors):
    counts = []
    for n_workers in (FEW, MANY):
        others, lease = crowd(n_workers, n_free=50)
        queue = others.queue(lease, max_errors=max_errors)
        counts.append(count(others.run, queue.prepare) + count(others.run, queue.take))
    assert counts[1] <= counts[0] + 4, counts
    assert counts[1] < 90, counts


@pytest.mark.parametrize("is_driver", [True, False])
def test_look_when_nothing_is_free_does_not_grow_with_the_workers(crowd, is_driver):
    counts = []
    for n_workers in (FEW, MANY):
        others, lease = crowd(n_workers)
        queue = others.queue(lease, is_driver=is_driver)
        counts.append(count(others.run, queue.take))
        assert queue.is_waiting()
    assert counts[1] <= counts[0] + 4, counts
    assert counts[1] < 40, counts


def test_worker_that_finds_others_standing_by_leaves_after_a_few_operations(crowd):
    others, lease = crowd(MANY)
    owner_id = next(others.run.layout.leases.glob("*.claim")).read_text()
    for name in shard_queue._STANDBY:
        others.run.layout.claim(name).write_text(owner_id)

    def take():
        with pytest.raises(ReleaseClaims, match="others stand by"):
            others.queue(lease).take()

    assert count(others.run, take) < 50


def test_waiting_driver_asks_less_than_once_a_second(crowd, monkeypatch):
    monkeypatch.setattr(board_module, "_LOOK_SECONDS", 5.0)
    others, lease = crowd(MANY)
    queue = others.queue(lease, is_driver=True)
    queue.pace.seconds_per_cost.append(1e6)  # so that each is looked at for being slow
    real, passed = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: real() + passed)

    def wait(seconds):
        nonlocal passed
        end = passed + seconds
        while passed < end:
            passed += 0.2
            assert queue.take() is None

    wait(60)  # the pause grows
    assert count(others.run, lambda: wait(600)) < 600


def test_takes_of_many_shards_share_a_few_listings(crowd):
    others, lease = crowd(4, n_free=250)
    queue = others.queue(lease)
    queue.prepare()

    def take_all():
        for _ in range(200):
            others.run.layout.shard(queue.take().shard).mkdir()

    with FileOperations(others.run.root) as operations:
        take_all()
    # One per take is the look for crash notes in a folder that is nearly empty.
    assert operations.counts["list"] <= 200 + 10, operations.counts


def test_few_claims_are_lost_among_many_workers(tmp_path):
    """Workers that listed at the same moment take in turn, as if at the same time."""
    run = Run(tmp_path, n_items=1000, n_shards=1000)
    leases = [Lease(tmp_path, heartbeat=1000) for _ in range(20)]
    try:
        boards = [
            board_module.OpenShards(tmp_path, run.manifest, each.__enter__()) for each in leases
        ]
        for board in boards:
            board.refresh()
        with FileOperations(tmp_path) as operations:
            for _ in range(15):
                for board in boards:
                    assert board.take() is not None
    finally:
        for lease in leases:
            lease.__exit__()
    n_lost = operations.counts["link"] - 300
    assert n_lost < 0.1 * 300, operations.counts
    assert operations.counts["list"] < 100, operations.counts


@pytest.mark.parametrize("n_shards", [FEW, MANY])
def test_failed_items_are_counted_without_a_look_at_each_shard(crowd, n_shards):
    others, lease = crowd(30, n_free=n_shards)
    for shard in range(30, 30 + n_shards):
        others.run.commit(shard)
    queue = others.queue(lease, max_errors=5)
    assert count(others.run, queue._check_failed) <= 1 + 2 * 16


def let_fail(others, n_failed, owner_id="0123456789abcdef"):
    write_worker(
        others.paths,
        WorkerRecord(owner_id, "node1", 1, time.time(), n_shards=1, n_failed=n_failed),
    )


def test_failed_items_of_others_end_the_run(crowd):
    others, lease = crowd(3, n_free=2)
    queue = others.queue(lease, max_errors=1)
    for shard in (3, 4):
        others.run.commit(shard, n_failed=1)
    queue._check_failed()  # its worker has not written its record
    let_fail(others, 2)
    with pytest.raises(ItemError, match="2 items failed"):
        queue._check_failed()


def test_items_that_failed_before_a_retry_do_not_count_twice(crowd):
    others, lease = crowd(3, n_free=2)
    queue = others.queue(lease, max_errors=2)
    let_fail(others, 2)  # in shards that were set aside
    others.run.commit(3, n_failed=1)
    let_fail(others, 1, "fedcba9876543210")
    queue._check_failed()
    assert count(others.run, queue._check_failed) <= 1 + 2 * 5, "all shards are counted only once"


def test_no_run_with_too_many_failed_items_is_merged(crowd):
    others, lease = crowd(1, n_free=2)
    for shard in (1, 2):
        others.run.commit(shard, n_failed=1)
    with pytest.raises(ItemError, match="2 items failed"):
        others.queue(lease, max_errors=1).check_all_failed()


def test_whether_somebody_works_elsewhere_is_known_after_a_few_looks(crowd):
    others, lease = crowd(MANY)
    queue = others.queue(lease)
    with FileOperations(others.run.root) as operations:
        assert queue._others_elsewhere()
    assert operations.counts.total() <= 3  # the second may be ourselves


def watched(crowd, n_workers):
    """Return a crowd whose attempts have positions, and who has looked at it once."""
    others, _ = crowd(n_workers)
    for attempt in others.run.root.glob("split.*.part-*"):
        Position(attempt).close()
    write_death(others.paths, CrashNote(0, "node1", "killed"))
    observer = Observer(others.run.root, ask=lambda records: {})
    seen = observer.look()
    assert len(seen.status.running) == n_workers
    assert len(seen.workforce.living) == n_workers + 1
    return others, observer


@pytest.mark.parametrize("n_workers", [20, 200])
def test_look_of_a_watcher_opens_only_what_changed(crowd, n_workers):
    others, observer = watched(crowd, n_workers)
    idle = count(others.run, observer.look)
    assert idle < 45, idle
    records = sorted(others.paths.workers.glob("*.json"))[:3]
    for path in records:
        values = json.loads(path.read_text())
        write_worker(others.paths, WorkerRecord(**{**values, "n_shards": 7}))
    with FileOperations(others.run.root) as operations:
        seen = observer.look()
    assert operations.counts.total() <= idle + 3
    assert sum(w.record.n_shards == 7 for w in seen.workforce.workers) == 3


def test_watcher_sees_owners_come_beat_and_go_and_claims_change_hands(crowd):
    others, observer = watched(crowd, 20)
    leases = others.run.layout.leases
    late, gone, *_, last = sorted(leases.glob("*.owner"))
    os.utime(late, (1.0, 1.0))
    gone.unlink()
    claim = next(path for path in leases.glob("*.claim") if path.read_text() == late.stem)
    claim.unlink()
    claim.write_text(last.stem)
    seen = observer.look()
    living = {worker.record.owner_id for worker in seen.workforce.living}
    assert len(living) == 19
    assert living.isdisjoint({late.stem, gone.stem})
    assert sum(shard.owner_id == last.stem for shard in seen.status.running) >= 1
    os.utime(late)
    assert late.stem in {w.record.owner_id for w in observer.look().workforce.living}


def test_watcher_reads_every_position_in_turn(crowd):
    others, observer = watched(crowd, 40)
    for attempt in others.run.root.glob("split.*.part-*"):
        start = others.run.items(int(attempt.name.split(".")[1])).start
        position = Position(attempt)
        position.cells[0] = start + 1
        position.close()
    looks = [sum(s.n_done for s in observer.look().status.running) for _ in range(3)]
    assert looks == [16, 32, 40]

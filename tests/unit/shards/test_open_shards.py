import os
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from benchmarks.file_operations import FileOperations
from espnet3.shards import open_shards as board_module
from espnet3.shards.lease import Lease, claims
from espnet3.shards.open_shards import OpenShards, own_part


@pytest.fixture
def many(make_run):
    return make_run(n_items=2000, n_shards=200)


@pytest.fixture
def sit_down(many, monkeypatch):
    """Return what makes a worker: a lease whose heart does not beat by itself, and its board."""
    monkeypatch.setattr(board_module, "_LOOK_SECONDS", 0.0)
    leases = []

    def make() -> OpenShards:
        leases.append(Lease(many.root, heartbeat=1000))
        board = OpenShards(many.root, many.manifest, leases[-1].__enter__())
        board.lease = leases[-1]
        return board

    yield make
    for lease in leases:
        lease.__exit__()


def let_die(board: OpenShards) -> None:
    path = board.lease.folder / f"{board.lease.owner.owner_id}.owner"
    os.utime(path, (0, 0))


def test_workers_share_the_shards_and_see_when_all_are_done(run):
    with Lease(run.root, heartbeat=1000) as one, Lease(run.root, heartbeat=1000) as two:
        boards = [OpenShards(run.root, run.manifest, lease) for lease in (one, two)]
        taken = [board.take() for board in boards * 2]
        assert sorted(taken) == list(range(run.n_shards))
        assert [board.take() for board in boards] == [None, None]
        for board, shard in zip(boards * 2, taken, strict=True):
            assert not board.is_complete()
            run.commit(shard)
            board.finished(shard)
        for board in boards:
            board.refresh()
            assert board.is_complete()
            assert board.n_left() == 0
            assert board.committed == frozenset(range(run.n_shards))


def test_lone_worker_takes_the_costliest_first(many, sit_down):
    board = sit_down()
    costs = [many.manifest.costs[board.take()] for _ in range(many.n_shards)]
    assert costs == sorted(many.manifest.costs, reverse=True)
    assert board.take() is None


def test_workers_that_come_at_once_reach_for_different_shards_and_all_of_them_costly(
    many, sit_down
):
    boards = [sit_down() for _ in range(40)]
    for board in boards:
        board.refresh()
    reached = [board._own_or_other(lambda shard: True) for board in boards]
    assert len(set(reached)) > 35, "each begins with its own"
    costs = many.manifest.costs
    assert all(costs[shard] >= max(costs) / 2 for shard in reached)


def test_shard_that_costs_far_more_than_the_others_is_not_left_to_chance(make_run, monkeypatch):
    run = make_run(n_items=100, n_shards=20)
    run.manifest.costs[7] = 1e6
    for _ in range(10):
        with Lease(run.root, heartbeat=1000) as lease, Lease(run.root, heartbeat=1000):
            assert OpenShards(run.root, run.manifest, lease).take() == 7


def test_shards_that_do_not_fit_are_left_to_others(many, sit_down):
    board = sit_down()
    cheap = [shard for shard, cost in enumerate(many.manifest.costs) if cost <= 3]
    assert board.take(lambda shard: shard in cheap) in cheap
    assert board.take(lambda shard: False) is None
    assert many.manifest.costs[board.take()] == max(many.manifest.costs)


def test_shard_of_one_who_died_is_taken_over_though_others_are_free(many, sit_down):
    dead, board = sit_down(), sit_down()
    shard = dead.take()
    attempt = many.begin(shard)
    board.refresh()
    assert board.in_hands() == [shard]
    assert board.held() == {shard: dead.lease.owner.owner_id}
    assert board.take() != shard
    let_die(dead)
    assert board.held() == {}
    assert board.take() == shard
    assert board.attempts(shard) == [attempt]


def test_when_nothing_is_free_all_that_others_hold_is_looked_at(run, monkeypatch):
    monkeypatch.setattr(board_module, "_LOOK_SECONDS", 0.0)
    with Lease(run.root, heartbeat=1000) as dead, Lease(run.root, heartbeat=1000) as lease:
        theirs = OpenShards(run.root, run.manifest, dead)
        shards = {theirs.take() for _ in range(run.n_shards)}
        board = OpenShards(run.root, run.manifest, lease)
        assert board.take() is None
        os.utime(dead.folder / f"{dead.owner.owner_id}.owner", (0, 0))
        assert {board.take() for _ in shards} == shards


def test_shard_that_was_committed_since_the_listing_is_not_run_again(many, sit_down):
    board = sit_down()
    board.refresh()
    for shard in board.free()[:3]:
        many.commit(shard)
    shard = board.take()
    assert shard not in board.committed
    assert board.committed
    assert board._mine == {shard}


def test_published_shard_counts_though_the_listing_does_not_show_it_yet(
    many, sit_down, monkeypatch
):
    board = sit_down()
    shard = board.take()
    board.finished(shard)  # not to be seen: nothing was committed
    board.refresh()
    assert shard in board.committed
    assert shard not in board.free()
    monkeypatch.setattr(board_module, "_SETTLED_SECONDS", 0.0)
    monkeypatch.setattr(board_module, "_KEEP_SECONDS", 0.0)
    board.refresh()
    assert board.take() == shard, "it may have been set aside since"


def test_claim_of_a_committed_shard_is_kept_until_all_can_see_the_commit(
    many, sit_down, monkeypatch
):
    board, blind = sit_down(), sit_down()
    shard = board.take()
    board.finished(shard)  # not to be seen by the other: nothing was committed
    blind.refresh()
    taken = [blind.take() for _ in range(many.n_shards)]
    assert shard not in taken
    monkeypatch.setattr(board_module, "_KEEP_SECONDS", 0.0)
    board.take()
    assert many.layout.shard_name(shard) not in claims(board.lease.folder)


def test_only_a_few_claims_of_committed_shards_are_kept(many, sit_down):
    board = sit_down()
    for _ in range(50):
        shard = board.take()
        many.commit(shard)
        board.finished(shard)
    board.take()
    assert len(claims(board.lease.folder)) == board_module._MAX_KEPT + 1


def test_given_back_shard_is_free_for_all(many, sit_down):
    board, other = sit_down(), sit_down()
    shard = board.take()
    other.refresh()
    assert shard not in other.free()
    board.release(shard)
    assert shard in board.free()
    other.refresh()
    assert shard in other.free()


def test_names_that_are_no_shards_of_this_plan_do_not_count(many, sit_down):
    board = sit_down()
    for name in ("split.7", "split.0000", "split.999", "split.007.part-x", "logs"):
        (many.root / name).mkdir()
    for name in ("merge", "split.003.twin", "standby.0"):
        board.lease.claim(name)
    board.refresh()
    assert board.n_left() == many.n_shards
    assert len(board.free()) == many.n_shards
    assert board.attempts(7) == [many.root / "split.007.part-x"]


def test_way_to_the_next_shard_is_as_short_with_2000_shards_as_with_200(make_run):
    run = make_run(n_items=4000, n_shards=2000)
    for shard in range(1000):
        run.layout.shard(shard).mkdir()
    with Lease(run.root, heartbeat=1000) as other, Lease(run.root, heartbeat=1000) as lease:
        for shard in range(1000, 1064):
            other.claim(run.layout.shard_name(shard))
        board = OpenShards(run.root, run.manifest, lease)
        with FileOperations(run.root) as first:
            shard = board.take()
        run.commit(shard)
        board.finished(shard)
        with FileOperations(run.root) as second:
            assert board.take() is not None
    assert first.counts == {"list": 2, "open": 1, "link": 1, "unlink": 1, "stat": 1}
    assert second.counts == {"open": 1, "link": 1, "unlink": 1, "stat": 1}


TAKER = """
    import sys
    from pathlib import Path
    from espnet3.shards.open_shards import OpenShards
    from espnet3.shards.lease import Lease
    from espnet3.shards.manifest import load_manifest
    root = Path(sys.argv[2])
    with Lease(root, heartbeat=1000) as lease:
        board = OpenShards(root, load_manifest(root), lease)
        board.refresh()
        go()
        while (shard := board.take()) is not None:
            print(shard)
        go()
"""


def test_processes_that_take_at_once_share_all_shards_and_none_twice(many, race):
    printed = race(TAKER, 4, many.root, n_goes=2)
    assert Counter(chain(*printed)) == {str(shard): 1 for shard in range(many.n_shards)}
    assert min(map(len, printed)) > 0
    assert os.listdir(Path(many.layout.leases)) == []


def owner_ids(n):
    return [f"{number * 7919:016x}" for number in range(1, n + 1)]


@pytest.mark.parametrize("n_owners", [1, 2, 7, 64])
def test_each_shard_is_in_the_part_of_one_owner_and_parts_are_similar(n_owners):
    owners, order = owner_ids(n_owners), list(range(4096, 0, -1))
    parts = [own_part(order, owner, owners) for owner in owners]
    assert sorted(shard for part in parts for shard in part) == sorted(order)
    assert all(part == sorted(part, reverse=True) for part in map(list, parts)), "costliest first"
    mean = len(order) / n_owners
    assert all(0.5 * mean < len(part) < 1.6 * mean for part in parts)
    # Of the costliest tenth as well: else a run would end with the long shards of one worker.
    assert all(sum(shard > 3686 for shard in part) < 0.2 * mean + 3 for part in parts)


def test_newcomer_takes_little_of_the_part_of_each_other():
    order = range(4096)
    before, after = owner_ids(20), owner_ids(21)
    kept = [
        set(own_part(order, owner, before)) & set(own_part(order, owner, after)) for owner in before
    ]
    assert sum(map(len, kept)) > 4096 * 0.9

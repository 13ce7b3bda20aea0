import os
import time

import pytest

from espnet3.errors import ResourceError
from espnet3.parallel import shard_queue
from espnet3.parallel.shard_queue import Walltime
from espnet3.parallel.signals import ReleaseClaims
from espnet3.parallel.tasks import Failure
from espnet3.shards.commit import Done, Position
from espnet3.shards.lease import Lease
from espnet3.shards.open_shards import OpenShards
from espnet3.shards.records import CrashNote, StopMark, read_deaths, write_death, write_stop
from tests.helpers.planned_run import cut, done

COST_SECONDS = 10.0


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(shard_queue, "_FIRST_BACKOFF", 0.0)
    monkeypatch.setattr(shard_queue, "_MACHINE_BACKOFF", 0.0)


def following(queue):
    """Return the shard that a queue gives out next; None if there is none now."""
    task = queue.take()
    return None if task is None else task.shard


@pytest.fixture
def choose(make_queue, pace):
    """Return a function that makes the queue of the worker under test."""

    def make(walltime=None, **settings):
        queue = make_queue(walltime, **settings)
        queue.pace = pace
        queue._next_node_look = time.monotonic() + 1000  # what the test says of cuts holds
        return queue

    return make


@pytest.fixture
def source(make_queue):
    return make_queue()


@pytest.fixture
def their_board(planned, other):
    return OpenShards(planned.root, planned.manifest, other)


def ending_in(seconds, total=1000.0):
    now = time.time()
    return Walltime(now + seconds - total, now + seconds)


def test_all_shards_are_taken_and_then_the_run_is_finished(planned, choose):
    queue = choose()
    taken = [following(queue) for _ in range(6)]
    assert sorted(taken) == list(range(6))
    assert not queue.is_finished()
    for shard in taken:
        planned.commit(shard)
        queue._board.finished(shard)
    assert following(queue) is None
    assert queue.is_finished()


def test_shards_that_do_not_fit_are_left_and_smaller_ones_taken(planned, choose, pace):
    pace.learn(done(planned, 0, seconds=10 * planned.manifest.costs[0]))  # 10 s each cost
    queue = choose(ending_in(50 + 25))
    shard = following(queue)
    assert planned.manifest.costs[shard] * 12 <= 25
    assert shard != 0


def test_a_worker_for_whose_time_nothing_fits_ends(planned, choose, pace):
    pace.learn(done(planned, 0, seconds=100 * planned.manifest.costs[0]))
    with pytest.raises(ReleaseClaims, match="none of 6 shards fits into the 10 s left") as end:
        following(choose(ending_in(50 + 10)))
    assert end.value.ends_all
    assert end.value.code == 0


def test_a_new_worker_tries_the_shortest_even_if_it_seems_too_long(planned, choose, pace):
    pace.learn(done(planned, 0, seconds=10_000 * planned.manifest.costs[0]))
    shard = following(choose(ending_in(1000)))
    assert planned.manifest.costs[shard] == min(planned.manifest.costs)


def test_one_that_was_slow_to_start_tries_as_well(planned, choose, pace):
    pace.learn(done(planned, 0, seconds=10_000 * planned.manifest.costs[0]))
    queue = choose(ending_in(700))
    assert following(queue) is not None
    with pytest.raises(ReleaseClaims, match="none of 5 shards fits"):
        following(queue)


def test_what_fits_into_no_walltime_stops_the_run(planned, choose, pace):
    notes = [cut(shard, 940.0) for shard in range(6) for _ in range(2)]
    pace.learn_cuts(notes, usable=950.0)
    with pytest.raises(ResourceError, match="cannot be finished within the walltime of 1000 s"):
        following(choose(ending_in(1000)))


def test_others_may_still_finish_what_is_left(choose, pace, their_board):
    assert their_board.take() is not None
    pace.learn_cuts([cut(shard, 940.0) for shard in range(6) for _ in range(2)], usable=950.0)
    with pytest.raises(ReleaseClaims, match="other workers continue"):
        following(choose(ending_in(1000)))


def test_an_impatient_worker_does_not_wait_for_others(choose, their_board):
    while their_board.take() is not None:
        pass
    with pytest.raises(ReleaseClaims, match="6 shards are claimed by others") as end:
        following(choose(is_patient=False))
    assert not end.value.ends_all


def test_few_stand_by_and_the_others_end(choose, lease, other, their_board):
    while their_board.take() is not None:
        pass
    queue = choose()
    assert following(queue) is None
    assert lease.is_held("standby.0")
    assert other.claim("standby.1")
    for _ in range(3):
        assert following(queue) is None  # it goes on standing by
    lease.release("standby.0")
    assert other.claim("standby.0")
    with pytest.raises(ReleaseClaims, match="others stand by"):
        following(choose())


def test_one_that_stands_by_takes_what_is_given_back(choose, lease, their_board):
    taken = [their_board.take() for _ in range(6)]
    queue = choose()
    assert following(queue) is None
    their_board.release(taken[0])
    assert following(queue) == taken[0]
    assert not lease.is_held("standby.0")


def test_a_shard_that_this_machine_could_not_bear_is_left_for_a_while(choose):
    queue = choose()
    first = following(queue)
    queue._leave(first, 60.0)
    rest = [following(queue) for _ in range(5)]
    assert first not in rest
    assert following(queue) is None
    queue._leave(first, 0.0)
    assert following(queue) == first


def test_after_trouble_the_next_look_comes_later(choose, monkeypatch):
    monkeypatch.setattr(shard_queue, "_MACHINE_BACKOFF", 60.0)
    queue = choose()
    queue._leave(0, 0.0)
    assert following(queue) is None


def test_nothing_is_taken_from_a_run_that_was_stopped(planned, choose):
    write_stop(planned.paths, StopMark("cancelled", "lunch", "me"))
    with pytest.raises(ReleaseClaims, match="cancelled by me: lunch"):
        following(choose())


def test_walltime_notes_of_other_kinds_do_not_count(pace):
    pace.learn_cuts([CrashNote(0, "a", "died", seconds=900.0)], usable=950.0)
    assert pace.expected(0) is None


@pytest.fixture
def elsewhere(planned, lease, monkeypatch):
    """Another node, with a worker that is busy."""
    monkeypatch.setenv("SLURMD_NODENAME", f"not-{lease.owner.host}")
    with Lease(planned.root, heartbeat=1000) as other:
        yield other


def one_left(planned, lease, seconds_ago):
    """Commit all shards but one, at which a worker of this node died some time ago."""
    for shard in range(1, planned.manifest.n_shards):
        planned.commit(shard)
    note = CrashNote(0, lease.owner.host, "it died", 1, 2, time=time.time() - seconds_ago)
    write_death(planned.paths, note)


def test_a_shard_that_died_here_is_left_to_another_node(planned, lease, elsewhere, source):
    one_left(planned, lease, 5)
    assert source.take() is None
    assert elsewhere.claim(planned.layout.shard_name(0)), "it was given back"


def test_without_another_node_it_is_tried_again(planned, lease, source):
    one_left(planned, lease, 5)
    assert source.take().shard == 0
    assert len(source.deaths(None)) == 1


def test_a_node_that_hangs_is_not_waited_for(planned, lease, elsewhere, source):
    one_left(planned, lease, 650)
    assert source.take() is None, "nobody knows for how long others may be busy"
    source._next_look = 0.0
    source._avoided.clear()
    source.pace.learn(Done("r", 1, 4, 8, seconds=1.0))
    assert source.take().shard == 0


def failed_load(source):
    task = source.take()
    source.new_attempt(task)
    return source.could_not_load(task, Failure(task.start, None, task.shard, "no GPU", ""))


def test_what_cannot_be_loaded_here_but_elsewhere_is_left_to_others(planned, elsewhere, source):
    planned.commit(0, host=elsewhere.owner.host)
    assert failed_load(source)
    (note,) = read_deaths(planned.paths)
    assert (note.kind, note.start, note.reason) == ("machine", None, "no GPU")
    assert elsewhere.claim(planned.layout.shard_name(note.shard)), "it was given back"


def test_what_was_loaded_nowhere_or_by_nobody_who_is_there_stops_the_run(
    planned, lease, elsewhere, source
):
    planned.commit(0, host=lease.owner.host)
    assert not failed_load(source)
    planned.commit(1, host=elsewhere.owner.host)
    elsewhere.__exit__()
    assert not failed_load(source)
    elsewhere._sign_in()
    assert read_deaths(planned.paths) == []


def test_who_has_long_shards_is_waited_for_longer(planned, lease, elsewhere, source):
    one_left(planned, lease, 650)
    source.pace.learn(Done("r", 1, 4, 8, seconds=600.0))
    assert source.take() is None


@pytest.fixture
def helper(planned, make_queue):
    """Return a queue that knows how long shards take."""
    return knowing(planned, make_queue())


def knowing(planned, queue):
    queue.pace.learn(done(planned, 5, seconds=COST_SECONDS * planned.manifest.costs[5]))
    queue._is_loaded = True
    return queue


@pytest.fixture
def held(planned, other):
    """Return a function with which another worker holds a shard, so far done, for so long."""

    def hold(shard, n_done, seconds):
        their_board = OpenShards(planned.root, planned.manifest, other)
        assert their_board.take(lambda each: each == shard) == shard
        attempt = planned.layout.new_attempt(shard, other.owner.owner_id)
        attempt.mkdir()
        position = Position(attempt)
        position.cells[0] = planned.manifest.bounds[shard] + n_done
        position.close()
        claim = planned.layout.claim(planned.layout.shard_name(shard))
        os.utime(claim, (time.time() - seconds,) * 2)

    return hold


def twin_of(queue):
    queue._board.refresh()
    return queue._take_backup()


def test_a_shard_that_would_be_done_sooner_anew_is_claimed_once(helper, held, lease, planned):
    # 7 items of 10 s: 70 s anew; one of them took 200 s, so 1200 s are left.
    held(0, n_done=1, seconds=200)
    helper._board.refresh()
    assert helper._remaining(0) == pytest.approx(1200, rel=0.05)
    assert twin_of(helper) == 0
    assert lease.is_held("split.0.twin")
    helper._release_backup(0)
    assert not lease.is_held("split.0.twin")


def test_the_slowest_one_comes_first(helper, held):
    held(0, n_done=1, seconds=200)
    held(1, n_done=1, seconds=2000)
    assert twin_of(helper) == 1


def test_a_shard_is_not_started_a_third_time(helper, held, other):
    held(0, n_done=1, seconds=200)
    assert other.claim("split.0.twin")
    assert twin_of(helper) is None


def test_a_shard_at_its_usual_pace_is_left_alone(helper, held):
    held(0, n_done=3, seconds=30)
    assert twin_of(helper) is None


def test_a_shard_that_hangs_before_its_first_item_is_found_later(helper, held):
    held(0, n_done=0, seconds=100)
    assert twin_of(helper) is None
    claim = helper._layout.claim("split.0")
    os.utime(claim, (time.time() - 1000,) * 2)
    assert twin_of(helper) == 0


def test_what_would_not_fit_into_our_own_time_is_not_begun(planned, make_queue, held):
    held(0, n_done=1, seconds=200)
    assert twin_of(knowing(planned, make_queue(ending_in(60.0 + 50)))) is None


def test_a_shard_at_which_workers_die_is_not_spread(helper, held, planned):
    held(0, n_done=1, seconds=200)
    write_death(planned.paths, CrashNote(0, "a", "it died", 1, 2))
    assert twin_of(helper) is None


def test_without_any_shard_done_nothing_is_known(make_queue, held):
    held(0, n_done=1, seconds=200)
    assert twin_of(make_queue()) is None

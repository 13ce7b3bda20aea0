import time

import pytest

from espnet3.parallel.detached.choice import Choice
from espnet3.parallel.detached.detached_source import DetachedSource
from espnet3.parallel.detached.stragglers import Stragglers
from espnet3.parallel.detached.walltime import Walltime
from espnet3.parallel.tasks import Failure
from espnet3.parallel.worker_records import Identity, OwnRecord
from espnet3.shards.commit import Done
from espnet3.shards.lease import Lease
from espnet3.shards.records import DeathNote, read_deaths, write_death


@pytest.fixture
def source(planned, lease, board, pace):
    """Return what one worker takes its shards from."""
    stragglers = Stragglers(planned.root, planned.manifest, board, lease, pace)
    walltime = Walltime(time.time())
    choice = Choice(planned.root, board, lease, walltime=walltime, pace=pace, stragglers=stragglers)
    return DetachedSource(
        planned.root,
        planned.manifest,
        planned.manifest.load_items(planned.root),
        board=board,
        lease=lease,
        choice=choice,
        record=OwnRecord(planned.root, lease.owner, Identity(), None),
        stragglers=stragglers,
        retries=3,
    )


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
    note = DeathNote(0, lease.owner.host, "it died", 1, 2, time=time.time() - seconds_ago)
    write_death(planned.paths, note)


def test_a_shard_that_died_here_is_left_to_another_node(planned, lease, elsewhere, source):
    one_left(planned, lease, 5)
    assert source.take() is None
    assert elsewhere.claim(planned.layout.shard_name(0)), "it was given back"


def test_without_another_node_it_is_tried_again(planned, lease, source):
    one_left(planned, lease, 5)
    assert source.take().shard == 0
    assert len(source.deaths(None)) == 1


def test_a_node_that_hangs_is_not_waited_for(planned, lease, elsewhere, source, pace):
    one_left(planned, lease, 650)
    assert source.take() is None, "nobody knows for how long others may be busy"
    source._choice._next_look = 0.0
    source._choice._avoided.clear()
    pace.learn(Done("r", 1, 4, 8, seconds=1.0))
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


def test_who_has_long_shards_is_waited_for_longer(planned, lease, elsewhere, source, pace):
    one_left(planned, lease, 650)
    pace.learn(Done("r", 1, 4, 8, seconds=600.0))
    assert source.take() is None

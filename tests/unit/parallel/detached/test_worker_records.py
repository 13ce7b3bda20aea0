import pytest

from espnet3.shards.records import Identity, OwnRecord, read_workers
from tests.helpers.planned_run import done


@pytest.fixture
def own(planned, lease):
    log = planned.root / "logs" / "detached-slurm-7.log"
    identity = Identity("slurm", "7", generation=2, submitted=1.0, log=log)
    return OwnRecord(planned.root, lease.owner, identity, 5000.0)


def test_a_worker_tells_who_it_is_and_what_it_did(planned, lease, own):
    with own.kept():
        (record,) = read_workers(planned.paths)
        assert (record.owner_id, record.env, record.job_id) == (lease.owner.owner_id, "slurm", "7")
        assert (record.log, record.limit) == ("logs/detached-slurm-7.log", 5000.0)
        assert record.ended is None
        own.published(done(planned, 0, 2.0, load_seconds=3.0))
        own.published(done(planned, 1, 2.5))
        own.lost(4.0)
        own.end("the run is complete", 0)
    (record,) = read_workers(planned.paths)
    assert (record.n_shards, record.load_seconds, record.compute_seconds) == (2, 3.0, 4.5)
    assert (record.lost_seconds, record.reason, record.exit_code) == (4.0, "the run is complete", 0)
    assert record.ended


def test_an_unexpected_end_is_told_as_well(planned, own):
    with pytest.raises(KeyError), own.kept():
        raise KeyError("a bug")
    (record,) = read_workers(planned.paths)
    assert (record.exit_code, record.reason) == (1, "KeyError: 'a bug'")


def test_it_is_not_written_all_the_time(planned, own):
    own.write()
    own.lost(1.0)
    own.write_if_due()
    assert read_workers(planned.paths)[0].lost_seconds == 0.0

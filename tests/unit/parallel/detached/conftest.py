import pytest

from espnet3.parallel.faults import FaultPolicy
from espnet3.parallel.shard_queue import ShardQueue, Walltime
from espnet3.parallel.signals import EndSignals
from espnet3.shards.lease import Lease
from espnet3.shards.open_shards import Pace
from espnet3.shards.records import Identity, OwnRecord, make_folders
from tests.helpers.planned_run import Run

NOW = 1_000_000.0


@pytest.fixture
def planned(awkward):
    """Return a run folder with a plan, ready for the records of workers."""
    run = Run(awkward, n_items=24, n_shards=6)
    run.paths = make_folders(awkward)
    return run


@pytest.fixture
def lease(planned):
    """Return the presence of one worker; its heart does not beat by itself."""
    with Lease(planned.root, heartbeat=1000) as lease:
        yield lease


@pytest.fixture
def other(planned):
    """Return the presence of another worker."""
    with Lease(planned.root, heartbeat=1000) as lease:
        yield lease


@pytest.fixture
def make_queue(planned, lease):
    """Return a function that makes the queue of a detached worker, or a driver's."""

    def make(walltime=None, *, is_driver=False, **settings):
        return ShardQueue(
            planned.root,
            planned.manifest,
            None,
            lease,
            record=OwnRecord(planned.root, lease.owner, Identity()),
            policy=FaultPolicy(retries=3),
            signals=None if is_driver else EndSignals(),
            walltime=walltime,
            **settings,
        )

    return make


@pytest.fixture
def pace(planned):
    return Pace(planned.manifest)


@pytest.fixture
def endless():
    return Walltime(NOW)

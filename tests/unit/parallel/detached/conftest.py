import pytest

from espnet3.parallel.detached.walltime import Pace, Walltime
from espnet3.shards.board import Board
from espnet3.shards.lease import Lease
from espnet3.shards.records import make_folders
from tests.unit.shards.conftest import Run

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
def board(planned, lease):
    return Board(planned.root, planned.manifest, lease)


@pytest.fixture
def pace(planned):
    return Pace(planned.manifest)


@pytest.fixture
def endless():
    return Walltime(NOW)

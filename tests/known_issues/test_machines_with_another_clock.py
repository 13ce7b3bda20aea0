"""The clock of a login node that was an hour ahead got into durations, stop marks and bad nodes."""

import json
import shutil
import time
from contextlib import ExitStack

import pytest

from espnet3.parallel.detached.overview import Observer
from espnet3.parallel.faults import MEMORY_SECONDS
from espnet3.shards.records import StopMark, read_stop, write_stop
from espnet3.shards.status import read_status
from tests.helpers.run_folders import DetachedFolder, lose_driver, run_square

HOUR = 3600.0


@pytest.fixture
def stopped(tmp_path):
    """Return a run with shards that are done, and one that is not."""
    run_square(tmp_path / "run")
    lose_driver(tmp_path / "run")
    shutil.rmtree(min((tmp_path / "run").glob("split.*")))
    with ExitStack() as stack:
        yield DetachedFolder(tmp_path / "run", stack)


@pytest.fixture
def ahead(monkeypatch):
    """Set the clock of this machine an hour ahead of that of the file system."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + HOUR)


def test_a_run_takes_as_long_as_it_took(tmp_path, ahead):
    run_square(tmp_path / "run")
    success = json.loads((tmp_path / "run" / "_SUCCESS.json").read_text())
    assert success["seconds"] < HOUR / 2
    assert abs(success["finished"] - (tmp_path / "run" / "_SUCCESS.json").stat().st_mtime) < 600


def test_a_run_at_work_takes_as_long_as_it_took(stopped, ahead):
    stopped.worker("10")
    assert 0 <= read_status(stopped.root).seconds < HOUR / 2


def test_a_plan_of_a_machine_that_is_ahead_took_no_negative_time(stopped):
    path = stopped.root / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "created": time.time() + HOUR}))
    assert read_status(stopped.root).seconds == 0


def test_a_stop_mark_has_the_time_of_the_folder(stopped, ahead):
    write_stop(stopped.paths, StopMark("cancelled", "lunch", "me"))
    assert abs(read_stop(stopped.paths).time - stopped.paths.stop.stat().st_mtime) < 600


def test_a_bad_node_is_remembered_as_long_as_workers_remember_it(stopped, monkeypatch):
    """Workers avoided the node, and `status` did not say so."""
    died = stopped.paths.root.stat().st_mtime - 60  # before the shards of other nodes were done
    for shard in range(3):
        stopped.death(shard, host="node9", time=died)
    assert "node9" in Observer(stopped.root).look().avoided
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + MEMORY_SECONDS)
    assert "node9" in Observer(stopped.root).look().avoided

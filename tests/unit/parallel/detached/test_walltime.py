import os
import time
from pathlib import Path

import pytest

from espnet3.parallel.shard_queue import Walltime, find_walltime, process_start, too_long
from tests.helpers.openpbs import OpenPBS
from tests.helpers.planned_run import cut, done


def test_without_a_limit_there_is_always_time():
    walltime = Walltime(0.0)
    assert walltime.left() == float("inf")
    assert not walltime.is_over()
    assert walltime.is_fresh()


def test_a_margin_is_kept_for_handing_over():
    walltime = Walltime(0.0, 1000.0)
    assert walltime.margin == 50.0
    assert walltime.left(now=0.0) == walltime.usable == 950.0
    assert walltime.is_fresh(now=10.0)
    assert not walltime.is_fresh(now=200.0)
    assert not walltime.is_over(now=970.0)
    assert walltime.is_over(now=980.0)


@pytest.mark.parametrize(("total", "margin"), [(60.0, 5.0), (86400.0, 60.0)])
def test_the_margin_is_neither_too_short_nor_too_long(total, margin):
    assert Walltime(0.0, total).margin == margin


@pytest.mark.parametrize(
    ("environ", "limit"),
    [
        ({"SLURM_JOB_END_TIME": "5000"}, 5000.0),
        ({"PBS_WALLTIME": "60"}, 160.0),
        ({"OAR_JOB_WALLTIME_SECONDS": "60"}, 160.0),
        ({}, 3700.0),
        ({"SLURM_JOB_END_TIME": "soon"}, 3700.0),
    ],
)
def test_the_scheduler_knows_better_than_the_options(environ, limit):
    assert find_walltime(100.0, 3600.0, environ).limit == limit


def test_nobody_ends_a_process_without_a_walltime():
    assert find_walltime(100.0, None, {}).limit is None


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Stand in for Slurm's command, which answers what it is told."""

    def answer(text, code=0):
        script = tmp_path / "squeue"
        script.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return answer


def test_slurm_is_asked_when_its_job_ends(squeue):
    squeue("2026-11-16T15:00:00")
    limit = find_walltime(100.0, 60.0, {"SLURM_JOB_ID": "7"}).limit
    assert limit == time.mktime((2026, 11, 16, 15, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("attributes", "limit"),
    [
        ({"Resource_List.walltime": "00:10:00"}, 700.0),
        ({}, 160.0),
        ({"Resource_List.walltime": "soon"}, 160.0),
    ],
)
def test_openpbs_is_asked_what_its_queue_gave(tmp_path, monkeypatch, attributes, limit):
    pbs = OpenPBS(tmp_path / "bin")
    pbs.job(7, "R", **attributes)
    monkeypatch.setenv("PATH", f"{pbs.folder}{os.pathsep}{os.environ['PATH']}")
    assert find_walltime(100.0, 60.0, {"PBS_JOBID": "7.head"}).limit == limit


@pytest.mark.parametrize(("text", "code"), [("N/A", 0), ("slurm_load_jobs error", 1), ("", 0)])
def test_what_slurm_does_not_tell_is_taken_from_the_options(squeue, text, code):
    squeue(text, code)
    assert find_walltime(100.0, 60.0, {"SLURM_JOB_ID": "7"}).limit == 160.0


def test_the_process_began_before_now():
    assert time.time() - 24 * 3600 < process_start() <= time.time() + 1


def test_nothing_is_expected_before_a_shard_is_done(pace):
    assert pace.expected(0) is None
    assert pace.needed(0, is_loaded=True) == 0.0


def test_the_expected_time_follows_cost_and_loading(planned, pace):
    costs = planned.manifest.costs
    pace.learn(done(planned, 1, seconds=2.0 * costs[1], load_seconds=7.0))
    assert pace.expected(0) == pytest.approx(2.0 * costs[0])
    assert pace.needed(0, is_loaded=False) == pytest.approx(2.4 * costs[0] + 7.0)


def test_the_time_kept_free_is_that_of_the_slowest_so_far(planned, pace):
    costs = planned.manifest.costs
    for seconds in (1.0, 1.0, 4.0):
        pace.learn(done(planned, 1, seconds=seconds * costs[1]))
    assert pace.expected(0) == pytest.approx(2.0 * costs[0])
    assert pace.needed(0, is_loaded=True) == pytest.approx(4.0 * costs[0])


def test_a_shard_that_was_cut_off_takes_at_least_that_long(planned, pace):
    pace.learn(done(planned, 1, seconds=0.1))
    pace.learn_cuts([cut(0, 50.0), cut(0, 40.0)], usable=95.0)
    assert pace.expected(0) == 50.0
    assert not pace.is_hopeless(0)  # neither had a whole walltime


def test_a_shard_that_was_cut_off_twice_after_a_whole_walltime_is_hopeless(pace):
    notes = [cut(0, 90.0), cut(0, 94.0), cut(1, 94.0)]
    pace.learn_cuts(notes, usable=95.0)
    assert pace.is_hopeless(0)
    assert not pace.is_hopeless(1)
    words = too_long(Path("/a run"), pace, 0, Walltime(0.0, 100.0))
    assert "within the walltime of 100 s" in words
    assert "espnet3 resume '/a run' options.walltime='00:03:20'" in words
    pace.learn_cuts(notes, usable=1000.0)  # resumed with a longer one
    assert not pace.is_hopeless(0)

import threading
import time
from contextlib import contextmanager

import pytest

from espnet3.cli.main import main
from espnet3.parallel.detached.overview import look
from espnet3.shards.records import RecordPaths, read_stop

SCANCEL = """#!/bin/sh
echo "$@" >> {told}
for job; do sed -i "/^$job /d" {table}; done
"""


@pytest.fixture
def slurm(squeue, tmp_path):
    """A queue whose jobs can be cancelled; returns the file that tells which were."""
    folder = tmp_path / "bin"
    told, table = folder / "told", folder / "table"
    command = folder / "scancel"
    command.write_text(SCANCEL.format(told=f"'{told}'", table=f"'{table}'"))
    command.chmod(0o755)
    return told


@contextmanager
def leaving(detached, lease, job=None):
    """Let a worker leave as soon as it sees the mark; as that of a job, with a record of it."""

    def leave() -> None:
        while read_stop(detached.paths) is None:
            time.sleep(0.05)
        if job is not None:
            time.sleep(0.5)
            detached.record(lease.owner.owner_id, job, ended=time.time(), exit_code=0)
        (lease.folder / f"{lease.owner.owner_id}.owner").unlink()

    thread = threading.Thread(target=leave)
    thread.start()
    yield
    thread.join()


def test_jobs_in_the_queue_are_cancelled_and_the_run_is_marked(detached, squeue, slurm, capsys):
    squeue(("12", "PENDING", "", 0, "(Priority)"), ("13", "PENDING", "", 0, "(Dependency)"))
    detached.job("12")
    detached.job("13", after="12")
    assert main(["cancel", str(detached.root), "--reason", "wrong beam"]) == 0
    assert sorted(slurm.read_text().split()) == ["12", "13"]
    told = capsys.readouterr().out
    assert "0 workers stopped, 2 jobs cancelled" in told
    assert f"espnet3 resume {detached.root}" in told
    mark = read_stop(detached.paths)
    assert mark is not None
    assert (mark.kind, mark.reason) == ("cancelled", "wrong beam")
    assert "@" in mark.by
    assert look(detached.root).state == "cancelled"


def test_who_does_not_go_is_named_with_exit_code_1(detached, slurm, capsys):
    detached.worker("10", "node3")
    assert main(["cancel", str(detached.root), "--patience", "0"]) == 1
    assert "Still there: worker 10 on node3" in capsys.readouterr().out


def test_a_worker_that_ends_is_waited_for(detached, slurm, capsys):
    lease = detached.worker("10")
    with leaving(detached, lease):
        assert main(["cancel", str(detached.root)]) == 0
    assert "1 worker stopped" in capsys.readouterr().out


def test_without_scancel_it_says_what_could_not_be_done(
    detached, squeue, capsys, monkeypatch, tmp_path
):
    squeue(("12", "PENDING", "", 0, "(Priority)"))
    detached.job("12")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert main(["cancel", str(detached.root), "--patience", "0"]) == 1
    told = capsys.readouterr().out
    assert "Not cancelled:" in told
    assert "12" in told
    assert "end by themselves as soon as they start" in told


def test_a_job_that_serves_another_run_goes_on(detached, squeue, slurm, complete, capsys):
    squeue(("12", "RUNNING", "", 0, "node1"))
    other = detached.root.with_name("other")
    complete.rename(other)
    (other / "_SUCCESS.json").unlink()
    detached.job("12", others=["../other"])
    assert main(["cancel", str(detached.root)]) == 0
    assert not slurm.exists()
    assert "Job 12 continues: it works for other runs as well." in capsys.readouterr().out


def test_why_a_run_failed_is_not_forgotten(detached, slurm):
    detached.stop("failed", "Item 3 is broken")
    assert main(["cancel", str(detached.root)]) == 0
    mark = read_stop(detached.paths)
    assert mark is not None
    assert mark.reason == "Item 3 is broken"


def test_a_complete_run_is_left_alone(complete, capsys):
    assert main(["cancel", str(complete)]) == 0
    assert "there is nothing to cancel" in capsys.readouterr().out
    assert not (complete / "detached" / "stop.json").exists()


def test_a_run_without_a_driver_has_nothing_to_cancel(stopped, capsys):
    assert main(["cancel", str(stopped)]) == 1
    assert "nothing to cancel" in capsys.readouterr().err
    assert read_stop(RecordPaths(stopped)) is None


def test_a_worker_that_goes_on_elsewhere_is_named_though_it_has_left(
    detached, squeue, slurm, complete, capsys
):
    squeue(("12", "RUNNING", "", 0, "node1"))
    other = detached.root.with_name("other")
    complete.rename(other)
    (other / "_SUCCESS.json").unlink()
    detached.job("12", others=["../other"])
    lease = detached.worker("12")
    with leaving(detached, lease, "12"):
        assert main(["cancel", str(detached.root)]) == 0
    assert "Job 12 continues: it works for other runs as well." in capsys.readouterr().out


def test_who_could_not_be_told_but_is_gone_is_no_problem(detached, squeue, slurm, capsys):
    squeue(("12", "RUNNING", "", 0, "node1"))
    (slurm.parent / "scancel").write_text("#!/bin/sh\necho Access denied >&2\nexit 1\n")
    detached.job("12")
    lease = detached.worker("12")
    with leaving(detached, lease, "12"):
        assert main(["cancel", str(detached.root)]) == 0
    assert "Not cancelled" not in capsys.readouterr().out


def test_a_folder_that_one_may_not_write_into_is_said_to_be_so(detached, capsys, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(detached.paths.stop))

    monkeypatch.setattr("espnet3.parallel.detached.control.write_stop", refuse)
    assert main(["cancel", str(detached.root)]) == 1
    error = capsys.readouterr().err
    assert f"The run folder {detached.root} cannot be used: Permission denied" in error


def test_runs_of_drivers_in_the_same_folder_are_left_alone(detached, complete, slurm, capsys):
    assert complete.parent == detached.root.parent
    (complete / "_SUCCESS.json").unlink()
    assert main(["cancel", str(detached.root.parent)]) == 0
    told = capsys.readouterr().out
    assert f"{complete} was not detached, and is left alone." in told
    assert f"{detached.root} is cancelled" in told
    assert read_stop(detached.paths) is not None

"""Rows of the fault table: `cancel`, `logs`, `explain` and `status` for runs that a driver drives.

The drivers are real processes, alone, beside detached workers, or with jobs of a scheduler.
"""

import os
import subprocess
import sys

import pytest

from espnet3.cli.main import main
from espnet3.shards.records import (
    RecordPaths,
    StopMark,
    read_deaths,
    read_stop,
    read_workers,
    write_stop,
)
from tests.helpers.detached_parts import DetachedFolder
from tests.helpers.slurm_stand_in import write_command
from tests.helpers.waiting import wait_until, worker_pids

SECONDS = 15.0


def cancel(folder):
    command = [sys.executable, "-m", "espnet3.cli", "cancel", str(folder), "--reason", "lunch"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def assert_cancelled(run, process):
    """Cancel a run; its driver ends soon, says who did it, and leaves nothing behind."""
    told = cancel(run.out)
    _, error = process.communicate(timeout=60)
    paths = RecordPaths(run.out)
    (driver,) = [each for each in read_workers(paths) if each.driver == each.owner_id]
    # Not by the clock of this test, which waits for the command as well.
    assert driver.ended - read_stop(paths).time < SECONDS
    assert told.returncode == 0, told.stdout
    assert process.returncode == 1, error
    assert "was cancelled by" in error
    assert "(lunch)" in error
    assert "espnet3 resume" in error
    assert not list(run.out.glob("*.part-*"))
    assert not list((run.out / "leases").iterdir())


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_driver_that_works_alone_is_cancelled_and_continues_after_resume(
    job, reference, n_workers, capsys
):
    run = job(n_workers=n_workers, seconds=0.5)
    process = run.start()
    wait_until(lambda: run.n_committed >= 1, 60)
    assert_cancelled(run, process)
    done = run.done_files()
    assert done

    refused = run.run()
    assert refused.returncode == 1
    assert "was cancelled by" in refused.stderr
    assert run.done_files() == done

    assert main(["resume", str(run.out)]) == 0
    assert "is not cancelled any more" in capsys.readouterr().out
    run.succeed(seconds=0.002)
    assert run.text == reference
    assert done.items() <= run.done_files().items()
    assert read_stop(RecordPaths(run.out)) is None
    run.assert_tidy()


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_forward_that_does_not_return_does_not_hold_cancel_up(job, n_workers):
    run = job(n_workers=n_workers, seconds=100)
    process = run.start()
    wait_until(lambda: list(run.out.glob("split.*.part-*/.position")), 60)
    assert_cancelled(run, process)


def test_a_forward_in_the_driver_that_holds_the_interpreter_lock_is_waited_for(job):
    run = job(n_workers=1, lock_seconds=8)
    process = run.start()
    wait_until(lambda: list(run.out.glob("split.*.part-*/.position")), 60)
    # Not by the command: the lease of a process that is ended by force stays for a while.
    write_stop(RecordPaths(run.out), StopMark("cancelled", "lunch", "me"))
    _, error = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "was cancelled by me" in error


def test_a_driver_beside_detached_workers_is_cancelled_with_them(tmp_path):
    folder = DetachedFolder(tmp_path / "run", n_items=60, n_shards=30, seconds=0.3)
    code = (
        "import sys; from pathlib import Path\n"
        "from espnet3.parallel import set_parallel\n"
        "from tests.helpers.detached_parts import Provider, Runner\n"
        "set_parallel({'env': 'local', 'n_workers': 2})\n"
        "Runner(Provider(seconds=0.3), output_dir=Path(sys.argv[1]))(range(60))\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(folder.out)], stderr=subprocess.PIPE, text=True
    )
    try:
        worker = folder.start()
        wait_until(lambda: len(read_workers(RecordPaths(folder.out))) >= 4, 60)
        wait_until(lambda: folder.n_committed() >= 2, 60)
        told = cancel(folder.out)
        assert told.returncode == 0, told.stdout
        _, error = driver.communicate(timeout=60)
        assert driver.returncode == 1, error
        assert "was cancelled by" in error
        assert worker.wait(60) == 0
        assert not (folder.out / "_SUCCESS.json").exists()
        assert read_stop(RecordPaths(folder.out)).kind == "cancelled"
    finally:
        driver.kill()
        driver.communicate()
        folder.close()


def test_a_driver_isolates_the_item_at_which_detached_workers_died(tmp_path):
    settings = {"n_items": 6, "n_shards": 2, "on_error": "skip"}
    folder = DetachedFolder(tmp_path / "run", **settings, faults={"4": "kill agent"})
    try:
        for _ in range(2):  # retries is 1
            assert folder.run() != 0
        code = (
            "import sys; from pathlib import Path\n"
            "from espnet3.parallel import set_parallel\n"
            "from tests.helpers.detached_parts import Provider, Runner\n"
            "set_parallel({'env': 'local', 'n_workers': 2, 'retries': 1})\n"
            "provider = Provider(faults={'4': 'exit'})\n"
            "Runner(provider, output_dir=Path(sys.argv[1]), on_error='skip')(range(6))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder.out)], capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        notes = read_deaths(RecordPaths(folder.out))
        assert [(note.start, note.kind) for note in notes] == [(4, "died")] * 2
        assert "died: " not in done.stderr  # it was not tried a third time
        folder.assert_complete(without=[4])
        assert [failure["index"] for failure in folder.failures()] == [4]
    finally:
        folder.close()


def test_the_next_driver_remembers_what_killed_the_workers_of_one_that_was_killed(job, reference):
    run = job(bad=[30], how="exit", on_error="skip", parallel={"retries": 1}, seconds=0.01)
    process = run.start()
    wait_until(lambda: len(read_deaths(RecordPaths(run.out))) == 1, 60)
    process.kill()
    process.communicate()
    run.succeed()
    lines = reference.decode().splitlines()
    assert run.text.decode().splitlines() == lines[:30] + lines[31:]
    notes = read_deaths(RecordPaths(run.out))
    assert [(note.start, note.stop) for note in notes] == [(30, 31)] * 2


def test_after_an_error_the_same_command_tries_what_died_again(job, reference):
    run = job(bad=[30], how="exit", parallel={"retries": 1})
    assert "the worker died on this item" in run.run().stderr
    run.succeed(bad=[])
    assert run.text == reference


def test_logs_explain_and_status_follow_a_driver_with_local_workers(job, tmp_path, capsys):
    hurry = tmp_path / "hurry"
    run = job(seconds=2, prints=True, hurry=str(hurry))
    process = run.start()
    wait_until(lambda: run.n_committed >= 1, 60)
    follow = start_command("logs", run.out, "-f")
    watch = start_command("status", run.out, "--watch", "--interval", "0.5")
    assert main(["explain", str(run.out)]) == 0
    assert "1 works on it, with 2 workers started by a driver" in capsys.readouterr().out
    assert main(["logs", str(run.out)]) == 0
    assert "decoding" in capsys.readouterr().out
    assert main(["status", str(run.out)]) == 0
    assert "with 2 workers" in capsys.readouterr().out
    # A busy machine takes its time to start them.
    followed, watched = read_until(follow, "decoding"), read_until(watch, "workers of a driver")
    hurry.touch()
    process.communicate(timeout=60)
    followed += follow.communicate(timeout=60)[0]
    watched += watch.communicate(timeout=60)[0]
    assert "decoding 59" in followed
    assert "is complete" in followed
    assert "2 workers of a driver" in watched
    assert (follow.returncode, watch.returncode) == (0, 0)


def read_until(process, text):
    """Return what a command writes, up to a line with a text."""
    lines = []
    while not lines or text not in lines[-1]:
        line = process.stdout.readline()
        assert line, "".join(lines)
        lines.append(line)
    return "".join(lines)


def start_command(*words):
    command = [sys.executable, "-m", "espnet3.cli", *map(str, words)]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
    )


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Let jobs of Slurm be processes of this machine; return the folder of its commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    run = 'setsid bash "$0.$$" >"$0.$$.log" 2>&1 & echo "Submitted batch job $!"'
    write_command(folder / "sbatch", f'cp "$1" "$0.$$"; {run}')
    write_command(
        folder / "scancel", 'echo "$@" >> "$0.log"; for job; do kill -- "-$job"; done; true'
    )
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


def test_cancelling_a_run_on_dask_cancels_its_jobs(job, slurm, capsys):
    options = {"cores": 1, "memory": "1GB", "interface": "lo"}
    run = job(seconds=0.5, parallel={"env": "slurm", "options": options}, prints=True)
    process = run.start()
    wait_until(lambda: run.n_committed >= 1, 60)
    wait_until(lambda: len(read_workers(RecordPaths(run.out))) == 3, 60)
    workers = [record for record in read_workers(RecordPaths(run.out)) if record.is_pool_worker]
    jobs = {record.job_id for record in workers}
    assert len(jobs) == 2
    assert main(["explain", str(run.out)]) == 0
    assert "with 2 workers started by a driver" in capsys.readouterr().out
    assert main(["logs", str(run.out)]) == 0
    assert main(["status", str(run.out)]) == 0
    assert "with 2 workers" in capsys.readouterr().out
    assert_cancelled(run, process)
    assert set((slurm / "scancel.log").read_text().split()) == jobs
    assert not worker_pids(process.pid)

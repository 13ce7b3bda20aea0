import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from espnet3.cli.main import main
from espnet3.cli.status import _End, line, render
from espnet3.parallel.detached.overview import Observer, look
from espnet3.shards.lease import Lease, claim_path
from tests.helpers.waiting import wait_until


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture
def busy(detached, squeue):
    """Two workers, one of them without a shard, a job that waits and its successor."""
    squeue(("12", "PENDING", "Priority", 0, "(Priority)"), ("13", "PENDING", "", 0, "(Dependency)"))
    for job in ("10", "11", "12"):
        detached.job(job)
    detached.job("13", after="10")
    first = detached.worker("10", n_shards=3)
    detached.worker("11", "node2")
    detached.take(first, 2, 1)
    return detached


def render_text(*overviews) -> str:
    from rich.console import Console

    console = Console(width=100, height=40)
    with console.capture() as captured:
        console.print(render(overviews, console))
    return captured.get()


def test_the_view_has_a_bar_per_worker_and_tells_what_jobs_wait_for(busy):
    text = render_text(look(busy.root))
    (row,) = [line for line in text.splitlines() if line.startswith("node1 (job 10)")]
    assert "━" in row
    assert "1 of 2" in row
    assert row.split()[-1] == "3"
    (idle,) = [line for line in text.splitlines() if line.startswith("node2 (job 11)")]
    assert "no shard" in idle
    assert "1 job in the queue: Priority. Others are first" in text
    assert "2 at work, 1 of them without a shard" in text
    assert "Ctrl-C ends this view, not the run" in text


def test_workers_that_load_a_model_are_said_to_and_are_not_idle(detached):
    first, second = detached.worker("10"), detached.worker("11", "node2")
    to_do = [s for s in range(detached.manifest.n_shards) if not detached.layout.shard(s).exists()]
    for lease, shard, seconds in ((first, to_do[0], 35), (second, to_do[1], 20)):
        name = detached.layout.shard_name(shard)
        assert lease.claim(name)
        path = claim_path(lease.folder, name)
        os.utime(path, (time.time() - seconds,) * 2)
    text = render_text(look(detached.root))
    assert "2 at work, 2 workers are building the environment (model, data), 35 s" in text
    assert "without a shard" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("node1 (job 10)")]
    assert row.split()[-4:] == ["building", "35", "s", "0"]
    assert "2 workers are building the environment" in line(look(detached.root), with_name=True)


def test_all_shards_of_a_driver_have_a_row(detached):
    driver = detached.worker("")
    to_do = [s for s in range(detached.manifest.n_shards) if not detached.layout.shard(s).exists()]
    for shard in to_do[:2]:
        detached.take(driver, shard, 1)
    rows = [line.split() for line in render_text(look(detached.root)).splitlines() if "━" in line]
    shown = {word for row in rows for word in row if word in map(str, to_do)}
    assert shown >= {str(shard) for shard in to_do[:2]}


def test_a_successor_of_a_job_that_is_there_is_not_counted_as_waiting(busy):
    workforce = look(busy.root).workforce
    assert [job.record.job_id for job in workforce.waiting] == ["12"]
    assert workforce.n_present == 3


def test_a_second_attempt_at_a_shard_counts_its_items_once(busy):
    other = busy.worker("14", "node4")
    assert other.claim(busy.layout.shard_name(2) + ".twin")
    seen = look(busy.root)
    assert [shard.is_twin for shard in seen.status.running] == [False, True]
    assert seen.status.n_done_so_far == seen.status.n_done + 1
    assert "1 running (1 of them twice: the first to finish wins)" in render_text(seen)


def test_status_of_a_run_whose_jobs_wait_is_queued(detached, squeue, capsys):
    detached.job("12")
    squeue(("12", "PENDING", "Resources", 0, "(Resources)"))
    assert main(["status", str(detached.root)]) == 0
    shown = capsys.readouterr().out
    assert "queued: jobs wait, no worker has started" in shown
    assert "Nothing is free" in shown
    assert f"espnet3 explain {detached.root}" in shown


def test_jobs_that_cannot_be_seen_from_here_are_not_taken_for_gone(detached, capsys, monkeypatch):
    detached.job("12")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert look(detached.root).state == "unknown"
    assert main(["status", str(detached.root)]) == 0
    shown = capsys.readouterr().out
    assert "this machine cannot see whether jobs wait" in shown
    assert "resume" not in shown


def test_a_run_whose_workers_are_at_another_one_first_says_so(detached, complete, squeue, capsys):
    squeue(("12", "RUNNING", "", 0, "node1"))
    detached.job("12", others=["../complete"])
    with Lease(complete):
        assert main(["status", str(detached.root)]) == 0
        assert "queued: its workers are at complete first" in capsys.readouterr().out
    assert look(detached.root).state == "starting"


def test_a_stop_mark_is_the_state_once_nobody_works(detached, capsys):
    detached.stop("cancelled", "cancelled by me@login1")
    assert look(detached.root).state == "cancelled"
    assert main(["status", str(detached.root)]) == 0
    shown = capsys.readouterr().out
    assert "cancelled by me@login1" in shown
    assert f"To continue: espnet3 resume {detached.root}" in shown
    detached.worker("10")
    assert look(detached.root).state == "stopping"


def test_of_a_long_error_status_shows_the_first_sentence(detached, capsys):
    detached.stop(
        "failed", "Item 3 of shard 1 failed: broken. Finished shards are kept.\nTraceback"
    )
    assert main(["status", str(detached.root)]) == 0
    shown = capsys.readouterr().out
    (state,) = [line for line in shown.splitlines() if line.startswith("State")]
    assert state.split(maxsplit=1)[1].strip() == "failed: Item 3 of shard 1 failed: broken"
    assert "are kept" not in shown


def test_avoided_nodes_are_named(detached):
    for shard in (2, 4, 15):
        detached.death(shard, host="node9", time=time.time() + 1)
    change = detached.layout.shard(5) / "done"
    done = json.loads(change.read_text())
    change.write_text(json.dumps({**done, "host": "node1", "finished": time.time() + 60}))
    seen = look(detached.root)
    assert list(seen.avoided) == ["node9"]
    assert "avoids node9" in line(seen, False)


def test_a_pipe_gets_a_line_at_a_time_until_the_run_ends(complete, capsys):
    assert main(["status", "--watch", "--interval", "0.1", str(complete)]) == 0
    (shown, *rest) = capsys.readouterr().out.splitlines()
    assert "complete; 20 of 20 done (100.0 %), 2 failed" in shown
    assert rest == [f"2 items failed: espnet3 failed {complete}"]


def test_watching_a_run_that_nobody_works_on_ends_with_1(stopped, capsys):
    assert main(["status", "--watch", "--interval", "0.1", str(stopped)]) == 1
    assert "stopped; 17 of 20 done" in capsys.readouterr().out


def test_a_terminal_gets_a_live_view_that_ctrl_c_ends(busy):
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "espnet3.cli", "status", "--watch", str(busy.root)]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    shown = bytearray()

    def read() -> None:  # all the time: a terminal that nobody reads holds up who writes to it
        with suppress(OSError):
            while data := os.read(master, 65536):
                shown.extend(data)

    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a script does with what has an `&`
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
    )
    signal.signal(signal.SIGINT, ignored)
    os.close(slave)
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        wait_until(lambda: b"Ctrl-C ends this view" in shown, seconds=60)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        reader.join(60)
        os.close(master)
    assert b"node1 (job 10)" in shown


def test_the_scheduler_is_not_asked_at_each_look(busy):
    asked = []

    def ask(records):
        asked.append([record.job_id for record in records])
        return {}

    observer = Observer(busy.root, ask_seconds=1000, ask=lambda r: {**ask(r), **states(r)})
    for _ in range(3):
        observer.look()
    assert asked == [["12", "13"]]


def states(records):
    from espnet3.schedulers import JobState

    return {record.key: JobState("pending", "PENDING") for record in records}


def test_a_run_that_merely_stopped_is_looked_at_again_before_the_view_ends(stopped, complete):
    end = _End()
    seen = [look(stopped), look(complete)]
    assert [end.has_come(seen) for _ in range(3)] == [False, False, True]
    assert _End().has_come([look(complete)])

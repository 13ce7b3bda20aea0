import json
import os
import time
from dataclasses import asdict

import pytest

from espnet3.errors import FileSystemError
from espnet3.parallel.faults import deaths_at, forget_deaths, record_deaths
from espnet3.shards.commit import Position
from espnet3.shards.records import (
    CrashNote,
    WorkerRecord,
    read_deaths,
    write_death,
    write_worker,
)
from tests.helpers.unreachable_files import unreachable

DEAD = "0123456789abcdef"


@pytest.fixture
def left_over(planned, lease):
    """Return a function that leaves an attempt behind, as a killed worker does."""
    owner = asdict(lease.owner)
    died = json.dumps({**owner, "owner_id": DEAD, "started": owner["started"] - 1})
    (lease.folder / f"{DEAD}.owner").write_text(died)

    def leave(shard, owner_id, position=None):
        attempt = planned.layout.new_attempt(shard, owner_id)
        attempt.mkdir()
        cells = Position(attempt)
        if position:
            cells.cells[0], cells.cells[1] = position[0], position[1] - position[0]
        cells.close()
        return attempt

    return leave


def test_what_a_dead_worker_was_doing_is_noted_once_and_its_attempt_is_removed(
    planned, lease, left_over
):
    attempt = left_over(2, DEAD, (13, 15))
    write_worker(planned.paths, WorkerRecord(DEAD, "node7", 42, 1.0, job_id="77", log="logs/x"))
    (note,) = record_deaths(planned.root, [attempt], lease)
    assert not attempt.exists()
    assert read_deaths(planned.paths, 2) == [note]
    assert (note.start, note.stop, note.kind, note.host) == (13, 15, "died", "node7")
    assert note.reason == "node7:42 (job 77) vanished without a word"
    assert note.owner_id == DEAD
    # Another worker found the attempt at the same time.
    attempt.mkdir()
    record_deaths(planned.root, [attempt], lease)
    assert len(read_deaths(planned.paths)) == 1


def test_the_attempts_of_living_workers_stay(planned, lease, other, left_over):
    folders = [left_over(0, lease.owner.owner_id), left_over(1, other.owner.owner_id)]
    assert record_deaths(planned.root, folders, lease) == []
    assert all(folder.exists() for folder in folders)


def test_an_owner_whose_file_is_not_seen_may_be_alive(planned, lease, left_over):
    unseen = "fedcba9876543210"
    young = left_over(1, unseen)
    old = young.with_name(f"{young.name[:-4]}abcd")
    old.mkdir()
    os.utime(old, (0, 0))
    assert [note.shard for note in record_deaths(planned.root, [young, old], lease)] == [1]
    assert young.exists()
    assert not old.exists()


def test_old_attempts_of_drivers_are_removed_without_blame(planned, lease):
    attempt = planned.layout.new_attempt(0)
    attempt.mkdir()
    assert record_deaths(planned.root, [attempt], lease) == []
    assert attempt.exists()  # its driver may be alive
    os.utime(attempt, (0, 0))
    assert record_deaths(planned.root, [attempt], lease) == []
    assert not attempt.exists()


def test_a_worker_that_was_ended_at_its_walltime_is_no_sign_of_a_bad_item(
    planned, lease, left_over
):
    record = WorkerRecord(DEAD, "node7", 42, 1.0, limit=time.time() + 1, seen=time.time())
    write_worker(planned.paths, record)
    (note,) = record_deaths(planned.root, [left_over(2, DEAD, (13, 14))], lease)
    assert note.kind == "walltime"
    assert deaths_at([note], planned.root) == []


def test_a_worker_that_died_before_its_first_item_blames_its_machine(planned, lease, left_over):
    (note,) = record_deaths(planned.root, [left_over(2, DEAD)], lease)
    assert (note.kind, note.start) == ("machine", None)


def test_the_time_of_an_attempt_counts_to_its_last_sign(planned, lease, left_over):
    attempt = left_over(2, DEAD, (13, 14))
    later = time.time() + 30
    os.utime(attempt / ".position", (later, later))
    (note,) = record_deaths(planned.root, [attempt], lease)
    assert 29 <= note.seconds <= 32


def test_notes_become_deaths_in_the_words_of_the_dispatcher(planned):
    note = CrashNote(2, "node7", "it died", 13, 15, log="logs/x")
    (death,) = deaths_at([note, CrashNote(2, "b", "no room", kind="machine")], planned.root)
    assert (death.position, death.host, death.reason) == ((13, 15), "node7", "it died")
    assert death.log == str(planned.root / "logs/x")


def test_deaths_can_be_forgotten_but_not_what_is_known_of_the_walltime(planned):
    for shard, kind in [(1, "died"), (2, "machine"), (3, "died"), (3, "walltime")]:
        write_death(planned.paths, CrashNote(shard, "a", "it died", kind=kind))
    forget_deaths(planned.root, [1])
    assert sorted(note.shard for note in read_deaths(planned.paths)) == [2, 3, 3]
    forget_deaths(planned.root)
    assert [note.kind for note in read_deaths(planned.paths)] == ["walltime"]


def test_an_attempt_whose_position_cannot_be_read_from_here_is_left_alone(
    planned, lease, left_over
):
    attempt = left_over(2, DEAD, (5, 6))
    with unreachable(r"\.position$", "EIO"), pytest.raises(FileSystemError):
        record_deaths(planned.root, [attempt], lease)
    assert attempt.is_dir()
    (note,) = record_deaths(planned.root, [attempt], lease)
    assert (note.start, note.kind) == (5, "died")


def test_the_clock_of_the_file_system_dates_a_death(planned, lease, left_over, monkeypatch):
    attempt = left_over(2, DEAD, (5, 6))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 7200)  # this machine's is two hours ahead
    (note,) = record_deaths(planned.root, [attempt], lease)
    assert abs(note.time - now) < 600

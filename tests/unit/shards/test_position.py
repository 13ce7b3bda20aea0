import os
import signal

import pytest

from espnet3.shards.commit import Position, read_position
from espnet3.shards.layout import POSITION


def test_position_is_seen_by_others_as_soon_as_it_is_stored(folder):
    position = Position(folder)
    assert read_position(folder) is None
    position.cells[1] = 4
    position.cells[0] = 12
    assert read_position(folder) == (12, 16)
    position.cells[0] = 16
    assert read_position(folder) == (16, 20)
    position.close()
    assert read_position(folder) == (16, 20)


def test_position_at_the_first_item_is_a_position(folder):
    position = Position(folder)
    position.cells[0] = 0
    assert read_position(folder) == (0, 1)
    position.close()


def test_position_outlives_a_killed_process(folder, spawn):
    code = """
        import os, signal, sys
        from pathlib import Path
        from espnet3.shards.commit import Position
        position = Position(Path(sys.argv[1]))
        position.cells[0] = 41
        os.kill(os.getpid(), signal.SIGKILL)
    """
    process = spawn(code, folder)
    assert process.wait(30) == -signal.SIGKILL
    assert read_position(folder) == (41, 42)


@pytest.mark.parametrize("content", [b"", b"\0" * 15, b"\0" * 17])
def test_damaged_position_is_none(folder, content):
    (folder / POSITION).write_bytes(content)
    assert read_position(folder) is None


def test_position_of_an_attempt_that_is_gone_is_none(folder):
    assert read_position(folder / "absent") is None


def test_position_begins_anew_in_a_file_that_is_there(folder):
    (folder / POSITION).touch()
    position = Position(folder)
    assert read_position(folder) is None
    assert (folder / POSITION).stat().st_size == 16
    assert (folder / POSITION).stat().st_blocks > 0  # no hole: a store must not fail
    position.close()


def test_storing_goes_on_after_the_file_is_removed(folder):
    position = Position(folder)
    os.unlink(folder / POSITION)
    position.cells[0] = 3
    assert position.cells[0] == 3
    position.close()


def test_closed_position_keeps_no_descriptor_open(folder):
    before = len(os.listdir("/proc/self/fd"))
    Position(folder).close()
    assert len(os.listdir("/proc/self/fd")) == before

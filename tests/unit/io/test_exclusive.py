import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from espnet3.io import atomic
from espnet3.io.atomic import create_bytes, is_temp_name

ROOT = Path(__file__).parents[3]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def start_python(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def refuse_links(monkeypatch, code: int) -> None:
    def link(source: object, target: object) -> None:
        raise OSError(code, os.strerror(code), str(source))

    monkeypatch.setattr(atomic.os, "link", link)


def test_first_one_creates_the_file_and_the_second_leaves_it_alone(folder):
    assert create_bytes(folder / "f", b"first\x00\r\n") is True
    assert create_bytes(folder / "f", b"second") is False
    assert (folder / "f").read_bytes() == b"first\x00\r\n"
    assert names(folder) == ["f"]


def test_empty_content_and_relative_path_are_fine(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert create_bytes("f", b"") is True
    assert create_bytes("f", b"x") is False
    assert names(folder) == ["f"]
    assert (folder / "f").read_bytes() == b""


def test_dangling_link_counts_as_there(folder):
    (folder / "f").symlink_to(folder / "nowhere")
    assert create_bytes(folder / "f", b"x") is False
    assert not (folder / "nowhere").exists()


def test_folder_of_that_name_counts_as_there(folder):
    (folder / "f").mkdir()
    assert create_bytes(folder / "f", b"x") is False
    assert names(folder) == ["f"]


def test_missing_folder_raises(folder):
    with pytest.raises(FileNotFoundError):
        create_bytes(folder / "no" / "f", b"x")


def test_one_of_many_processes_is_the_first(folder):
    code = """
        import sys
        from espnet3.io.atomic import create_bytes
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(200):
            if create_bytes(f"{sys.argv[1]}/{number}", sys.argv[2].encode() * 1000, sync=False):
                print(number)
    """
    processes = [start_python(code, folder, me) for me in "abcde"]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    wins = {}
    for me, process in zip("abcde", processes, strict=True):
        wins[me] = process.communicate(timeout=60)[0].split()
    counts = Counter(number for numbers in wins.values() for number in numbers)
    assert counts == {str(number): 1 for number in range(200)}
    for me, numbers in wins.items():
        for number in numbers:
            assert (folder / number).read_text() == me * 1000
    assert len(names(folder)) == 200


@pytest.mark.parametrize("code", sorted(atomic._NO_LINKS))
def test_file_system_without_hard_links_works_as_well(folder, monkeypatch, code):
    refuse_links(monkeypatch, code)
    assert create_bytes(folder / "f", b"first") is True
    assert create_bytes(folder / "f", b"second") is False
    assert (folder / "f").read_bytes() == b"first"
    assert names(folder) == ["f"]


def test_full_disk_without_hard_links_leaves_no_half_file(folder, monkeypatch):
    refuse_links(monkeypatch, errno.EPERM)
    synced = []

    def full_at_the_second(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full_at_the_second)
    with pytest.raises(OSError, match="No space left"):
        create_bytes(folder / "f", b"x")
    assert names(folder) == []


def test_full_disk_leaves_nothing(folder, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        create_bytes(folder / "f", b"x")
    assert names(folder) == []


def test_other_errors_are_raised_and_the_temp_file_is_removed(folder, monkeypatch):
    refuse_links(monkeypatch, errno.EACCES)
    with pytest.raises(PermissionError):
        create_bytes(folder / "f", b"x")
    assert names(folder) == []


def test_link_that_was_made_but_reported_as_there_already_counts_as_ours(folder, monkeypatch):
    # NFS: the answer to the first request was lost, the second found the link of the first.
    link = os.link

    def link_twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(atomic.os, "link", link_twice)
    assert create_bytes(folder / "f", b"ours") is True
    assert (folder / "f").read_bytes() == b"ours"
    assert create_bytes(folder / "f", b"late") is False
    assert names(folder) == ["f"]


def test_sync_can_be_left_out(folder, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    create_bytes(folder / "f", b"x", sync=False)
    assert synced == []
    create_bytes(folder / "g", b"x")
    assert len(synced) == 2  # the file and its folder


def test_sigkill_before_the_link_leaves_only_a_temp_file_and_the_place_free(folder):
    code = """
        import os, sys, time
        from espnet3.io.atomic import create_bytes
        def link(source, target):
            print("ready", flush=True)
            time.sleep(60)
        os.link = link
        create_bytes(sys.argv[1], b"killed")
    """
    process = start_python(code, folder / "f")
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    (left,) = names(folder)
    assert is_temp_name(left)
    assert create_bytes(folder / "f", b"next") is True
    assert (folder / "f").read_bytes() == b"next"

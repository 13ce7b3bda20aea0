import contextlib
import json
import logging
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from espnet3.config import content
from espnet3.config.content import changed_files, identify, is_same


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ESPNET3_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "content"


@pytest.fixture(autouse=True)
def _remembers_all(monkeypatch):
    monkeypatch.setattr(content, "_REMEMBERED_BYTES", 0)


@pytest.fixture
def reads(monkeypatch):
    """Return a list that grows with each file that is read."""
    read, paths = content._read, []

    def counted(path):
        paths.append(os.path.basename(path))
        return read(path)

    monkeypatch.setattr(content, "_read", counted)
    return paths


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_text("a")
    (folder / "sub" / "b").write_text("b")
    return folder


def same(old, path):
    return is_same(json.loads(json.dumps(old)), identify(path), path)


# What is remembered


def test_a_file_is_read_once(tmp_path, cache, reads):
    path = tmp_path / "model.pt"
    path.write_bytes(b"x")
    assert identify(path) == identify(path)
    assert reads == ["model.pt"]
    assert os.stat(cache).st_mode & 0o077 == 0


def test_of_a_small_file_nothing_is_remembered(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(content, "_REMEMBERED_BYTES", 2)
    path = tmp_path / "speech.wav"
    path.write_bytes(b"x")
    identify(path)
    assert not cache.exists()


def test_a_folder_is_read_once_and_then_what_changed(folder, cache, reads):
    first = identify(folder)
    assert identify(folder) == first
    (folder / "sub" / "b").write_text("B")
    second = identify(folder)
    assert sorted(reads[:2]) == ["a", "b"]
    assert reads[2:] == ["b"]
    assert changed_files(first, second) == ["sub/b changed"]


def test_a_touched_file_is_read_again_and_is_the_same(tmp_path, cache, reads):
    path = tmp_path / "a"
    path.write_bytes(b"x")
    first = identify(path)
    os.utime(path, ns=(1, 1))
    assert same(first, path)
    assert reads == ["a", "a"]


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"\xff\x00", b"[]", b"null", b'{"version": 1}', b"[" * 100_000,
        b'{"version": 1, "path": "PATH", "rows": 3}',
        b'{"version": 1, "path": "PATH", "rows": {"": 3}}',
        b'{"version": 1, "path": "PATH", "rows": {"": []}}',
        b'{"version": 1, "path": "PATH", "rows": {"": [1, 2, 3, 4, 5]}}',
    ],
)  # fmt: skip
def test_a_damaged_memory_is_none(tmp_path, cache, damage):
    path = tmp_path / "a"
    path.write_bytes(b"x")
    first = identify(path)
    (file,) = cache.iterdir()
    file.write_bytes(damage.replace(b"PATH", str(path).encode()))
    assert identify(path) == first
    assert json.loads(file.read_bytes())["path"] == str(path)


def test_a_memory_that_cannot_be_written_is_none(tmp_path, monkeypatch, reads):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESPNET3_CACHE", str(tmp_path / "file"))
    path = tmp_path / "a"
    path.write_bytes(b"x")
    assert identify(path) == identify(path)
    assert reads == ["a", "a"]


def test_without_a_setting_it_is_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("ESPNET3_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert content._memory_folder() == tmp_path / "xdg/espnet3/content"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert content._memory_folder() == tmp_path / ".cache/espnet3/content"


def test_what_changes_while_it_is_read_is_not_remembered(tmp_path, cache, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    read = content._read

    def written_meanwhile(name):
        digest, _ = read(name)
        path.write_bytes(b"newer")
        return digest, os.stat(name)

    monkeypatch.setattr(content, "_read", written_meanwhile)
    identify(path)
    assert not cache.exists() or not list(cache.iterdir())


def test_where_times_are_whole_seconds_a_new_file_is_not_remembered(tmp_path):
    def entry(ns):
        return content._Entry("", "a", SimpleNamespace(st_ctime_ns=ns))

    second = int(time.time()) * 10**9
    assert not content._let_settle([entry(second)])
    assert content._let_settle([entry(second - 60 * 10**9)])
    assert content._let_settle([entry(second + 1), entry(5)])


def test_many_may_write_at_once(tmp_path, cache):
    path = tmp_path / "a"
    path.write_bytes(b"x")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: identify(path), range(32)))
    assert all(one == found[0] for one in found)
    assert [file.suffix for file in cache.iterdir()] == [".json"]


def test_old_memories_make_room(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(content, "_MOST_MEMORIES", 6)
    for i in range(12):
        path = tmp_path / f"{i}"
        path.write_bytes(b"x")
        identify(path)
    assert len(list(cache.iterdir())) <= 6


# What a folder holds


def test_equal_folders_are_equal_wherever_they_are(folder, tmp_path):
    first = identify(folder)
    folder.rename(tmp_path / "moved")
    assert identify(tmp_path / "moved") == first


def test_two_swapped_files_are_noticed(folder):
    first = identify(folder)
    (folder / "a").write_text("b")
    (folder / "sub" / "b").write_text("a")
    assert not same(first, folder)


def test_links_are_followed_and_those_to_nowhere_or_around_are_not(folder, tmp_path, reads):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "c").write_text("c")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "around").symlink_to(folder)
    (folder / "sub" / "itself").symlink_to("itself")
    (folder / "nowhere").symlink_to("nothing")
    first = identify(folder)
    assert sorted(reads) == ["a", "b", "c"]
    assert first["n_files"] == 6
    (tmp_path / "outside" / "c").write_text("C")
    assert changed_files(first, identify(folder)) == ["link/c changed"]
    (folder / "nowhere").unlink()
    (folder / "nowhere").symlink_to("elsewhere")
    assert "nowhere changed" in changed_files(first, identify(folder))


def test_several_links_to_one_file_are_read_once(folder, reads):
    for name in ("x", "y"):
        (folder / name).symlink_to("a")
    identify(folder)
    assert len(reads) == 2


def test_pipes_and_sockets_are_not_opened(folder, monkeypatch):
    os.mkfifo(folder / "pipe")
    monkeypatch.chdir(folder)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind("socket")  # a path from here, because a longer one is refused
        monkeypatch.chdir(folder.parent)
        first = identify(folder)
    assert first["n_files"] == 4
    assert identify(folder / "pipe")["kind"].startswith("special")
    (folder / "pipe").unlink()
    assert changed_files(first, identify(folder)) == ["pipe is gone"]


def test_names_that_are_no_text_are_names_all_the_same(folder):
    with open(os.fsencode(folder) + b"/\xff\xfe", "wb") as file:
        file.write(b"x")
    first = identify(folder)
    assert same(first, folder)
    os.unlink(os.fsencode(folder) + b"/\xff\xfe")
    assert not same(first, folder)


def test_what_tools_leave_behind_does_not_count(folder):
    first = identify(folder)
    for name in ("__pycache__", ".git", ".cache"):
        (folder / name).mkdir()
        (folder / name / "x").write_text("x")
    assert same(first, folder)


def test_a_folder_that_cannot_be_listed_is_an_error(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        identify(folder)


# Folders that are too large


@pytest.mark.parametrize("limit", ["MOST_FILES", "MOST_BYTES"])
def test_of_a_large_folder_names_sizes_and_times_count(folder, limit, monkeypatch, caplog, reads):
    monkeypatch.setattr(content, limit, 1)
    with caplog.at_level(logging.WARNING, "espnet3"):
        first = identify(folder)
    assert "names, sizes and times" in caplog.text
    assert reads == []
    assert same(first, folder)
    os.utime(folder / "a", ns=(1, 1))
    assert not same(first, folder)


def test_a_huge_folder_is_not_walked_through(folder, monkeypatch, caplog):
    monkeypatch.setattr(content, "MOST_ENTRIES", 2)
    with caplog.at_level(logging.WARNING, "espnet3"):
        first = identify(folder)
    assert "first level" in caplog.text
    assert same(first, folder)
    (folder / "a").write_text("longer")
    assert not same(first, folder)
    monkeypatch.setattr(content, "MOST_ENTRIES", 1)
    first = identify(folder)
    assert same(first, folder)
    (folder / "new").write_text("")
    os.utime(folder, ns=(1, 1))
    assert not same(first, folder)


def test_of_a_folder_that_is_written_to_the_weights_count(folder):
    (folder / "model.pt").write_bytes(b"1")
    first = identify(folder, outputs=[folder / "sub" / "results"])
    (folder / "a").write_text("log")
    assert identify(folder, outputs=[folder / "sub" / "results"]) == first
    (folder / "model.pt").write_bytes(b"2")
    assert identify(folder, outputs=[folder / "sub" / "results"]) != first

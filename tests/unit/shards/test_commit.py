import errno
import json
import os
import shutil
import signal
import time
import zlib
from collections import Counter
from itertools import chain

import pytest

from espnet3.errors import ProviderError, RecordError
from espnet3.shards import commit as commit_module
from espnet3.shards.commit import (
    Position,
    attempts,
    begin_attempt,
    commit,
    committed_shards,
    discard_attempt,
    read_done,
    remove_set_aside,
    set_aside,
    set_aside_damaged,
    walk_files,
)
from espnet3.shards.layout import DONE, POSITION, RunLayout, is_set_aside

WORKER = """
    import os, signal, sys
    from pathlib import Path
    from espnet3.shards import commit as commit_module
    from espnet3.shards.commit import Done, begin_attempt, commit, finish_attempt
    from espnet3.shards.manifest import load_manifest
    commit_module.SETTLE_SECONDS = 0.0

    def begin(root, shard, text):
        manifest = load_manifest(root)
        layout = manifest.layout(root)
        attempt = begin_attempt(layout, shard)
        (attempt / "text").write_text(text)
        start, stop = manifest.bounds[shard : shard + 2]
        return attempt, layout, Done(manifest.run_id, shard, start, stop)
"""


def committed_text(run, shard: int) -> str:
    return (run.layout.shard(shard) / "text").read_text()


def set_aside_names(run) -> list[str]:
    return [name for name in run.names() if is_set_aside(name)]


def committed(run) -> list[int]:
    return sorted(committed_shards(run.layout, run.manifest.run_id))


def test_shard_appears_with_all_its_files_at_the_commit_and_not_before(run):
    attempt = run.begin(1)
    assert committed(run) == []
    done = run.finish(attempt, 1)
    assert committed(run) == []
    assert not run.layout.shard(1).exists()
    assert commit(attempt, run.layout, done) is True
    assert committed(run) == [1]
    assert committed_text(run, 1) == run.text(1)
    assert read_done(run.layout.shard(1)) == done
    assert sorted(os.listdir(run.layout.shard(1))) == [DONE, "text"]
    assert attempts(run.layout) == {}


def test_done_lists_files_with_size_checksum_and_lines_and_folders_as_one(run):
    attempt = run.begin(0, "a\nb\n")
    for name in ("wav/1.wav", "wav/deep/2.wav"):
        (attempt / name).parent.mkdir(exist_ok=True)
        (attempt / name).write_bytes(b"RIFF")
    (attempt / "empty").mkdir()
    done = run.finish(attempt, 0)
    crc = zlib.crc32(b"a\nb\n")
    names = zlib.crc32(b"wav/1.wav\x004\nwav/deep/2.wav\x004\n")
    wav = {"files": 2, "bytes": 8, "crc32": zlib.crc32(b"RIFFRIFF"), "lines": 0}
    assert done.files == {
        "text": {"files": 1, "bytes": 4, "crc32": crc, "lines": 2},
        "wav/": {**wav, "names_crc32": names},
    }


def test_done_counts_items_and_those_with_a_result(run):
    done = run.finish(run.begin(0), 0, n_failed=1, summary={"frames": 3})
    assert done.n_items == len(run.items(0))
    assert done.n_written == done.n_items - 1
    assert done.summary == {"frames": 3}


def test_all_files_and_folders_are_on_disk_before_done_is(run, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    attempt = run.begin(0)
    (attempt / "a" / "b").mkdir(parents=True)
    (attempt / "a" / "b" / "x").touch()
    run.finish(attempt, 0)
    of_done = next(k for k, path in enumerate(synced) if DONE in os.path.basename(path))
    wanted = {attempt / "text", attempt / "a" / "b" / "x", attempt / "a" / "b", attempt / "a"}
    assert {str(path) for path in wanted} <= set(synced[:of_done])
    assert synced[-1] == str(attempt)


@pytest.mark.parametrize("name", [".nfs0000000000a1b2c3", ".fuse_hidden0000002700000004"])
def test_file_that_is_kept_until_it_is_closed_is_no_part_of_the_shard(run, name):
    attempt = run.begin(0)
    (attempt / name).touch()
    assert list(run.finish(attempt, 0).files) == ["text"]
    assert [path.name for path in walk_files(attempt)] == [DONE, "text"]


def test_position_is_no_part_of_the_shard_even_while_it_is_mapped(run):
    attempt = run.begin(0)
    position = Position(attempt)
    done = run.finish(attempt, 0)
    position.cells[0] = 5
    position.close()
    assert list(done.files) == ["text"]
    assert not (attempt / POSITION).exists()


def test_file_of_the_runner_that_is_called_done_is_refused_with_another_name(run):
    attempt = run.begin(0)
    (attempt / DONE).write_text("yes")
    with pytest.raises(ProviderError) as error:
        run.finish(attempt, 0)
    assert str(attempt / DONE) in str(error.value)
    assert 'in open_writers, such as shard_dir / "done.txt"' in str(error.value)


def test_summary_that_json_cannot_hold_is_named(run):
    attempt = run.begin(0)
    with pytest.raises(RecordError, match=r"value\['summary'\]\['loss'\] is nan.* write None"):
        run.finish(attempt, 0, summary={"loss": float("nan")})
    assert not (attempt / DONE).exists()


def test_late_twin_is_dropped_and_the_first_commit_stays(run):
    first, second = run.begin(2, "first\n"), run.begin(2, "second\n")
    done = {attempt: run.finish(attempt, 2) for attempt in (first, second)}
    assert commit(second, run.layout, done[second]) is True
    assert commit(first, run.layout, done[first]) is False
    assert committed_text(run, 2) == "second\n"
    assert attempts(run.layout) == {}


def test_empty_folder_in_the_place_of_a_shard_is_replaced(run):
    run.layout.shard(0).mkdir()
    assert run.commit(0)
    assert committed(run) == [0]


@pytest.mark.parametrize("n_more", [0, 2**16 - 1, 2**16, 2**16 + 1, 2**17])
def test_a_done_of_any_size_is_read(run, n_more):
    run.commit(0)
    path = run.layout.shard(0) / DONE
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "summary": "x" * n_more}))
    found = read_done(run.layout.shard(0))
    assert found is not None
    assert len(found.summary) == n_more


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_in_the_place_of_done_is_none(run, make):
    run.commit(0)
    path = run.layout.shard(0) / DONE
    path.unlink()
    make(path)
    assert read_done(run.layout.shard(0)) is None


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"null", b"{}", b"\xff", b'{"x": 1}'])
def test_damaged_shard_is_replaced(run, content):
    run.commit(0, "old\n")
    done = run.layout.shard(0) / DONE
    if content is None:
        done.unlink()
    else:
        done.write_bytes(content)
    assert read_done(run.layout.shard(0)) is None
    assert committed(run) == []
    assert run.commit(0, "new\n")
    assert committed_text(run, 0) == "new\n"
    assert attempts(run.layout) == {}


def test_file_in_the_place_of_a_shard_is_replaced(run):
    run.layout.shard(0).write_text("what is this?")
    assert run.commit(0)
    assert committed(run) == [0]
    assert attempts(run.layout) == {}


def test_shard_folder_that_holds_another_shard_is_replaced(run):
    run.commit(0)
    shutil.copytree(run.layout.shard(0), run.layout.shard(1))
    assert committed(run) == [0]
    assert run.commit(1)
    assert committed(run) == [0, 1]
    assert committed_text(run, 1) == run.text(1)


def test_copy_of_a_shard_under_a_name_that_is_padded_otherwise_does_not_count(make_run):
    run = make_run(n_items=30, n_shards=12)
    run.commit(3)
    os.rename(run.layout.shard(3), run.root / "split.3")
    assert committed(run) == []


def test_shard_of_an_earlier_run_is_replaced(run):
    run.commit(0, "old\n")
    anew = run.start_anew()
    assert committed(anew) == []
    assert anew.commit(0, "new\n")
    assert committed_text(anew, 0) == "new\n"


def see_late(monkeypatch, n_looks: int) -> list[object]:
    """Let what another machine published be seen only at a later look."""
    looks: list[object] = []
    real, real_is_there = commit_module.read_done, commit_module.is_there

    def look(path):
        looks.append(path)
        return None if len(looks) <= n_looks else real(path)

    def is_there(path):
        return real_is_there(path) and not (path.name == DONE and len(looks) <= n_looks)

    monkeypatch.setattr(commit_module, "read_done", look)
    monkeypatch.setattr(commit_module, "is_there", is_there)
    monkeypatch.setattr(commit_module, "_LOOK_SECONDS", 0.001)
    return looks


def test_commit_that_is_seen_late_is_not_taken_for_damage(run, monkeypatch):
    attempt = run.begin(0, "mine\n")
    done = run.finish(attempt, 0)
    run.commit(0, "theirs\n")
    monkeypatch.setattr(commit_module, "SETTLE_SECONDS", 60.0)
    looks = see_late(monkeypatch, n_looks=3)
    assert commit(attempt, run.layout, done) is False
    assert len(looks) == 4
    assert committed_text(run, 0) == "theirs\n"
    assert attempts(run.layout) == {}


def test_shard_whose_done_is_seen_late_is_not_set_aside(run, monkeypatch):
    run.commit(0)
    monkeypatch.setattr(commit_module, "SETTLE_SECONDS", 60.0)
    looks = see_late(monkeypatch, n_looks=2)
    set_aside_damaged(run.layout, 0)
    assert len(looks) > 2
    assert committed(run) == [0]


def test_folder_that_has_been_without_a_done_for_long_is_not_waited_for(run, monkeypatch):
    run.layout.shard(0).mkdir()
    (run.layout.shard(0) / "text").write_text("damaged")
    os.utime(run.layout.shard(0), (0, 0))
    monkeypatch.setattr(commit_module, "SETTLE_SECONDS", 60.0)
    begin = time.monotonic()
    assert run.commit(0)
    assert time.monotonic() - begin < 60
    assert committed(run) == [0]


@pytest.mark.parametrize("is_taken", [True, False])
def test_worker_of_a_run_that_was_started_anew_neither_publishes_nor_displaces(run, is_taken):
    attempt = run.begin(0, "zombie\n")
    done = run.finish(attempt, 0)
    anew = run.start_anew()
    if is_taken:
        anew.commit(0, "new\n")
    assert commit(attempt, run.layout, done) is False
    assert committed(anew) == ([0] if is_taken else [])
    assert anew.layout.shard(0).exists() is is_taken
    assert attempts(run.layout) == {}


def test_worker_does_not_publish_into_a_folder_without_a_plan(run):
    attempt = run.begin(0)
    done = run.finish(attempt, 0)
    (run.root / "manifest.json").unlink()
    assert commit(attempt, run.layout, done) is False
    assert run.names() == []


def test_twin_that_commits_while_a_damaged_shard_is_replaced_is_not_lost(run, monkeypatch):
    run.layout.shard(0).mkdir()
    (run.layout.shard(0) / "text").write_text("damaged")
    twin = run.begin(0, "twin\n")
    twin_done = run.finish(twin, 0)

    def twin_first(layout: RunLayout, shard: int) -> None:
        monkeypatch.undo()
        assert commit(twin, layout, twin_done)
        set_aside_damaged(layout, shard)

    monkeypatch.setattr(commit_module, "set_aside_damaged", twin_first)
    assert run.commit(0, "slow\n") is False
    assert committed_text(run, 0) == "twin\n"
    assert committed(run) == [0]
    assert attempts(run.layout) == {}


def test_shard_of_a_new_run_is_not_displaced_by_a_zombie_that_saw_a_damaged_one(run, monkeypatch):
    run.layout.shard(0).mkdir()
    (run.layout.shard(0) / "text").write_text("damaged")
    anew = []

    def start_anew_first(layout: RunLayout, shard: int) -> None:
        monkeypatch.undo()
        anew.append(run.start_anew())
        assert anew[0].commit(0, "new\n")
        set_aside_damaged(layout, shard)

    monkeypatch.setattr(commit_module, "set_aside_damaged", start_anew_first)
    assert run.commit(0, "zombie\n") is False
    assert committed(anew[0]) == [0]
    assert committed_text(run, 0) == "new\n"


def test_set_aside_makes_a_shard_not_done(run):
    run.commit(0)
    set_aside(run.layout, 0)
    assert committed(run) == []
    assert len(set_aside_names(run)) == 1
    assert attempts(run.layout) == {}
    set_aside(run.layout, 0)  # nothing is there: nothing to do
    remove_set_aside(run.layout)
    assert run.names() == ["manifest.json"]


def test_shard_with_other_items_than_planned_is_not_put_back(run):
    run.commit(0)
    start, stop = run.manifest.bounds[:2]
    set_aside_damaged(run.layout, 0, [start, stop])
    assert run.layout.shard(0).exists()
    set_aside_damaged(run.layout, 0, [start, stop + 1])
    assert not run.layout.shard(0).exists()


def test_set_aside_damaged_leaves_a_good_shard(run):
    set_aside_damaged(run.layout, 0)
    run.commit(0)
    set_aside_damaged(run.layout, 0)
    assert committed(run) == [0]
    (run.layout.shard(0) / DONE).unlink()
    set_aside_damaged(run.layout, 0)
    assert committed(run) == []
    assert len(set_aside_names(run)) == 1


@pytest.mark.parametrize("is_damaged", [True, False])
def test_read_only_file_system_raises_and_does_not_hang(run, monkeypatch, is_damaged):
    if is_damaged:
        run.layout.shard(0).mkdir()
        (run.layout.shard(0) / "text").touch()
    attempt = run.begin(0)
    done = run.finish(attempt, 0)

    def rename(source: object, target: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(source))

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="Read-only"):
        commit(attempt, run.layout, done)


def test_shard_that_is_removed_between_two_looks_is_taken(run, monkeypatch):
    run.commit(0, "old\n")
    real, calls = os.rename, []

    def rename(source: object, target: object) -> None:
        calls.append(source)
        if len(calls) == 1:
            shutil.rmtree(target)
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(target))
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    assert run.commit(0, "new\n") is True
    assert committed_text(run, 0) == "new\n"


def test_attempt_that_was_discarded_does_not_commit(run):
    attempt = run.begin(0)
    done = run.finish(attempt, 0)
    discard_attempt(attempt)
    with pytest.raises(FileNotFoundError):
        commit(attempt, run.layout, done)
    assert run.names() == ["manifest.json"]


def test_shard_is_finished_by_the_clock_of_the_file_system(run, monkeypatch):
    monkeypatch.setattr(time, "time", lambda real=time.time: real() + 3600)
    attempt = run.begin(0)
    done = run.finish(attempt, 0)
    assert abs(done.finished - (attempt / DONE).stat().st_mtime) < 60


@pytest.mark.parametrize("step", ["fsync_file", "_write_done", "fsync_dir"])
def test_attempt_that_is_discarded_while_it_finishes_publishes_nothing(run, monkeypatch, step):
    attempt = run.begin(0)
    real = getattr(commit_module, step)

    def discard_first(*args: object) -> object:
        monkeypatch.undo()
        discard_attempt(attempt)
        return real(*args)

    monkeypatch.setattr(commit_module, step, discard_first)
    with pytest.raises(FileNotFoundError):
        run.finish(attempt, 0)
    assert run.names() == ["manifest.json"]


def test_writer_that_makes_folders_as_it_goes_does_not_bring_a_discarded_attempt_back(run):
    attempt = begin_attempt(run.layout, 0)
    discard_attempt(attempt)
    (attempt / "wav").mkdir(parents=True)
    (attempt / "wav" / "last.wav").touch()
    with pytest.raises(FileNotFoundError):
        run.finish(attempt, 0)
    assert list(attempts(run.layout)) == [0]
    assert committed(run) == []


def test_discarding_twice_or_what_is_not_there_is_fine(run):
    attempt = run.begin(0)
    discard_attempt(attempt)
    discard_attempt(attempt)
    assert attempts(run.layout) == {}


def test_leftover_that_cannot_be_removed_keeps_its_name_however_often_it_is_swept(run, monkeypatch):
    run.begin(0)
    monkeypatch.setattr(shutil, "rmtree", lambda path, **options: None)
    for _ in range(5):
        ((attempt,),) = attempts(run.layout).values()
        discard_attempt(attempt)
    ((left,),) = attempts(run.layout).values()
    assert left.name.endswith("-dead")
    assert left.name.count("dead") == 1
    monkeypatch.undo()
    discard_attempt(left)
    assert attempts(run.layout) == {}


def test_attempts_are_found_by_shard(run):
    folders = [run.begin(shard) for shard in (0, 2, 2)]
    found = attempts(run.layout)
    assert {shard: sorted(paths) for shard, paths in found.items()} == {
        0: [folders[0]],
        2: sorted(folders[1:]),
    }


RACER = (
    WORKER
    + """
    me, root = sys.argv[1], Path(sys.argv[2])
    ready = []
    for shard in range(int(sys.argv[3])):
        attempt, layout, done = begin(root, shard, me)
        ready.append((attempt, layout, finish_attempt(attempt, done)))
    go()
    for one in ready:
        if commit(*one):
            print(one[2].shard)
"""
)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_two_processes_that_commit_at_once_agree_on_one(make_run, race, is_damaged):
    run = make_run(n_items=60, n_shards=40)
    for shard in range(run.n_shards if is_damaged else 0):
        run.layout.shard(shard).mkdir()
        (run.layout.shard(shard) / "text").write_text("damaged")
    printed = race(RACER, 2, run.root, run.n_shards)
    assert Counter(chain(*printed)) == {str(shard): 1 for shard in range(run.n_shards)}
    for me, shards in enumerate(printed):
        for shard in shards:
            assert committed_text(run, int(shard)) == str(me)
    assert committed(run) == list(range(run.n_shards))
    assert attempts(run.layout) == {}


@pytest.mark.parametrize("point", ["written", "finished", "committed"])
def test_worker_killed_at_any_point_leaves_a_whole_shard_or_none(run, spawn, point):
    code = (
        WORKER
        + """
    def die_at(point):
        if point == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGKILL)
    attempt, layout, done = begin(Path(sys.argv[1]), 0, sys.argv[3])
    die_at("written")
    done = finish_attempt(attempt, done)
    die_at("finished")
    rename = os.rename
    def rename_and_die(*args):
        rename(*args)
        die_at("committed")
    os.rename = rename_and_die
    commit(attempt, layout, done)
    """
    )
    process = spawn(code, run.root, point, run.text(0))
    assert process.wait(30) == -signal.SIGKILL
    if point == "committed":
        assert committed(run) == [0]
        assert committed_text(run, 0) == run.text(0)
    else:
        assert committed(run) == []
        assert list(attempts(run.layout)) == [0]
    assert run.commit(0) is (point != "committed")
    assert committed(run) == [0]

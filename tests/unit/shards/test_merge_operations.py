"""File operations of a merge, per shard; and that threads read in order, not too far ahead."""

import threading
import time
from collections import Counter, deque

import pytest

from benchmarks.file_operations import FileOperations
from espnet3.errors import FileSystemError, IncompleteRunError
from espnet3.io import shared_files
from espnet3.io.shared_files import read_in_order
from espnet3.parallel.folder_run import Merger, merge_run
from espnet3.shards import merge as merge_module
from espnet3.shards.lease import Lease
from espnet3.shards.merge import join_files, join_scp
from tests.helpers.planned_run import Run
from tests.helpers.unreachable_files import unreachable

FEW, MANY = 10, 110


def operations_of(tmp_path, n_shards, join):
    run = Run(tmp_path / str(n_shards), n_items=2 * n_shards, n_shards=n_shards).commit_all()
    lease = Lease(run.root, heartbeat=1000)

    def merge(folders):
        return join(folders, "text", run.root / "text")

    with lease:
        merger = Merger(run.root, run.root, run.manifest, lease, merge)
        with FileOperations(run.root) as operations:
            assert merger.await_turn(lambda: None) is None
            assert merger.missing() == []
            assert merger.merge() == 2 * n_shards
    assert (run.root / "text").read_text() == "".join(map(run.text, range(n_shards)))
    return operations.counts


@pytest.fixture(autouse=True)
def folders(tmp_path):
    for n in (FEW, MANY):
        (tmp_path / str(n)).mkdir()


@pytest.mark.parametrize("join", [join_files, join_scp])
def test_merge_opens_each_file_of_a_shard_once_and_lists_its_folder_once(tmp_path, join):
    few, many = (operations_of(tmp_path, n, join) for n in (FEW, MANY))
    per_shard = {kind: (many[kind] - few[kind]) / (MANY - FEW) for kind in many}
    assert {kind: n for kind, n in per_shard.items() if n > 0.05} == {"open": 2, "list": 1}


@pytest.mark.parametrize("is_slow", [False, True])
def test_results_come_in_order_and_an_error_when_it_is_its_turn(is_slow):
    def read(item):
        if item == 150:
            raise ValueError("150")
        return item

    found = []
    with pytest.raises(ValueError, match="150"):
        deque(map(found.append, read_in_order(read, range(1000), is_slow=is_slow)), maxlen=0)
    # Threads read a few at once, which then fail together.
    assert found == list(range(150 - 150 % shared_files._AT_ONCE if is_slow else 150))


def test_slow_reads_are_done_by_threads_and_not_far_ahead(monkeypatch):
    monkeypatch.setattr(shared_files, "_SLOW_SECONDS", 1e-3)
    readers, n_begun, most = set(), Counter(), 0

    def read(item):
        readers.add(threading.get_ident())
        n_begun["read"] += 1
        time.sleep(0.002)
        return item

    for n_taken, item in enumerate(read_in_order(read, range(600)), 1):
        assert item == n_taken - 1
        most = max(most, n_begun["read"] - n_taken)
    assert len(readers) > 2
    assert most <= shared_files._AT_ONCE * (shared_files._MOST_AHEAD + 2)


def test_fast_reads_stay_with_one_thread():
    readers = set()
    for _ in read_in_order(lambda item: readers.add(threading.get_ident()), range(1000)):
        pass
    assert readers == {threading.get_ident()}


def test_what_does_not_fit_into_memory_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(merge_module, "_MOST_KEPT", 1)
    few, many = (operations_of(tmp_path, n, join_files) for n in (FEW, MANY))
    assert many["open"] - few["open"] == 3 * (MANY - FEW)


@pytest.mark.parametrize("small", [1 << 18, 3])
@pytest.mark.parametrize("is_slow", [0.0, 10.0])
def test_merge_is_the_same_however_the_files_are_read(tmp_path, monkeypatch, small, is_slow):
    monkeypatch.setattr(merge_module, "_SMALL", small)
    monkeypatch.setattr(shared_files, "_SLOW_SECONDS", is_slow)
    monkeypatch.setattr(shared_files, "_N_TRIED", 7)
    operations_of(tmp_path, MANY, join_files)


@pytest.mark.parametrize("is_slow", [0.0, 10.0])
def test_size_is_reported_before_content_and_what_cannot_be_read_is_not_damaged(
    tmp_path, monkeypatch, is_slow
):
    monkeypatch.setattr(shared_files, "_SLOW_SECONDS", is_slow)
    monkeypatch.setattr(shared_files, "_N_TRIED", 2)
    monkeypatch.setattr(shared_files, "_PAUSES", (0.001,))
    run = Run(tmp_path / str(FEW), n_items=20, n_shards=FEW).commit_all()

    def merge():
        merge_run(
            run.root, run.root, run.manifest, lambda d: join_files(d, "text", run.root / "text")
        )

    path = run.layout.shard(3) / "text"
    for code in ("EIO", "ESTALE", "EACCES"):
        with unreachable(r"split\.3/text$", code), pytest.raises(FileSystemError, match=code):
            merge()
    path.write_bytes(path.read_bytes().replace(b"words", b"sword"))
    with pytest.raises(IncompleteRunError, match=r"split\.3/text .*other content"):
        merge()
    (run.layout.shard(7) / "text").write_text("")
    with pytest.raises(IncompleteRunError, match=r"split\.7/text .* is now 0 bytes"):
        merge()
    assert not (run.root / "text").exists()
    assert not (run.root / "_SUCCESS.json").exists()

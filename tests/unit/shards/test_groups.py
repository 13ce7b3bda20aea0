"""Shards of a large plan stand in groups: sub-folders, of which a listing each is short."""

import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from benchmarks.file_operations import FileOperations
from espnet3.cli.merge import tidy_run
from espnet3.errors import RunFolderError
from espnet3.parallel.folder_run import count_failed, merge_run, remove_run, shards_to_run, sweep
from espnet3.shards import layout as layout_module
from espnet3.shards import manifest as manifest_module
from espnet3.shards.commit import attempts, begin_attempt, committed_shards, named_shards, set_aside
from espnet3.shards.layout import RunLayout, committed_path, group_size, run_folder_of
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import load_manifest
from espnet3.shards.merge import join_files, read_coverage, read_success, shards_in_use
from espnet3.shards.open_shards import OpenShards
from espnet3.shards.status import read_status
from tests.helpers.planned_run import Run
from tests.helpers.run_folders import run_square


@pytest.fixture
def grouped(make_run) -> Run:
    """A run of 8 shards in groups of 3: the last one is smaller."""
    return make_run(n_items=40, n_shards=8, group_size=3)


def shard_paths(root: Path) -> list[str]:
    return sorted(str(path.parent.relative_to(root)) for path in root.rglob("done"))


@pytest.mark.parametrize(("n_shards", "size"), [(0, None), (4096, None), (4097, 1024)])
def test_only_large_plans_have_groups(n_shards, size):
    assert group_size(n_shards) == size


def test_sorted_paths_are_in_shard_order_and_no_group_is_too_large():
    layout = RunLayout("/run", 10_500, 1024)
    paths = [layout.shard_path(shard) for shard in range(10_500)]
    assert sorted(paths) == paths
    assert paths[1024] == "/run/splits.01/split.01024" == str(layout.shard(1024))
    assert [len(layout.shards_of_group(group)) for group in range(11)] == [1024] * 10 + [260]
    assert layout.n_groups == 11


def test_plan_without_groups_is_written_as_before(run):
    values = json.loads((run.root / "manifest.json").read_text())
    assert values["version"] == 1
    assert "group_size" not in values
    assert run.layout.n_groups == 0
    run.commit(1)
    assert shard_paths(run.root) == ["split.1"]


def test_versions_that_know_no_groups_refuse_the_folder(grouped, monkeypatch):
    assert json.loads((grouped.root / "manifest.json").read_text())["version"] == 2
    assert load_manifest(grouped.root) == grouped.manifest
    monkeypatch.setattr(manifest_module, "VERSION", 1)
    with pytest.raises(RunFolderError, match="has version 2 of the run format"):
        load_manifest(grouped.root)


def test_group_of_no_shards_is_a_damaged_plan(grouped):
    path = grouped.root / "manifest.json"
    path.write_text(path.read_text().replace('"group_size": 3', '"group_size": 0'))
    with pytest.raises(RunFolderError, match="group_size"):
        load_manifest(grouped.root)


def test_shards_attempts_and_damaged_ones_are_found_in_their_groups(grouped):
    for shard in (0, 4, 7):
        grouped.commit(shard)
    attempt = grouped.begin(5)
    assert shard_paths(grouped.root) == ["splits.0/split.0", "splits.1/split.4", "splits.2/split.7"]
    assert sorted(committed_shards(grouped.layout, grouped.manifest.run_id)) == [0, 4, 7]
    assert attempts(grouped.layout) == {5: [attempt]}
    assert attempt.parent.name == "splits.1"
    assert read_status(grouped.root).n_shards_done == 3
    (grouped.layout.shard(4) / "done").write_text("{")
    with Lease(grouped.root, heartbeat=1000) as lease:
        sweep(grouped.layout, lease)
    to_run = shards_to_run(grouped.layout, grouped.manifest, retry_failed=False)
    assert sorted(to_run) == [1, 2, 3, 4, 5, 6]
    assert attempts(grouped.layout) == {}
    assert [path.parent.name for path in grouped.root.rglob("*.damaged-*")] == ["splits.1"]
    assert count_failed(grouped.layout, grouped.manifest) == 0


def test_shard_in_the_wrong_group_or_outside_of_any_does_not_count(grouped):
    grouped.commit(4)
    shutil.copytree(grouped.layout.shard(4), grouped.root / "split.4")
    grouped.commit(0)
    shutil.move(grouped.layout.shard(4), grouped.root / "splits.0")
    assert sorted(committed_shards(grouped.layout, grouped.manifest.run_id)) == [0]
    assert named_shards(grouped.layout) == {0}
    assert read_status(grouped.root).n_shards_done == 1


def test_group_is_made_by_the_first_attempt_and_has_the_permissions_of_the_run_folder(grouped):
    os.chmod(grouped.root, 0o775)
    before = os.umask(0o077)
    try:
        begin_attempt(grouped.layout, 4)
        begin_attempt(grouped.layout, 5)
    finally:
        os.umask(before)
    assert not (grouped.root / "splits.0").exists()
    assert (grouped.root / "splits.1").stat().st_mode & 0o777 == 0o775


def test_no_group_is_made_in_a_run_folder_that_is_gone(grouped):
    shutil.rmtree(grouped.root)
    with pytest.raises(FileNotFoundError):
        begin_attempt(grouped.layout, 4)
    assert not grouped.root.exists()


def test_lines_are_joined_in_dataset_order(grouped):
    grouped.commit_all()
    target = grouped.root / "text"

    def merge(folders: list[Path]) -> int:
        return join_files(folders, "text", target)

    assert merge_run(grouped.root, grouped.root, grouped.manifest, merge) == 40
    assert target.read_text() == "".join(map(grouped.text, range(8)))
    assert read_coverage(grouped.root, grouped.manifest).is_complete


def test_run_folder_may_be_called_like_a_group(tmp_path):
    root = tmp_path / "splits.3"
    root.mkdir()
    flat = Run(root)
    attempt = flat.layout.new_attempt(2, "owner")
    assert run_folder_of(flat.layout.shard(1)) == root
    assert committed_path(attempt) == "split.2"
    inner = tmp_path / "splits.3" / "splits.0"
    inner.mkdir()
    grouped = Run(inner, n_shards=4, group_size=2)
    assert run_folder_of(grouped.layout.shard(3)) == inner
    assert committed_path(grouped.layout.new_attempt(3)) == "splits.1/split.3"


def test_starting_over_removes_groups_and_nothing_of_the_user(grouped):
    grouped.commit_all()
    set_aside(grouped.layout, 3)
    (grouped.root / "splits.0" / "notes.txt").write_text("mine")
    (grouped.root / "splits.99").mkdir()
    remove_run(grouped.root)
    assert sorted(p.name for p in grouped.root.rglob("*")) == ["notes.txt", "splits.0"]


def test_worker_takes_all_shards_and_lists_only_groups_that_may_have_changed(grouped):
    with Lease(grouped.root, heartbeat=1000) as one, Lease(grouped.root, heartbeat=1000) as two:
        boards = [OpenShards(grouped.root, grouped.manifest, lease) for lease in (one, two)]
        taken = []
        while len(taken) < 8:
            for board in boards:
                shard = board.take()
                if shard is None:
                    board.refresh()
                    continue
                grouped.commit(shard)
                board.finished(shard)
                taken.append(shard)
        assert sorted(taken) == list(range(8))
        for board in boards:
            board.refresh()
            assert board.is_complete()
            with FileOperations(grouped.root) as again:
                board.refresh()
            assert again.counts == {"list": 1}  # of the leases: all groups are complete


def test_lost_claims_cost_a_listing_of_their_group_alone(make_run):
    run = make_run(n_items=400, n_shards=200, group_size=20)
    with Lease(run.root, heartbeat=1000) as other, Lease(run.root, heartbeat=1000) as lease:
        board = OpenShards(run.root, run.manifest, lease)
        board.refresh()
        first, second = board._own[:2]
        for shard in (first, second):
            other.claim(run.layout.shard_name(shard))
        with FileOperations(run.root) as lost:
            assert board.take() not in (first, second)
    assert lost.counts["list"] <= 2  # a group; and the leases, if they were not listed just now


def test_packed_shards_leave_no_empty_groups_and_return_as_they_were(grouped):
    grouped.commit_all()
    root = grouped.root
    merge_run(root, root, grouped.manifest, lambda dirs: join_files(dirs, "text", root / "text"))
    before = shard_paths(root)
    assert tidy_run(root).n_shards == 7
    assert [path.name for path in root.glob("splits.*")] == ["splits.0"]
    assert read_status(root).n_shards_done == 8
    with tarfile.open(root / "split.tar") as tar:
        assert "splits.2/split.7/text" in tar.getnames()
    assert tidy_run(root, undo=True).n_shards == 7
    assert shard_paths(root) == before
    assert read_coverage(root, grouped.manifest).is_complete


@pytest.mark.parametrize("place", ["splits.1/split.4", "splits.1/split.4/text", "splits.1"])
def test_shards_that_a_result_points_to_stay(grouped, place):
    grouped.commit_all()
    root = grouped.root
    merge_run(root, root, grouped.manifest, lambda folders: [root / place])
    success = read_success(grouped.layout, grouped.manifest.run_id)
    committed = read_coverage(root, grouped.manifest).committed
    used = shards_in_use(success, grouped.layout, root, committed.values())
    assert used == ({3, 4, 5} if place == "splits.1" else {4})


def test_run_of_a_runner_with_groups_resumes_and_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(layout_module, "MAX_FLAT_SHARDS", 3)
    monkeypatch.setattr(layout_module, "GROUP_SIZE", 5)
    plain = run_square(tmp_path / "a")
    text = (tmp_path / "a" / "results.jsonl").read_text()
    removed = sorted((tmp_path / "a").glob("splits.*/split.*"))[7]
    shutil.rmtree(removed)
    (tmp_path / "a" / "results.jsonl").unlink()
    monkeypatch.undo()  # the plan in the folder counts, and not what a new one would be
    assert run_square(tmp_path / "a") == plain
    assert (tmp_path / "a" / "results.jsonl").read_text() == text
    assert removed.is_dir()
    assert not list((tmp_path / "a").glob("split.*"))


def test_old_folder_of_5000_shards_resumes_where_it_is(tmp_path, monkeypatch):
    out = tmp_path / "old"
    out.mkdir()
    old = Run(out, n_items=5000, n_shards=5000)  # as versions without groups planned it
    assert "group_size" not in json.loads((out / "manifest.json").read_text())
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for shard in range(0, 5000, 100):
        old.commit(shard)
    manifest = load_manifest(out)
    with Lease(out, heartbeat=1000) as lease:
        board = OpenShards(out, manifest, lease)
        board.refresh()
        assert board.n_left() == 4950
        shard = board.take()
        old.commit(shard)
    assert (out / f"split.{shard:04d}" / "done").exists()
    assert len(shards_to_run(manifest.layout(out), manifest, retry_failed=False)) == 4949
    assert not list(out.glob("splits.*"))

"""`espnet3 tidy`: few files are left of a merged run, and nothing that a command needs is lost."""

import json
import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest

from espnet3.cli.main import main
from espnet3.cli.merge import tidy_run
from espnet3.errors import RunFolderError
from espnet3.parallel.folder_run import merge_run
from espnet3.shards.commit import commit
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import require_manifest
from espnet3.shards.merge import join_files, read_coverage, read_failures
from espnet3.shards.pack import Tidied
from espnet3.shards.status import StatusReader, read_status
from tests.helpers import clean_process
from tests.helpers.planned_run import Run
from tests.helpers.run_folders import run_square

STEPS = ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync", "utime", "chmod", "open")


def state_of(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time and content of all that the shards hold."""
    found = {}
    for path in sorted(root.glob("split.*")):
        for each in [path, *path.rglob("*")] if path.is_dir() else []:
            seen = each.stat()
            content = b"" if each.is_dir() else each.read_bytes()
            mode = stat.S_IMODE(seen.st_mode)
            found[str(each.relative_to(root))] = (mode, seen.st_mtime_ns, content)
    return found


def merged(root: Path, n_shards: int = 4) -> Run:
    root.mkdir()
    run = Run(root, n_items=2 * n_shards, n_shards=n_shards).commit_all()
    merge_run(root, root, run.manifest, lambda folders: join_files(folders, "text", root / "text"))
    return run


def n_files(root: Path) -> int:
    return sum(1 for _ in root.rglob("*"))


def tidy(*arguments: object) -> int:
    return main(["tidy", *map(str, arguments)])


def test_shards_become_two_files_and_the_same_shards_again(complete, capsys):
    before, n_before = state_of(complete), n_files(complete)
    assert tidy(complete) == 0
    n_packed = sum(path.startswith("split.") for path in before) - len(
        [path for path in before if path.startswith("split.00")]
    )
    assert f"{n_packed} files and folders of" in capsys.readouterr().out
    assert n_files(complete) == n_before - n_packed + 2
    assert [path.name for path in complete.glob("split.*") if path.is_dir()] == ["split.00"]
    assert tidy(complete) == 0
    assert "nothing to pack" in capsys.readouterr().out
    assert tidy("--undo", complete) == 0
    assert state_of(complete) == before
    assert n_files(complete) == n_before
    assert tidy("--undo", complete) == 0
    assert "nothing is packed" in capsys.readouterr().out


def test_any_tar_can_read_it(complete, tmp_path):
    before = state_of(complete)
    tidy(complete)
    with tarfile.open(complete / "split.tar") as tar:
        tar.extractall(tmp_path / "out", filter="data")
    found = {name: content for name, (_, _, content) in state_of(tmp_path / "out").items()}
    assert found == {n: c for n, (_, _, c) in before.items() if not n.startswith("split.00")}


def answers(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """Return what the commands and the report read in a run folder."""
    manifest = require_manifest(root)
    found: dict[str, object] = {"committed": read_coverage(root, manifest).committed}
    found["failures"] = read_failures(root)
    for verb in ("status", "failed", "explain", "logs"):
        capsys.readouterr()
        found[verb] = (main([verb, str(root)]), capsys.readouterr().out)
    found["json"] = StatusReader(root).read().as_dict()
    return found


def test_all_commands_answer_as_before(complete, capsys):
    before = answers(complete, capsys)
    assert before["failures"]
    tidy(complete)
    assert answers(complete, capsys) == before


def test_same_command_answers_at_once_and_another_one_is_refused(complete):
    from espnet3.errors import StaleRunError

    result = run_square(complete)
    tidy(complete)
    assert run_square(complete) == result
    assert (complete / "split.tar").exists(), "nothing was needed"
    with pytest.raises(StaleRunError):
        run_square(complete, n_items=19)
    assert (complete / "split.tar").exists()


def test_removed_outputs_are_merged_again_from_the_packed_shards(complete):
    results = complete / "results.jsonl"
    content, before = results.read_bytes(), state_of(complete)
    tidy(complete)
    results.unlink()
    assert tidy(complete) == 1, "the shards are what they can be made from"
    assert main(["merge", str(complete)]) == 0
    assert results.read_bytes() == content
    assert state_of(complete) == before
    assert not (complete / "split.tar").exists()


def test_retry_of_failed_items_takes_the_shards_out(complete):
    before = state_of(complete)
    tidy(complete)
    run_square(complete, retry_failed=True)
    after = state_of(complete)
    assert len(after) == len(before)
    changed = {name.partition("/")[0] for name in before if before[name] != after.get(name)}
    assert 0 < len(changed) <= 2, "only shards with failed items were computed"


def test_shards_that_merged_files_point_to_stay(tmp_path, capsys):
    root = tmp_path / "run"
    root.mkdir()
    run = Run(root, n_items=8, n_shards=4)
    for shard in range(4):
        attempt = run.begin(shard, "".join(f"utt{i} split.2/text:{i}\n" for i in run.items(shard)))
        if shard == 3:
            (attempt / "wav").mkdir()
            (attempt / "wav" / "a.wav").write_bytes(b"RIFF")
        commit(attempt, run.layout, run.finish(attempt, shard))
    merge_run(root, root, run.manifest, lambda folders: join_files(folders, "text", root / "text"))
    assert tidy_run(root) == Tidied(1, 3, 3)
    assert [path.name for path in sorted(root.glob("split.?"))] == ["split.0", "split.2", "split.3"]


def test_folders_of_runs_and_what_is_refused(complete, stopped, tmp_path, capsys):
    assert tidy(tmp_path) == 1
    output = capsys.readouterr()
    assert f"{complete}: " in output.out
    assert f"{stopped} is not merged" in output.err
    assert f"espnet3 status {stopped}" in output.err
    assert not (stopped / "split.tar").exists()


def test_run_with_somebody_at_work_is_refused(complete):
    with Lease(complete), pytest.raises(RunFolderError, match="espnet3 wait"):
        tidy_run(complete)


def test_changed_shard_stays_and_other_content_of_the_tar_is_noticed(tmp_path):
    run = merged(tmp_path / "run")
    (run.layout.shard(2) / "text").write_text("edited")
    assert tidy_run(run.root) == Tidied(2, 6, 2)
    assert run.layout.shard(2).exists()
    with run.layout.packed.open("r+b") as file:
        file.seek(0)
        content = file.read().replace(b"words", b"sword")
        file.seek(0)
        file.write(content)
    with pytest.raises(RunFolderError, match=r"split\.tar does not hold split\.1/text"):
        tidy_run(run.root, undo=True)
    assert run.layout.packed.exists()
    assert read_status(run.root).state == "complete"


def test_index_of_a_newer_version_is_called_that(tmp_path):
    run = merged(tmp_path / "run")
    tidy_run(run.root)
    first, *lines = run.layout.packed_index.read_text().splitlines()
    head = {**json.loads(first), "version": 2}
    run.layout.packed_index.write_text("\n".join([json.dumps(head), *lines]))
    with pytest.raises(RunFolderError, match="version 2 of packed shards"):
        read_coverage(run.root, run.manifest)


def test_pack_of_a_run_that_was_here_before_does_not_count(tmp_path):
    run = merged(tmp_path / "run")
    tidy_run(run.root)
    anew = run.start_anew(n_items=8)
    assert read_coverage(anew.root, anew.manifest).missing == [0, 1, 2, 3]


def test_restart_from_scratch_removes_what_was_packed(complete):
    tidy(complete)
    run_square(complete, resume=False)
    assert not list(complete.glob("split.tar*"))


def die_at(step: int, call) -> bool:
    """Call a function in a child that dies before one of its operations; tell if it did."""
    child = os.fork()
    if child == 0:
        n_calls = 0

        def counted(real):
            def call(*args, **values):
                nonlocal n_calls
                n_calls += 1
                if n_calls == step:
                    os._exit(9)
                return real(*args, **values)

            return call

        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        try:
            call()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9), "it failed by itself"
    return code == 9


def kill_at_each_step(folder: Path, undo: bool) -> int:
    """Kill it before each of its operations in turn, and see that nothing is lost."""
    origin = merged(folder / "origin")
    before, committed = state_of(origin.root), read_coverage(origin.root, origin.manifest).committed
    if undo:
        tidy_run(origin.root)
    step, was_killed = 0, True
    while was_killed:
        step += 1
        root = folder / f"{step}"
        shutil.copytree(origin.root, root)
        was_killed = die_at(step, lambda root=root: tidy_run(root, undo=undo))
        assert read_coverage(root, origin.manifest).committed == committed, step
        tidy_run(root, undo=undo)
        names = {path.name for path in root.glob("split.*")}
        whole = {f"split.{n}" for n in range(4)}
        assert names == (whole if undo else {"split.0", "split.tar", "split.tar.index"}), step
        assert not [path.name for path in root.iterdir() if "tmp-" in path.name], step
        tidy_run(root, undo=True)
        assert state_of(root) == before, step
        shutil.rmtree(root)
    return step


@pytest.mark.parametrize("undo", [False, True])
def test_killed_at_any_step_the_same_command_finishes(tmp_path, undo):
    assert clean_process.call(kill_at_each_step, tmp_path, undo, seconds=400) > 30

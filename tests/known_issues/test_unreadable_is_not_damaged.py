"""What cannot be read from a node says nothing of the run: nothing is removed on its account."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.errors import FileSystemError, RunFolderError
from espnet3.parallel import BaseRunner
from espnet3.parallel.detached.explain import explain_run
from espnet3.shards import commit as commit_module
from espnet3.shards.commit import committed_shards, read_done, set_aside_damaged
from espnet3.shards.layout import is_set_aside
from espnet3.shards.merge import concat_files
from tests.helpers.detached_parts import DetachedFolder, Provider
from tests.helpers.exhaustive import few
from tests.helpers.phrases import says_to_rerun
from tests.helpers.unreachable_files import environment_of, unreachable

ROOT = Path(__file__).parents[2]
DONE = r"split\.\d+/done$"
CODES = ["EIO", "ESTALE", "EACCES", "EPERM", "ETIMEDOUT", "EHOSTDOWN", "ENOTCONN", "ENXIO", "ELOOP"]
N_SHARDS = 5


NOT_YET = "ESPNET3_TEST_NOT_YET"
"""Where `Runner.merge` notes what is set aside, before it fails."""


def note_what_is_set_aside(out, path):
    folders = [each for each in out.iterdir() if is_set_aside(each.name)]
    path.write_text("".join(f"{(each / 'text').stat().st_ino}\n" for each in folders))


class Runner(BaseRunner):
    @staticmethod
    def forward(idx, settings):
        return f"utt{idx} ok"

    @staticmethod
    def open_writers(shard_dir):
        return (shard_dir / "text").open("w")

    @staticmethod
    def write_record(writers, result, state):
        writers.write(result + "\n")

    @staticmethod
    def close_writers(writers, state):
        writers.close()

    def merge(self, shard_dirs):
        # Asked when it runs, so that the code of both runs is the same.
        if noted := os.environ.get(NOT_YET):
            note_what_is_set_aside(self.output_dir, Path(noted))
            raise ValueError("not yet")
        target = self.output_dir / "text"
        concat_files(shard_dirs, "text", target)
        return target


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(commit_module, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr("espnet3.io.shared_files._PAUSES", (0.001,))


@pytest.fixture
def decode(tmp_path):
    from espnet3.parallel import use_parallel

    def run(n_items=20):
        block = {"env": "local", "n_workers": 1, "shards_per_worker": N_SHARDS}
        with use_parallel(block):
            return Runner(Provider(), output_dir=tmp_path / "out")(range(n_items))

    return run


@pytest.fixture
def interrupted(decode, tmp_path):
    """A run whose last shard is missing."""
    decode()
    out = tmp_path / "out"
    for name in ("_SUCCESS.json", "text"):
        (out / name).unlink()
    shutil.rmtree(out / f"split.{N_SHARDS - 1}")
    return out


def state_of(out: Path) -> dict[str, tuple[int, int]]:
    """Return all shards' files, with what tells one from its successor."""
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in out.glob("split.*/*")
    }


@pytest.mark.parametrize("code", few(CODES, 3))
def test_resume_that_cannot_read_done_stops_and_removes_nothing(interrupted, decode, code):
    before = state_of(interrupted)
    with unreachable(DONE, code), pytest.raises(FileSystemError) as caught:
        decode()
    assert re.search(DONE.rstrip("$"), str(caught.value))
    assert code in str(caught.value)
    assert says_to_rerun(str(caught.value))
    assert state_of(interrupted) == before
    decode()
    after = state_of(interrupted)
    assert before.items() <= after.items(), "nothing was computed twice"
    assert len(after) == 2 * N_SHARDS


def test_one_unreadable_done_among_good_ones_stops_as_well(interrupted, decode):
    before = state_of(interrupted)
    with unreachable(r"split\.2/done$", "EIO"), pytest.raises(FileSystemError, match=r"split\.2"):
        decode()
    assert state_of(interrupted) == before


@pytest.mark.parametrize("code", few(["EIO", "ESTALE"], 1))
def test_fault_that_passes_is_not_noticed(interrupted, decode, code, monkeypatch):
    real, failed = os.open, []

    def fail_once(path, *args, **values):
        if not isinstance(path, int) and re.search(DONE, os.fsdecode(path)) and not failed:
            failed.append(path)
            raise OSError(getattr(errno, code), "for a moment", path)
        return real(path, *args, **values)

    monkeypatch.setattr(os, "open", fail_once)
    assert decode().name == "text"
    assert failed


@pytest.mark.parametrize("code", few(["EIO", "EACCES", "ESTALE"], 1))
@pytest.mark.parametrize(
    ("pattern", "call"),
    [
        (r"/out$", "list"),
        (r"/out/split\.\d+$", "stat"),
        (r"_SUCCESS\.json$", "open"),
        (r"leases$", "list"),
        (r"manifest\.json$", "open"),
    ],
)
def test_folder_that_cannot_be_looked_at_is_neither_empty_nor_complete(
    interrupted, decode, pattern, call, code
):
    before = state_of(interrupted)
    with unreachable(pattern, code, call) as refused, pytest.raises(RunFolderError):
        decode()
    assert refused
    assert state_of(interrupted) == before
    assert not (interrupted / "_SUCCESS.json").exists()


@pytest.mark.parametrize("name", ["_SUCCESS.json", "text"])
def test_finished_run_whose_proof_cannot_be_read_is_not_run_again(decode, tmp_path, name):
    decode()
    out = tmp_path / "out"
    before = state_of(out)
    with unreachable(rf"/{name}$", "EIO", "open", "stat"), pytest.raises(RunFolderError):
        decode()
    assert state_of(out) == before
    decode()


def test_start_anew_asks_who_is_there_and_does_not_take_silence_for_an_answer(decode, tmp_path):
    from espnet3.parallel import use_parallel

    decode()
    before = state_of(tmp_path / "out")
    runner = Runner(Provider(), output_dir=tmp_path / "out", resume=False)
    with unreachable(r"leases$", "EACCES", "list"), pytest.raises(RunFolderError):
        with use_parallel({"env": "local", "n_workers": 1}):
            runner(range(20))
    assert state_of(tmp_path / "out") == before


def test_driver_of_a_script_ends_with_an_exit_code_and_a_line(interrupted, tmp_path):
    script = tmp_path / "decode.py"
    script.write_text(
        "from tests.known_issues.test_unreadable_is_not_damaged import Runner, N_SHARDS\n"
        "from tests.helpers.detached_parts import Provider\n"
        "from espnet3.parallel import use_parallel\n"
        "block = {'env': 'local', 'n_workers': 2, 'shards_per_worker': 1}\n"
        "with use_parallel(block):\n"
        f"    Runner(Provider(), output_dir={str(interrupted)!r})(range(20))\n"
    )
    before = state_of(interrupted)
    env = {**os.environ, **environment_of(DONE, "EIO", tmp_path / "site")}
    told = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
    assert told.returncode == 1
    assert "(EIO)" in told.stderr.splitlines()[-1]
    assert state_of(interrupted) == before


@pytest.mark.parametrize(
    "damage", few([b"{", b"", "absent", b"[]", b'{"run_id": 5}', "wrong type"], 3)
)
def test_damaged_shard_is_computed_anew_and_kept_until_the_merge(
    interrupted, decode, damage, monkeypatch, tmp_path
):
    done = interrupted / "split.1" / "done"
    if damage == "absent":
        done.unlink()
    elif damage == "wrong type":
        done.write_text(json.dumps({**json.loads(done.read_text()), "files": {"text": 5}}))
    else:
        done.write_bytes(damage)
    kept = (interrupted / "split.1" / "text").stat().st_ino
    monkeypatch.setenv(NOT_YET, str(tmp_path / "seen"))
    with pytest.raises(ValueError, match="not yet"):
        decode()
    assert (tmp_path / "seen").read_text() == f"{kept}\n"
    monkeypatch.delenv(NOT_YET)
    decode()
    assert not [path for path in interrupted.iterdir() if is_set_aside(path.name)]
    assert (interrupted / "text").read_text() == "".join(f"utt{i} ok\n" for i in range(20))


def test_shard_that_was_set_aside_and_is_good_after_all_is_put_back(interrupted, decode):
    layout_of = committed_layout(interrupted)
    done = interrupted / "split.1" / "done"
    content, inode = done.read_bytes(), done.stat().st_ino
    done.write_bytes(b"{")
    set_aside_damaged(layout_of, 1)
    (aside,) = (path for path in interrupted.iterdir() if is_set_aside(path.name))
    (aside / "done").write_bytes(content)  # the server shows what it had
    decode()
    assert done.stat().st_ino == inode


def committed_layout(out):
    from espnet3.shards.manifest import load_manifest

    return load_manifest(out).layout(out)


def test_shard_that_cannot_be_read_is_where_it_was_after_a_try_to_set_it_aside(interrupted):
    layout = committed_layout(interrupted)
    with unreachable(DONE, "EIO"), pytest.raises(FileSystemError):
        set_aside_damaged(layout, 1)
    assert read_done(layout.shard(1)) is not None
    (layout.shard(1) / "done").write_bytes(b"{")
    with unreachable(r"damaged-.*/done$", "EIO"), pytest.raises(FileSystemError):
        set_aside_damaged(layout, 1)
    assert layout.shard(1).is_dir()


def test_start_anew_removes_what_was_set_aside(interrupted, decode):
    from espnet3.parallel import use_parallel

    (interrupted / "split.1" / "done").write_bytes(b"{")
    set_aside_damaged(committed_layout(interrupted), 1)
    runner = Runner(Provider(), output_dir=interrupted, resume=False)
    with use_parallel({"env": "local", "n_workers": 1, "shards_per_worker": N_SHARDS}):
        runner(range(20))
    assert not [path for path in interrupted.iterdir() if is_set_aside(path.name)]


@pytest.fixture
def detached(tmp_path):
    folders = []

    def make(**settings):
        folders.append(DetachedFolder(tmp_path / "out", **settings))
        return folders[-1]

    yield make
    for folder in folders:
        folder.close()


@pytest.mark.parametrize("code", few(["EIO", "ESTALE", "EACCES", "ETIMEDOUT"], 1))
def test_node_that_cannot_read_done_leaves_and_the_others_finish(detached, tmp_path, code):
    run = detached(n_items=60, n_shards=20, seconds=0.05)
    bad = environment_of(DONE, code, tmp_path / "site")
    good = run.start()
    from tests.helpers.waiting import wait_until

    wait_until(lambda: run.n_committed() >= 2, 60)
    before = state_of_commits(run.out)
    assert run.start(SLURMD_NODENAME="broken", **bad).wait(60) == 1
    assert before.items() <= state_of_commits(run.out).items()
    assert not (run.out / "detached" / "stop.json").exists()
    told = [f"{finding.level} {finding}" for finding in explain_run(run.out)]
    assert any("broken" in line and code in line for line in told), told
    assert good.wait(120) == 0
    run.assert_complete()
    assert sum(worker["n_shards"] for worker in run.records("workers")) == 20, "none was run twice"
    assert not list((run.out / "detached" / "deaths").iterdir())
    (record,) = (w for w in run.records("workers") if w["host"] == "broken")
    assert record["exit_code"] == 1
    assert "broken" in record["reason"]
    assert code in record["reason"]


def state_of_commits(out: Path) -> dict[str, int]:
    found = (path for path in out.glob("split.*/done") if ".part-" not in str(path))
    return {str(path): path.stat().st_ino for path in found}


def test_node_that_can_never_read_done_does_not_stop_a_run_it_is_alone_with(detached, tmp_path):
    run = detached(n_items=6, n_shards=3)
    assert run.run(**environment_of(DONE, "EIO", tmp_path / "site")) == 1
    assert not (run.out / "detached" / "stop.json").exists()
    assert run.run() == 0
    run.assert_complete()


def test_committed_shards_cannot_be_none_where_the_folder_cannot_be_listed(interrupted):
    with unreachable(r"/out$", "EIO", "list"), pytest.raises(FileSystemError):
        committed_shards(committed_layout(interrupted), "any")


@pytest.mark.parametrize("code", few(["EIO", "ESTALE", "ETIMEDOUT"], 1))
def test_worker_process_that_cannot_publish_is_named_and_the_rest_is_kept(
    tmp_path, monkeypatch, code
):
    from espnet3.parallel import use_parallel

    runner = Runner(Provider(), output_dir=tmp_path / "out")
    for name, value in environment_of(r"/manifest\.json$", code, tmp_path / "site").items():
        monkeypatch.setenv(name, value)
    block = {"env": "local", "n_workers": 2, "shards_per_worker": 2}
    with use_parallel(block), pytest.raises(FileSystemError, match="file system is back"):
        runner(range(20))
    monkeypatch.undo()
    with use_parallel(block):
        assert runner(range(20)).read_text() == "".join(f"utt{i} ok\n" for i in range(20))

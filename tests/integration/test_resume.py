"""Resume: on other workers, never with stale results, and at once when all is done."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.errors import RunFolderError, StaleRunError
from espnet3.parallel import BaseRunner, use_parallel
from espnet3.parallel.detached.worker import DetachedWorker
from espnet3.parallel.signals import EndSignals
from espnet3.shards import commit
from espnet3.shards.lease import Lease, owner_path
from espnet3.shards.records import Identity, make_folders


@pytest.fixture(autouse=True)
def _settled(monkeypatch):
    """Damage is no late view here, and need not be waited for."""
    monkeypatch.setattr(commit, "SETTLE_SECONDS", 0.0)


@pytest.mark.parametrize("sequence", [(1, 2), (2, 1), (1, 3, 1), (2, 4)])
def test_a_run_is_resumed_on_other_numbers_of_workers(job, reference, sequence):
    run = job(fault="driver between commits")
    run.run(n_workers=sequence[0])
    done = run.done_files()
    for n_workers in sequence[1:]:
        told = run.succeed(n_workers=n_workers)
    assert "Resuming" in told or "complete already" in told
    assert run.text == reference
    assert done.items() <= run.done_files().items()


def test_a_finished_run_answers_at_once(job, reference):
    run = job(seconds=0.02)
    run.succeed()
    told = run.succeed(n_workers=4, seconds=100)  # one item would take longer than the test may
    assert "complete already" in told
    assert run.text == reference


class Words:
    """A provider whose config and model file the results depend on."""

    def __init__(self, config, params=None):
        self.config = config
        self.params = params or {}

    def build_env_local(self):
        return {"suffix": Path(self.config["model"]["path"]).read_text(), **self.params}

    def build_worker_setup_fn(self):
        return self.build_env_local


class Speak(BaseRunner):
    @staticmethod
    def forward(idx, suffix, beam=1):
        items = idx if isinstance(idx, list) else [idx]
        results = [f"{item}-{suffix}-{beam}" for item in items]
        return results if isinstance(idx, list) else results[0]


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.pt"
    path.write_text("v1")
    return path


@pytest.fixture
def out(tmp_path, model):
    """Make a finished run, and return its folder."""
    folder = tmp_path / "out"
    Speak(provider(model), output_dir=folder)(range(20))
    return folder


def provider(model, beam=1, **config):
    return Words({"model": {"path": str(model)}, **config}, {"beam": beam})


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda m, o: Speak(provider(m, beam=8), output_dir=o)(range(20)), "params.beam: 1 -> 8"),
        (lambda m, o: Speak(provider(m, lm="x"), output_dir=o)(range(20)), "config.lm: (not set)"),
        (lambda m, o: Speak(provider(m), output_dir=o)(range(21)), "items: "),
        (lambda m, o: Speak(provider(m), output_dir=o)([*range(19), 25]), "items: "),
        (lambda m, o: Speak(provider(m), output_dir=o, batch_size=4)(range(20)), "batch_size: "),
    ],
    ids=["parameter", "config", "more items", "other items", "batch size"],
)
def test_a_changed_run_is_refused_with_the_key(model, out, change, key):
    before = (out / "results.jsonl").read_bytes()
    with pytest.raises(StaleRunError) as error:
        change(model, out)
    assert key in str(error.value)
    assert "resume=False" in str(error.value)
    assert "another output_dir" in str(error.value)
    assert (out / "results.jsonl").read_bytes() == before


SCRIPT = """
from espnet3.parallel import BaseRunner

class Provider:
    def build_env_local(self): return {"greeting": "hello"}
    def build_worker_setup_fn(self): return self.build_env_local

class Greet(BaseRunner):
    @staticmethod
    def forward(idx, greeting):
        return f"{greeting} {idx}"  # COMMENT

print(Greet(Provider(), output_dir="out")(range(9)).read_text())
"""


@pytest.mark.parametrize("where", ["runner", "provider"])
def test_changed_code_is_refused_but_a_comment_is_not(tmp_path, where):
    script = tmp_path / "script.py"

    def run(source: str) -> subprocess.CompletedProcess:
        script.write_text(source)
        command = [sys.executable, str(script)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert run(SCRIPT).returncode == 0
    assert run(SCRIPT.replace("COMMENT", "another comment")).returncode == 0
    old, new = {"runner": ('{idx}"', '{idx}!"'), "provider": ("hello", "bye")}[where]
    refused = run(SCRIPT.replace(old, new))
    assert refused.returncode == 1
    changed = {"runner": "Greet.forward", "provider": "Provider.build_env_local"}[where]
    assert f"  {where}.code.{changed}: the code changed\n" in refused.stderr
    assert "resume=False" in refused.stderr


def test_a_change_can_be_accepted_and_what_is_done_is_kept(model, out):
    done = sorted(out.glob("split.*/done"))
    done[-1].unlink()
    (out / "_SUCCESS.json").unlink()
    accept = {"output_dir": out, "accept_changes": ["params"]}
    Speak(provider(model, beam=8), **accept)(range(20))
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert lines[0] == "0-v1-1"
    assert lines[-1] == "19-v1-8"
    with pytest.raises(StaleRunError, match=r"accept_changes=\['config\.lm'\]"):
        Speak(provider(model, beam=8, lm="x"), **accept)(range(20))


def test_a_changed_model_file_is_refused_although_its_name_is_the_same(model, out):
    model.write_text("v2")
    os.utime(model, ns=(1, 1))
    with pytest.raises(StaleRunError, match=r"config\.model\.path: the file .* other content"):
        Speak(provider(model), output_dir=out)(range(20))


def test_a_touched_model_file_is_not_a_change(model, out):
    os.utime(model, ns=(1, 1))
    assert Speak(provider(model), output_dir=out)(range(20)) == out / "results.jsonl"


def test_a_changed_parallel_block_or_device_is_not_a_change(tmp_path, model):
    folder = tmp_path / "out"
    for n_workers, device in ((1, "cpu"), (2, "cuda:0")):
        config = {"parallel": {"n_workers": n_workers}, "device": device}
        Speak(provider(model, **config), output_dir=folder)(range(5))
    assert (folder / "results.jsonl").exists()


def test_resume_false_starts_anew_and_keeps_what_is_not_its_own(model, out):
    (out / "notes.txt").write_text("mine")
    model.write_text("v2")
    Speak(provider(model), output_dir=out, resume=False)(range(3))
    assert json.loads((out / "results.jsonl").read_text().splitlines()[0]) == "0-v2-1"
    assert (out / "notes.txt").read_text() == "mine"
    assert len(list(out.glob("split.*"))) == 3


def test_resume_false_does_not_remove_a_manifest_of_another_program(model, tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "my web app"}')
    with pytest.raises(
        RunFolderError, match=r"was not written by ESPnet3\. Use another output_dir"
    ):
        Speak(provider(model), output_dir=tmp_path, resume=False)(range(3))
    assert (tmp_path / "manifest.json").exists()


def test_resume_false_refuses_while_another_driver_works_there(job):
    from tests.helpers.waiting import wait_until

    run = job(seconds=0.5)  # long enough for the other one to start, however busy the machine is
    process = run.start()
    wait_until(lambda: run.n_committed > 0)
    refused = run.run(resume=False)
    assert refused.returncode == 1
    assert f":{process.pid}" in refused.stderr
    assert "Stop it first" in refused.stderr
    process.kill()
    process.communicate()


def test_merged_files_that_were_removed_are_made_again(model, out):
    before = (out / "results.jsonl").read_bytes()
    (out / "results.jsonl").unlink()
    Speak(provider(model), output_dir=out)(range(20))
    assert (out / "results.jsonl").read_bytes() == before


def test_a_moved_run_folder_is_still_complete(model, out, tmp_path):
    moved = tmp_path / "moved"
    out.rename(moved)
    assert Speak(provider(model), output_dir=moved)(range(20)) == moved / "results.jsonl"


@pytest.mark.parametrize("damage", ["truncate", "remove", "empty"])
def test_a_damaged_done_makes_its_shard_run_again(model, out, damage):
    before = (out / "results.jsonl").read_bytes()
    done = sorted(out.glob("split.*/done"))[3]
    (out / "_SUCCESS.json").unlink()
    if damage == "remove":
        done.unlink()
    else:
        done.write_bytes(done.read_bytes()[:20] if damage == "truncate" else b"")
    Speak(provider(model), output_dir=out)(range(20))
    assert (out / "results.jsonl").read_bytes() == before


def test_a_shard_edited_by_hand_is_noticed_at_the_merge(model, out):
    from espnet3.errors import IncompleteRunError

    (out / "_SUCCESS.json").unlink()
    part = sorted(out.glob("split.*/results.jsonl"))[2]
    part.write_bytes(part.read_bytes().replace(b"v1", b"v9"))
    with pytest.raises(IncompleteRunError, match="Remove the folder"):
        Speak(provider(model), output_dir=out)(range(20))


def test_a_manifest_of_another_version_is_refused(model, out):
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**manifest, "version": 99}))
    with pytest.raises(RunFolderError, match=r"version 99.*resume=False"):
        Speak(provider(model), output_dir=out)(range(20))
    Speak(provider(model), output_dir=out, resume=False)(range(20))


def test_a_run_in_which_another_version_works_is_refused_until_it_has_ended(model, out):
    (out / "_SUCCESS.json").unlink()
    with Lease(out) as lease:
        path = owner_path(lease.folder, lease.owner.owner_id)
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": "0.1.0"}))
        with pytest.raises(RunFolderError, match=r"0\.1\.0.*Two versions do not share"):
            Speak(provider(model), output_dir=out)(range(20))
        make_folders(out)
        found = DetachedWorker(out, Identity(), EndSignals()).work()
        assert found.code == 1
        assert "Two versions do not share" in found.reason
    Speak(provider(model), output_dir=out)(range(20))


def test_from_processes_to_in_process_and_back_is_one_run(tmp_path, model):
    folder = tmp_path / "out"
    for n_workers in (2, 1, 3):
        for shard in sorted(folder.glob("split.*"))[:5]:
            (shard / "done").unlink()
        (folder / "_SUCCESS.json").unlink(missing_ok=True)
        with use_parallel({"env": "local", "n_workers": n_workers}):
            Speak(provider(model), output_dir=folder)(range(20))
        lines = (folder / "results.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == [f"{i}-v1-1" for i in range(20)]

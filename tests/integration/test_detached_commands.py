"""The commands for detached runs, on folders that real workers made."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from espnet3.errors import WorkerError
from espnet3.parallel.detached.handle import DetachedRun
from espnet3.shards.lease import start_time
from espnet3.shards.manifest import load_manifest
from espnet3.shards.records import RecordPaths, read_jobs
from tests.helpers.waiting import wait_until

SCRIPT = """
import sys, time
from pathlib import Path
from espnet3.parallel import BaseRunner, set_parallel

class Provider:
    def __init__(self, folder):
        self.folder = folder
    def build_env_local(self):
        return {"folder": self.folder}
    def build_worker_setup_fn(self):
        return self.build_env_local

class Decode(BaseRunner):
    @staticmethod
    def forward(idx, folder):
        print(f"decoding {idx}", flush=True)
        while idx >= 24 and Path(folder, "wait").exists():
            time.sleep(0.05)
        if idx == 13 and not Path(folder, "mended").exists():
            raise ValueError("utterance 13 is broken")
        return {"id": idx}

    def merge(self, shard_dirs):
        super().merge(shard_dirs)
        return {"n_shards": len(shard_dirs)}

if __name__ == "__main__":
    folder, on_error, mode = sys.argv[1:4]
    set_parallel({"env": "local", "n_workers": 2, "mode": mode, "shards_per_worker": 4})
    runner = Decode(Provider(folder), output_dir=Path(folder, "out"), on_error=on_error)
    print(runner(range(32)))
"""


class Run:
    """A run of the script above in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.script = folder / "decode.py"
        self.script.write_text(SCRIPT)

    def start(self, on_error: str = "skip", mode: str = "async") -> str:
        words = [sys.executable, str(self.script), str(self.folder), on_error, mode]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def espnet3(self, verb: str, *words: str, code: int = 0) -> str:
        done = self.popen(verb, *words)
        out, err = done.communicate(timeout=150)
        assert done.returncode == code, out + err
        return out + err

    def popen(self, verb: str, *words: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "espnet3.cli", verb, str(self.out), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def status(self) -> dict:
        (status,) = json.loads(self.espnet3("status", "--json"))["runs"]
        return status

    def hold(self, *, on: bool) -> None:
        """Keep the last shards from being finished, or let them."""
        (self.folder / "wait").touch() if on else (self.folder / "wait").unlink()

    def agents(self) -> list[int]:
        """Return the workers that are alive."""
        jobs = read_jobs(RecordPaths(self.out))
        return [int(job.job_id) for job in jobs if start_time(int(job.job_id)) == job.started]

    def wait_for_held(self) -> list[int]:
        """Wait until both workers are at shards that are held, and return these."""
        manifest = load_manifest(self.out)
        held = {shard for shard in range(manifest.n_shards) if manifest.bounds[shard + 1] > 24}

        def at() -> list[int]:
            return sorted(shard["shard"] for shard in self.status()["running"])

        wait_until(lambda: len(at()) == 2 and held.issuperset(at()), seconds=100)
        return at()

    def ids(self) -> list[int]:
        lines = (self.out / "results.jsonl").read_text().splitlines()
        return [json.loads(line)["id"] for line in lines]


@pytest.fixture
def run(tmp_path):
    """A run in a folder with an awkward name, whose workers do not outlive the test."""
    folder = tmp_path / "it's a run"
    folder.mkdir()
    run = Run(folder)
    yield run
    for pid in run.agents():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def shard_log(run: Run, shard: int) -> str:
    return run.espnet3("logs", "--shard", str(shard))


ALL_BUT_13 = [item for item in range(32) if item != 13]


def test_a_run_is_watched_cancelled_and_shared_by_two_who_resume_it(run):
    run.hold(on=True)
    assert "DetachedRun" in run.start()
    held = run.wait_for_held()
    status = run.status()
    assert status["state"] == "running"
    assert [worker["is_alive"] for worker in status["workers"]] == [True, True]
    assert sorted(worker["shard"] for worker in status["workers"]) == held
    start = load_manifest(run.out).bounds[held[1]]
    wait_until(lambda: f"decoding {max(start, 24)}" in shard_log(run, held[1]), seconds=60)
    assert f"decoding {start - 1}" not in shard_log(run, held[1])
    assert "running" in run.espnet3("wait", "--timeout", "0.5", code=124)

    told = run.espnet3("cancel")
    assert "2 workers stopped" in told
    assert not run.agents()
    assert run.status()["state"] == "cancelled"
    assert "was cancelled by" in run.espnet3("wait", code=1)

    run.hold(on=False)
    both = [run.popen("resume", "--workers", "1") for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0], both[0].stderr.read()
    assert "is complete: 32 of 32 done (100.0 %), 1 failed" in run.espnet3("wait")
    assert run.ids() == ALL_BUT_13
    assert all(not process.communicate()[1] for process in both)


def test_an_error_stops_all_and_resume_goes_on_after_it_is_mended(run):
    run.start(on_error="raise")
    told = run.espnet3("wait", code=1)
    assert "utterance 13 is broken" in told
    assert run.status()["state"] == "failed"
    explained = run.espnet3("explain")
    assert "problem: stop: it was stopped by an error" in explained
    assert "ValueError: utterance 13 is broken" in explained
    assert "espnet3 resume '" in explained
    with pytest.raises(WorkerError, match="utterance 13 is broken"):
        DetachedRun(run.out).wait(60)
    wait_until(lambda: not run.agents(), seconds=60)
    (run.folder / "mended").touch()
    run.espnet3("resume")
    run.espnet3("wait")
    assert run.ids() == list(range(32))


def test_resume_takes_what_explain_advises(run):
    run.start(on_error="raise")
    run.espnet3("wait", code=1)
    wait_until(lambda: not run.agents(), seconds=60)
    line = re.search(r"espnet3 (resume .*?) ;", run.espnet3("explain").replace("\n", " "))[1]
    verb, folder, *words = shlex.split(line)
    assert (verb, folder, words) == ("resume", str(run.out), ["runner.on_error=skip"])
    assert "runner.resume cannot change" in run.espnet3("resume", "runner.resume=false", code=2)
    run.espnet3("resume", *words)
    run.espnet3("wait")
    assert run.ids() == ALL_BUT_13


def test_retry_computes_failed_items_anew_and_the_handle_has_the_result(run):
    run.start()
    handle = DetachedRun(run.out)
    assert handle.wait(100) == {"n_shards": 8}
    assert run.ids() == ALL_BUT_13
    assert "utterance 13 is broken" in run.espnet3("failed")
    assert "decoding 13" in handle.logs(failed=True)
    (run.folder / "mended").touch()
    told = run.espnet3("retry", "--failed")
    assert "1 failed item in 1 shard" in told
    run.espnet3("wait")
    assert run.ids() == list(range(32))
    assert handle.result() == {"n_shards": 8}
    assert "No item failed; nothing to do." in run.espnet3("retry", "--failed")


def test_workers_that_were_killed_are_told_of(run):
    run.hold(on=True)
    run.start()
    run.wait_for_held()
    for pid in run.agents():
        os.kill(pid, signal.SIGKILL)
    told = run.espnet3("wait", code=1)
    assert "has no workers left" in told
    explained = run.espnet3("explain")
    assert "problem: run: no worker is active, and no job waits" in explained
    assert "2 processes ended without a word: killed" in explained
    assert "The end of" in explained
    run.hold(on=False)
    run.espnet3("resume")
    run.espnet3("wait")
    assert run.ids() == ALL_BUT_13


def test_merge_runs_the_runner_s_own_merge(run):
    run.start()
    run.espnet3("wait")
    wait_until(lambda: not run.agents(), seconds=60)
    text = (run.out / "results.jsonl").read_bytes()
    for name in ("_SUCCESS.json", "results.jsonl"):
        (run.out / name).unlink()
    assert run.status()["state"] == "not merged"
    assert "espnet3 merge '" in run.espnet3("explain")
    told = run.espnet3("merge")
    assert "results.jsonl" in told
    assert "A merge() of your own was not run" not in told
    assert (run.out / "results.jsonl").read_bytes() == text
    assert DetachedRun(run.out).result() == {"n_shards": 8}
    assert "merged already" in run.espnet3("merge")


def test_a_detached_run_gives_what_one_that_waits_gives(run, tmp_path):
    run.start()
    run.espnet3("wait")
    other = Run(tmp_path)
    assert other.start(mode="sync").strip() == str(DetachedRun(run.out).result())
    assert (other.out / "results.jsonl").read_bytes() == (run.out / "results.jsonl").read_bytes()

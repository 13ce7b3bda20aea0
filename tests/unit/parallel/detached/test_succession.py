import sys
from pathlib import Path

import pytest

from espnet3.parallel.detached import succession as succession_module
from espnet3.parallel.detached.succession import Succession
from tests.conftest import wait_until

SCRIPT = """
import sys
from pathlib import Path
with open(Path(__file__).parent / "calls", "a") as file:
    print(*sys.argv[1:], file=file)
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Let a module of ours stand in for the one that talks to the scheduler."""
    (tmp_path / "stand_in_succeed.py").write_text(SCRIPT)
    monkeypatch.setattr(succession_module, "_MODULE", "stand_in_succeed")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def read():
        path = tmp_path / "calls"
        return path.read_text().splitlines() if path.exists() else []

    return read


def make(env="slurm", job_id="7", trust=None):
    return Succession([Path("/run a")], env=env, job_id=job_id, generation=2, trust=trust)


def test_it_is_asked_at_the_start_and_then_every_minute(calls, monkeypatch):
    succession = make(trust="ann")
    for _ in range(3):
        succession.tick()
    wait_until(lambda: len(calls()) == 1, 60)
    assert calls() == ["/run a --env slurm --job 7 --generation 2 --trust ann"]
    monkeypatch.setattr(succession_module, "_EVERY_SECONDS", 0.0)
    wait_until(lambda: succession.tick() or len(calls()) > 1, 60)
    succession.close()


def test_it_is_asked_once_more_at_the_end_of_the_run(calls):
    make().finish()
    assert len(calls()) == 1


@pytest.mark.parametrize(("env", "job_id"), [("local", "7"), ("local_gpu", "7"), ("slurm", "")])
def test_processes_have_no_successors(calls, env, job_id):
    succession = make(env, job_id)
    succession.tick()
    succession.finish()
    succession.close()
    assert calls() == []


def test_its_failure_is_told_and_does_no_harm(monkeypatch, caplog):
    monkeypatch.setattr(succession_module, "_MODULE", "no_such_module_at_all")
    make().finish()
    assert "no successor: no_such_module_at_all ended with code 1" in caplog.text
    assert sys.executable  # still here


def test_one_that_hangs_is_ended(calls, monkeypatch, tmp_path, caplog):
    (tmp_path / "stand_in_succeed.py").write_text("import time; time.sleep(1000)")
    monkeypatch.setattr(succession_module, "_MAX_SECONDS", 0.0)
    succession = make()
    succession.tick()
    succession.tick()
    assert "did not end in time" in caplog.text

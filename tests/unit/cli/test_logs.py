import json

import pytest

from espnet3.cli import run_diagnosis
from espnet3.cli.main import main
from espnet3.parallel.detached.logs import LogFollower, cut

LINES = (
    "10:00:00 INFO agent: shard 2 begins (attempt split.02.part-a)",
    "10:00:01 WARNING user: first try",
    "10:00:02 ERROR agent: shard 2 ends: died",
    "10:00:02 INFO agent: between the two",
    "10:00:03 INFO agent: shard 12 begins (attempt split.12.part-b)",
    "10:00:04 INFO agent: shard 12 ends: done",
    "10:00:05 INFO agent: shard 2 begins (attempt split.02.part-c)",
    "10:00:06 INFO user: second try \x1b[31mred",
)


def logs_text(capsys, *argv) -> str:
    assert main(["logs", *map(str, argv)]) == 0
    return capsys.readouterr().out


@pytest.fixture
def told(detached):
    """A run with the log of a worker, which is alive, and of one that is gone."""
    detached.worker("10", log=detached.log("detached-slurm-10.log", *LINES))
    gone = detached.log("detached-slurm-9.log", "09:00:00 INFO agent: bye")
    detached.record("0123456789abcdef", "9", "node7", log=gone, ended=1.0, reason="it got SIGTERM")
    return detached


def test_without_options_those_at_work_are_shown(told, capsys):
    text = logs_text(capsys, told.root)
    assert "==> worker 10 on node1 <==" in text
    assert "second try \\x1b[31mred" in text, "what a worker wrote must not steer the terminal"
    assert "bye" not in text


def test_a_shard_gets_each_of_its_attempts_and_nothing_else(told, capsys):
    text = logs_text(capsys, told.root, "--shard", 2)
    assert text.count("==> shard 2 in detached-slurm-10.log <==") == 2
    assert "first try" in text
    assert "second try" in text
    assert "shard 12" not in text
    assert "between the two" not in text


def test_an_attempt_that_was_cut_short_is_there_to_the_end(told):
    parts = list(cut(told.layout.logs / "detached-slurm-10.log", 2))
    assert [len(part.lines) for part in parts] == [3, 2]


@pytest.mark.parametrize(
    "name", ["9", "node7", "node7:4711", "0123456", "detached-slurm-9.log", "detached-slurm-9"]
)
def test_a_worker_has_many_names(told, capsys, name):
    text = logs_text(capsys, told.root, "--worker", name)
    assert "==> worker 9 on node7 (it got SIGTERM) <==" in text
    assert "bye" in text


def test_an_unknown_worker_gets_the_list(told, capsys):
    assert main(["logs", str(told.root), "--worker", "99"]) == 1
    assert "is called '99'" in (error := capsys.readouterr().err)
    assert "There are: 9, 10." in error or "There are: 10, 9." in error


def test_a_shard_that_is_not_there_is_refused(told, capsys):
    assert main(["logs", str(told.root), "--shard", "99"]) == 1
    assert "its shards are 0 to 15" in capsys.readouterr().err
    assert main(["logs", str(told.root), "--shard", "7"]) == 1
    assert "has begun shard 7 so far" in capsys.readouterr().err


def test_failed_shows_the_end_of_what_was_written_at_a_death(told, capsys):
    told.death(2, log="logs/detached-slurm-10.log")
    text = logs_text(capsys, told.root, "--failed")
    assert "==> shard 2: it was killed by signal 9 <==" in text
    assert "second try" in text
    assert "shard 12" not in text


def test_failed_shows_jobs_that_began_no_worker(told, capsys):
    log = told.log("detached-slurm-77.log", "python: command not found")
    told.job("77", log=log)
    text = logs_text(capsys, told.root, "--failed")
    assert "job 77, which began no worker" in text
    assert "python: command not found" in text


def test_a_job_that_began_no_worker_is_found_by_what_the_scheduler_kept(told, capsys, tmp_path):
    told.log("espnet3-77.err", "python: command not found")
    told.job("77", log="logs/detached-slurm-77.log")  # where its worker would have written
    assert "command not found" in logs_text(capsys, told.root, "--failed")
    text = logs_text(capsys, told.root, "--worker", "77")
    assert "==> worker 77 on login1 (it began no worker) <==" in text
    assert "command not found" in text

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "espnet3-78.err").write_text("no such module\n")
    options = {"options": {"log_directory": str(tmp_path / "mine")}}
    told.paths.parallel("slurm").write_text(json.dumps(options))
    told.paths.run.write_text('{"cwd": "/"}')
    told.job("78", log="logs/detached-slurm-78.log")
    assert "no such module" in logs_text(capsys, told.root, "--worker", "78")


def test_a_process_is_found_by_its_number(told, capsys):
    log = told.log("detached-local-node5-4711.log", "an error")
    told.job("4711", env="local", machine="m", log=log)
    told.record(
        "fedcba98", "", "node5", env="local", log=log, ended=1.0, reason="it failed\n\nTrace"
    )
    text = logs_text(capsys, told.root, "--worker", "4711")
    assert "==> worker node5:4711 (it failed) <==" in text


def test_an_error_of_the_provider_is_not_called_one_of_an_item(told, capsys):
    failure = {"position": 0, "shard": 2, "index": None, "error": "no model"}
    failure["log"] = "logs/detached-slurm-10.log"
    (told.root / "failed.jsonl").write_text(json.dumps(failure) + "\n")
    assert "==> shard 2, the provider: no model <==" in logs_text(capsys, told.root, "--failed")


def test_of_a_run_that_waits_for_its_workers_all_logs_are_shown(complete, capsys):
    (complete / "logs").mkdir(exist_ok=True)
    (complete / "logs" / "worker.log").write_text("hello\n")
    assert "hello" in logs_text(capsys, complete)
    assert main(["logs", str(complete), "--shard", "1"]) == 1
    assert "do not tell shards apart" in capsys.readouterr().err


def test_lines_limits_each_part(told, capsys):
    text = logs_text(capsys, told.root, "-n", 1)
    assert "second try" in text
    assert "first try" not in text


def test_following_and_a_shard_do_not_go_together(told, capsys):
    assert main(["logs", str(told.root), "--shard", "2", "-f"]) == 2


def test_a_follower_reads_whole_lines_and_workers_that_come_later(told):
    follower = LogFollower(told.root)
    path = told.layout.logs / "detached-slurm-10.log"
    with path.open("a") as file:
        file.write("whole\nhal")
    assert list(follower.read()) == [("10", "whole")]
    with path.open("a") as file:
        file.write("f\n")
    told.worker("11", log=told.log("detached-slurm-11.log", "new here"))
    assert sorted(follower.read()) == [("10", "half"), ("11", "new here")]


def test_following_ends_with_the_run_and_its_last_line(told, capsys, monkeypatch):
    monkeypatch.setattr(run_diagnosis, "_FOLLOW_SECONDS", 0.2)
    monkeypatch.setattr(run_diagnosis, "_STATE_SECONDS", 0.2)

    real = LogFollower.read

    # Between the read and the look at the state: lines of this moment were lost.
    def read(self):
        yield from real(self)
        if told.layout.success.exists():
            return
        with (told.layout.logs / "detached-slurm-10.log").open("a") as file:
            file.write("the last line\n")
        told.layout.success.write_text(
            f'{{"run_id": "{told.manifest.run_id}", "n_failed": 0, "seconds": 1}}'
        )

    monkeypatch.setattr(LogFollower, "read", read)
    text = logs_text(capsys, told.root, "-f")
    assert "[10] the last line" in text
    assert text.endswith("is complete.\n")


def test_worker_of_a_complete_run_has_ended(detached, capsys):
    log = detached.log("worker-node7-1.log", "09:00:00 INFO agent: bye")
    detached.record("0123456789abcdef", "", "node7", log=log)
    assert "(gone without a word) <==" in logs_text(capsys, detached.root)
    detached.layout.success.write_text("{}")
    assert "(ended) <==" in logs_text(capsys, detached.root)

import json
import os
import time

import pytest

from espnet3.cli.main import main
from espnet3.parallel.detached.explain import explain_run
from espnet3.shards.records import RecordPaths, StopMark, write_stop


def found(root, what: str):
    return [finding for finding in explain_run(root) if finding.what == what]


def test_a_run_that_nobody_works_on_says_how_to_go_on(detached, capsys):
    assert main(["explain", str(detached.root)]) == 0
    shown = capsys.readouterr().out
    assert "problem: run: no worker is active, and no job waits" in shown
    assert f"-> espnet3 resume {detached.root}" in shown


def test_a_run_that_was_not_detached_is_explained_as_well(stopped, complete, capsys):
    (finding,) = found(stopped, "run")
    assert finding.fix.startswith("Run the command that began it again")
    assert main(["explain", "--json", str(complete)]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert [finding["what"] for finding in run["findings"]] == ["items", "run"]


def test_the_scheduler_s_reason_comes_with_advice(detached, squeue):
    squeue(
        ("12", "PENDING", "PartitionTimeLimit", 0, "(PartitionTimeLimit)"),
        ("13", "PENDING", "Priority", 0, "(Priority)"),
    )
    detached.job("12")
    detached.job("13")
    never, late = found(detached.root, "queue")
    assert never.level == "problem"
    assert "1 of 2 jobs in the queue, for 5 min so far: PartitionTimeLimit (job 12)" in never.told
    assert "set a shorter parallel.options.walltime" in never.fix
    assert never.fix.endswith(f"espnet3 resume {detached.root} options.walltime='...'")
    assert (late.level, late.fix[:16]) == ("warning", "Others are first")


@pytest.mark.parametrize(
    ("word", "words", "fix"),
    [
        ("OUT_OF_MEMORY", "used more memory than asked for", "options.memory="),
        ("TIMEOUT", "ran until the walltime was over", "options.walltime="),
        ("NODE_FAIL", "lost the node", "Others take over their shards"),
        ("PREEMPTED", "made room", "Others take over their shards"),
        ("CANCELLED", "was cancelled by a user", "espnet3 resume"),
        ("FAILED", "ended with an error", "--worker 12"),
    ],
)
def test_exit_states_are_told_in_words_with_a_suggestion(detached, squeue, word, words, fix):
    squeue(("12", word, "None", 256 if word == "FAILED" else 0, ""))
    log = detached.log("detached-slurm-12.log", "before", "the last thing it said")
    detached.job("12", log=log)
    detached.record("0123456789abcdef", "12", log=log)
    (finding,) = found(detached.root, "jobs")
    assert words in finding.told
    assert word in finding.told
    assert "the last thing it said" in finding.told
    assert fix in finding.fix
    assert not found(detached.root, "workers"), "one thing is told once"


def test_the_limit_of_the_queue_stands_in_the_line(detached, squeue, tmp_path, monkeypatch):
    squeue(("12", "PENDING", "PartitionTimeLimit", 0, "(PartitionTimeLimit)"))
    detached.job("12")
    sinfo = tmp_path / "commands" / "sinfo"
    sinfo.parent.mkdir()
    sinfo.write_text("#!/bin/sh\necho 'debug* 1-00:00:00'\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", str(sinfo.parent), prepend=os.pathsep)
    (finding,) = found(detached.root, "queue")
    assert "the longest there is 1-00:00:00" in finding.fix
    assert finding.fix.endswith("options.walltime='1-00:00:00'")


def test_a_python_that_is_not_there_is_told_first_with_the_key_to_change(detached, squeue):
    squeue(("12", "FAILED", "None", 127 << 8, ""))
    detached.job("12")
    cause, run, *_ = explain_run(detached.root)
    assert (cause.what, run.what) == ("jobs", "run")
    assert "did not find a program or a file" in cause.told
    assert f"espnet3 resume {detached.root} options.python=" in cause.fix
    assert "espnet3 resume" not in run.fix, "it would submit the same jobs"


def test_a_refused_submission_is_told_with_the_queue_to_take(detached):
    refused = "sbatch refused a job: invalid partition. Such as: python run.py parallel."
    stop = StopMark("failed", f"{refused}options.queue=debug", by="the submission")
    write_stop(RecordPaths(detached.root), stop)
    (finding,) = found(detached.root, "stop")
    assert finding.fix == f"espnet3 resume {detached.root} options.queue=debug"


def test_a_job_that_ended_well_is_not_worth_a_word(detached, squeue):
    squeue(("12", "COMPLETED", "None", 0, ""), ("13", "TIMEOUT", "TimeLimit", 0, ""))
    detached.job("12")
    detached.job("13")
    detached.record("0123456789abcdef", "13", ended=time.time(), exit_code=0, reason="walltime")
    assert not found(detached.root, "jobs")


def test_jobs_that_were_cancelled_with_the_run_are_not_told_again(detached, squeue):
    squeue(("12", "CANCELLED", "None", 0, ""), ("13", "CANCELLED", "Dependency", 0, ""))
    detached.job("12")
    detached.job("13", after="12")
    (finding,) = found(detached.root, "jobs")
    assert "1 job was cancelled by a user" in finding.told
    assert "12" in finding.told
    detached.stop("cancelled", "cancelled by me@login1")
    assert not found(detached.root, "jobs")


def test_an_error_that_stopped_the_run_is_shown(detached):
    detached.stop("failed", "Item 3 failed on node1: ValueError: broken\n\nTraceback ...")
    (finding,) = found(detached.root, "stop")
    assert "ValueError: broken" in finding.told
    assert f"fix that, then: espnet3 resume {detached.root} ;" in finding.fix
    assert finding.fix.endswith("run the command that began the run again")


def test_workers_that_said_why_they_ended_are_quoted_or_left_to_the_error(detached, squeue):
    squeue(("12", "FAILED", "NonZeroExitCode", 256, ""))
    detached.job("12")
    ended = {"ended": time.time(), "exit_code": 1, "reason": "RunFolderError: it is full\nmore"}
    detached.record("0123456789abcdef", "12", **ended)
    (finding,) = found(detached.root, "jobs")
    assert "1 job ended with an error, RunFolderError: it is full (FAILED" in finding.told
    detached.stop("failed", "The run folder is full")
    assert not found(detached.root, "jobs")


def test_long_lines_are_not_cut(detached, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    detached.stop("failed", "short\n" + "x" * 200 + " the end of it")
    assert main(["explain", str(detached.root)]) == 0
    assert "x the end of it\n" in capsys.readouterr().out


def test_a_cancelled_run_says_by_whom(detached):
    detached.stop("cancelled", "the queue is needed", "anna@login1")
    (finding,) = found(detached.root, "stop")
    assert "cancelled by anna@login1" in finding.told
    assert "the queue is needed" in finding.told


def test_deaths_are_told_by_shard(detached):
    detached.death(2, start=4, stop=5)
    detached.death(2, start=4, stop=5)
    detached.death(15, kind="walltime", seconds=90.0)
    by_shard, by_time = found(detached.root, "deaths"), found(detached.root, "walltime")
    assert "shard 2 came to nothing 2 times: its worker died at position 4 on node9" in (
        by_shard[0].told
    )
    assert by_shard[0].fix == f"espnet3 logs {detached.root} --shard 2"
    assert "cut off by the walltime once, after 1 min 30 s" in by_time[0].told


def test_deaths_that_were_made_up_for_are_no_worry(detached):
    detached.death(3)
    (finding,) = found(detached.root, "deaths")
    assert finding.level == "ok"
    assert "attempts at 1 shard came to nothing, but others have done them since" in finding.told


def test_a_shard_that_takes_too_long_is_named(detached):
    lease = detached.worker("10")
    detached.take(lease, 2, 1)
    hour = time.time() - 3600
    os.utime(detached.layout.claim("split.02"), (hour, hour))
    (finding,) = found(detached.root, "shard")
    assert "shard 2 runs for 1 h 00 min" in finding.told
    assert "it is at item 1 of 2" in finding.told
    assert finding.fix.endswith(f"espnet3 resume {detached.root} item_timeout=600")


def test_a_worker_whose_heart_stopped_is_named_before_it_counts_as_dead(detached):
    detached.worker("10")
    silent = detached.worker("11", "node2")
    before = time.time() - 40
    os.utime(silent.folder / f"{silent.owner.owner_id}.owner", (before, before))
    (finding,) = found(detached.root, "workers")
    assert "worker 11 on node2 is silent for" in finding.told


def test_workers_that_are_gone_without_a_word_are_named(detached):
    log = detached.log("detached-local-node3-1.log", "famous last words")
    detached.record("0123456789abcdef", "", "node3", env="local", log=log)
    (finding,) = found(detached.root, "workers")
    assert "1 worker went without a word: node3:4711 on node3" in finding.told
    assert "famous last words" in finding.told


def test_a_node_that_cannot_submit_is_named(detached):
    log = detached.log("detached-slurm-10.log", "10:00 WARNING no successor: sbatch is not here")
    detached.worker("10", log=log)
    (finding,) = found(detached.root, "chain")
    assert "worker 10 could not submit its successor: sbatch is not here" in finding.told


def test_jobs_whose_scheduler_is_elsewhere_are_said_to_be_unknown(detached, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    detached.job("12")
    (finding,) = found(detached.root, "jobs")
    assert "squeue is not here" in finding.told


def test_failed_items_point_to_failed_and_retry(detached):
    (finding,) = found(detached.root, "items")
    assert "2 items failed, mostly with: ValueError: utterance" in finding.told
    assert f"espnet3 retry {detached.root} --failed" in finding.fix


def test_the_worst_comes_first_and_nothing_steers_the_terminal(detached, capsys):
    detached.worker("10")
    detached.death(2)
    assert main(["explain", str(detached.root)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.index("warning: deaths") < shown.index("ok: run: 1 works on it")


def test_a_job_that_began_no_worker_is_explained_by_what_the_scheduler_kept(detached, squeue):
    squeue(("12", "FAILED", "None", 256, ""))
    detached.log("espnet3-12.err", "python: command not found")
    detached.job("12", log="logs/detached-slurm-12.log")
    (finding,) = found(detached.root, "jobs")
    assert "python: command not found" in finding.told


def test_what_slurm_wrote_beside_the_worker_s_log_is_told(detached, squeue):
    squeue(("12", "OUT_OF_MEMORY", "None", 0, ""))
    log = detached.log("detached-slurm-12.log", "the last thing it said")
    detached.log("espnet3-12.err", "slurmstepd: error: Detected 1 oom_kill event in StepId=12")
    detached.job("12", log=log)
    detached.record("0123456789abcdef", "12", log=log)
    (finding,) = found(detached.root, "jobs")
    assert "the last thing it said" in finding.told
    assert "The scheduler wrote: Detected 1 oom_kill event" in finding.told

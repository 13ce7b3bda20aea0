"""No job is submitted because a clock is off, a record unreadable, or a scheduler silent."""

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from benchmarks.file_operations import FileOperations
from espnet3.errors import ResourceError
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached import successor_main as succeed_module
from espnet3.parallel.detached import workforce as workforce_module
from espnet3.parallel.detached.control import resume_runs
from espnet3.parallel.detached.explain import explain_run
from espnet3.parallel.detached.overview import look
from espnet3.parallel.detached.submit import SubmissionRefusedError, jobs_per_hour, submit_workers
from espnet3.parallel.detached.successor_main import Follower, load_config
from espnet3.parallel.detached.workforce import read_workforce
from espnet3.schedulers import ask_jobs, command
from espnet3.shards.records import WorkerRecord, read_jobs, write_worker
from tests.helpers.exhaustive import pairs
from tests.helpers.slurm_stand_in import ALL, OPTIONS, crewed


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with crewed(tmp_path, monkeypatch) as (slurm, run):
        yield slurm, run


def look_after(run, job="1", n_times=3):
    """Do what the worker of a job does once a minute, as if each time were another minute."""
    lines = []
    for _ in range(n_times):
        for path in run.paths.folder.glob("watch.*"):
            path.unlink()
        lines += Follower((run.root,), "slurm", job).run()
    return lines


def shift(monkeypatch, seconds):
    """Let this machine's clock be off; `seconds` may be a function of how often it was asked."""
    real, asked = time.time, []

    def wrong():
        asked.append(1)
        return real() + (seconds(len(asked)) if callable(seconds) else seconds)

    monkeypatch.setattr(time, "time", wrong)


@pytest.mark.parametrize(("seconds", "word"), [(3600, "ahead"), (-3600, "behind"), (45, "ahead")])
def test_a_node_whose_clock_is_off_submits_nothing_and_says_so(cluster, monkeypatch, seconds, word):
    slurm, run = cluster
    shift(monkeypatch, seconds)
    lines = look_after(run)
    assert slurm.n_submitted == 0
    assert len(read_jobs(run.paths)) == 6
    assert all(line.startswith("no successor: ") for line in lines)
    assert socket.gethostname() in lines[0]
    assert f"{abs(seconds)} s {word}" in lines[0]
    assert lines[0].count(" UTC") == 2


@pytest.mark.parametrize("seconds", [3600, -3600, lambda n: 3600 * (n % 2), lambda n: -n * 600])
def test_who_is_alive_does_not_depend_on_this_machine_s_clock(cluster, monkeypatch, seconds):
    _, run = cluster
    shift(monkeypatch, seconds)
    assert len(read_workforce(run.root).living) == 3
    assert look(run.root).state == "running"


@pytest.mark.parametrize("seconds", [lambda n: 3600 * (n % 2), lambda n: -7200 * (n % 3 == 0)])
def test_a_clock_that_jumps_submits_nothing(cluster, monkeypatch, seconds):
    slurm, run = cluster
    shift(monkeypatch, seconds)
    look_after(run, n_times=6)
    assert slurm.n_submitted == 0


def test_a_clock_that_is_a_little_off_does_no_harm(cluster, monkeypatch):
    slurm, run = cluster
    shift(monkeypatch, 20)
    assert look_after(run) == []
    slurm.says({**ALL, "13": "CANCELLED"})
    assert len(look_after(run, n_times=1)) == 1  # in its place
    assert slurm.n_submitted == 1


def test_a_person_s_command_is_refused_with_both_times(cluster, monkeypatch):
    slurm, run = cluster
    shift(monkeypatch, 3600)
    with pytest.raises(SubmissionRefusedError, match=r"3600 s ahead.*timedatectl"):
        resume_runs([run.root], n_more=1)
    assert slurm.n_submitted == 0


def test_a_refusal_is_told_by_explain(cluster, monkeypatch):
    _, run = cluster
    with monkeypatch.context() as patched:
        shift(patched, 3600)
        line = look_after(run, n_times=1)[0]
    logs = run.root / "logs"
    logs.mkdir(exist_ok=True)
    (logs / "worker.log").write_text(f"INFO: {line}\n")
    owner = run.leases[0].owner
    write_worker(
        run.paths,
        WorkerRecord(owner.owner_id, "node1", os.getpid(), time.time(), "slurm", "1",
                     log="logs/worker.log"),
    )  # fmt: skip
    assert any("3600 s ahead" in finding.told for finding in explain_run(run.root))


def test_a_file_server_whose_clock_jumps_loses_no_worker(cluster, monkeypatch):
    """All heartbeats look old until the next ones; the scheduler says that the jobs run."""
    slurm, run = cluster
    real = succeed_module.folder_time
    monkeypatch.setattr(succeed_module, "folder_time", lambda folder: real(folder) + 300)
    config = load_config(run.root, "slurm")
    assert list(Follower((run.root,), "slurm", "1").complete_workforce([run.root], config)) == []
    assert slurm.n_submitted == 0


def loop(path):
    """Make a name that cannot be opened by anybody: not even by root."""
    path.symlink_to(path.name)


DAMAGE = {
    "cannot be opened": lambda path: (path.unlink(), loop(path)),
    "is a folder": lambda path: (path.unlink(), path.mkdir()),
    "is cut": lambda path: path.write_text(path.read_text()[:40]),
    "is empty": lambda path: path.write_text(""),
    "has other types": lambda path: path.write_text('{"env": 1, "job_id": 2, "submitted": "x"}'),
    "is a list": lambda path: path.write_text("[]"),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", ["slurm-11.json", "slurm-2.json"])
def test_with_a_job_record_that_cannot_be_read_nothing_is_submitted(cluster, how, name):
    slurm, run = cluster
    DAMAGE[how](run.paths.jobs / name)
    lines = look_after(run)
    assert slurm.n_submitted == 0
    assert len(lines) == 3
    assert all(line.startswith("no successor: ") and name in line for line in lines)
    with pytest.raises(SubmissionRefusedError, match=name):
        submit_workers([run.root], load_config(run.root, "slurm"), 1)
    assert slurm.n_submitted == 0


def test_with_a_folder_of_records_that_cannot_be_read_nothing_is_submitted(cluster):
    slurm, run = cluster
    run.paths.jobs.rename(run.root / "elsewhere")
    loop(run.paths.jobs)
    assert "no successor: " in look_after(run, n_times=1)[0]
    assert slurm.n_submitted == 0


def test_with_leases_that_cannot_be_read_nothing_is_submitted(cluster):
    slurm, run = cluster
    leases = run.root / "leases"
    leases.rename(run.root / "elsewhere")
    loop(leases)
    (told,) = look_after(run, n_times=1)
    assert told.startswith("no successor: ")
    assert str(leases) in told
    assert look_after(run, job="77", n_times=1)[0].startswith("no successor: ")
    assert not run.paths.refused("slurm", "77").exists()  # the scheduler has refused nothing
    leases.unlink()
    (run.root / "elsewhere").rename(leases)
    assert slurm.n_submitted == 0


GARBAGE = [
    "",
    "slurm_load_jobs error: Unable to contact slurm controller\n",
    "<html><body>503</body></html>\n",
    "\x00\xff\n",
    "1 RUNNING\n" * 3,
    "1".ljust(40) + "????\n",
]


@pytest.fixture
def waiting(cluster):
    """Three workers at work, of five that there should be; two jobs wait in the queue."""
    slurm, run = cluster
    for number in ("21", "22"):
        run.job(number, time.time() - 500)
    config = load_config(run.root, "slurm").model_copy(update={"n_workers": 5})
    return slurm, run, config


def complete(run, config, job="1", n_times=3):
    lines = []
    for _ in range(n_times):
        lines += Follower((run.root,), "slurm", job).complete_workforce([run.root], config)
    return lines


@pytest.mark.parametrize("text", GARBAGE)
def test_a_scheduler_that_says_nothing_or_garbage_ends_no_job(waiting, text):
    slurm, run, config = waiting
    slurm.says_text(text)
    assert complete(run, config, n_times=8) == []
    assert slurm.n_submitted == 0


@pytest.mark.parametrize("how", ["fails", "hangs", "gone"])
def test_a_scheduler_that_fails_or_hangs_ends_no_job(waiting, monkeypatch, how):
    slurm, run, config = waiting
    monkeypatch.setattr(command, "TIMEOUT_SECONDS", 0.5)
    if how == "gone":
        (slurm.here / "squeue").unlink()
    else:
        (slurm.here / how).touch()
    assert complete(run, config) == []
    assert slurm.n_submitted == 0


def test_half_an_answer_ends_no_job_until_it_is_sure(waiting, monkeypatch):
    slurm, run, config = waiting
    slurm.says(ALL)  # not a word of 21 and 22
    assert complete(run, config, n_times=6) == []  # within seconds
    slurm.says({**ALL, "21": "PENDING"})
    assert complete(run, config) == []
    slurm.says(ALL)
    real, minutes = succeed_module.folder_time, iter(range(1, 100))
    # The heartbeats of this process go on by the real clock: so the workers' jobs are asked for.
    monkeypatch.setattr(
        succeed_module, "folder_time", lambda folder: real(folder) + 10 * next(minutes)
    )
    lines = complete(run, config, n_times=3)
    assert lines == []
    assert slurm.n_submitted == 0


def test_jobs_that_nobody_knows_for_minutes_are_replaced(waiting, monkeypatch):
    slurm, run, config = waiting
    slurm.says(ALL)
    monkeypatch.setattr(succeed_module, "_UNSEEN_SECONDS", 0.0)
    assert complete(run, config, n_times=3) == []
    (told,) = complete(run, config, n_times=1)
    assert told.startswith("2 of 5 workers were missing; submitted: ")
    assert slurm.n_submitted == 2


def test_an_answer_without_the_asking_job_is_no_answer(waiting, monkeypatch):
    slurm, run, config = waiting
    monkeypatch.setattr(succeed_module, "_UNSEEN_SECONDS", 0.0)
    slurm.says({"2": "RUNNING", "3": "RUNNING", "21": "FAILED", "22": "FAILED"})
    assert complete(run, config, n_times=8) == []
    assert slurm.n_submitted == 0


def test_a_person_is_told_that_the_scheduler_does_not_answer(waiting, monkeypatch):
    slurm, run, _ = waiting
    monkeypatch.setattr(workforce_module, "_ASK_AGAIN_SECONDS", 0.01)
    (slurm.here / "fails").touch()
    with pytest.raises(ResourceError, match=r"squeue --me.*does not answer.*--workers N"):
        resume_runs([run.root], {"n_workers": 9})
    assert slurm.n_submitted == 0
    resume_runs([run.root], n_more=1)  # who says how many gets them
    assert slurm.n_submitted == 1


@pytest.mark.parametrize(
    ("walltime", "expected"), [(None, 15), (3600.0, 15), (86400.0, 15), (600.0, 30), (1.0, 192)]
)
def test_the_limit_follows_from_workers_and_walltime(walltime, expected):
    config = ParallelConfig(env="slurm", n_workers=3, options=OPTIONS)
    assert jobs_per_hour(config, walltime) == expected


def test_no_more_jobs_are_submitted_than_a_run_can_need(cluster):
    slurm, run = cluster
    config = load_config(run.root, "slurm")
    for _ in range(15 - 6):
        submit_workers([run.root], config, 1, asked="by workers")
    with pytest.raises(SubmissionRefusedError, match=r"limit of 15.*--workers 1"):
        submit_workers([run.root], config, 1, asked="by workers")
    assert slurm.n_submitted == 15 - 6
    submit_workers([run.root], config, 1)  # by hand
    with pytest.raises(SubmissionRefusedError, match="limit of 60"):
        submit_workers([run.root], config, 60)
    submit_workers([run.root], config, 60 - 16, asked="by number")
    for path in run.paths.jobs.iterdir():  # two hours later
        os.utime(path, (time.time() - 7200,) * 2)
    submit_workers([run.root], config, 15, asked="by workers")


def test_submissions_of_other_machines_count(cluster):
    slurm, run = cluster
    for number in range(200, 240):
        run.job(str(number), time.time() - 60)
    assert any("limit of 15" in line for line in look_after(run, job="77"))
    assert slurm.n_submitted == 0


def test_a_file_server_that_was_away_loses_no_worker(cluster):
    """All heartbeats are minutes old, also by the scheduler's nodes; their jobs run."""
    slurm, run = cluster
    config = load_config(run.root, "slurm")
    before = time.time() - 1000
    for lease in run.leases:
        lease._stop.set()  # no heartbeat comes meanwhile
        os.utime(run.root / "leases" / f"{lease.owner.owner_id}.owner", (before, before))
    assert complete(run, config) == []
    assert slurm.n_submitted == 0
    for lease in run.leases:
        lease.beat()
    assert complete(run, config) == []
    assert (run.paths.unseen("slurm")).read_text().strip() == "{}"


@pytest.mark.parametrize("n_others", [0, 40])
def test_successor_is_submitted_without_a_look_at_the_jobs_of_others(cluster, n_others):
    slurm, run = cluster
    run.job("77", time.time() - 500, marks_successor=True)
    for number in range(200, 200 + n_others):
        run.job(str(number), time.time() - 7200)
    config = load_config(run.root, "slurm").model_copy(update={"n_workers": 20})
    with FileOperations(run.root) as operations:
        (line,) = Follower((run.root,), "slurm", "77").submit_successor([run.root], config)
    assert "follows when job 77 has ended" in line
    assert operations.counts["open"] < 60, operations.counts
    assert list(Follower((run.root,), "slurm", "77").submit_successor([run.root], config)) == []
    assert slurm.n_submitted == 1


def test_a_mark_of_a_successor_that_cannot_be_read_submits_nothing(cluster):
    slurm, run = cluster
    run.job("77", time.time() - 500, marks_successor=True)
    loop(run.paths.successor("slurm", "77"))
    assert look_after(run, job="77", n_times=1) == []  # it may be there
    assert slurm.n_submitted == 0


def test_a_refused_successor_leaves_no_mark(cluster):
    slurm, run = cluster
    run.job("77", time.time() - 500, marks_successor=True)
    (slurm.here / "refusal").write_text("no more jobs")
    assert "no more jobs" in look_after(run, job="77", n_times=1)[0]
    assert not run.paths.successor("slurm", "77").exists()


def test_records_of_a_newer_version_are_no_missing_jobs(cluster):
    slurm, run = cluster
    for path in run.paths.jobs.iterdir():
        path.write_text(path.read_text().replace('"env"', '"of_a_newer_version": [1], "env"', 1))
    assert look_after(run) == []
    assert slurm.n_submitted == 0


def test_a_stop_mark_that_cannot_be_read_submits_nothing(cluster):
    slurm, run = cluster
    loop(run.paths.stop)
    with suppress(OSError):  # the program of the worker logs it
        look_after(run, job="77", n_times=1)
    assert slurm.n_submitted == 0


def test_hundreds_of_jobs_that_wait_are_all_asked_for(cluster, monkeypatch):
    slurm, run = cluster
    monkeypatch.setattr(succeed_module, "_UNSEEN_SECONDS", 0.0)
    monkeypatch.setattr(succeed_module, "_count_open_shards", lambda roots: 10_000)
    numbers = [str(number) for number in range(1000, 1450)]
    for number in numbers:
        run.job(number, time.time() - 500)
    slurm.says({**ALL, **dict.fromkeys(numbers, "PENDING")})
    config = load_config(run.root, "slurm").model_copy(update={"n_workers": 453})
    assert len(read_workforce(run.root).waiting) == 450
    assert complete(run, config, n_times=6) == []
    assert slurm.n_submitted == 0


COMMANDS = {
    "slurm": ("squeue", "sacct"), "sge": ("qstat", "qacct"), "pbs": ("qstat",), "lsf": ("bjobs",),
    "moab": ("showq", "checkjob"), "oar": ("oarstat",), "htcondor": ("condor_q", "condor_history"),
}  # fmt: skip
ANSWERS = [
    "", "[]", "{}", "null", '"text"', "[1, 2]", "[[]]", "<x/>", "<a><b></a>", "\x00", "503\n" * 9,
    '{"Jobs": 3}', '{"Jobs": {"1": 5}}', '{"RECORDS": 3}', '{"RECORDS": [1]}', '{"1": 5}',
    '[{"JobStatus": "x"}]', '[{"JobStatus": null}]', '{"1": {"state": 7}}', "job_info\n1 2 3\n",
]  # fmt: skip


@pytest.mark.parametrize(("text", "env"), pairs(ANSWERS, COMMANDS))
def test_no_answer_of_any_scheduler_is_taken_for_an_end(tmp_path, monkeypatch, env, text):
    (tmp_path / "answer").write_text(text)
    for name in COMMANDS[env]:
        (tmp_path / name).write_text(f"#!/bin/sh\nexec /bin/cat '{tmp_path}/answer'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    told = ask_jobs(env, ["1", "2"])
    assert {state.phase for state in told.values()} <= {"unknown"}


def test_the_program_of_a_worker_with_a_wrong_clock_submits_nothing(cluster, tmp_path):
    slurm, run = cluster
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nreal = time.time\ntime.time = lambda: real() + 5000\n"
    )
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    words = ["-m", "espnet3.parallel.detached.successor_main", str(run.root), "--env", "slurm"]
    told = subprocess.run(
        [sys.executable, *words, "--job", "1"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert told.returncode == 0
    assert "5000 s ahead" in told.stderr
    assert slurm.n_submitted == 0

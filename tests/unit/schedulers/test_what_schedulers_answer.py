"""What each scheduler answers, row by row of docs/clusters/what-schedulers-answer.md.

The texts of Slurm 22.05, Grid Engine 8.1.9 and HTCondor 23.9 were printed by the real ones, those
of LSF, OAR and Moab are as in their manuals and sources. What OpenPBS printed is in
tests/known_issues/test_openpbs_as_it_answers.py.
"""

import json
import os
import shlex
from pathlib import Path

import pytest

from espnet3.parallel.clusters.job_logs import find_log
from espnet3.schedulers import FORGOTTEN, ask_jobs, command, known_scheduler

SCHEDULERS = ("slurm", "sge", "lsf", "oar", "htcondor", "moab")


# --- What the commands print ----------------------------------------------------------------------


def squeue(*rows: tuple[str, str, str, int]) -> str:
    """Return a table in the columns that we ask for."""
    return "".join(
        f"{job:40}{word:40}{why:80}{code:<40}{'':200}\n" for job, word, why, code in rows
    )


def qstat(**states: str) -> str:
    """Return the list of `qstat -xml`: the state of each job, whose number has a j before it."""
    jobs = "".join(
        f"<job_list state='x'><JB_job_number>{number[1:]}</JB_job_number><state>{state}</state>"
        "</job_list>"
        for number, state in states.items()
    )
    return f"<?xml version='1.0'?>\n<job_info><queue_info>{jobs}</queue_info></job_info>"


def qacct(failed: str, status: str, *more: str) -> str:
    """Return a record of accounting."""
    lines = [
        "=" * 62,
        "qname        gpu.q",
        "jobnumber    7",
        "start_time   Tue Nov 17 22:38:31 2026",
        "end_time     Tue Nov 17 22:38:31 2026",
        f"failed       {failed}",
        f"exit_status  {status}",
    ]
    return "\n".join([*lines, *more, ""])


def bjobs(*records: dict[str, str]) -> str:
    return json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records})


def ended(reason: str, code: str = "") -> str:
    return bjobs({"JOBID": "7", "STAT": "EXIT", "EXIT_CODE": code, "EXIT_REASON": reason})


def oarstat(
    state: str, *events: str, message: str = "R=8,W=1:0:0,J=B", code: int | None = 0
) -> str:
    """Return the record of job 7; an event is its type and, behind a colon, its description."""
    told = [dict(zip(("type", "description"), e.split(": ", 1), strict=False)) for e in events]
    record = {"id": 7, "state": state, "message": message, "exit_code": code, "events": told}
    return json.dumps({"7": record})


def ads(*found: dict[str, object]) -> str:
    return json.dumps([{"ProcId": 0, **ad} for ad in found])


def showq(**states: str) -> str:
    """Return the three queues of `showq --xml`."""
    jobs = [f"<job JobID='Moab.{job[1:]}' State='{word}'/>" for job, word in states.items()]
    active = [job for job in jobs if "Running" in job]
    blocked = [job for job in jobs if job not in active]
    queues = {"active": active, "eligible": [], "blocked": blocked}
    told = [f"<queue option='{name}'>{''.join(each)}</queue>" for name, each in queues.items()]
    return f"<Data><Object>queue</Object>{''.join(told)}</Data>"


def checkjob(state: str, code: str = "") -> str:
    return f"job 7\n\nState: {state}\n" + (
        f"Completion Code: {code}  Time: Tue Nov 17\n" if code else ""
    )


FRAGGED = "FRAG_JOB_REQUEST: User root requested to frag the job 7"
FRAGGED_BY_ANNA = "FRAG_JOB_REQUEST: User anna requested to frag the job 7"
ELAPSED = "WALLTIME: [sarko] Job [7] from 1294395995 with 7200; current time=1294403214 (Elapsed)"
EXTERMINATED = "EXTERMINATE_JOB: [Leon] Exterminate job 7"
BESTEFFORT = "BESTEFFORT_KILL: [MetaSched] kill the besteffort job 7"
NOT_LAUNCHED = "LAUNCHING_OAREXEC_TIMEOUT: [bipbip 7] timeout on host node3"
REMOVED = {"ClusterId": 7, "JobStatus": 3, "ExitBySignal": True, "ExitSignal": 15}
BY_HAND = {**REMOVED, "RemoveReason": "via condor_rm (by user anna)"}
OVER_TIME = "The job exceeded allowed job duration of 00:05"
BY_RULE = "The job attribute PeriodicRemove expression '...' evaluated to TRUE"
HELD = {"ClusterId": 7, "JobStatus": 5}
ENFORCED = "37  : qmaster enforced h_rt, h_cpu, or h_vmem limit"
NONE_OF_SLURM = "slurm_load_jobs error: Invalid job id specified"


class Commands:
    """Stand-ins for commands, each with one answer, or one for certain arguments."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch

    def say(self, name: str, out: str = "", code: int = 0, error: str = "", to: str = "") -> None:
        """Let a command print a text; `to` limits that to calls with these words in them."""
        script = self.folder / name
        if not script.exists():
            script.write_text("#!/bin/sh\n")
            script.chmod(0o755)
        words = f"printf %s {shlex.quote(out)}\nprintf %s {shlex.quote(error)} >&2\nexit {code}\n"
        if to:
            words = f'case " $* " in *{shlex.quote(to)}*)\n{words};;\nesac\n'
        script.write_text(script.read_text() + words)

    def hang(self, name: str, to: str = "", patience: float = 0.2) -> None:
        """Let a command take longer than anybody waits."""
        self._monkeypatch.setattr(command, "TIMEOUT_SECONDS", patience)
        self.say(name, to=to)
        script = self.folder / name
        script.write_text(script.read_text().replace("exit 0\n", "exec sleep 60\n"))


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return Commands(tmp_path, monkeypatch)


LISTS = {
    "slurm": ("squeue", squeue()),
    "sge": ("qstat", qstat()),
    "lsf": ("bjobs", bjobs({"JOBID": "7", "ERROR": "Job <7> is not found"})),
    "oar": ("oarstat", "null\n"),
    "htcondor": ("condor_q", ""),
    "moab": ("showq", showq()),
}
"""What the first question is, and the answer if job 7 is not there."""


# --- How a job ended ------------------------------------------------------------------------------

ENDS = [
    ("slurm", {"squeue": squeue(("7", "NODE_FAIL", "NodeDown", 0))}, "node"),
    ("slurm", {"squeue": squeue(("7", "BOOT_FAIL", "None", 0))}, "node"),
    ("slurm", {"squeue": squeue(("7", "TIMEOUT", "TimeLimit", 0))}, "walltime"),
    ("slurm", {"squeue": squeue(("7", "PREEMPTED", "None", 0))}, "preempted"),
    ("slurm", {"squeue": squeue(("7", "CANCELLED", "None", 0))}, "cancelled"),
    ("slurm", {"squeue": squeue(("7", "OUT_OF_MEMORY", "OutOfMemory", 0))}, "memory"),
    ("slurm", {"squeue": squeue(("7", "FAILED", "NonZeroExitCode", 256))}, "failed"),
    (
        "sge",
        {"qstat": qstat(), "qacct": qacct(ENFORCED, "137", "category     -l h_rt=8")},
        "walltime",
    ),
    (
        "sge",
        {
            "qstat": qstat(),
            "qacct": qacct(ENFORCED, "137", "maxvmem      49.8M", "category  -l h_vmem=50M"),
        },
        "memory",
    ),
    ("sge", {"qstat": qstat(), "qacct": qacct("19  : before writing exit_status", "0")}, "node"),
    (
        "sge",
        {
            "qstat": qstat(),
            "qacct": qacct("0", "0", "end_time     Tue Nov 17 22:39:59 2026", "ru_wallclock 0s"),
        },
        "node",
    ),
    ("sge", {"qstat": qstat(), "qacct": qacct("26  : opening input/output file", "0")}, "missing"),
    (
        "sge",
        {"qstat": qstat(), "qacct": qacct("100 : assumedly after job", "137 (Killed)")},
        "killed",
    ),
    (
        "sge",
        {"qstat": qstat(), "qacct": qacct("100 : x", "137", "deleted_by   anna@head")},
        "cancelled",
    ),
    ("lsf", {"bjobs": ended("TERM_ZOMBIE: job exited while LSF is not available", "143")}, "node"),
    ("lsf", {"bjobs": ended("TERM_REMOVE_HUNG_JOB: job removed from the LSF system")}, "node"),
    ("lsf", {"bjobs": bjobs({"JOBID": "7", "STAT": "ZOMBI"})}, "node"),
    (
        "lsf",
        {"bjobs": ended("TERM_RUNLIMIT: job killed after reaching LSF run time limit", "140")},
        "walltime",
    ),
    ("lsf", {"bjobs": ended("TERM_OWNER: job killed by owner", "130")}, "cancelled"),
    ("lsf", {"bjobs": ended("TERM_OWNER: job killed by owner")}, "cancelled"),
    (
        "lsf",
        {"bjobs": ended("TERM_FORCE_ADMIN: job killed by root without time for cleanup")},
        "cancelled",
    ),
    ("lsf", {"bjobs": ended("TERM_PREEMPT: job killed after preemption")}, "preempted"),
    ("lsf", {"bjobs": ended("TERM_WINDOW: job killed after queue run window closed")}, "preempted"),
    (
        "lsf",
        {"bjobs": ended("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit", "1")},
        "memory",
    ),
    (
        "lsf",
        {"bjobs": ended("TERM_CWD_NOTEXIST: current working directory is not accessible")},
        "missing",
    ),
    ("oar", {"oarstat": oarstat("Error", FRAGGED, ELAPSED)}, "walltime"),
    ("oar", {"oarstat": oarstat("Error", FRAGGED, ELAPSED, EXTERMINATED)}, "node"),
    ("oar", {"oarstat": oarstat("Error", NOT_LAUNCHED)}, "node"),
    ("oar", {"oarstat": oarstat("Error", FRAGGED, BESTEFFORT)}, "preempted"),
    ("oar", {"oarstat": oarstat("Error", FRAGGED_BY_ANNA, code=15)}, "cancelled"),
    (
        "oar",
        {"oarstat": oarstat("Error", message="Job killed by Leon directly", code=None)},
        "cancelled",
    ),
    ("oar", {"oarstat": oarstat("Error", "WORKING_DIRECTORY: /home/anna is not there")}, "missing"),
    ("oar", {"oarstat": oarstat("Terminated", code=256)}, "failed"),
    ("htcondor", {"condor_q": "", "condor_history": ads(BY_HAND)}, "cancelled"),
    (
        "htcondor",
        {"condor_q": ads({**HELD, "HoldReasonCode": 46, "HoldReason": OVER_TIME})},
        "walltime",
    ),
    (
        "htcondor",
        {
            "condor_q": "",
            "condor_history": ads({**REMOVED, "LastHoldReasonCode": 46, "RemoveReason": BY_RULE}),
        },
        "walltime",
    ),
    (
        "htcondor",
        {"condor_q": ads({**HELD, "HoldReasonCode": 34, "HoldReason": "memory"})},
        "memory",
    ),
    ("moab", {"showq": showq(), "checkjob": checkjob("Removed")}, "cancelled"),
    ("moab", {"showq": showq(), "checkjob": checkjob("Removed", "CNCLD(271)")}, "cancelled"),
    ("moab", {"showq": showq(), "checkjob": checkjob("Vacated", "271")}, "cancelled"),
    ("moab", {"showq": showq(), "checkjob": checkjob("Completed", "-11")}, "walltime"),
    ("moab", {"showq": showq(), "checkjob": checkjob("Completed", "-10")}, "memory"),
    ("moab", {"showq": showq(), "checkjob": checkjob("Completed", "-4")}, "node"),
    ("moab", {"showq": showq(), "checkjob": checkjob("Completed", "1")}, "failed"),
]


@pytest.mark.parametrize(("env", "answers", "kind"), ENDS)
def test_the_kind_of_an_end(env, answers, kind, commands):
    for name, text in answers.items():
        commands.say(name, text)
    scheduler, job = known_scheduler(env), "7.0" if env == "htcondor" else "7"
    (state,) = scheduler.jobs([job]).values()
    assert state.phase == "ended"
    assert scheduler.kind_of_end(state) == kind
    assert scheduler.is_blameless(state) == (kind in ("node", "preempted"))
    assert scheduler.was_cancelled(state) == (kind == "cancelled")
    assert not scheduler.ended_well(state)


@pytest.mark.parametrize(
    ("env", "answers"),
    [
        ("slurm", {"squeue": squeue(("7", "COMPLETED", "None", 0))}),
        ("sge", {"qstat": qstat(), "qacct": qacct("0", "0", "ru_wallclock 0s")}),
        (
            "lsf",
            {"bjobs": bjobs({"JOBID": "7", "STAT": "DONE", "EXIT_CODE": "", "EXIT_REASON": ""})},
        ),
        ("lsf", {"bjobs": bjobs({"JOBID": "7", "STAT": "POST_DONE"})}),
        ("oar", {"oarstat": oarstat("Terminated")}),
        ("oar", {"oarstat": oarstat("Terminated", code=None)}),
        (
            "htcondor",
            {"condor_q": "[\n]\n", "condor_history": ads({**HELD, "JobStatus": 4, "ExitCode": 0})},
        ),
        ("moab", {"showq": showq(), "checkjob": checkjob("Completed", "0")}),
    ],
)
def test_an_end_without_an_error(env, answers, commands):
    for name, text in answers.items():
        commands.say(name, text)
    scheduler, job = known_scheduler(env), "7.0" if env == "htcondor" else "7"
    (state,) = scheduler.jobs([job]).values()
    assert state.phase == "ended"
    assert scheduler.ended_well(state)


@pytest.mark.parametrize(
    ("env", "answers", "phase"),
    [
        # A lost node that has not ended its job yet, and a job on its way back to the queue.
        ("slurm", {"squeue": squeue(("7", "COMPLETING", "TimeLimit", 0))}, "running"),
        ("slurm", {"squeue": squeue(("7", "PENDING", "BeginTime", 0))}, "pending"),
        ("slurm", {"squeue": squeue(("7", "SIGNALING", "None", 0))}, "running"),
        ("sge", {"qstat": qstat(j7="r")}, "running"),
        ("sge", {"qstat": qstat(j7="dr")}, "running"),
        ("sge", {"qstat": qstat(j7="Rq")}, "pending"),
        ("lsf", {"bjobs": bjobs({"JOBID": "7", "STAT": "UNKWN"})}, "running"),
        ("lsf", {"bjobs": bjobs({"JOBID": "7", "STAT": "SSUSP"})}, "running"),
        ("lsf", {"bjobs": bjobs({"JOBID": "7", "STAT": "PSUSP"})}, "pending"),
        ("oar", {"oarstat": oarstat("Finishing")}, "running"),
        ("oar", {"oarstat": oarstat("toError")}, "running"),
        ("oar", {"oarstat": oarstat("Hold")}, "pending"),
        (
            "htcondor",
            {"condor_q": ads({"ClusterId": 7, "JobStatus": 2, "JobDisconnectedDate": 9})},
            "running",
        ),
        ("htcondor", {"condor_q": ads({"ClusterId": 7, "JobStatus": 1})}, "pending"),
        (
            "htcondor",
            {"condor_q": ads({**HELD, "HoldReasonCode": 7, "HoldReason": "no log"})},
            "pending",
        ),
        ("moab", {"showq": showq(j7="Deferred"), "checkjob": ""}, "pending"),
        ("moab", {"showq": showq(), "checkjob": checkjob("Unknown")}, "running"),
        ("moab", {"showq": showq(), "checkjob": checkjob("Canceling")}, "running"),
    ],
)
def test_what_is_no_end(env, answers, phase, commands):
    for name, text in answers.items():
        commands.say(name, text)
    (state,) = ask_jobs(env, ["7.0" if env == "htcondor" else "7"]).values()
    assert state.phase == phase


# --- Several jobs, of which one is not there ------------------------------------------------------


@pytest.mark.parametrize("code", [0, 255])
@pytest.mark.parametrize("env", SCHEDULERS)
def test_one_of_several_is_unknown(env, code, commands):
    job, other = ("7.0", "9.0") if env == "htcondor" else ("7", "9")
    if env == "slurm":
        commands.say("squeue", squeue(("7", "RUNNING", "None", 0)))
        commands.say("sacct", error="Slurm accounting storage is disabled", code=1)
    elif env == "sge":
        commands.say("qstat", qstat(j7="r"))
        commands.say("qacct", error="error: job id 9 not found", code=1)
    elif env == "lsf":
        there = {"JOBID": "7", "STAT": "RUN"}
        commands.say("bjobs", bjobs(there, {"JOBID": "9", "ERROR": "Job <9> is not found"}), code)
        commands.say("bhist", error="No matching job found", code=code)
    elif env == "oar":
        commands.say("oarstat", oarstat("Running"), to="-j 7")
        commands.say("oarstat", "null\n")
    elif env == "htcondor":
        commands.say("condor_q", ads({"ClusterId": 7, "JobStatus": 2}))
        commands.say("condor_history", "[\n]\n")
    elif env == "moab":
        commands.say("showq", showq(j7="Running"))
        commands.say("checkjob", error="ERROR:  invalid job specified (9)\n", code=1)
    states = ask_jobs(env, [job, other])
    assert states[job].phase == "running"
    denies = env in ("lsf", "moab")  # which say that there is no such job
    assert states[other] == FORGOTTEN if denies else states[other].phase == "unknown"


def test_slurm_asks_so_that_one_job_that_is_gone_is_no_error(commands):
    commands.say("squeue", squeue(), to="--jobs=7,7")
    commands.say("squeue", error=NONE_OF_SLURM, code=1)
    commands.say("sacct", "7|TIMEOUT|0:0\n")
    assert known_scheduler("slurm").kind_of_end(ask_jobs("slurm", ["7"])["7"]) == "walltime"


def test_an_oar_that_takes_one_number_is_asked_singly(commands):
    commands.say("oarstat", json.dumps({"9": {"state": "Running"}}), to="-j 9 ")
    commands.say("oarstat", oarstat("Running"), to="-j 7 ")
    assert {state.phase for state in ask_jobs("oar", ["7", "9"]).values()} == {"running"}


def test_an_oar_of_older_perl_has_an_error_for_no_job(commands):
    commands.say("oarstat", error="hash- or arrayref expected (not a simple scalar)", code=255)
    assert ask_jobs("oar", ["7"])["7"].phase == "unknown"


# --- No answer is not gone ------------------------------------------------------------------------

FAULTS = {
    "missing": None,
    "late": None,
    "nonsense": ("<html><head><title>502 Bad Gateway</title></head></html>", 0),
    "other json": ('{"error": "database is locked"}', 0),
    "error": ("", 1),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("env", SCHEDULERS)
def test_a_scheduler_that_does_not_answer_says_nothing_of_any_job(env, fault, commands):
    name, _ = LISTS[env]
    if fault == "late":
        commands.hang(name)
    elif (text := FAULTS[fault]) is not None:
        commands.say(name, *text)
    assert ask_jobs(env, ["7", "8"]) == {}


@pytest.mark.parametrize("env", SCHEDULERS)
def test_an_answer_that_breaks_off_says_nothing_of_any_job(env, commands):
    whole = {
        "slurm": "7      ",
        "sge": qstat(j7="r", j8="r"),
        "lsf": bjobs({"JOBID": "7", "STAT": "RUN"}),
        "oar": oarstat("Running"),
        "htcondor": ads({"ClusterId": 7, "JobStatus": 2}),
        "moab": showq(j7="Running"),
    }[env]
    commands.say(LISTS[env][0], whole[: len(whole) * 2 // 3])
    assert ask_jobs(env, ["7", "8"]) == {}


SECOND = {
    "slurm": "sacct", "sge": "qacct", "lsf": "bhist", "htcondor": "condor_history",
    "moab": "checkjob",
}  # fmt: skip


@pytest.mark.parametrize("fault", ["missing", "late", "nonsense", "error"])
@pytest.mark.parametrize("env", SECOND)
def test_a_second_question_without_an_answer_ends_no_job(env, fault, commands):
    commands.say(*LISTS[env])
    if fault == "late":
        commands.hang(SECOND[env], patience=0.7)  # the first one must not be late
    elif (text := FAULTS[fault]) is not None:
        commands.say(SECOND[env], *text)
    states = ask_jobs(env, ["7"])
    assert all(state.phase == "unknown" for state in states.values())
    assert bool(states) == (env != "moab"), "showq lists no job that has ended: it is no news"


def test_an_oar_that_stops_to_answer_says_nothing_of_any_job(commands):
    commands.say("oarstat", oarstat("Running"), to="-j 7 -j 9")
    commands.hang("oarstat")
    assert ask_jobs("oar", ["7", "9"]) == {}


def test_an_lsf_that_cannot_look_says_nothing_of_any_job(commands):
    busy = "Batch system concurrent query limit exceeded"
    commands.say("bjobs", bjobs({"JOBID": "7", "STAT": "RUN"}, {"JOBID": "9", "ERROR": busy}))
    assert ask_jobs("lsf", ["7", "9"]) == {}


def test_a_word_that_is_new_to_us_is_no_end(commands):
    commands.say("squeue", squeue(("7", "LEVITATING", "None", 0)))
    commands.say("sacct", "")
    commands.say("bjobs", bjobs({"JOBID": "7", "STAT": "LEVIT"}))
    commands.say("oarstat", oarstat("Levitating"))
    commands.say("condor_q", ads({"ClusterId": 7, "JobStatus": 12}))
    commands.say("showq", showq())
    commands.say("checkjob", checkjob("Levitating"))
    for env in SCHEDULERS:
        states = ask_jobs(env, ["7.0" if env == "htcondor" else "7"])
        assert all(state.phase == "unknown" for state in states.values())


# --- A job that is gone, and history --------------------------------------------------------------

BHIST = """
Job <7>, Job Name <dask-worker>, User <anna>, Project <default>, Command <#!/bin/bas
                     h>
Tue Nov 17 10:00:00: Submitted from host <head>, to Queue <gpu>, CWD </home/anna>;
Tue Nov 17 10:00:01: [1] started on <node3>;
Tue Nov 17 14:00:02: Exited with exit code 140. The CPU time used is 0.1 seconds;
Tue Nov 17 14:00:02: Completed <exit>; TERM_RUNLIMIT: job killed after reaching LSF r
                     un time limit;
"""


@pytest.mark.parametrize(
    ("history", "kind"),
    [
        (BHIST, "walltime"),
        (BHIST.replace("TERM_RUNLIMIT", "TERM_OWNER"), "cancelled"),
        (
            BHIST.replace("Exited with exit code 140", "Exited by signal 9").split("Completed")[0],
            "killed",
        ),
    ],
)
def test_lsf_tells_the_end_of_a_job_that_bjobs_has_forgotten(history, kind, commands):
    commands.say(*LISTS["lsf"])
    commands.say("bhist", history)
    state = ask_jobs("lsf", ["7"])["7"]
    assert state.phase == "ended"
    assert known_scheduler("lsf").kind_of_end(state) == kind


def test_lsf_knows_a_new_job_that_bjobs_does_not(commands):
    """A child of its daemon that answers may be some seconds old (NEWJOB_REFRESH)."""
    commands.say(*LISTS["lsf"])
    commands.say("bhist", "\n".join(BHIST.splitlines()[:4]))
    assert ask_jobs("lsf", ["7"])["7"].phase == "unknown"


def test_grid_engine_says_nothing_of_a_job_that_goes_back_to_the_queue(commands):
    """Its record has the exit status 0, and another will follow."""
    commands.say("qstat", qstat())
    commands.say("qacct", qacct("25  : rescheduling", "0"))
    assert ask_jobs("sge", ["7"])["7"].phase == "unknown"


def test_grid_engine_tells_the_last_of_several_starts(commands):
    commands.say("qstat", qstat())
    commands.say("qacct", qacct("25  : rescheduling", "0") + qacct("0", "3"))
    state = ask_jobs("sge", ["7"])["7"]
    assert (state.phase, state.reason) == ("ended", "exit status 3")


@pytest.mark.parametrize(
    "error", ["Error: No passed search file and configuration key HISTORY is unset."]
)
def test_htcondor_without_history_ends_no_job(error, commands):
    commands.say("condor_q", "")
    commands.say("condor_history", "[\n", error=error, code=1)
    assert ask_jobs("htcondor", ["7.0"])["7.0"].phase == "unknown"


# --- Queues ---------------------------------------------------------------------------------------

BQUEUES = """QUEUE_NAME      PRIO STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  SUSP  RSV
gpu              30  {}      -    -    -    -     0     0     0     0    0
"""


def queue_instances(*states: str) -> str:
    found = [
        f"<Queue-List><name>gpu.q@node{i}</name>{s}</Queue-List>" for i, s in enumerate(states)
    ]
    return f"<?xml version='1.0'?>\n<job_info><queue_info>{''.join(found)}</queue_info></job_info>"


def instance(state: str) -> str:
    return f"<state>{state}</state>" if state else ""


@pytest.mark.parametrize(
    ("env", "name", "answer", "is_closed"),
    [
        ("slurm", "sinfo", "gpu up\n", False),
        ("slurm", "sinfo", "gpu down\n", True),
        ("slurm", "sinfo", "gpu drain\n", True),
        ("slurm", "sinfo", "gpu inactive\n", True),
        ("slurm", "sinfo", "gpu inact\n", True),
        ("slurm", "sinfo", "", False),
        ("lsf", "bqueues", BQUEUES.format("Open:Active"), False),
        ("lsf", "bqueues", BQUEUES.format("Open:Inact"), True),
        ("lsf", "bqueues", BQUEUES.format("Open:Inact_Win"), True),
        ("lsf", "bqueues", BQUEUES.format("Closed:Active"), True),
        ("lsf", "bqueues", BQUEUES.format("Closed:Inact"), True),
        ("lsf", "bqueues", "", False),
        ("sge", "qstat", queue_instances(instance(""), instance("d")), False),
        ("sge", "qstat", queue_instances(instance("a"), instance("d")), False),
        ("sge", "qstat", queue_instances(instance("d"), instance("d")), True),
        ("sge", "qstat", queue_instances(instance("au"), instance("s"), instance("E")), True),
        ("sge", "qstat", queue_instances(instance("D")), True),
        ("sge", "qstat", "", False),
        ("oar", "oarstat", "", False),
        ("htcondor", "condor_q", "", False),
    ],
)
def test_a_closed_queue(env, name, answer, is_closed, commands):
    commands.say(name, answer)
    assert bool(known_scheduler(env).closed_queue("gpu")) == is_closed


def test_the_default_partition_of_slurm(commands):
    commands.say("sinfo", "cpu* down\ngpu up\n")
    assert known_scheduler("slurm").closed_queue(None).startswith("partition cpu is down")


@pytest.mark.parametrize("env", SCHEDULERS)
@pytest.mark.parametrize("fault", ["missing", "late", "nonsense", "error"])
def test_a_queue_of_which_nothing_is_known_is_not_closed(env, fault, commands):
    for name in ("sinfo", "bqueues", "qstat"):
        if fault == "late":
            commands.hang(name)
        elif (text := FAULTS[fault]) is not None:
            commands.say(name, *text)
    assert known_scheduler(env).closed_queue("gpu") == ""


# --- Logs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "job", "names"),
    [
        ("slurm", "12", ["slurm-12.out", "dask-worker-12.err", "dask-worker-12.out"]),
        ("sge", "12", ["dask-worker.o12", "dask-worker.e12", "dask-worker.po12", "array.o12.1"]),
        ("lsf", "12", ["worker-12.err", "worker-12.out"]),
        ("oar", "12", ["OAR.12.stdout", "OAR.dask-worker.12.stderr"]),
        ("htcondor", "12.0", ["worker-12.0.err", "worker-12.0.out"]),
        ("moab", "12", ["dask-worker.o12", "dask-worker.e12", "12.head.OU"]),
        ("pbs", "12", ["dask-worker.o12", "dask-worker.e12", "12.head.OU", "12.head.ER"]),
    ],
)
def test_logs_are_found_by_the_names_that_schedulers_give_them(env, job, names, tmp_path):
    others = (f"dask-worker-1{job}.out", f"x.o1{job}", f"OAR.1{job}.stdout", "13.head.OU", "x.o123")
    for other in others:
        (tmp_path / other).write_text("much longer than that of the job\n" * 9)
    for name in names:
        (tmp_path / name).write_text("a line\n")
        assert find_log([tmp_path], job, known_scheduler(env)) == tmp_path / name
        (tmp_path / name).unlink()
    assert find_log([tmp_path], job, known_scheduler(env)) is None

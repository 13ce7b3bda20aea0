"""What other schedulers than Slurm say of their jobs, in the formats of their manuals.

Commands that we cannot run here are stand-ins that print such a text.
"""

import json
from pathlib import Path

import pytest

from espnet3.schedulers import JobState, scheduler_of
from espnet3.schedulers.htcondor import parse_jobs as parse_condor
from espnet3.schedulers.lsf import parse_records as parse_bjobs
from espnet3.schedulers.moab import parse_checkjob, parse_showq
from espnet3.schedulers.oar import parse_jobs as parse_oarstat
from espnet3.schedulers.pbs import parse_queues, parse_records, parse_text
from espnet3.schedulers.sge import parse_details, parse_qacct, parse_qstat

QSTAT_XML = """<?xml version='1.0'?>
<job_info  xmlns:xsd="http://www.w3.org/2001/XMLSchema">
  <queue_info>
    <job_list state="running">
      <JB_job_number>7</JB_job_number><JB_name>dask-worker</JB_name><state>r</state>
      <queue_name>gpu.q@node1</queue_name>
    </job_list>
  </queue_info>
  <job_info>
    <job_list state="pending"><JB_job_number>8</JB_job_number><state>qw</state></job_list>
    <job_list state="pending"><JB_job_number>9</JB_job_number><state>Eqw</state></job_list>
  </job_info>
</job_info>
"""
QSTAT_J = """==============================================================
job_number:                 8
exec_file:                  job_scripts/8
scheduling info:            (-l gpu=1) cannot run at host "node1" because it offers only hc:gpu=0
                            (-l gpu=1) cannot run at host "node2" because it offers only hc:gpu=0
==============================================================
job_number:                 9
error reason    1:          11/16/2026 10:00:00 [0:77]: can't chdir to /nowhere: No such file
"""
QACCT = """==============================================================
qname        gpu.q
jobnumber    7
failed       37  : qmaster enforced h_rt, h_cpu, or h_vmem limit
deleted_by   NONE
exit_status  137                  (Killed)
"""
QSTAT_F = """Job Id: 12.server
    Job_Name = dask-worker
    job_state = Q
    comment = Not Running: Insufficient amount of resource: ngpus (R: 1 A: 0
\t T: 2)

Job Id: 13.server
    job_state = C
    exit_status = 271
"""
SHOWQ = """<Data><Object>queue</Object>
<queue count="1" option="active"><job JobID="Moab.12" State="Running" User="me"/></queue>
<queue count="1" option="eligible"><job JobID="13" State="Idle" User="me"/></queue>
<queue count="1" option="blocked"><job JobID="14" State="BatchHold" User="me"/></queue>
</Data>"""
CHECKJOB = """job 13
State: Idle
Creds:  user:me  group:me
NOTE:  job cannot run  (job has hold in place)
"""


def test_grid_engine():
    assert parse_qstat(QSTAT_XML) == {"7": "r", "8": "qw", "9": "Eqw"}
    reasons = parse_details(QSTAT_J)
    assert reasons["8"].startswith('(-l gpu=1) cannot run at host "node1" because it offers only')
    assert "error: " in reasons["9"]
    assert "can't chdir to /nowhere" in reasons["9"]
    assert parse_qacct(QACCT) == "its walltime was over (h_rt), exit status 137"
    assert parse_qacct("") is None


def test_a_job_that_grid_engine_does_not_list_has_ended(stand_in):
    stand_in("qstat", QSTAT_XML)
    stand_in("qacct", QACCT)
    states = scheduler_of("sge").jobs(["7", "10"])
    assert states["7"] == JobState("running", "r")
    assert states["10"].phase == "ended"
    assert "h_rt" in states["10"].reason


def test_pbs():
    records = {
        "12.server": {"job_state": "Q", "comment": "Not Running: Insufficient resource: ngpus"},
        "13.server": {"job_state": "R", "comment": "Job run at Mon Nov 16"},
        "14.server": {"job_state": "F", "Exit_status": -29, "comment": "walltime 60 exceeded"},
    }
    states = parse_records(records)
    assert states["12"] == JobState("pending", "Q", "Not Running: Insufficient resource: ngpus")
    assert states["13"] == JobState("running", "R")
    assert states["14"].reason == "its walltime was over, exit status -29, walltime 60 exceeded"


def test_torque_as_text():
    states = parse_records(parse_text(QSTAT_F))
    assert states["12"].reason.endswith("ngpus (R: 1 A: 0 T: 2)")
    assert states["13"] == JobState("ended", "C", "signal 15, exit status 271")


def test_pbs_queues():
    table = (
        "Queue              Max   Tot Ena Str   Que   Run   Hld   Wat   Trn   Ext Type\n"
        "---------------- ----- ----- --- --- ----- ----- ----- ----- ----- ----- ----\n"
        "workq                0     1 yes yes     0     1     0     0     0     0 Exec\n"
        "gpu                  0     0 yes yes     0     0     0     0     0     0 Exec\n"
    )
    assert parse_queues(table) == ["workq", "gpu"]


def test_lsf(stand_in):
    records = [
        {"JOBID": "101", "STAT": "PEND", "PEND_REASON": "Job slot limit reached;"},
        {"JOBID": "102", "STAT": "RUN", "EXIT_CODE": "", "PEND_REASON": ""},
        {"JOBID": "103", "STAT": "EXIT", "EXIT_CODE": "140", "EXIT_REASON": "TERM_RUNLIMIT: job"},
        {"JOBID": "104", "ERROR": "Job <104> is not found"},
    ]
    assert parse_bjobs(records)["103"] == JobState(
        "ended", "EXIT", "TERM_RUNLIMIT: job, exit code 140"
    )
    stand_in("bjobs", json.dumps({"COMMAND": "bjobs", "JOBS": 4, "RECORDS": records}), code=255)
    states = scheduler_of("lsf").jobs(["101", "102", "104"])
    assert states["101"] == JobState("pending", "PEND", "Job slot limit reached;")
    assert states["102"].phase == "running"
    assert states["104"].phase == "unknown"
    stand_in("bqueues", "QUEUE_NAME      PRIO STATUS\nnormal            30  Open:Active\n")
    assert scheduler_of("lsf").queues() == ["normal"]


def test_oar():
    states = parse_oarstat(
        {
            "42": {"state": "Waiting", "message": "Not enough resources", "exit_code": None},
            "43": {"state": "Running", "message": "R=8,W=1:0:0"},
            "44": {"state": "Error", "message": "R=8,W=1:0:0", "exit_code": 15},
            "45": {"state": "Terminated", "message": "R=8,W=1:0:0", "exit_code": 256},
        }
    )
    assert states["42"] == JobState("pending", "Waiting", "Not enough resources")
    assert states["43"] == JobState("running", "Running")
    assert states["44"] == JobState("ended", "Error", "signal 15")
    assert states["45"].reason == "exit code 1"


def test_htcondor(stand_in):
    waiting = {"ClusterId": 5, "ProcId": 0, "JobStatus": 1}
    held = {"ClusterId": 6, "ProcId": 0, "JobStatus": 5, "HoldReason": "memory usage exceeded"}
    gone = {"ClusterId": 7, "ProcId": 0, "JobStatus": 3, "RemoveReason": "via condor_rm (by me)"}
    assert parse_condor([held])["6.0"] == JobState("pending", "HELD", "held: memory usage exceeded")
    stand_in("condor_q", json.dumps([waiting]))
    stand_in("condor_history", json.dumps([gone]))
    states = scheduler_of("htcondor").jobs(["5.0", "7.0", "8.0"])
    assert states["5.0"] == JobState("pending", "IDLE")
    assert states["7.0"] == JobState("ended", "REMOVED", "via condor_rm (by me)")
    assert states["8.0"].phase == "unknown"


def test_moab(stand_in):
    states = parse_showq(SHOWQ)
    assert states["12"] == JobState("running", "Running")
    assert states["14"] == JobState("pending", "BatchHold")
    assert parse_checkjob(CHECKJOB).reason == "job cannot run  (job has hold in place)"
    assert parse_checkjob("State: Completed\nCompletion Code: 271  Time: Mon\n") == JobState(
        "ended", "Completed", "signal 15, exit code 271"
    )
    stand_in("showq", SHOWQ)
    stand_in("checkjob", CHECKJOB)
    assert scheduler_of("moab").jobs(["13"])["13"].reason.startswith("job cannot run")


@pytest.mark.parametrize("env", ["sge", "pbs", "lsf", "oar", "htcondor", "moab"])
def test_where_the_commands_are_missing_nothing_is_known(env, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    scheduler = scheduler_of(env)
    assert scheduler.jobs(["1"]) == {}
    assert scheduler.nodes({}) == []
    assert scheduler.queues() is None


@pytest.mark.parametrize("env", ["sge", "pbs", "lsf", "oar", "htcondor", "moab", "slurm"])
def test_nonsense_is_survived(env, stand_in):
    for command in ("qstat", "bjobs", "oarstat", "condor_q", "showq", "checkjob", "squeue"):
        stand_in(command, "<html>502 Bad Gateway</html>")
    states = scheduler_of(env).jobs(["1"])
    assert all(state.phase in ("unknown", "ended") for state in states.values())


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Return a function that makes a command that prints a text."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def make(command: str, text: str, code: int = 0) -> Path:
        (tmp_path / f"{command}.txt").write_text(text)
        script = tmp_path / command
        script.write_text(f'#!/bin/sh\ncat "$0.txt"\nexit {code}\n')
        script.chmod(0o755)
        return script

    return make

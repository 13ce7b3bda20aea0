"""A real OpenPBS answered in ways that its stand-ins did not: runs died while their jobs ran.

Each text of `tests/helpers/openpbs.py` was printed by a server of its main branch.
"""

import os
import shutil
import time
from contextlib import ExitStack

import pytest

from espnet3.parallel.checkup.backend import check_queue
from espnet3.parallel.checkup.submit import ProbeJob, submit_probe
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached import successor_main
from espnet3.parallel.detached.control import cancel_runs
from espnet3.parallel.detached.explain import explain_run
from espnet3.parallel.detached.logs import logs_of_failed
from espnet3.parallel.detached.successor_main import Follower, load_config
from espnet3.parallel.detached.workforce import count_workforce
from espnet3.schedulers import FORGOTTEN, ask_jobs, known_scheduler
from tests.helpers.openpbs import OpenPBS
from tests.helpers.run_folders import DetachedFolder, describe, lose_driver, run_square


@pytest.fixture
def pbs(tmp_path, monkeypatch):
    found = OpenPBS(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{found.folder}{os.pathsep}{os.environ['PATH']}")
    return found


# --- What qstat says of jobs ---------------------------------------------------------------------


@pytest.mark.parametrize("history", [True, False])
def test_all_jobs_are_known_although_json_has_only_the_first(pbs, history):
    pbs.set(history=history)
    for number in (21, 22, 23):
        pbs.job(number, "R", substate=42)
    states = ask_jobs("pbs", ["21", "22", "23"])
    assert {job: state.phase for job, state in states.items()} == dict.fromkeys(
        ("21", "22", "23"), "running"
    )


def test_jobs_that_an_answer_leaves_out_are_asked_for_one_by_one(pbs):
    pbs.set(most=1)
    for number in range(21, 26):
        pbs.job(number, "R")
    numbers = [str(number) for number in range(21, 26)]
    assert {state.phase for state in ask_jobs("pbs", numbers).values()} == {"running"}
    assert set(ask_jobs("pbs", numbers)) == set(numbers)


def test_hundreds_that_an_answer_leaves_out_are_not_asked_for_all_at_once(pbs):
    pbs.set(most=1, jobs={str(number): {"job_state": "R"} for number in range(1, 151)})
    states = ask_jobs("pbs", [str(number) for number in range(1, 151)])
    assert len(pbs.calls("qstat")) < 30
    assert {state.phase for state in states.values()} == {"running"}, "no word is no end"


def test_without_history_a_job_that_pbs_denies_has_ended(pbs):
    pbs.job(21, "R")
    pbs.job(22, "F", substate=92, Exit_status=0)
    states = ask_jobs("pbs", ["21", "22", "23"])
    assert states["21"].phase == "running"
    assert states["22"] == states["23"] == FORGOTTEN


def test_with_history_it_says_how(pbs):
    pbs.set(history=True)
    pbs.job(21, "F", substate=93, Exit_status=-20, comment="Job run at Tue on (room1) and failed")
    pbs.job(22, "F", substate=91)
    pbs.job(23, "F", substate=92, Exit_status=0, comment="Job run at Tue on (room1) and finished")
    pbs.job(24, "F", substate=91, comment="Not Running: Queue not started. and terminated")
    pbs.job(25, "F", substate=93, Exit_status=-29)
    scheduler = known_scheduler("pbs")
    states = ask_jobs("pbs", ["21", "22", "23", "24", "25", "26"])
    kinds = {job: scheduler.kind_of_end(state) for job, state in states.items()}
    assert kinds == {
        "21": "node", "22": "cancelled", "23": "", "24": "cancelled", "25": "walltime",
        "26": "forgotten",
    }  # fmt: skip
    assert scheduler.is_blameless(states["21"])
    assert scheduler.ended_well(states["23"])


def test_long_values_are_read_whole_wherever_their_lines_break(pbs):
    for length in range(60, 90):
        comment = f"Not Running: {'x' * length}, and more (R: 64 A: 4 T: 4), at last"
        pbs.job(length, "Q", comment=comment)
    states = ask_jobs("pbs", [str(length) for length in range(60, 90)])
    for length, state in states.items():
        assert (
            state.reason == f"Not Running: {'x' * int(length)}, and more (R: 64 A: 4 T: 4), at last"
        )


@pytest.mark.parametrize(
    ("statuses", "kind"),
    [
        # A daemon that was restarted takes its jobs with it; with -r n they do not come back.
        ((-4, -5, -6, -14, -20, -30), "node"),
        ((-26, -27), "memory"),
        ((-28, -29), "walltime"),
        ((-1, -2, -3, -10, -16, -17, -18, -19, -22, -24, -25), ""),
        ((265,), "killed"),
        ((127,), "missing"),
    ],
)
def test_statuses_that_pbs_itself_gives(pbs, statuses, kind):
    pbs.set(history=True)
    numbers = {str(-status if status < 0 else status): status for status in statuses}
    for number, status in numbers.items():
        pbs.job(number, "F", substate=93, Exit_status=status, comment="Job run at Tue and failed")
    scheduler = known_scheduler("pbs")
    for state in ask_jobs("pbs", list(numbers)).values():
        assert scheduler.kind_of_end(state) == kind
        assert scheduler.is_blameless(state) == (kind == "node")
        assert not scheduler.ended_well(state)
        assert not state.reason.startswith("exit status -"), "each has words of its own"


@pytest.mark.parametrize(
    ("status", "kind"), [(-11, "walltime"), (-10, "memory"), (-4, "node"), (-20, "")]
)
def test_the_same_numbers_mean_something_else_on_torque(pbs, status, kind):
    (pbs.folder / "qstat").write_text(
        "#!/bin/sh\n"
        f"printf 'Job Id: 12.torque\\n    job_state = C\\n    exit_status = {status}\\n'\n"
    )
    scheduler = known_scheduler("pbs")
    assert scheduler.kind_of_end(ask_jobs("pbs", ["12"])["12"]) == kind


def test_a_server_that_is_away_says_nothing_of_any_job(pbs):
    (pbs.folder / "qstat").write_text(
        "#!/bin/sh\necho 'qstat: cannot connect to server head (errno=111)' >&2\nexit 111\n"
    )
    assert ask_jobs("pbs", ["21"]) == {}


def test_torque_has_xml_where_pbs_has_history(pbs):
    (pbs.folder / "qstat").write_text(
        "#!/bin/sh\n"
        'case "$*" in *-x*) echo "<Data><Job><Job_Id>12.a</Job_Id></Job></Data>"; exit;; esac\n'
        "printf 'Job Id: 12.torque\\n    job_state = C\\n    exit_status = 271\\n'\n"
        "echo 'qstat: Unknown Job Id Error 13.torque' >&2\nexit 153\n"
    )
    states = ask_jobs("pbs", ["12", "13"])
    assert (states["12"].phase, states["12"].word) == ("ended", "C")
    assert states["13"] == FORGOTTEN


# --- Queues that are closed, jobs that never start, refusals -------------------------------------

CLOSED = [
    ({"queues": {"workq": ["yes", "yes"], "gpu": ["no", "yes"]}}, "gpu is disabled"),
    ({"queues": {"workq": ["yes", "yes"], "gpu": ["yes", "no"]}}, "gpu is stopped"),
    ({"scheduling": False}, "scheduling is off"),
    ({"sched": "down"}, "its scheduler does not run"),
]


def block(**options):
    chosen = {"cores": 1, "memory": "1GB", "interface": "lo", "queue": "gpu", **options}
    return ParallelConfig(env="pbs", options=chosen)


@pytest.mark.parametrize(("changes", "why"), CLOSED)
def test_a_queue_that_starts_no_jobs_is_a_problem(pbs, changes, why):
    assert [finding.level for finding in check_queue(block())] == ["ok"]
    pbs.set(**changes)
    (finding,) = check_queue(block())
    assert finding.level == "problem"
    assert why in finding.told
    assert "another parallel.options.queue" in finding.fix
    if "queues" in changes:
        assert known_scheduler("pbs").closed_queue(None) == "", "workq, the default, is open"
        assert known_scheduler("moab").closed_queue("gpu@head")
        pbs.set(default_queue="gpu")
        assert why in known_scheduler("pbs").closed_queue(None)
    else:
        assert known_scheduler("moab").closed_queue("gpu") == "", "Moab schedules itself"


@pytest.mark.parametrize(("changes", "why"), CLOSED)
def test_why_jobs_wait_is_not_only_q(pbs, run, changes, why):
    (run.paths.parallel("pbs")).write_text(block().model_dump_json())
    pbs.job(21, "Q", substate=10)
    run.job("21")
    pbs.set(**changes)
    (finding,) = run.found("queue")
    assert why in finding.told
    assert "another parallel.options.queue" in finding.fix


def test_without_qstat_no_queue_is_closed(pbs):
    (pbs.folder / "qstat").write_text("#!/bin/sh\nexit 1\n")
    assert known_scheduler("pbs").closed_queue("gpu") == ""


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """A trial of the doctor's, in an empty folder."""
    folder = tmp_path / "recipe"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return ProbeJob(block(), {}, timeout=300)


def test_the_doctor_does_not_wait_for_a_job_that_can_never_run(pbs, trial, tmp_path):
    comment = "Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 4 T: 4)"
    pbs.set(comment=comment)
    begin = time.monotonic()
    ((finding,), _) = submit_probe(trial)
    assert time.monotonic() - begin < 60
    assert comment in finding.told
    assert "ask for less cores" in finding.fix
    assert pbs.calls("qdel")
    assert list((tmp_path / "recipe").iterdir()) == []


def test_the_doctor_does_not_wait_for_a_job_that_pbs_has_given_up(pbs, trial):
    pbs.set(comment="job held, too many failed attempts to run")
    ((finding,), _) = submit_probe(trial)
    assert "too many failed attempts" in finding.told
    assert "exist on the nodes" in finding.fix


def test_a_refusal_comes_with_what_to_look_at(pbs, trial):
    (pbs.folder / "refusal").write_text("Job violates queue and/or server resource limits")
    ((finding,), _) = submit_probe(trial)
    assert "Job violates queue and/or server resource limits" in finding.told
    assert "resources_max" in finding.fix


# --- Detached runs -------------------------------------------------------------------------------

BLOCK = {"env": "pbs", "n_workers": 4, "options": {"cores": 1, "memory": "1GB"}}


class Run(DetachedFolder):
    """A detached run on PBS."""

    def job(self, job_id, **more):
        super().job(job_id, **{"env": "pbs", **more})

    def record(self, owner_id, job_id, host="node1", **more):
        super().record(owner_id, job_id, host, **{"env": "pbs", **more})

    def found(self, *what):
        return [finding for finding in explain_run(self.root) if finding.what in what]

    def follower(self, job=""):
        return Follower((self.root,), "pbs", job)


@pytest.fixture
def run(tmp_path):
    """A run with two shards to go."""
    folder = tmp_path / "run"
    run_square(folder)
    lose_driver(folder)
    for name in ("split.02", "split.15"):
        shutil.rmtree(folder / name)
    describe(folder, **BLOCK)
    with ExitStack() as stack:
        yield Run(folder, stack)


@pytest.fixture
def finished(tmp_path):
    """A complete run."""
    folder = tmp_path / "finished"
    run_square(folder)
    complete = tmp_path / "complete"
    shutil.copytree(folder, complete)
    lose_driver(folder)
    describe(folder, **BLOCK)
    shutil.copytree(complete, folder, dirs_exist_ok=True)
    with ExitStack() as stack:
        yield Run(folder, stack)


@pytest.mark.parametrize("history", [True, False])
def test_a_cancelled_run_has_no_workers_a_moment_later(pbs, run, history):
    pbs.set(history=history)
    for number in (21, 22, 23, 24):
        pbs.job(number, "Q", substate=10)
        run.job(str(number), submitted=time.time())
    (result,) = cancel_runs([run.root])
    assert (result.n_jobs, result.left, result.problems) == (4, [], [])
    assert count_workforce(run.root, "pbs", only=True) == 0


def test_a_job_that_died_is_explained_with_its_log_though_pbs_has_forgotten_it(pbs, run):
    run.log("22.head.ER", "ModuleNotFoundError: No module named 'recipe'")
    run.job("22")
    (finding,) = run.found("jobs")
    assert "No module named 'recipe'" in finding.told
    assert finding.level == "problem"
    assert "--worker 22" in finding.fix
    assert [part.path.name for part in logs_of_failed(run.root)] == ["22.head.ER"]


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("kind", ["complete", "cancelled"])
def test_successors_that_were_not_needed_are_not_worth_a_word(pbs, request, kind, history):
    run = request.getfixturevalue("finished" if kind == "complete" else "run")
    pbs.set(history=history)
    if kind == "cancelled":
        run.stop("cancelled", "cancelled by me@login1")
    said = "no successor: espnet3.parallel.detached.successor_main ended with code -15"
    log = run.log("detached-pbs-21.log", "shard 3 begins", said)
    run.job("21", log=log)
    ended = {"ended": time.time(), "exit_code": 0, "reason": "it got SIGTERM"}
    run.record("0123456789abcdef", "21", log=log, **ended)
    for number, after in (("22", "21"), ("23", "22")):
        pbs.job(number, "F", substate=91, comment="Not Running: would cross a walltime")
        run.job(number, after=after)
    assert run.found("jobs", "chain", "workers") == []


def test_all_successors_that_wait_are_cancelled_when_the_work_is_done(pbs, finished):
    pbs.set(history=True)
    for number, after in (("21", "1"), ("22", "2"), ("23", "3")):
        pbs.job(number, "H", substate=22)
        finished.job(number, after=after)
    told = list(finished.follower().run())
    assert told == ["cancelled jobs that waited: 21, 22, 23"]
    assert len(pbs.calls("qdel")) == 3


def chain_of_a_dead_node(pbs, run, status):
    """Let three jobs end one after the other, without a shard; the fourth runs."""
    pbs.set(history=True)
    for number in (21, 22, 23):
        comment = "Job run at Tue Nov 17 at 20:00 on (node1:ncpus=1) and failed"
        pbs.job(number, "F", substate=93, Exit_status=status, comment=comment)
        after = str(number - 1) if number > 21 else ""
        run.job(str(number), after=after, submitted=time.time())
    pbs.job(24, "R", substate=42)
    run.job("24", after="23", submitted=time.time())


@pytest.mark.parametrize(("status", "is_followed"), [(-20, True), (1, False)])
def test_a_chain_of_jobs_goes_on_after_a_dead_node(pbs, run, monkeypatch, status, is_followed):
    monkeypatch.setattr(successor_main, "takes_turn", lambda *_: False)
    chain_of_a_dead_node(pbs, run, status)
    (line,) = run.follower("24").run()
    assert ("follows when job 24 has ended" in line) is is_followed
    assert ("ended without finishing a shard" in line) is not is_followed


@pytest.mark.parametrize(("status", "is_replaced"), [(-20, True), (1, False)])
def test_workers_that_a_dead_node_took_are_replaced(pbs, run, status, is_replaced):
    chain_of_a_dead_node(pbs, run, status)
    run.worker("24", started=time.time())
    follower = run.follower("24")
    (line,) = follower.complete_workforce([run.root], load_config(run.root, "pbs"))
    assert ("1 of 2 workers were missing" in line) is is_replaced

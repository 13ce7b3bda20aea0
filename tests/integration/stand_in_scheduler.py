"""Stand-ins for the commands of LSF, PBS, Moab and OAR; jobs really run, as processes.

A command is a link to this file; its folder is the state of the "cluster": `jobs/<id>/` with the
script as submitted, the words of the command, and the process. As on the real ones, jobs of PBS and
Moab begin in another folder and see the submitter's environment only with -V; those of OAR begin in
the submitter's folder but without its environment; those of LSF have both. A job that is to follow
another waits until that has ended. Moab has other numbers than the PBS below it. PBS answers as in
`tests/helpers/openpbs.py`, brings the logs of a job when that has ended, and keeps no history, as
by default, unless there is a file `history`.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.helpers import openpbs

HERE = Path(sys.argv[0]).absolute().parent
JOBS = HERE / "jobs"
WORDS = {"bsub": "RUN", "qsub": "R", "msub": "Running", "oarsub": "Running"}
AFTER = re.compile(r"depend=afterany:(\d+)|ended\((\d+)\)|^#OAR -a (\d+)|(?<= -a )(\d+)", re.M)
WAIT = """
while [ -d "/proc/$1" ] && ! grep -qs "State:.Z" "/proc/$1/status"; do sleep 0.1; done
bash "$2" >"$3/log.OU" 2>"$3/log.ER"
echo $? >"$3/exit"
while read -r from to; do cp "$3/$from" "$to"; done <"$3/places"
"""
CLEAN = {"PATH": "/usr/bin:/bin", "HOME": str(HERE), "LANG": "C.UTF-8"}


def submit(script: str, command: str) -> str:
    refusal = HERE / "refusal"
    if refusal.exists():
        sys.exit(refusal.read_text())
    number = 1
    while True:
        try:
            (JOBS / str(number)).mkdir(parents=True)
            break
        except FileExistsError:
            number += 1
    job = JOBS / str(number)
    (job / "script").write_text(script)
    (job / "words").write_text(shlex.join(sys.argv))
    has_environment = command == "bsub" or "#PBS -V" in script
    after = next(iter(AFTER.finditer(f"{script}\n{' '.join(sys.argv)}")), None)
    before = next(filter(None, after.groups())) if after else ""
    (job / "after").write_text(before)
    environment = dict(os.environ) if has_environment else CLEAN
    folder = HERE if command in ("qsub", "msub") else Path.cwd()
    (job / "places").write_text(log_places(script, number) if command == "qsub" else "")
    process = subprocess.Popen(
        ["bash", "-c", WAIT, "job", pid_of(before), str(job / "script"), str(job)],
        env={**environment, **variables(number)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    (job / "pid").write_text(str(process.pid))
    return str(number)


def log_places(script: str, number: int) -> str:
    """Return which log goes where: into a folder that -o or -e names, as it is called there."""
    lines = []
    for option, end in (("-o", "OU"), ("-e", "ER")):
        named = re.search(rf"^#PBS {option} (.+)$", script, re.M)
        folder = f"{named[1]}{number}.{openpbs.SERVER}.{end}" if named else ""
        lines.append(f"log.{end} {folder or f'{Path.cwd()}/dask-worker.{option[1]}{number}'}\n")
    return "".join(lines)


def bring_logs(job: Path) -> None:
    for line in (job / "places").read_text().splitlines():
        name, _, place = line.partition(" ")
        if (job / name).exists():
            shutil.copy(job / name, place)


def pbs_jobs() -> dict[str, dict[str, object]]:
    """Return the attributes of all jobs, as PBS has them."""
    found: dict[str, dict[str, object]] = {}
    for job in [path.parent for path in JOBS.glob("*/pid")]:
        if is_waiting(job):
            found[job.name] = {"job_state": "H", "substate": 22}
        elif is_running(job):
            found[job.name] = {"job_state": "R", "substate": 42}
        elif (job / "exit").exists():
            code = int((job / "exit").read_text())
            found[job.name] = {
                "job_state": "F", "substate": 93 if code else 92, "Exit_status": code,
            }  # fmt: skip
        else:
            found[job.name] = {"job_state": "F", "substate": 91}
            if (job / "log.OU").exists():
                found[job.name]["Exit_status"] = 271
    return found


def variables(number: int) -> dict[str, str]:
    name = {"bsub": "LSB_JOBID", "oarsub": "OAR_JOB_ID"}.get(Path(sys.argv[0]).name, "PBS_JOBID")
    if Path(sys.argv[0]).name == "msub":
        return {name: f"9{number}.head", "MOAB_JOBID": f"Moab.{number}"}
    return {name: f"{number}.head" if name == "PBS_JOBID" else str(number)}


def pid_of(number: str) -> str:
    return (JOBS / number / "pid").read_text() if number else "none"


def is_waiting(job: Path) -> bool:
    before = (job / "after").read_text()
    return bool(before) and is_running(JOBS / before) and is_running(job)


def is_running(job: Path) -> bool:
    try:
        status = Path(f"/proc/{(job / 'pid').read_text()}/status").read_text()
    except OSError:
        return False
    return "State:\tZ" not in status


def cancel(number: str) -> None:
    job = JOBS / number.split(".")[0]
    (job / "cancelled").touch()
    try:
        os.killpg(int((job / "pid").read_text()), signal.SIGKILL)
    except (OSError, ValueError):
        sys.exit(f"job {number} has finished")
    bring_logs(job)


def state_of(number: str) -> str:
    """Return what a job does: waits, runs, ended with a code, was killed; empty if unknown."""
    job = JOBS / number
    if not (job / "pid").exists():
        return ""
    if is_running(job):
        return "waits" if is_waiting(job) else "runs"
    return "ended" if (job / "exit").exists() else "killed"


def code_of(number: str) -> int:
    return int((JOBS / number / "exit").read_text())


def bjobs(number: str) -> dict[str, str]:
    """Return a record as of `bjobs -json`, which has an error in place of an unknown job."""
    state = state_of(number)
    if not state:
        return {"JOBID": number, "ERROR": f"Job <{number}> is not found"}
    ended = {"ended": "DONE", "killed": "EXIT"}
    record = {"JOBID": number, "STAT": {"waits": "PEND", "runs": "RUN", **ended}[state]}
    if state == "killed":
        return {**record, "EXIT_CODE": "130", "EXIT_REASON": "TERM_OWNER: job killed by owner"}
    if state == "ended" and code_of(number):
        return {**record, "STAT": "EXIT", "EXIT_CODE": str(code_of(number)), "EXIT_REASON": ""}
    return {**record, "EXIT_CODE": "", "EXIT_REASON": ""}


def oarstat(number: str) -> dict[str, object]:
    """Return a record as of `oarstat -f -J`: how a job ended is in its events, and only there."""
    state = state_of(number)
    words = {"waits": "Waiting", "runs": "Running", "ended": "Terminated", "killed": "Error"}
    code = {"ended": code_of(number) << 8 if state == "ended" else None, "killed": 0}.get(state)
    asked = {
        "type": "FRAG_JOB_REQUEST",
        "description": f"User me requested to frag the job {number}",
    }
    events = [asked] if state == "killed" else []
    return {
        "state": words[state],
        "message": "R=1,W=4:0:0,J=B",
        "exit_code": code,
        "events": events,
    }


def showq() -> str:
    """Return the list of `showq --xml`: no job that has ended is in it."""
    queues: dict[str, list[str]] = {"active": [], "eligible": [], "blocked": []}
    for job in sorted(path.parent.name for path in JOBS.glob("*/pid")):
        if (state := state_of(job)) in ("runs", "waits"):
            queue, word = ("active", "Running") if state == "runs" else ("blocked", "Hold")
            queues[queue].append(f'<job JobID="Moab.{job}" State="{word}"/>')
    told = [f'<queue option="{n}">{"".join(jobs)}</queue>' for n, jobs in queues.items()]
    return f"<Data><Object>queue</Object>{''.join(told)}</Data>"


def checkjob(number: str) -> str:
    state = state_of(number)
    if not state:
        sys.exit(f"ERROR:  invalid job specified ({number})")
    if state in ("runs", "waits"):
        return f"job {number}\n\nState: {'Running' if state == 'runs' else 'Hold'}\n"
    word, code = ("Completed", code_of(number)) if state == "ended" else ("Vacated", 271)
    return f"job {number}\n\nState: {word}\nCompletion Code: {code}  Time: Tue Nov 17\n"


def tell(command: str, arguments: list[str]) -> str:
    numbers = [word for word in arguments if word.isdigit()]
    if command == "bjobs":
        return json.dumps({"COMMAND": "bjobs", "RECORDS": [bjobs(number) for number in numbers]})
    if command == "bhist":
        sys.exit("No matching job found")
    if command == "oarstat":
        return json.dumps({n: oarstat(n) for n in numbers if state_of(n)} or None)
    if command == "showq":
        return showq()
    if command == "checkjob":
        return checkjob(arguments[-1])
    if command == "bhosts":
        return "HOST_NAME STATUS\n127.0.0.1 ok\n"
    if command == "pbsnodes":
        return json.dumps({"nodes": {"here": {"Mom": "127.0.0.1"}}})
    if command == "oarnodes":
        return json.dumps({"1": {"network_address": "127.0.0.1"}})
    sys.exit(f"{command}: not known to the stand-in")


def main() -> None:
    command, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    with (HERE / "called").open("a") as called:
        called.write(shlex.join([command, *arguments]) + "\n")
    if command in ("bkill", "qdel", "canceljob", "oardel"):
        cancel(arguments[-1])
    elif command == "bsub":
        print(f"Job <{submit(sys.stdin.read(), command)}> is submitted to queue <gpu>.")
    elif command == "qsub":
        print(f"{submit(Path(arguments[-1]).read_text(), command)}.head")
    elif command == "msub":
        print(f"\n{submit(Path(arguments[-1]).read_text(), command)}")
    elif command == "oarsub":
        print(f"[ADMISSION RULE] ok\nOAR_JOB_ID={submit(arguments[-1], command)}")
    elif command == "qstat":
        state = {"history": (HERE / "history").exists(), "jobs": pbs_jobs()}
        out, error, code = openpbs.qstat(arguments, {**openpbs.DEFAULTS, **state})
        print(out, end="")
        sys.stderr.write(error)
        sys.exit(code)
    else:
        print(tell(command, arguments))


if __name__ == "__main__":
    main()

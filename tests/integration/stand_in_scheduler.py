"""Stand-ins for the commands of LSF, PBS, Moab and OAR; jobs really run, as processes.

A command is a link to this file; its folder is the state of the "cluster": `jobs/<id>/` with the
script as submitted, the words of the command, and the process. As on the real ones, jobs of PBS and
Moab begin in another folder and see the submitter's environment only with -V; those of OAR begin in
the submitter's folder but without its environment; those of LSF have both. A job that is to follow
another waits until that has ended. Moab has other numbers than the PBS below it.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(sys.argv[0]).absolute().parent
JOBS = HERE / "jobs"
WORDS = {"bsub": "RUN", "qsub": "R", "msub": "Running", "oarsub": "Running"}
AFTER = re.compile(r"depend=afterany:(\d+)|ended\((\d+)\)|^#OAR -a (\d+)|(?<= -a )(\d+)", re.M)
WAIT = """
while [ -d "/proc/$1" ] && ! grep -qs "State:.Z" "/proc/$1/status"; do sleep 0.1; done
exec bash "$2"
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
    with (job / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", WAIT, "job", pid_of(before), str(job / "script")],
            env={**environment, **variables(number)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (job / "pid").write_text(str(process.pid))
    return str(number)


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


def states(running: str, ended: str, waiting: str) -> dict[str, str]:
    found = sorted(JOBS.iterdir(), key=lambda job: int(job.name)) if JOBS.exists() else []
    words = {job.name: running if is_running(job) else ended for job in found}
    return words | {job.name: waiting for job in found if is_waiting(job)}


def tell(command: str, arguments: list[str]) -> str:
    if command == "bjobs":
        found = states("RUN", "EXIT", "PEND").items()
        return json.dumps({"RECORDS": [{"JOBID": job, "STAT": word} for job, word in found]})
    if command == "qstat":
        found = states("R", "F", "H").items()
        return json.dumps({"Jobs": {f"{job}.head": {"job_state": word} for job, word in found}})
    if command == "oarstat":
        found = states("Running", "Error", "Waiting").items()
        return json.dumps({job: {"state": word} for job, word in found})
    if command == "showq":
        found = states("Running", "", "Hold").items()
        lines = {job: f'<job JobID="Moab.{job}" State="{word}"/>' for job, word in found if word}
        queues = {
            "active": [lines[job] for job, word in found if word == "Running"],
            "blocked": [lines[job] for job, word in found if word == "Hold"],
        }
        told = [f'<queue option="{n}">{"".join(jobs)}</queue>' for n, jobs in queues.items()]
        return f"<Data>{''.join(told)}</Data>"
    if command == "checkjob":
        return f"job {arguments[0]}\n\nState: Removed\nCompletion Code: 271\n"
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
    else:
        print(tell(command, arguments))


if __name__ == "__main__":
    main()

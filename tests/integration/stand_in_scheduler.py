"""Stand-ins for the commands of LSF, PBS, Moab and OAR; jobs really run, as processes.

A command is a link to this file; its folder is the state of the "cluster": `jobs/<id>/` with the
script as submitted, the words of the command, and the process. As on the real ones, jobs of PBS and
Moab begin in another folder and see the submitter's environment only with -V; those of OAR begin in
the submitter's folder but without its environment; those of LSF have both.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(sys.argv[0]).absolute().parent
JOBS = HERE / "jobs"
WORDS = {"bsub": "RUN", "qsub": "R", "msub": "Running", "oarsub": "Running"}
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
    folder = HERE if command in ("qsub", "msub") else Path.cwd()
    with (job / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", str(job / "script")],
            env=dict(os.environ) if has_environment else CLEAN,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (job / "pid").write_text(str(process.pid))
    return str(number)


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


def states(running: str, ended: str) -> dict[str, str]:
    found = sorted(JOBS.iterdir(), key=lambda job: int(job.name)) if JOBS.exists() else []
    return {job.name: running if is_running(job) else ended for job in found}


def tell(command: str, arguments: list[str]) -> str:
    if command == "bjobs":
        found = states("RUN", "EXIT").items()
        return json.dumps({"RECORDS": [{"JOBID": job, "STAT": word} for job, word in found]})
    if command == "qstat":
        found = states("R", "F").items()
        return json.dumps({"Jobs": {f"{job}.head": {"job_state": word} for job, word in found}})
    if command == "oarstat":
        found = states("Running", "Error").items()
        return json.dumps({job: {"state": word} for job, word in found})
    if command == "showq":
        found = states("Running", "").items()
        jobs = [f'<job JobID="Moab.{job}" State="{word}"/>' for job, word in found if word]
        return f'<Data><queue option="active">{"".join(jobs)}</queue></Data>'
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

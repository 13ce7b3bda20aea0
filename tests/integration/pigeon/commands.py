"""Commands of the scheduler that does not exist: pgsub, pgstat and pgdel; jobs really run.

Their folder is the state: `jobs/<id>/` with the script and the process of each job. While there is
a file `no_wind` beside it, no job begins.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(sys.argv[0]).absolute().parent
JOBS = HERE / "jobs"
WAIT = """
while [ -e "$1/../../no_wind" ]; do sleep 0.1; done
while [ -n "$2" ] && [ -d "/proc/$2" ] && ! grep -qs "State:.Z" "/proc/$2/status"; do
  sleep 0.1
done
touch "$1/began"
exec bash "$1/script"
"""


def submit(path: str) -> None:
    script = Path(path).read_text()
    number = 1 + sum(1 for _ in JOBS.iterdir()) if JOBS.exists() else 1
    job = JOBS / str(number)
    job.mkdir(parents=True)
    (job / "script").write_text(script)
    before = re.search(r"^#PG --after (\d+)$", script, re.MULTILINE)
    log = re.search(r'^#PG --log "?([^"\n]+)"?$', script, re.MULTILINE)
    output = Path(log[1].replace("%n", str(number)) if log else job / "log")
    with output.open("ab") as file:
        process = subprocess.Popen(
            ["bash", "-c", WAIT, "job", str(job), pid_of(before[1]) if before else ""],
            env={**os.environ, "PIGEON_ID": str(number)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    (job / "pid").write_text(str(process.pid))
    print(f"pigeon {number} is yours")


def pid_of(number: str) -> str:
    return (JOBS / number / "pid").read_text()


def state(number: str) -> str:
    job = JOBS / number
    try:
        status = Path(f"/proc/{pid_of(number)}/status").read_text()
    except OSError:
        status = "State:\tZ"
    if "State:\tZ" in status:
        return "SHOT" if (job / "shot").exists() else "LANDED"
    if (job / "began").exists():
        return "FLYING"
    return "NESTING no wind" if (HERE / "no_wind").exists() else "NESTING waits for another"


def main() -> None:
    command, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    if command == "pgsub":
        submit(arguments[-1])
    elif command == "pgdel":
        (JOBS / arguments[-1] / "shot").touch()
        os.killpg(int(pid_of(arguments[-1])), signal.SIGKILL)
    else:
        for number in arguments:
            if (JOBS / number).is_dir():
                print(number, state(number))


if __name__ == "__main__":
    main()

"""An OpenPBS whose qstat prints what a real one printed, with its faults.

Seen on a server of its main branch, with clients of main and of 23.06.06; qstat of main answers in
JSON for the first of several jobs only (openpbs/openpbs#2672). Exit codes are the last eight bits
of the server's error, but 0 where it keeps no history. `python openpbs.py FOLDER COMMAND ...` is a
command; what it knows of jobs, queues and itself is `FOLDER/state.json`.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

SERVER = "head"
_UNKNOWN, _FINISHED = (code & 255 for code in (15001, 15139))
_WIDTH = 78
_HEADING = """Queue              Max   Tot Ena Str   Que   Run   Hld   Wat   Trn   Ext Type
---------------- ----- ----- --- --- ----- ----- ----- ----- ----- ----- ----
"""
_VARIABLES = (
    "PBS_O_HOME=/home/me,PBS_O_LANG=C.UTF-8,PBS_O_PATH=/usr/bin:/bin,NUMBER=005,"
    'GREETING=\'"hello\\, you"\',BASH_FUNC_module%%=() {  eval $(/usr/bin/lmod "$@")\n}'
)
DEFAULTS: dict[str, Any] = {
    "history": False,
    "scheduling": True,
    "sched": "idle",
    "default_queue": "workq",
    "queues": {"workq": ["yes", "yes"], "gpu": ["yes", "yes"]},
    "jobs": {},
    "most": 1000,
    "comment": "",
}
"""`sched` is the state of its scheduler's daemon; `most` is for how many jobs it answers at once,
for one that leaves some out; `comment` is what its scheduler says of each job that is submitted."""


def qstat(arguments: list[str], state: dict[str, Any]) -> tuple[str, str, int]:
    """Return what qstat prints, what it complains of, and its exit code."""
    letters = "".join(word[1:] for word in arguments if word.startswith("-") and word != "-F")
    words = [word for word in arguments if not word.startswith("-") and word != "json"]
    if "B" in letters:
        return _servers(state, is_full="f" in letters), "", 0
    if "Q" in letters:
        return _queues(state, words)
    jobs = {int(number): record for number, record in state["jobs"].items()}
    numbers = [int(word.partition(".")[0]) for word in words]
    if "x" in letters and not state["history"]:
        complaints = [f"qstat: PBS is not configured to maintain job history {n}" for n in words]
        return "", "".join(f"{each}\n" for each in complaints), 0
    found: dict[str, dict[str, Any]] = {}
    complaints, code = list[str](), 0
    for number in list(numbers or jobs)[: state["most"]]:
        name, record = f"{number}.{SERVER}", jobs.get(number)
        if record is None or (record["job_state"] == "F" and not state["history"]):
            complaints += [f"qstat: Unknown Job Id {name}"] if numbers else []
            code = _UNKNOWN if numbers else 0
        elif record["job_state"] == "F" and "x" not in letters:
            hint = "use -x or -H to obtain historical job information"
            complaints += [f"qstat: {name} Job has finished, {hint}"] if numbers else []
            code = _FINISHED if numbers else 0
        else:
            found[name] = {"Job_Name": "dask-worker", **record, "Variable_List": _VARIABLES}
    return _jobs(found, arguments), "".join(f"{each}\n" for each in complaints), code


def _jobs(found: dict[str, dict[str, Any]], arguments: list[str]) -> str:
    if "json" in arguments:
        first = dict(list(found.items())[:1])  # openpbs/openpbs#2672
        return json.dumps({"pbs_server": SERVER, "Jobs": first}) if first else ""
    if "-f" in "".join(arguments):
        return "".join(f"Job Id: {name}\n{_attributes(each)}\n" for name, each in found.items())
    rows = [f"{n:17} {r['Job_Name']:16} me  0 {r['job_state']} workq" for n, r in found.items()]
    return "\n".join(rows)


def _attributes(record: dict[str, Any]) -> str:
    """Break long values at commas, or else anywhere, into lines that begin with a tab."""
    return "".join(f"    {key} = {_wrapped(key, str(value))}\n" for key, value in record.items())


def _wrapped(key: str, value: str) -> str:
    text, column = "", len(key) + 7
    for number, part in enumerate(value.split(",")):
        text += "," if number else ""
        if column + len(part) < _WIDTH:
            text, column = text + part, column + len(part)
            continue
        if number:
            text, column = text + "\n\t", 9
        for letter in part:
            text, column = text + letter, column + 1
            if column > _WIDTH:  # also behind the last letter
                text, column = text + "\n\t", 8
    return text


def _servers(state: dict[str, Any], *, is_full: bool) -> str:
    word = "Active" if state["scheduling"] else "Idle"
    if not is_full:
        return f"Server             Max Status\n---------------- ----- ------\nhead 0 {word}\n"
    return (
        f"Server: {SERVER}\n    server_state = {word}\n    scheduling = {state['scheduling']}\n"
        f"    default_queue = {state['default_queue']}\n"
    )


def _queues(state: dict[str, Any], names: list[str]) -> tuple[str, str, int]:
    wrong = [name for name in names if name not in state["queues"]]
    if wrong:
        return "", f"qstat: Unknown queue {wrong[0]}\n", 170
    rows = "".join(
        f"{name:16}     0     1 {enabled:>3} {started:>3}{'     0' * 6} Exec\n"
        for name, (enabled, started) in state["queues"].items()
        if name in (names or state["queues"])
    )
    return _HEADING + rows, "", 0


class OpenPBS:
    """The commands, in a folder of their own; a test says what there is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        for name in ("qsub", "qstat", "qdel", "qmgr"):
            words = shlex.join([sys.executable, "-IS", __file__, str(folder), name])
            (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            (folder / name).chmod(0o755)
        self.set(**DEFAULTS)

    def set(self, **changes: Any) -> None:
        """Change what the server is like: `history`, `scheduling`, `queues`."""
        path = self.folder / "state.json"
        state = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**state, **changes}))

    def job(self, number: int | str, word: str, **attributes: Any) -> None:
        """Let it know a job."""
        jobs = json.loads((self.folder / "state.json").read_text())["jobs"]
        self.set(jobs={**jobs, str(number): {"job_state": word, **attributes}})

    def calls(self, command: str) -> list[str]:
        """Return how a command was called, a line each."""
        path = self.folder / "called"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.split()[0] == command]


def _run(folder: Path, command: str, arguments: list[str]) -> tuple[str, str, int]:
    with (folder / "called").open("a") as called:
        called.write(shlex.join([command, *arguments]) + "\n")
    path = folder / "state.json"
    state = json.loads(path.read_text())
    if command == "qstat":
        return qstat(arguments, state)
    if command == "qmgr":
        return f"Sched default\n    scheduling = True\n    state = {state['sched']}\n", "", 0
    if command == "qsub":
        refusal = folder / "refusal"
        if refusal.exists():
            return "", f"qsub: {refusal.read_text()}\n", 1
        number = max(map(int, state["jobs"]), default=0) + 1
        state["jobs"][str(number)] = {"job_state": "Q", "substate": 10}
        if state["comment"]:
            state["jobs"][str(number)]["comment"] = state["comment"]
        path.write_text(json.dumps(state))
        return f"{number}.{SERVER}\n", "", 0
    number = arguments[-1].partition(".")[0]
    if state["jobs"].get(number, {"job_state": "F"})["job_state"] == "F":
        if state["history"] and number in state["jobs"]:
            return "", f"qdel: Job has finished {number}.{SERVER}\n", _FINISHED
        return "", f"qdel: Unknown Job Id {number}.{SERVER}\n", _UNKNOWN
    state["jobs"][number] |= {"job_state": "F", "substate": 91}
    path.write_text(json.dumps(state))
    return "", "", 0


if __name__ == "__main__":
    out, error, code = _run(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    print(out, end="")
    print(error, end="", file=sys.stderr)
    sys.exit(code)

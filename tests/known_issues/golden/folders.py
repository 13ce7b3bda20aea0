"""Golden run folders, each as a JSON file: a text per file, or its bytes in base64, and its time.

`python -m tests.known_issues.golden.folders NAME` packs one in today's format. Those that are here
stay as they are: they were written by the version before, and newer ones must be able to continue.
"""

import base64
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from espnet3.shards.lease import living_owners

HERE = Path(__file__).parent
PROGRAM = HERE / "golden_job.py"
_NODE = "golden-node"
_BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12} pid:\[\d+\]")
_WAYS = {
    "sync_finished": ("sync", {}),
    "sync_half": ("sync", {"GOLDEN_DIES_AT": "7"}),
    "detached_half": ("async", {"GOLDEN_DIES_AT": "7", "GOLDEN_DIES_WITH": "parent"}),
}


def unpack(name: str, folder: Path) -> None:
    """Write a golden run folder to `folder`, and the program of the run beside it.

    Files get the times that they had, so that a heartbeat of then is not taken for one of now.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    (folder.parent / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
    places = {"@FOLDER@": str(folder), "@PYTHON@": sys.executable}
    for path, entry in json.loads((HERE / f"{name}.json").read_text()).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if "base64" in entry:
            target.write_bytes(base64.b64decode(entry["base64"]))
        else:
            text = entry["text"]
            for word, value in places.items():
                text = text.replace(word, json.dumps(value)[1:-1])
            target.write_text(text)
        target.chmod(entry["mode"])
        os.utime(target, ns=(entry["time"], entry["time"]))
        os.utime(target.parent, ns=(entry["time"], entry["time"]))


def run_program(folder: Path, mode: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the program beside a folder, in a process of its own."""
    command = [sys.executable, PROGRAM.name, str(folder), mode]
    return subprocess.run(
        command, cwd=folder.parent, env={**os.environ, **environ}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def pack(folder: Path, name: str) -> None:
    """Write a run folder to `name.json`, without names of this machine."""
    host = socket.gethostname()
    entries = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found, data = path.stat(), path.read_bytes()
        entry: dict[str, object] = {"mode": stat.S_IMODE(found.st_mode), "time": found.st_mtime_ns}
        if b"\0" in data:
            entry["base64"] = base64.b64encode(data).decode()
        else:
            text = data.decode()
            text = _plain_description(text) if path.name == "run.json" else text
            text = text.replace(str(folder), "@FOLDER@").replace(sys.executable, "@PYTHON@")
            text = _BOOT_ID.sub("golden-machine", text)
            # What is in a shard has a checksum in its `done`; the worker called its node so.
            entry["text"] = re.sub(rf"\b{re.escape(host)}\b", _NODE, text)
        where = str(path.relative_to(folder))
        entries[re.sub(rf"\b{re.escape(host)}\b", _NODE, where)] = entry
    (HERE / f"{name}.json").write_text(json.dumps(entries, indent=1) + "\n")


def _plain_description(text: str) -> str:
    """Leave out where this machine has its packages; workers find their own."""
    description = json.loads(text)
    here = {"cwd": "@FOLDER@/..", "sys_path": ["@FOLDER@/.."], "user": "golden-user"}
    code = {f"@FOLDER@/../{Path(path).name}": sha for path, sha in description["code"].items()}
    return json.dumps({**description, **here, "code": code}, indent=2) + "\n"


def make(name: str) -> None:
    """Run the program as far as a golden folder goes, and pack it."""
    mode, environ = _WAYS[name]
    scratch = Path(tempfile.gettempdir(), "golden")
    scratch.mkdir()
    try:
        folder = scratch / "run"
        (folder.parent / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
        run_program(folder, mode, SLURMD_NODENAME=_NODE, **environ)
        deadline = time.monotonic() + 30
        while mode == "async" and not _has_died(folder) and time.monotonic() < deadline:
            time.sleep(0.1)
        pack(folder, name)
    finally:
        shutil.rmtree(scratch)


def _has_died(folder: Path) -> bool:
    return bool(list(folder.glob("*.part-*"))) and not living_owners(folder / "leases")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        make(each)

"""A Slurm of three small scripts: what it answers is a file, and what it was given is counted."""

import os
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from espnet3.shards.lease import Lease
from espnet3.shards.records import JobRecord, RecordPaths, WorkerRecord, write_job, write_worker
from tests.helpers.detached_parts import DetachedFolder

OPTIONS = {"cores": 1, "memory": "1GB", "queue": "gpu", "walltime": "01:00:00"}
SBATCH = """#!/bin/sh
cat "$1" >> '{here}/scripts'
echo x >> '{here}/submitted'
[ ! -f '{here}/refusal' ] || {{ cat '{here}/refusal' >&2; exit 1; }}
[ ! -f '{here}/odd' ] || {{ cat '{here}/odd'; exit 0; }}
echo "Submitted batch job $((100 + $(wc -l < '{here}/submitted')))"
"""
SQUEUE = """#!/bin/sh
case "$*" in *Comment*) [ -f '{here}/comments' ] && exec cat '{here}/comments'; exit 1;; esac
[ ! -f '{here}/hangs' ] || exec sleep 30
[ ! -f '{here}/fails' ] || {{ cat '{here}/table'; exit 1; }}
exec cat '{here}/table'
"""
SCANCEL = """#!/bin/sh
echo "$*" >> '{here}/cancelled'
"""


class Slurm:
    """The commands, in a folder of their own that comes first on the path."""

    def __init__(self, here: Path) -> None:
        self.here = here
        here.mkdir()
        commands = {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": SCANCEL, "sacct": "#!/bin/sh\n"}
        for name, text in commands.items():
            (here / name).write_text(text.format(here=here))
            (here / name).chmod(0o755)
        self.says({})

    def says(self, states: dict[str, str]) -> None:
        """Let squeue tell these states, by number."""
        rows = (f"{job:<40}{word:<40}{'None':<80}{0:<40}" for job, word in states.items())
        self.says_text("".join(f"{row}\n" for row in rows))

    def says_text(self, text: str) -> None:
        (self.here / "table").write_text(text)

    @property
    def n_submitted(self) -> int:
        path = self.here / "submitted"
        return len(path.read_text().splitlines()) if path.exists() else 0

    @property
    def cancelled(self) -> list[str]:
        path = self.here / "cancelled"
        return path.read_text().splitlines() if path.exists() else []


class StaffedRun:
    """A run folder of three workers at work, jobs 1, 2 and 3, and their successors 11, 12 and 13.

    The workers' presence is real; they are all this process.
    """

    def __init__(self, out: Path, stack: ExitStack, **parallel) -> None:
        block = {"env": "slurm", "mode": "async", "n_workers": 3, "options": OPTIONS, **parallel}
        self.run = DetachedFolder(out, n_items=48, n_shards=16, parallel=block)
        self.root = out.resolve()
        self.paths = RecordPaths(self.root)
        self.leases = [stack.enter_context(Lease(self.root)) for _ in range(3)]
        now = time.time()
        for number, lease in enumerate(self.leases, 1):
            self.job(str(number), now - 600)
            self.job(f"1{number}", now - 590, after=str(number))
            record = WorkerRecord(
                lease.owner.owner_id, "node1", os.getpid(), now - 580, "slurm", str(number),
                seen=now, n_shards=1,
            )  # fmt: skip
            write_worker(self.paths, record)

    def job(self, job_id: str, submitted: float, **more) -> None:
        record = JobRecord("slurm", job_id, submitted, host="login1", **more)
        write_job(self.paths, record)
        path = self.paths.jobs / f"{record.key}.json"
        os.utime(path, (submitted, submitted))


ALL = {**dict.fromkeys("123", "RUNNING"), **{f"1{n}": "PENDING" for n in "123"}}


@contextmanager
def crewed(tmp_path: Path, monkeypatch, **parallel):
    """Give the stand-in and the run folder."""
    slurm = Slurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{slurm.here}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SBATCH_COMMENT", raising=False)
    slurm.says(ALL)
    with ExitStack() as stack:
        yield slurm, StaffedRun(tmp_path / "out", stack, **parallel)


def write_command(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)

"""Real run folders, made by a runner in this process; and what detached workers leave there."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import BaseRunner, use_parallel
from espnet3.shards.commit import Position, begin_attempt
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import load_manifest
from espnet3.shards.records import (
    CrashNote,
    JobRecord,
    StopMark,
    WorkerRecord,
    make_folders,
    write_death,
    write_job,
    write_stop,
    write_worker,
)

N_ITEMS = 20
SQUEUE = """#!/bin/sh
exec /bin/cat {table}
"""


class DetachedFolder:
    """Adds workers, jobs and deaths to a run folder, and stands in for the scheduler."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self.paths = make_folders(root)
        manifest = load_manifest(root)
        assert manifest is not None
        self.manifest = manifest
        self.layout = manifest.layout(root)
        self.layout.logs.mkdir(exist_ok=True)
        self._stack = stack

    def log(self, name: str, *lines: str) -> str:
        """Write a log and return its name in the run folder."""
        path = self.layout.logs / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return f"logs/{name}"

    def worker(self, job_id: str, host: str = "node1", **more: Any) -> Lease:
        """Let a worker sign in; it lives as long as the test."""
        lease = self._stack.enter_context(Lease(self.root))
        self.record(lease.owner.owner_id, job_id, host, **more)
        return lease

    def record(self, owner_id: str, job_id: str, host: str = "node1", **more: Any) -> None:
        """Write the record of a worker, alive or not."""
        facts = {"started": time.time() - 60, "seen": time.time(), "env": "slurm", **more}
        write_worker(self.paths, WorkerRecord(owner_id, host, 4711, job_id=job_id, **facts))

    def take(self, lease: Lease, shard: int, n_done: int, suffix: str = "") -> None:
        """Let a worker begin a shard."""
        assert lease.claim(self.layout.shard_name(shard) + suffix)
        position = Position(begin_attempt(self.layout, shard))
        self._stack.callback(position.close)
        position.cells[0] = self.manifest.bounds[shard] + n_done

    def job(self, job_id: str, **more: Any) -> None:
        """Note a job."""
        facts = {"env": "slurm", "submitted": time.time() - 300, "host": "login1", **more}
        write_job(self.paths, JobRecord(job_id=job_id, **facts))

    def death(self, shard: int, **more: Any) -> None:
        """Note a death."""
        facts = {"host": "node9", "reason": "it was killed by signal 9", **more}
        write_death(self.paths, CrashNote(shard, **facts))

    def stop(self, kind: Any, reason: str, by: str = "me@login1") -> None:
        """Mark the run."""
        write_stop(self.paths, StopMark(kind, reason, by))


def install_squeue(folder: Path, *jobs: tuple[str, str, str, int, str]) -> None:
    """Write a squeue that tells of these jobs: id, state, reason, status as wait() has it, more."""
    folder.mkdir(exist_ok=True)
    widths = (40, 40, 80, 40, 0)
    rows = ("".join(f"{field:<{n}}" for field, n in zip(job, widths, strict=True)) for job in jobs)
    text = "".join(f"{row}\n" for row in rows)
    (folder / "table").write_text(text)
    command = folder / "squeue"
    command.write_text(SQUEUE.format(table=f"'{folder / 'table'}'"))
    command.chmod(0o755)


class NoEnv:
    def build_env_local(self) -> dict[str, Any]:
        return {}

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        return self.build_env_local


class Square(BaseRunner):
    @staticmethod
    def forward(idx: int) -> dict[str, int]:
        if idx in (3, 11):
            raise ValueError(f"utterance {idx} is \x1b[31mbroken")
        return {"id": idx, "square": idx * idx}


class Sound(BaseRunner):
    """Writes a list, a file per item in a folder, a table with a header, and a binary file."""

    @staticmethod
    def forward(idx: int) -> int:
        return idx

    @staticmethod
    def open_writers(shard_dir: Path) -> Any:
        (shard_dir / "wav").mkdir()
        (shard_dir / "table.csv").write_text("id\n")
        return shard_dir, (shard_dir / "wav.scp").open("w")

    @staticmethod
    def write_record(writers: Any, result: int) -> None:
        folder, scp = writers
        (folder / "wav" / f"{result}.wav").write_bytes(bytes(result))
        scp.write(f"{result} {folder.name[:8]}/wav/{result}.wav\n")
        with (folder / "table.csv").open("a") as table, (folder / "x.npy").open("ab") as binary:
            table.write(f"{result}\n")
            binary.write(b"\x93NUMPY\0\n")

    @staticmethod
    def close_writers(writers: Any) -> None:
        writers[1].close()

    def merge(self, shard_dirs: Any) -> str:
        return f"merged {len(shard_dirs)} shards myself"


def run_square(
    folder: Path, *, on_error: Any = "skip", n_items: int = N_ITEMS, **kwargs: Any
) -> Any:
    return Square(NoEnv(), output_dir=folder, on_error=on_error, **kwargs)(range(n_items))


def run_sound(folder: Path) -> Any:
    return Sound(NoEnv(), output_dir=folder)(range(N_ITEMS))


def describe(folder: Path, **parallel: Any) -> None:
    """Make a folder that of a detached run, without starting its workers."""
    with pytest.MonkeyPatch.context() as patch, use_parallel({"mode": "async", **parallel}):
        patch.setattr("espnet3.parallel.detached.control.submit_missing", lambda *_: None)
        run_square(folder)


def lose_driver(folder: Path) -> None:
    """Leave a run as if its driver had died just before merging."""
    for name in ("_SUCCESS.json", "results.jsonl", "failed.jsonl"):
        (folder / name).unlink(missing_ok=True)

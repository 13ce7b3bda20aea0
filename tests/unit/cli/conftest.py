"""Real run folders for the command line, made by a runner in this process."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from espnet3.errors import EspnetError
from espnet3.parallel import BaseRunner, use_parallel
from tests.unit.cli.detached_folder import DetachedFolder, install_squeue

N_ITEMS = 20


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
        patch.setattr("espnet3.parallel.detached.launch.submit_missing", lambda *_: None)
        run_square(folder)


def lose_driver(folder: Path) -> None:
    """Leave a run as if its driver had died just before merging."""
    for name in ("_SUCCESS.json", "results.jsonl", "failed.jsonl"):
        (folder / name).unlink(missing_ok=True)


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of each kind; tests get copies, which also shows that a run may be moved."""
    folder = tmp_path_factory.mktemp("runs")
    run_square(folder / "square")
    run_sound(folder / "sound")
    with suppress(EspnetError):
        run_square(folder / "failed", on_error="raise")
    return folder


@pytest.fixture
def complete(templates: Path, tmp_path: Path) -> Path:
    """A merged run in which items 3 and 11 failed."""
    return Path(shutil.copytree(templates / "square", tmp_path / "complete"))


@pytest.fixture
def unmerged(templates: Path, awkward: Path) -> Path:
    """A run whose shards are all done, in a folder with an awkward name."""
    shutil.copytree(templates / "square", awkward, dirs_exist_ok=True)
    lose_driver(awkward)
    return awkward


@pytest.fixture
def stopped(templates: Path, tmp_path: Path) -> Path:
    """A run that was killed with two shards to go."""
    folder = tmp_path / "stopped"
    shutil.copytree(templates / "square", folder)
    lose_driver(folder)
    for name in ("split.02", "split.15"):
        shutil.rmtree(folder / name)
    return folder


@pytest.fixture
def failed(templates: Path, tmp_path: Path) -> Path:
    """A run that the error of an item stopped."""
    return Path(shutil.copytree(templates / "failed", tmp_path / "failed"))


@pytest.fixture
def sound(templates: Path, tmp_path: Path) -> Path:
    """A run that its own merge() has merged, with files of all kinds in its shards."""
    return Path(shutil.copytree(templates / "sound", tmp_path / "sound"))


@pytest.fixture
def unmerged_sound(sound: Path) -> Path:
    """The same before its merge."""
    lose_driver(sound)
    return sound


@pytest.fixture
def square() -> Callable[..., Any]:
    """Runs, or resumes, the runner of `complete` in a folder."""
    return run_square


@pytest.fixture
def resound() -> Callable[..., Any]:
    """Runs, or resumes, the runner of `sound` in a folder."""
    return run_sound


@pytest.fixture
def detached(stopped: Path) -> Iterator[DetachedFolder]:
    """A detached run that was killed with two shards to go; tests add workers and jobs."""
    describe(stopped, env="local", n_workers=2)
    with ExitStack() as stack:
        yield DetachedFolder(stopped, stack)


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Stands in for Slurm's squeue: give it the jobs that it tells of."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def install(*jobs: tuple[str, str, str, int, str]) -> None:
        install_squeue(folder, *jobs)

    install()
    return install

"""Run folders for the command line, one of each kind."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from espnet3.errors import EspnetError
from tests.helpers.run_folders import (
    DetachedFolder,
    describe,
    install_squeue,
    lose_driver,
    run_sound,
    run_square,
)


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

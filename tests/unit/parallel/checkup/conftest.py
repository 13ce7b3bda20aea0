import pytest

from espnet3.parallel.config import ParallelConfig


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Return a function that puts stand-in commands on PATH, and nothing else before them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def write(**bodies: str) -> None:
        for name, body in bodies.items():
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)

    write.folder = folder
    return write


@pytest.fixture
def slurm():
    """Return a function that makes a `parallel` block for Slurm."""

    def make(n_workers: int = 1, **options) -> ParallelConfig:
        chosen = {"cores": 1, "memory": "1GB", "walltime": "01:00:00", "interface": "lo"} | options
        return ParallelConfig(env="slurm", n_workers=n_workers, options=chosen)

    return make

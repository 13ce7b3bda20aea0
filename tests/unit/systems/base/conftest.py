"""A recipe folder to write configs into."""

import os
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty recipe, which is the current folder."""
    folder = tmp_path / "egs3" / "my corpus's" / "asr"
    (folder / "conf").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def write(recipe: Path) -> Callable[[str, str], str]:
    """Writes a file of the recipe, and returns its path from there."""

    def write_file(name: str, text: str) -> str:
        path = recipe / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return os.path.relpath(path, recipe)

    return write_file

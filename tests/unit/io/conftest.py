from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name breaks code that splits, quotes or formats paths carelessly."""
    path = tmp_path / 'it\'s a "new\n folder" 100% {é} \\n'
    path.mkdir()
    return path

"""Audio files and recipes to read."""

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

SHARED = Path(__file__).parents[4] / "../shared/data"


@pytest.fixture
def write_wav():
    """Return a function that writes a random signal of some seconds, and returns what it wrote."""

    def write(path, seconds=1.0, rate=16000, n_channels=1):
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (round(seconds * rate), n_channels)
        seed = len(path.name) + round(1000 * seconds)
        samples = np.random.default_rng(seed).integers(-9000, 9000, shape, dtype=np.int16)
        soundfile.write(path, samples, rate)
        scaled = (samples / 32768).astype(np.float32)
        return scaled[:, 0] if n_channels == 1 else scaled

    return write


@pytest.fixture
def write_recipe(tmp_path):
    """Return a function that writes the `dataset/` of a recipe, and returns the recipe's folder."""

    def write(code, recipe="egs3/toy/asr", files=None):
        package = tmp_path / recipe / "dataset"
        package.mkdir(parents=True)
        for name, text in {"__init__.py": code, **(files or {})}.items():
            (package / name).write_text(text)
        return package.parent

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "egs3"]:
        del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(tmp_path))]


@pytest.fixture(scope="session")
def librispeech():
    """The folder of one LibriSpeech chapter, with its transcripts."""
    folder = SHARED / "librispeech_sample/train-clean-100/19/198"
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}")
    return folder.resolve()


@pytest.fixture(scope="session")
def an4(tmp_path_factory):
    """The folder of the AN4 recordings, unpacked."""
    archive = SHARED / "mini_an4/downloads.tar.gz"
    if not archive.is_file():
        pytest.skip(f"there is no {archive}")
    import tarfile

    folder = tmp_path_factory.mktemp("an4")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "downloads/an4"

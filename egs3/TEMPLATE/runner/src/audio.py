"""Find audio, or make some to try the recipe with."""

from pathlib import Path

import numpy as np
import soundfile

from espnet3.components.data.errors import DataError
from espnet3.config.fingerprint import digest

SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
SAMPLE_RATE = 16000
N_EXAMPLES = 24


def find_audio(folder: Path) -> list[str]:
    """Return the paths of all audio files below a folder, relative to it.

    Raises:
        DataError: There is none.
    """
    files = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES]
    if not files:
        raise DataError(
            f"audio_dir is {str(folder)!r}, which holds no {', '.join(SUFFIXES)}. Name a folder "
            "that does: audio_dir=FOLDER; or make an example: --stages create_dataset"
        )
    return sorted(path.relative_to(folder).as_posix() for path in files)


def identify_audio(folder: Path, files: list[str]) -> str:
    """Return a digest that changes when a file does."""
    stats = [(folder / file).stat() for file in files]
    return digest({"files": [[stat.st_size, stat.st_mtime_ns] for stat in stats]})


def make_example(folder: Path) -> None:
    """Write bursts of noise, each file louder than the last and with less silence in it."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number in range(N_EXAMPLES):
        seconds = random.uniform(1, 3)
        times = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
        is_on = times % 0.5 < 0.1 + 0.4 * number / N_EXAMPLES
        noise = random.standard_normal(len(times)) * is_on * 10 ** ((number - 40) / 20)
        soundfile.write(folder / f"burst_{number:02}.wav", noise.clip(-1, 1), SAMPLE_RATE)

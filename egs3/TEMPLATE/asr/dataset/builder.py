"""Make the corpus: telephone numbers in touch-tones. Replace it by what prepares yours.

Download or unpack in `prepare_source` (with an `is_source_prepared` beside it), and write in
`build` what `Dataset` reads.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from espnet3.components.data.dataset_builder import DatasetBuilder as BaseBuilder
from espnet3.io.atomic import open_atomic

from .dataset import MANIFEST, SAMPLE_RATE

SNR_DB = {"clean": (20, 30), "noisy": (0, 5), "valid": (0, 30), "train": (0, 30)}  # from and to
TEST_SETS = ("clean", "noisy")
N_SPEAKERS = 4
LOW, HIGH = (697, 770, 852, 941), (1209, 1336, 1477)  # Hz; each key is one of both
KEYS = "123456789*0#"

Row = dict[str, Any]


class DatasetBuilder(BaseBuilder):
    """Makes `<data_dir>/<set>/` with a manifest and wav files; each argument is a key in YAML.

    With `n_training` there are a training set of so many utterances and a validation set.
    """

    def is_built(self, data_dir: str | Path, n_utterances: int = 20, n_training: int = 0) -> bool:
        """Tell whether the manifests, which are written last, are those we would write."""
        sets = _sizes(n_utterances, n_training)
        return all(_is_written(Path(data_dir) / name, _plan(name, sets[name])) for name in sets)

    def build(self, data_dir: str | Path, n_utterances: int = 20, n_training: int = 0) -> None:
        """Write the audio, then the manifests."""
        for name, size in _sizes(n_utterances, n_training).items():
            folder = Path(data_dir) / name
            rows = _plan(name, size)
            if _is_written(folder, rows):
                continue
            (folder / "wav").mkdir(parents=True, exist_ok=True)
            for row in rows:
                soundfile.write(folder / row["audio"], _synthesise(row), SAMPLE_RATE)
            with open_atomic(folder / MANIFEST) as file:
                file.write(_to_text(rows))


def _sizes(n_utterances: int, n_training: int) -> dict[str, int]:
    """Return the sets and their sizes."""
    sizes = dict.fromkeys(TEST_SETS, n_utterances)
    if n_training:
        sizes |= {"valid": max(1, n_training // 10), "train": n_training}
    return sizes


def _is_written(folder: Path, rows: list[Row]) -> bool:
    file = folder / MANIFEST
    return file.is_file() and file.read_text("utf-8") == _to_text(rows)


def _plan(name: str, n_utterances: int) -> list[Row]:
    """Return a row for each utterance with all that its audio is made from."""
    rows = []
    for number in range(n_utterances):
        seed = 1000 * list(SNR_DB).index(name) + number
        random = np.random.default_rng(seed)
        speaker = number % N_SPEAKERS
        digits = random.choice(list("0123456789"), size=random.integers(3, 12))
        row = {
            "utt_id": f"speaker{speaker}-{name}-{number:04}",
            "audio": f"wav/{number:04}.wav",
            "text": " ".join(digits),
            "speaker": f"speaker{speaker}",
            "tone_ms": 70 + 20 * speaker,
            "pause_ms": 50 + 10 * speaker,
            "level_db": round(random.uniform(-30, -10), 1),
            "snr_db": round(random.uniform(*SNR_DB[name]), 1),
            "seed": seed,
        }
        rows.append({**row, "duration": len(_tones(row)) / SAMPLE_RATE})
    return rows


def _tones(row: Row) -> NDArray[np.float64]:
    """Return the keys at full scale, with a pause around each."""
    pause = np.zeros(row["pause_ms"] * SAMPLE_RATE // 1000)
    times = np.arange(row["tone_ms"] * SAMPLE_RATE // 1000) / SAMPLE_RATE
    parts = [pause]
    for key in map(KEYS.index, row["text"].split()):
        low, high = (np.sin(2 * np.pi * f * times) for f in (LOW[key // 3], HIGH[key % 3]))
        parts += [(low + high) / 2, pause]
    return np.concatenate(parts)


def _synthesise(row: Row) -> NDArray[np.float64]:
    samples = _tones(row)
    noise = np.random.default_rng(row["seed"]).standard_normal(len(samples))
    samples += 0.5 * 10 ** (-row["snr_db"] / 20) * noise  # the RMS of a key is 0.5
    samples *= 10 ** (row["level_db"] / 20)
    return samples.clip(-1, 1)


def _to_text(rows: list[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)

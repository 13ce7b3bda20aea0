"""Make the corpus: strings of digits, each joined from single digits that one speaker said."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espnet3.components.data.audio import read_audio
from espnet3.components.data.corpus import Corpus
from espnet3.components.data.dataset_builder import DatasetBuilder as BaseBuilder
from espnet3.errors import ConfigError

from .takes import DIGITS, Takes, find_takes

SAMPLE_RATE = 16000
MAX_DIGITS = 5
HELD_OUT_EVERY = 5  # speakers 05, 10, ..., 60: twelve of sixty
PAUSE_MS = (40, 400)
PEAK = 0.9
FRAME = 160

Row = dict[str, Any]


class DatasetBuilder(BaseBuilder):
    """Makes `<data_dir>/strings/` with `train`, `valid` and `test.jsonl`; arguments are YAML keys.

    Each take of a digit is in one set only. Of the speakers that are not held out for `test`, the
    last take of each digit is for `valid`, the others are for `train`.
    """

    def is_source_prepared(self, source: str | Path | None = None) -> bool:
        """Tell whether the recordings are there; raise how to get them, if not."""
        _check(source)
        return True

    def is_built(
        self,
        data_dir: str | Path,
        source: str | Path | None = None,
        n_train: int = 2000,
        n_valid: int = 150,
        n_test: int = 300,
    ) -> bool:
        """Tell whether the corpus is there, and made as it would be made now."""
        return _corpus(data_dir, _check(source), n_train, n_valid, n_test).is_built()

    def build(
        self,
        data_dir: str | Path,
        source: str | Path | None = None,
        n_train: int = 2000,
        n_valid: int = 150,
        n_test: int = 300,
    ) -> None:
        """Join the digits, on the workers of the `parallel` block."""
        _corpus(data_dir, _check(source), n_train, n_valid, n_test).build()


def make_audio(row: Row) -> NDArray[np.float32]:
    """Return the samples of a string: its takes with pauses between them, as loud as can be."""
    how = row["made"]
    files = [Path(how["source"], name) for name in how["files"]]
    takes = [
        read_audio(file, sample_rate=SAMPLE_RATE, resample=True, channel="mix").samples
        for file in files
    ]
    random = np.random.default_rng(how["seed"])
    level = _noise_level(takes)
    parts = [_pause(random, level)]
    for take in takes:
        parts += [take, _pause(random, level)]
    joined = np.concatenate(parts)
    return joined * np.float32(PEAK / max(float(np.abs(joined).max()), 1e-6))


def _noise_level(takes: list[NDArray[np.float32]]) -> float:
    """Return the loudness of the quietest tenth: a pause without it would be heard as a cut."""
    speech = np.concatenate(takes)
    frames = speech[: len(speech) // FRAME * FRAME].reshape(-1, FRAME)
    return float(np.quantile(np.sqrt(np.mean(frames**2, axis=1)), 0.1))


def _pause(random: np.random.Generator, level: float) -> NDArray[np.float32]:
    n_samples = int(random.integers(*PAUSE_MS)) * SAMPLE_RATE // 1000
    return (level * random.standard_normal(n_samples)).astype(np.float32)


def _check(source: str | Path | None) -> Path:
    if source is None:
        raise ConfigError(
            "create_dataset.source is not set. Clone https://github.com/soerenab/AudioMNIST, and "
            "name the folder that has its data/: create_dataset.source=/corpora/AudioMNIST"
        )
    return Path(source).absolute()


def _corpus(data_dir: str | Path, source: Path, n_train: int, n_valid: int, n_test: int) -> Corpus:
    takes = find_takes(source)
    is_held_out = {speaker: int(speaker) % HELD_OUT_EVERY == 0 for speaker in takes}
    seen = {s: own for s, own in takes.items() if not is_held_out[s]}
    pools: dict[str, tuple[int, Takes]] = {
        "train": (n_train, {s: {d: own[d][:-1] for d in DIGITS} for s, own in seen.items()}),
        "valid": (n_valid, {s: {d: own[d][-1:] for d in DIGITS} for s, own in seen.items()}),
        "test": (n_test, {s: own for s, own in takes.items() if is_held_out[s]}),
    }
    rows = [
        _plan(name, number, pool, source)
        for name, (size, pool) in pools.items()
        for number in range(size)
    ]
    return Corpus(Path(data_dir) / "strings", rows, make_audio, SAMPLE_RATE, split_by="set")


def _plan(name: str, number: int, pool: Takes, source: Path) -> Row:
    """Return what a string is to be; it depends on its set and number, and on what takes exist."""
    random = Random(f"{name} {number}")
    speakers = list(pool)
    speaker = speakers[number % len(speakers)]
    words = random.choices(DIGITS, k=random.randint(1, MAX_DIGITS))
    return {
        "utt_id": f"{speaker}-{name}-{number:05d}",
        "set": name,
        "text": " ".join(words),
        "speaker": speaker,
        # In a mapping of their own: in a sample, bare numbers would be inputs of the model.
        "made": {
            "source": str(source),
            "files": [random.choice(pool[speaker][word]) for word in words],
            "seed": random.randint(0, 2**31 - 1),
        },
    }

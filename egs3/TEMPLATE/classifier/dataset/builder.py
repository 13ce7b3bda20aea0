"""Make the corpus: whistles that rise, fall, or stay. Replace it by what prepares yours.

All that the rest of the recipe needs is a manifest with a `label` in each line. If you have one,
delete this folder and `create_dataset` in conf/training.yaml.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espnet3.components.data.corpus import Corpus
from espnet3.components.data.dataset_builder import DatasetBuilder as BaseBuilder

SAMPLE_RATE = 8000
CLASSES = {"falling": 0.6, "steady": 1.0, "rising": 1.6}  # pitch at the end, as part of the first
SETS = {"train": 1.0, "valid": 0.2, "test": 0.2}  # sizes, as parts of n_train

Row = dict[str, Any]


class DatasetBuilder(BaseBuilder):
    """Makes `<data_dir>/whistles/{train,valid,test}.jsonl` with audio; arguments are YAML keys."""

    def is_built(self, data_dir: str | Path, n_train: int = 300) -> bool:
        """Tell whether the corpus is there, and made as it would be made now."""
        return _corpus(data_dir, n_train).is_built()

    def build(self, data_dir: str | Path, n_train: int = 300) -> None:
        """Write audio and manifests, on the workers of the `parallel` block."""
        _corpus(data_dir, n_train).build()


def make_audio(row: Row) -> NDArray[np.float32]:
    """Return the samples of one whistle, in noise."""
    random = np.random.default_rng(row["made"]["seed"])
    n_samples = int(SAMPLE_RATE * random.uniform(0.4, 1.0))
    start = random.uniform(400, 900)
    hertz = np.linspace(start, start * CLASSES[row["name"]], n_samples)
    whistle = np.sin(2 * np.pi * np.cumsum(hertz) / SAMPLE_RATE)
    return (0.2 * whistle + 0.05 * random.standard_normal(n_samples)).astype(np.float32)


def _corpus(data_dir: str | Path, n_train: int) -> Corpus:
    rows = [
        _plan(name, number)
        for name, part in SETS.items()
        for number in range(max(len(CLASSES), int(part * n_train)))
    ]
    return Corpus(Path(data_dir) / "whistles", rows, make_audio, SAMPLE_RATE, split_by="set")


def _plan(set_name: str, number: int) -> Row:
    label = number % len(CLASSES)
    return {
        "utt_id": f"{set_name}-{number:05d}",
        "set": set_name,
        "label": label,  # a number: an input of the model
        "name": list(CLASSES)[label],
        "made": {"seed": 10_000 * list(SETS).index(set_name) + number},
    }

"""Three test sets in one stage, against one that has as many utterances in all."""

import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, best_of

N_WORKERS = 2
N_SETS = 3
N_UTTERANCES = 100  # of each
SHARDS_PER_WORKER = 4  # of 0.6 s and more: what shards of 0.1 s cost is another figure
LOAD_SECONDS = 2.0
ITEM_SECONDS = 0.05
LIMIT = 1.1
ROUNDS = 4


class Dataset:
    """Utterances with an id."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"utt_id": f"utt{index}", "speech": index, "text": "a"}


class Model:
    """Takes its time to load; asleep, so that workers do not wait for each other's core."""

    def __init__(self, device: str) -> None:
        time.sleep(LOAD_SECONDS)

    def __call__(self, speech: int) -> str:
        time.sleep(ITEM_SECONDS)
        return "a"


def decode(folder: Path, n_sets: int) -> None:
    """Run the stage over as many utterances in all, whatever the number of sets."""
    from espnet3.config.load import load_config
    from espnet3.systems.base.inference import infer

    n = N_SETS * N_UTTERANCES // n_sets
    sets = [
        {"name": f"set{i}", "data_src": __name__, "data_src_args": {"n": n}} for i in range(n_sets)
    ]
    config = {
        "parallel": {
            "env": "local",
            "n_workers": N_WORKERS,
            "shards_per_worker": SHARDS_PER_WORKER,
        },
        "input_key": "speech",
        "dataset": {"test": sets},
        "model": {"_target_": f"{__name__}.Model"},
    }
    folder.mkdir()
    file = folder / "inference.yaml"
    file.write_text(json.dumps(config))
    below = {"recipe_dir": str(folder), "inference_dir": str(folder / "out")}
    assert len(infer(load_config(file, below=below))) == n_sets


def measure() -> Iterator[Figure]:
    """Compare the whole stage: workers started, models loaded, results merged."""
    with tempfile.TemporaryDirectory() as folder:
        new_dir = map(Path(folder).joinpath, map(str, itertools.count()))
        ours, one = best_of(
            ROUNDS, lambda: decode(next(new_dir), N_SETS), lambda: decode(next(new_dir), 1)
        )
    what = (
        f"infer over {N_SETS} test sets, a model that loads for {LOAD_SECONDS:g} s, {N_WORKERS} "
        "workers; against one set of the same size"
    )
    yield Figure(what, ours, "s", one, LIMIT)

"""What batches by duration save on padding and time, and what InferenceRunner costs an item."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.figures import Figure, best_of, seconds
from espnet3.io.scp import ScpWriter
from espnet3.parallel import use_parallel
from espnet3.shards.plan import batch_by_cost, padding_in_order
from espnet3.systems.base.inference_runner import InferenceRunner

N_UTTERANCES = 2_000
N_TINY = 20_000
BATCH_SIZE = 16
BATCH_SECONDS = 180.0
FRAMES_PER_SECOND = 100
MAX_PADDING = 8.0
MAX_TIME = 0.8
MAX_COST = 15.0

DURATIONS = np.random.default_rng(0).lognormal(np.log(11), 0.55, N_UTTERANCES).clip(1, 35)


class Encoder(torch.nn.Module):
    """A small stack of convolutions over padded batches, as an acoustic model is."""

    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.Conv1d(40, 64, 5, stride=2), torch.nn.ReLU(), torch.nn.Conv1d(64, 64, 5)]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, speech: list[torch.Tensor]) -> list[str]:
        padded = torch.nn.utils.rnn.pad_sequence(speech, batch_first=True)
        return [str(len(row)) for row in self.layers(padded.transpose(1, 2))]


class Features:
    def __getitem__(self, index: int) -> dict[str, Any]:
        length = int(DURATIONS[index] * FRAMES_PER_SECOND)
        return {"utt_id": f"utt{index}", "speech": torch.ones(length, 40)}


class Provider:
    """Builds with a function: data that it held would be described item by item."""

    def __init__(self, build: Callable[[], dict[str, Any]]) -> None:
        self._build = build

    def build_env_local(self) -> dict[str, Any]:
        return self._build()

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        return self.build_env_local


def measure() -> Iterator[Figure]:
    """Compare padding, the time of a small encoder, and the cost of an item without a model."""
    by_duration = 100 * batch_by_cost(DURATIONS, BATCH_SECONDS).padded_share
    in_order = 100 * padding_in_order(DURATIONS, BATCH_SIZE)
    name = f"{N_UTTERANCES:,} utterances, batch_seconds"
    yield Figure(f"{name}: padding", by_duration, "%", limit=MAX_PADDING)
    yield Figure(f"beside: batch_size {BATCH_SIZE} in dataset order: padding", in_order, "%")
    torch.set_num_threads(1)
    ours, fixed = best_of(
        2, lambda: decode(batch_seconds=BATCH_SECONDS), lambda: decode(batch_size=BATCH_SIZE)
    )
    yield Figure(f"{name}: time; against batch_size {BATCH_SIZE}", ours, "s", fixed, MAX_TIME)
    yield tiny_items()


def decode(**batching: Any) -> None:
    """Decode all utterances in this process."""
    with tempfile.TemporaryDirectory() as folder, use_parallel(None):
        provider = Provider(lambda: {"dataset": Features(), "model": Encoder()})
        runner = InferenceRunner(provider, output_dir=folder, **batching)
        runner(range(N_UTTERANCES), durations=DURATIONS)


def tiny_items() -> Figure:
    """Decode items that take no time, against a loop that writes the same two SCP files."""
    dataset = [{"utt_id": f"utt{i}", "speech": i, "text": "a"} for i in range(N_TINY)]

    def model(speech: int) -> str:
        return "a"

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder, use_parallel(None):
            provider = Provider(lambda: {"dataset": dataset, "model": model})
            InferenceRunner(provider, output_dir=folder)(range(N_TINY))

    def loop() -> None:
        with tempfile.TemporaryDirectory() as folder:
            with ScpWriter(Path(folder) / "hyp") as hyp, ScpWriter(Path(folder) / "ref") as ref:
                for sample in dataset:
                    hyp.write(sample["utt_id"], model(sample["speech"]))
                    ref.write(sample["utt_id"], sample["text"])

    ours, bare = best_of(3, run, loop)
    scale = 1e6 / N_TINY
    what = f"{N_TINY:,} items without a model, InferenceRunner; against a bare loop"
    return Figure(what, ours * scale, "us/item", bare * scale, MAX_COST)


if __name__ == "__main__":
    print(f"{seconds(lambda: list(measure())):.1f} s")

"""How fast the recipe `digits` recognises: in batches, and one utterance at a time."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import soundfile
import torch

from benchmarks.digits_recipe import DigitsRecipe
from benchmarks.figures import Figure, best_of, seconds
from espnet3.components.models.log_mel import LogMel

MAX_TIME = 0.5
N_TEST = 200
N_UTTERANCES = 2_000
N_ROUNDS = 2
BATCHED = "batch_seconds=60"
ALONE = "batch_seconds=null"
DECODED = {"prefix beam 10": ("default", 200), "joint beam 10": ("hybrid", 100)}
"""Other decoders: the model, and how many utterances."""


def measure() -> Iterator[Figure]:
    """Speak, and decode with each decoder in both ways."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        recipe = DigitsRecipe(Path(folder))
        made: list[int] = []
        taken = seconds(lambda: made.append(recipe.make_corpus(40, N_TEST)))
        yield Figure("beside: create_dataset, one process", made[0] / taken, "utterances/s")
        recipe.make_models()
        yield from greedy(recipe)
        for decoder, (model, n_utterances) in DECODED.items():
            batched, alone, audio = both_ways(recipe, model, decoder, n_utterances)
            yield _real_time(decoder, batched, alone, audio)
        yield front_end(recipe)


def greedy(recipe: DigitsRecipe) -> Iterator[Figure]:
    """Compare both ways with the default model, and count texts that differ."""
    manifest, audio = recipe.repeat(N_UTTERANCES)
    ways = [recipe.decoding("default", "greedy", manifest, way) for way in (BATCHED, ALONE)]
    found = [way().splitlines() for way in ways]  # warms up, too
    batched, alone = best_of(N_ROUNDS, *ways)
    what = f"{N_UTTERANCES:,} utterances, greedy, {BATCHED.replace('=', ' ')}"
    yield Figure(f"{what}: time; against one at a time", batched, "s", alone, MAX_TIME)
    batched_cpu, alone_cpu = (_cpu_seconds(way) for way in ways)
    yield Figure("beside: the same, time of the CPU", batched_cpu, "s", alone_cpu)
    n_different = sum(one != other for one, other in zip(*found, strict=True))
    yield Figure("the same: texts that differ", n_different, "", limit=0)
    yield _real_time("greedy", batched, alone, audio)


def both_ways(
    recipe: DigitsRecipe, model: str, decoder: str, n_utterances: int
) -> tuple[float, float, float]:
    """Return the seconds of decoding in batches and one at a time, and those of the audio."""
    manifest, audio = recipe.repeat(n_utterances)
    ways = [recipe.decoding(model, decoder, manifest, way) for way in (BATCHED, ALONE)]
    batched, alone = best_of(1, *ways)
    return batched, alone, audio


def front_end(recipe: DigitsRecipe) -> Figure:
    """Compare both ways with the log-mel features alone, of samples in memory."""
    rows = sorted(recipe.rows(), key=lambda row: float(row["duration"]))
    read = (soundfile.read(recipe.data_dir / row["audio"], dtype="float32")[0] for row in rows)
    speech = [torch.from_numpy(samples) for samples in read]
    lengths = torch.tensor([len(one) for one in speech])
    extract = LogMel(sample_rate=8000, n_mels=40)
    size = 25

    @torch.inference_mode()
    def batched() -> None:
        for i in range(0, len(speech), size):
            padded = torch.nn.utils.rnn.pad_sequence(speech[i : i + size], batch_first=True)
            extract(padded, lengths[i : i + size])

    @torch.inference_mode()
    def alone() -> None:
        for i, one in enumerate(speech):
            extract(one[None], lengths[i : i + 1])

    taken = best_of(5, batched, alone)
    return _real_time("log-mel front end", taken[0], taken[1], float(lengths.sum()) / 8000)


def _real_time(what: str, batched: float, alone: float, audio: float) -> Figure:
    name = f"beside: {what}, for a second of audio; against one at a time"
    return Figure(name, 1e3 * batched / audio, "ms", 1e3 * alone / audio)


def _cpu_seconds(function: Callable[[], object]) -> float:
    begin = time.process_time()
    function()
    return time.process_time() - begin

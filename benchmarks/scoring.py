"""Word error rate of a million words: counts, rate and interval; against jiwer's `process_words`.

jiwer aligns and counts; ours does the same, and also resamples for the interval.
"""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, best_of, seconds
from espnet3.systems.asr.metrics.wer import WER

N_WORDS = 1_000_000
TIMES = 10
LIMIT = 1.5
LIMIT_GROWTH = 1.5
_N_VOCABULARY = 20_000
_LONGEST = 40
_N_ROUNDS = 3


def make_texts(n_words: int) -> dict[str, list[str]]:
    """Return ids, references, and hypotheses in which about every tenth word is wrong."""
    chance = random.Random(0)
    vocabulary = [f"word{number}" for number in range(_N_VOCABULARY)]
    weights = [1 / (rank + 1) for rank in range(_N_VOCABULARY)]
    words = iter(chance.choices(vocabulary, weights, k=n_words))
    references, hypotheses, n_left = [], [], n_words
    while n_left:
        length = min(chance.randint(1, _LONGEST), n_left)
        n_left -= length
        reference = [next(words) for _ in range(length)]
        references.append(" ".join(reference))
        hypotheses.append(" ".join(_misheard(reference, vocabulary, chance)))
    ids = [f"utt{number}" for number in range(len(references))]
    return {"utt_id": ids, "ref": references, "hyp": hypotheses}


def _misheard(words: list[str], vocabulary: list[str], chance: random.Random) -> Iterator[str]:
    for word in words:
        event = chance.random()
        if event >= 0.03:  # else a deletion
            yield chance.choice(vocabulary) if event < 0.08 else word
        if event > 0.98:
            yield chance.choice(vocabulary)


def measure() -> Iterator[Figure]:
    """Compare with jiwer, then with ten times as much, then with all files written."""
    import jiwer

    data = make_texts(N_WORDS)
    metric = WER()
    expected = jiwer.process_words(data["ref"], data["hyp"])
    assert metric.compute(data)["rate"] == 100 * expected.wer
    ours, theirs = best_of(
        _N_ROUNDS,
        lambda: metric.compute(data),
        lambda: jiwer.process_words(data["ref"], data["hyp"]),
    )
    what = f"WER of {N_WORDS:,} words with its interval"
    yield Figure(f"{what}; against jiwer.process_words", ours, "s", theirs, LIMIT)
    larger = {key: values * TIMES for key, values in data.items()}
    (longer,) = best_of(2, lambda: metric.compute(larger))
    what = f"WER of {N_WORDS * TIMES:,} words; against {TIMES} times the above"
    yield Figure(what, longer, "s", ours * TIMES, LIMIT_GROWTH)
    with tempfile.TemporaryDirectory() as folder:
        written = seconds(lambda: metric(data, "test", Path(folder)))
    yield Figure(f"beside: {N_WORDS:,} words, with all alignments written", written, "s", theirs)

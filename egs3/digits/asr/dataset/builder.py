"""Make the corpus: strings of digits, spoken by espeak-ng in many voices."""

from pathlib import Path
from random import Random
from typing import Any

from espnet3.components.data.corpus import Corpus
from espnet3.components.data.dataset_builder import DatasetBuilder as BaseBuilder
from espnet3.components.data.espeak import ACCENTS, check_espeak, speak

SAMPLE_RATE = 8000
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MAX_DIGITS = 6
MIN_NEW = 3  # digits: there are too few shorter strings to keep them out of the other sets

# Variants of espeak-ng; each speaks in all of its accents of English.
SEEN = (
    "Alex", "Annie", "Denis", "Michael", "adam", "aunty", "boris", "ed", "f1", "f2", "f4", "f5",
    "grandma", "linda", "m1", "m2", "m3", "m5", "m7", "max", "pablo", "paul", "rob", "robert",
)  # fmt: skip
HELD_OUT = ("Mike", "belinda", "f3", "grandpa", "john", "m4", "m6", "michel", "sandro", "victor")
VOICES = {"train": SEEN, "valid": SEEN, "test_seen": SEEN, "test_unseen": HELD_OUT}

Row = dict[str, Any]


class DatasetBuilder(BaseBuilder):
    """Makes `<data_dir>/digits/` with `<set>.jsonl` and audio; each argument is a key in YAML."""

    def is_source_prepared(self) -> bool:
        """Tell whether the synthesiser is installed; it raises how to, if it is not."""
        check_espeak()
        return True

    def is_built(
        self, data_dir: str | Path, n_train: int = 1200, n_valid: int = 200, n_test: int = 300
    ) -> bool:
        """Tell whether the corpus is there, and made as it would be made now."""
        return _corpus(data_dir, n_train, n_valid, n_test).is_built()

    def build(
        self, data_dir: str | Path, n_train: int = 1200, n_valid: int = 200, n_test: int = 300
    ) -> None:
        """Speak it, on the workers of the `parallel` block."""
        _corpus(data_dir, n_train, n_valid, n_test).build()


def make_audio(row: Row) -> Any:
    """Return the samples of an utterance."""
    how = row["spoken"]
    voice = f"{row['accent']}+{row['speaker']}"
    settings = {name: how[name] for name in ("speed", "pitch", "seed")}
    speech = speak(row["text"], voice, sample_rate=SAMPLE_RATE, **settings)
    return speech * 10 ** (how["gain_db"] / 20)


def _corpus(data_dir: str | Path, n_train: int, n_valid: int, n_test: int) -> Corpus:
    sizes = {"train": n_train, "valid": n_valid, "test_seen": n_test, "test_unseen": n_test}
    rows: list[Row] = []
    trained: set[str] = set()
    for name, size in sizes.items():
        rows += [_plan(name, number, trained) for number in range(size)]
        trained = trained or {row["text"] for row in rows}
    folder = Path(data_dir) / "digits"
    return Corpus(folder, rows, make_audio, sample_rate=SAMPLE_RATE, split_by="set")


def _plan(name: str, number: int, trained: set[str]) -> Row:
    """Return what an utterance is to be; it depends on its set and number alone."""
    random = Random(f"{name} {number}")
    n_digits = random.randint(1, MAX_DIGITS)
    text = _text(random, n_digits)
    while n_digits >= MIN_NEW and text in trained:
        text = _text(random, n_digits)
    voices = VOICES[name]
    return {
        "utt_id": f"{name}-{number:05d}",
        "set": name,
        "text": text,
        "speaker": voices[number % len(voices)],
        "accent": random.choice(ACCENTS),
        # In a mapping of their own: in a sample, bare numbers would be inputs of the model.
        "spoken": {
            "speed": random.randint(105, 160),
            "pitch": random.randint(30, 70),
            "gain_db": round(random.uniform(-15, 0), 1),
            "seed": random.randint(0, 2**31 - 1),
        },
    }


def _text(random: Random, n_digits: int) -> str:
    return " ".join(random.choices(DIGITS, k=n_digits))

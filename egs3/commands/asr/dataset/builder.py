"""Make the corpus: commands to a house, spoken by espeak-ng in many voices."""

from pathlib import Path
from random import Random
from typing import Any

from espnet3.components.data.corpus import Corpus
from espnet3.components.data.dataset_builder import DatasetBuilder as BaseBuilder
from espnet3.components.data.espeak import ACCENTS, check_espeak, speak

from .grammar import draw_command

SAMPLE_RATE = 8000

# Variants of espeak-ng; each speaks in all of its accents of English.
SEEN = (
    "Alex", "Annie", "Denis", "Michael", "adam", "aunty", "boris", "ed", "f1", "f2", "f4", "f5",
    "grandma", "linda", "m1", "m2", "m3", "m5", "m7", "max", "pablo", "paul", "rob", "robert",
)  # fmt: skip
HELD_OUT = ("Mike", "belinda", "f3", "grandpa", "john", "m4", "m6", "michel", "sandro", "victor")
VOICES = {"train": SEEN, "valid": SEEN, "test_seen": SEEN, "test_unseen": HELD_OUT}

Row = dict[str, Any]


class DatasetBuilder(BaseBuilder):
    """Makes `<data_dir>/commands/` with `<set>.jsonl` and audio; each argument is a key in YAML."""

    def is_source_prepared(self) -> bool:
        """Tell whether the synthesiser is installed; it raises how to, if it is not."""
        check_espeak()
        return True

    def is_built(
        self, data_dir: str | Path, n_train: int = 2400, n_valid: int = 200, n_test: int = 300
    ) -> bool:
        """Tell whether the corpus is there, and made as it would be made now."""
        return _corpus(data_dir, n_train, n_valid, n_test).is_built()

    def build(
        self, data_dir: str | Path, n_train: int = 2400, n_valid: int = 200, n_test: int = 300
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
    rows = [_plan(name, number) for name, size in sizes.items() for number in range(size)]
    folder = Path(data_dir) / "commands"
    return Corpus(folder, rows, make_audio, sample_rate=SAMPLE_RATE, split_by="set")


def _plan(name: str, number: int) -> Row:
    """Return what an utterance is to be; it depends on its set and number alone."""
    random = Random(f"{name} {number}")
    voices = VOICES[name]
    return {
        "utt_id": f"{name}-{number:05d}",
        "set": name,
        "text": draw_command(random),
        "speaker": voices[number % len(voices)],
        "accent": random.choice(ACCENTS),
        # In a mapping of their own: in a sample, bare numbers would be inputs of the model.
        "spoken": {
            "speed": random.randint(115, 165),
            "pitch": random.randint(30, 70),
            "gain_db": round(random.uniform(-15, 0), 1),
            "seed": random.randint(0, 2**31 - 1),
        },
    }

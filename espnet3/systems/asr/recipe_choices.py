"""Settings of a recogniser that suit a corpus, each with its reason.

They are where to start from, and not the last word: rates of a hundred hours and more were taken
from common practice, those of some hours from the recipes in `egs3/`, which a test trains.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from espnet3.components.data.survey import Survey
from espnet3.components.text.spelling import Speller
from espnet3.errors import ConfigError
from espnet3.text import count, duration, first_few

# Frames of 10 ms, joined by four: with fewer frames than characters CTC learns nothing.
_FRAMES_PER_SECOND = 100
_LEAST_FRAMES = 1.2  # for each character, of all but one utterance in fifty
_TAG = re.compile(r"<[^<>\s]*>")
_INNER_APOSTROPHE = re.compile(r"(?<=\w)['\u2019](?=\w)")
# Scripts of words that have no letters: pieces of them would be words.
_MANY_CHARACTERS = 300

# By hours of speech.
_PIECES_FROM = 20.0
_LARGE_FROM = 100.0


@dataclass(frozen=True)
class Choice:
    """A value and why it was chosen."""

    value: str
    why: str


@dataclass(frozen=True)
class Choices:
    """Settings of a written config that follow from the survey of a corpus."""

    clean_types: Choice
    tokenizer: Choice
    speed: Choice
    batch_seconds: Choice
    valid_batch_seconds: int
    n_loaders: int
    n_mels: int
    encoder: Choice
    spec_augment: Choice
    learning_rate: Choice
    max_epochs: Choice
    is_small: bool
    """Whether a CPU is enough for training and decoding."""


def choose(train: Survey, longest: float) -> Choices:
    """Choose settings for a training set.

    Args:
        train: The training set.
        longest: Seconds of the longest utterance of any set.

    Raises:
        ConfigError: Nothing is left of some texts once they are cleaned.
    """
    cleaners = find_cleaners(train.texts)
    texts = _cleaned(train, cleaners)
    hours = train.hours
    batch = _batch_seconds(train)
    is_small = hours < _PIECES_FROM
    n_mels = 40 if hours < 5 else 80
    return Choices(
        clean_types=cleaners_choice(cleaners),
        tokenizer=_tokenizer(train, texts),
        speed=_speed(hours),
        batch_seconds=batch,
        valid_batch_seconds=max(60, int(longest) + 1) if is_small else 240,
        n_loaders=1 if is_small else 4,
        n_mels=n_mels,
        encoder=_encoder(hours, n_mels, _subsampling(train, texts)),
        spec_augment=_spec_augment(train),
        learning_rate=_learning_rate(hours),
        max_epochs=_epochs(hours),
        is_small=is_small,
    )


def find_cleaners(texts: Sequence[str]) -> list[str]:
    """Return the `clean_types` that bring texts to words without case and punctuation."""
    joined = _INNER_APOSTROPHE.sub("", " ".join(texts))
    cleaners = []
    if _TAG.search(joined):
        cleaners.append("no_tags")
        joined = _TAG.sub(" ", joined)
    characters = set(joined)
    if any(c.islower() for c in characters) and any(c.isupper() for c in characters):
        cleaners.append("lower")
    if any(unicodedata.category(c).startswith("P") for c in characters):
        cleaners.append("no_punctuation")
    return cleaners


def cleaners_choice(cleaners: Sequence[str]) -> Choice:
    """Return the cleaners as a list of YAML, with what they do."""
    found = {
        "no_tags": "tags such as <noise> are no words",
        "lower": "upper and lower case are mixed",
        "no_punctuation": "there is punctuation",
    }
    why = "; ".join(found[name] for name in cleaners) or "texts are without case and punctuation"
    return Choice(f"[{', '.join(cleaners)}]", why)


def _cleaned(train: Survey, cleaners: Sequence[str]) -> list[str]:
    spell = Speller(cleaners)
    texts = [spell(text) for text in train.texts]
    empty = [id for id, text in zip(train.ids, texts, strict=True) if not text]
    if empty:
        raise ConfigError(
            f"Of the texts of {count(len(empty), 'utterance')}, nothing is left without "
            f"punctuation and tags: {first_few(empty, 3)}.",
            fix="Leave them out where the data is made.",
        )
    return texts


def _tokenizer(train: Survey, texts: Sequence[str]) -> Choice:
    n_characters = len({c for text in texts for c in text if c != " "})
    n_words = len({word for text in texts for word in text.split()})
    speech = f"{duration(train.hours * 3600)} of speech"
    found = f"{speech}, {n_characters} characters, {n_words:,} words"
    size = 500 if train.hours < _LARGE_FROM else 1000 if train.hours < 1000 else 5000
    if train.hours < _PIECES_FROM:
        why = "word pieces need more to learn from"
    elif n_characters > _MANY_CHARACTERS:
        why = "these are words already"
    elif n_words < 4 * size:
        why = f"{size} word pieces would be the words themselves"
    else:
        return Choice(f"bpe\n  vocab_size: {size}", f"word pieces: {found}")
    return Choice("characters", f"{found}: {why}")


def _batch_seconds(train: Survey) -> Choice:
    if train.hours >= _PIECES_FROM:
        seconds = max(240 if train.hours >= _LARGE_FROM else 120, int(2 * train.longest))
        return Choice(str(seconds), "of audio on each GPU; less if its memory is not enough")
    # Some hundred steps in an epoch: CTC needs steps before it says anything but blanks.
    wanted = train.hours * 3600 / 250
    least = max(6.0, 4 * train.quantile(0.5))
    seconds = max(int(min(60.0, max(wanted, least))), int(train.longest)) + 1
    steps = max(1, round(train.hours * 3600 / seconds))
    return Choice(str(seconds), f"small: about {steps:,} steps an epoch")


def _speed(hours: float) -> Choice:
    if hours < _PIECES_FROM:
        return Choice("[0.88, 0.92, 0.96, 1.0, 1.04, 1.08, 1.12]", "more voices than were recorded")
    return Choice("[0.9, 1.0, 1.1]", "the usual three speeds")


def _subsampling(train: Survey, texts: Sequence[str]) -> Choice:
    """Return how many frames may be joined so that CTC has one for each character."""
    ratios = sorted(
        seconds * _FRAMES_PER_SECOND / _frames_needed(text)
        for text, seconds in zip(texts, train.seconds, strict=True)
    )
    fast = ratios[len(ratios) // 50]
    factor = next((n for n in (4, 2) if fast / n >= _LEAST_FRAMES), 1)
    return Choice(str(factor), f"the fastest speech has {fast:.0f} frames of 10 ms a character")


def _frames_needed(text: str) -> int:
    # Between two equal characters CTC needs a blank.
    return len(text) + sum(a == b for a, b in pairwise(text))


def _encoder(hours: float, n_mels: int, subsampling: Choice) -> Choice:
    if hours < _PIECES_FROM:
        n_channels, n_layers = (128, 6) if hours < 5 else (256, 8)
        size = "0.6 million" if hours < 5 else "3 million"
        lines = [f"n_channels: {n_channels}", f"n_layers: {n_layers}"]
        target, why = "tdnn.TDNN", f"{size} parameters: small corpora want small models"
    else:
        hidden = 144 if hours < _LARGE_FROM else 256
        lines = [f"hidden: {hidden}", "n_layers: 12", "n_heads: 4", "kernel_size: 31"]
        target, why = "conformer.Conformer", f"enough speech for a Conformer of width {hidden}"
    above = [f"_target_: espnet3.components.models.{target}", f"input_size: {n_mels} # n_mels"]
    below = [f"subsampling: {subsampling.value} # {subsampling.why}"]
    return Choice("\n    ".join([*above, *lines, *below]), why)


def _spec_augment(train: Survey) -> Choice:
    if train.hours >= _PIECES_FROM:
        return Choice(_masks((2, 27, 5, 50), part=0.05), "the usual masks of larger corpora")
    bins = 5 if train.hours < 5 else 10
    median = train.quantile(0.5)
    if median < 2:
        why = f"narrow: in {median:.1f} s, the median, a wide mask hides a word"
        return Choice(_masks((1, bins, 1, 5)), why)
    return Choice(_masks((2, bins + 1, 2, 10)), "two bands and two spans of 0.1 s")


def _masks(sizes: tuple[int, int, int, int], part: float | None = None) -> str:
    names = ("n_freq_masks", "max_freq_width", "n_time_masks", "max_time_width")
    lines = [f"{name}: {size}" for name, size in zip(names, sizes, strict=True)]
    return "\n    ".join([*lines, *([f"max_time_part: {part}"] if part else [])])


def _learning_rate(hours: float) -> Choice:
    rate = "0.003" if hours < 5 else "0.002" if hours < _PIECES_FROM else "0.001"
    return Choice(rate, "the peak of a schedule that rises, then falls to the end")


def _epochs(hours: float) -> Choice:
    if hours < 2:
        epochs = min(60, max(8, round(16 / hours)))
        return Choice(str(epochs), "fewer in a first try; the schedule ends with the last one")
    epochs = 20 if hours < _PIECES_FROM else 30
    return Choice(str(epochs), "choose it by the time that you have")

"""Survey a corpus: its size, its formats, its speakers, and the spelling of its texts.

A large corpus is sampled: 20,000 utterances tell its hours and alphabet, 300 its audio.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from espnet3.components.data.audio import in_threads
from espnet3.components.data.errors import AudioError, DataError
from espnet3.components.data.sources.base import SpeechSource
from espnet3.errors import ConfigError
from espnet3.io.atomic import StrPath
from espnet3.text import count, first_few

MOST_UTTERANCES = 20_000
_MOST_FILES = 2_000
_MOST_READ = 300


@dataclass(frozen=True)
class Survey:
    """Facts of one set of utterances."""

    n_utterances: int
    ids: Sequence[str]
    """Of the utterances that were looked at, as all that follows."""
    texts: Sequence[str]
    speakers: Sequence[str | None]
    seconds: Sequence[float]
    sample_rates: Mapping[int, int]
    """Of the audio that was read: how many utterances have each rate."""
    n_channels: int
    """The most of any utterance."""

    @cached_property
    def is_sampled(self) -> bool:
        """Tell whether there are utterances that were not looked at."""
        return len(self.ids) < self.n_utterances

    @cached_property
    def hours(self) -> float:
        """Of all utterances; estimated if only some were looked at."""
        return sum(self.seconds) / len(self.seconds) * self.n_utterances / 3600

    @cached_property
    def longest(self) -> float:
        """Seconds of the longest utterance."""
        return max(self.seconds)

    def quantile(self, share: float) -> float:
        """Return the seconds that a share of the utterances does not exceed."""
        ranked = sorted(self.seconds)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))]

    @cached_property
    def speaker_counts(self) -> Counter[str]:
        """Number of utterances of each speaker; empty unless all are known."""
        known = [speaker for speaker in self.speakers if speaker is not None]
        return Counter(known) if len(known) == len(self.speakers) else Counter()

    @cached_property
    def alphabet(self) -> list[str]:
        """All characters of the texts but blanks."""
        return sorted({character for text in self.texts for character in text if character.strip()})

    @cached_property
    def n_words(self) -> int:
        """Different words, as they are written."""
        return len({word for text in self.texts for word in text.split()})


def open_source(
    data_src: str, path: StrPath, arguments: Mapping[str, Any] | None = None
) -> SpeechSource:
    """Return the dataset of one of our sources, without a rate that its audio must have."""
    module = import_module(f"espnet3.components.data.sources.{data_src}")
    source: SpeechSource = module.Dataset(path, **(arguments or {}))
    return source


def survey(source: SpeechSource) -> Survey:
    """Look at a corpus, without reading all of a large one.

    Raises:
        ConfigError: It has no utterances, or sampling rates differ.
        DataError: An utterance has no text, or an empty one; or its audio cannot be read.
    """
    if len(source) == 0:
        raise ConfigError(
            "There is no utterance in it.", fix="Name the data that is to be used, or make it."
        )
    positions = spread(len(source), MOST_UTTERANCES)
    samples = [source.fields(i) for i in positions]
    _check_texts(source, positions, samples)
    _check_files(source, [positions[i] for i in spread(len(positions), _MOST_FILES)])
    seconds = source.seconds_of(positions)
    rates, n_channels = _listen(source)
    return Survey(
        n_utterances=len(source),
        ids=[str(fields["utt_id"]) for fields in samples],
        texts=[fields["text"] for fields in samples],
        speakers=[_speaker(fields) for fields in samples],
        seconds=seconds,
        sample_rates=rates,
        n_channels=n_channels,
    )


def spread(n_items: int, most: int) -> list[int]:
    """Return at most so many positions, evenly spaced from the first to the last.

    Example:
        >>> spread(3, 5), spread(10, 4)
        ([0, 1, 2], [0, 3, 6, 9])
    """
    if n_items <= most:
        return list(range(n_items))
    return sorted({round(i * (n_items - 1) / (most - 1)) for i in range(most)})


def _speaker(fields: Mapping[str, Any]) -> str | None:
    found = fields.get("speaker")
    return None if found in (None, "") else str(found)


def _check_texts(
    source: SpeechSource, positions: Sequence[int], samples: Sequence[Mapping[str, Any]]
) -> None:
    bad = [
        i
        for i, fields in zip(positions, samples, strict=True)
        if not isinstance(fields.get("text"), str) or not fields["text"].strip()
    ]
    if not bad:
        return
    has = first_few((name for name in samples[0] if name != "utt_id"), 8) or "none"
    raise DataError(
        f"{count(len(bad), 'utterance')} of {len(samples)} have no text. The first is "
        f"{source.where(bad[0])}. Fields of the first utterance: {has}.",
        fix="Write the texts, or leave these utterances out where the data is made; for texts in "
        "another column: --columns text=COLUMN",
    )


def _check_files(source: SpeechSource, positions: Sequence[int]) -> None:
    files = [source.audio_file(i) for i in positions]
    is_there = in_threads(lambda file: not file or os.path.exists(file), files)
    missing = [i for i, found in zip(positions, is_there, strict=True) if not found]
    if missing:
        raise AudioError(
            f"{count(len(missing), 'audio file')} of {len(files)} that were looked for do not "
            f"exist. The first is {source.audio_file(missing[0])!r}, named in "
            f"{source.where(missing[0])}.",
            fix="Correct the paths, or leave these utterances out where the data is made.",
        )


def _listen(source: SpeechSource) -> tuple[Counter[int], int]:
    rates: Counter[int] = Counter()
    n_channels = 1
    for position in spread(len(source), _MOST_READ):
        sample = source[position]
        rates[sample["sample_rate"]] += 1
        if sample["speech"].ndim > 1:
            n_channels = max(n_channels, sample["speech"].shape[1])
    return rates, n_channels


def shared_speakers(one: Survey, other: Survey) -> list[str]:
    """Return the speakers that two sets have in common."""
    return sorted(one.speaker_counts.keys() & other.speaker_counts.keys())


def most_frequent(rates: Iterable[Mapping[int, int]]) -> Counter[int]:
    """Return how many utterances of all sets have each rate."""
    total: Counter[int] = Counter()
    for one in rates:
        total.update(one)
    return total

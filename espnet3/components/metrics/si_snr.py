"""Scale-invariant signal-to-noise ratio of enhanced or separated speech."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from espnet3.components.data.audio import in_threads, read_audio, read_form
from espnet3.components.metrics.error_rate import check_setting
from espnet3.components.metrics.set_score import (
    Data,
    Rows,
    UtteranceScore,
    find_file,
    place_of,
)
from espnet3.errors import ConfigError, EspnetError, RecordError

_FLOOR = float(np.finfo(np.float64).eps)
_MOST_SOURCES = 6
"""Beyond it, trying all orders would take too long."""


def si_snr(estimate: NDArray[Any], reference: NDArray[Any]) -> float:
    """Return the scale-invariant signal-to-noise ratio in dB, both without their mean.

    Noise of less than the precision of a number counts as that, so that an exact copy has 156.5 dB.

    Example:
        >>> time = np.arange(8000) / 8000
        >>> tone, other = np.sin(2 * np.pi * 100 * time), np.sin(2 * np.pi * 300 * time)
        >>> round(si_snr(5 * tone + 0.5 * other, tone), 3)
        20.0
    """
    estimate = np.asarray(estimate, dtype=np.float64) - np.mean(estimate, dtype=np.float64)
    reference = np.asarray(reference, dtype=np.float64) - np.mean(reference, dtype=np.float64)
    target = (estimate @ reference) / (reference @ reference) * reference
    noise = estimate - target
    energy, rest = float(target @ target), float(noise @ noise)
    total = energy + rest
    # Silence has neither; it is as far from the reference as can be told.
    if total == 0:
        energy, rest, total = 0.0, 1.0, 1.0
    return float(10 * np.log10(max(energy, _FLOOR * total) / max(rest, _FLOOR * total)))


class _Form(NamedTuple):
    sample_rate: int
    n_samples: int
    n_channels: int


@dataclass(frozen=True)
class SISNR(UtteranceScore):
    """Scale-invariant signal-to-noise ratio in dB, the mean over utterances; more is better.

    `ref_key` and `hyp_key` are fields with paths of audio: `hyp` of artifacts of type wav, `ref` a
    list such as `inputs: {ref: "data/{test_set}/spk1.scp"}`. With several of both, as in
    separation, the best order of each utterance counts. The arguments are those of
    `UtteranceScore`, and those below.
    """

    key: ClassVar[str] = "si_snr"

    mix_key: str | None = None
    """Field with the unprocessed audio; with it, `improvement` says how much was gained."""
    channel: int | None = None
    """The channel to compare where files have several, counted from 0."""
    cut_to_shortest: bool = False
    """Compare what all files of an utterance have, instead of refusing unequal lengths."""

    def __post_init__(self) -> None:
        super().__post_init__()
        n_references, n_estimates = len(self.references), len(self.estimates)
        if n_references != n_estimates:
            raise ConfigError(
                f"ref_key has {n_references} fields and hyp_key {n_estimates}: each source needs "
                "both.",
                fix="Write: ref_key: [ref1, ref2] and hyp_key: [hyp1, hyp2]",
            )
        if n_references > _MOST_SOURCES:
            raise ConfigError(f"ref_key has {n_references} fields; at most {_MOST_SOURCES} work.")
        if self.channel is not None:
            check_setting("channel", self.channel, lambda n: type(n) is int and n >= 0, 0)
        cut = self.cut_to_shortest
        check_setting("cut_to_shortest", cut, lambda value: isinstance(value, bool), "true")

    @property
    def input_keys(self) -> tuple[str, ...]:
        """The fields that it needs, references first."""
        mixture = () if self.mix_key is None else (self.mix_key,)
        keys = (*self.references, *self.estimates, *mixture, *self.group_keys)
        return tuple(dict.fromkeys(keys))

    def check(
        self, data: Data, test_name: str, inference_dir: Path, sources: Mapping[str, Path]
    ) -> None:
        """Look at the headers of all files, before anything is computed.

        Args:
            data: As in a call.
            test_name: As in a call.
            inference_dir: As in a call.
            sources: The SCP file of each key, for the errors.

        Raises:
            RecordError: A file is missing or unreadable, or rates, lengths or channels do not fit.
        """

        def problem(number: int) -> str | None:
            return self._problem(number, data, sources, inference_dir / test_name)

        found = in_threads(problem, range(len(data["utt_id"])))
        problems = [text for text in found if text]
        if problems:
            others = len(problems) - 1
            more = f" ({others} more of {len(found)} utterances have such a problem.)"
            raise RecordError(f"{problems[0]}{more if others else ''}")

    def rows(self, data: Data, folder: Path) -> Rows:
        """Return for each utterance: the ratio, that of the mixture, and 1."""
        n_items = len(data[self.references[0]])
        return np.array([self._row(number, data, folder) for number in range(n_items)])

    def score(self, sums: NDArray[np.float64]) -> float:
        """Return the mean."""
        return float(sums[0] / sums[2])

    def of_utterance(self, row: NDArray[np.float64]) -> dict[str, Any]:
        """Return the ratio, and the improvement where there is one."""
        return {self.key: float(row[0]), **self.of_set(row)}

    def of_set(self, sums: NDArray[np.float64]) -> dict[str, Any]:
        """Return the improvement, if the mixture is known."""
        if self.mix_key is None:
            return {}
        return {"improvement": float((sums[0] - sums[1]) / sums[2])}

    @property
    def _paths(self) -> tuple[str, ...]:
        mixture = () if self.mix_key is None else (self.mix_key,)
        return (*self.references, *self.estimates, *mixture)

    def _problem(
        self, number: int, data: Data, sources: Mapping[str, Path], folder: Path
    ) -> str | None:
        """Return what is wrong with the files of an utterance."""
        id = data["utt_id"][number]
        forms: dict[str, _Form] = {}
        for key in self._paths:
            value = data[key][number]
            place = place_of(id, sources.get(key)) if _is_odd(value, folder) else ""
            if value.rstrip().endswith("|"):
                return (
                    f"{place}: {key} of {id} is a command, {value!r:.80}, and none is run. "
                    "Write the audio to files, and name those."
                )
            if place:
                return (
                    f"{place}: {key} of {id} is {value!r}, which is no file, neither in {folder} "
                    f"nor in {Path.cwd()}. Correct the path."
                )
            try:
                forms[key] = _Form(*read_form(find_file(value, folder)))
            except EspnetError as error:
                return f"{place_of(id, sources.get(key))}: {key} of {id}: {error}"
        return self._mismatch(id, forms, sources)

    def _mismatch(
        self, id: str, forms: Mapping[str, _Form], sources: Mapping[str, Path]
    ) -> str | None:
        # Called for errors alone: it reads the list up to the line.
        def at(key: str) -> str:
            return f"{place_of(id, sources.get(key))}: {key} of {id}"

        first, *others = forms
        theirs = forms[first]
        for key in others:
            ours = forms[key]
            if ours.sample_rate != theirs.sample_rate:
                return (
                    f"{at(key)} is sampled at {ours.sample_rate} Hz, but {first} "
                    f"({place_of(id, sources.get(first))}) at {theirs.sample_rate} Hz. Bring both "
                    f"to one rate; that of what infer writes is set by output_artifacts: {{{key}: "
                    f"{{type: wav, sample_rate: {theirs.sample_rate}}}}}"
                )
            if ours.n_samples != theirs.n_samples and not self.cut_to_shortest:
                return (
                    f"{at(key)} has {ours.n_samples:,} samples, but {first} "
                    f"({place_of(id, sources.get(first))}) {theirs.n_samples:,}. Let both have the "
                    "same length, or compare what both have: cut_to_shortest: true"
                )
        for key, form in forms.items():
            if form.n_samples == 0:
                return f"{at(key)} has no samples. Leave the utterance out of the lists."
            if form.n_channels > 1 and self.channel is None:
                return f"{at(key)} has {form.n_channels} channels. Choose one: channel: 0"
        return None

    def _row(self, number: int, data: Data, folder: Path) -> tuple[float, float, float]:
        audio = {key: self._read(data[key][number], folder) for key in self._paths}
        if self.cut_to_shortest:
            length = min(map(len, audio.values()))
            audio = {key: samples[:length] for key, samples in audio.items()}
        references = [audio[key] for key in self.references]
        for key, samples in zip(self.references, references, strict=True):
            if np.ptp(samples) == 0:
                id = data["utt_id"][number] if "utt_id" in data else number
                raise RecordError(
                    f"The reference {key} of {id}, {data[key][number]}, is silent, so that there "
                    "is no ratio.",
                    fix="Leave the utterance out of the list of references, and write: "
                    "on_missing: skip",
                )
        estimates = [audio[key] for key in self.estimates]
        before = 0.0
        if self.mix_key is not None:
            mixture = audio[self.mix_key]
            before = float(np.mean([si_snr(mixture, reference) for reference in references]))
        return _best_order(estimates, references), before, 1.0

    def _read(self, value: str, folder: Path) -> NDArray[Any]:
        samples: NDArray[Any] = read_audio(find_file(value, folder), channel=self.channel).samples
        return samples


def _is_odd(value: str, folder: Path) -> bool:
    return value.rstrip().endswith("|") or not find_file(value, folder).is_file()


def _best_order(estimates: Sequence[NDArray[Any]], references: Sequence[NDArray[Any]]) -> float:
    """Return the mean ratio of all sources, in the order of estimates that makes it largest."""
    ratios = np.array([[si_snr(one, other) for other in references] for one in estimates])
    sources = range(len(references))
    return max(float(ratios[list(order), sources].mean()) for order in permutations(sources))

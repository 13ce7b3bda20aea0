"""Scores of a test set with a confidence interval, by resampling its utterances or groups of them.

`BLEU`, `SISNR` and `EER` are such scores; the error rates of recognition have a class of their own,
`espnet3.components.metrics.error_rate.ErrorRate`, and intervals of the same kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from espnet3.components.metrics.error_rate import (
    as_tuple,
    check_setting,
    check_spelling,
    file_stem,
    resample_sums,
    sum_by,
)
from espnet3.errors import RecordError
from espnet3.io.atomic import dump_json, open_atomic
from espnet3.io.scp import escape_value, read_scp, safe_name

Data = Mapping[str, Sequence[str]]
Rows = NDArray[np.float64]
Interval = tuple[float, float] | None

_UTTERANCE = "utterance"


@dataclass(frozen=True)
class SetScore:
    """Base class of scores of a whole test set."""

    name: str | None = None
    """What it is called in `metrics.json`, and its files; None: the name of the class."""
    n_bootstrap: int = 1000
    """Resamples for the confidence interval; 0: no interval."""
    confidence: float = 0.95
    """Of the interval."""
    seed: int = 0
    """Of the resampling."""
    details: bool = True
    """Write a file with the score of each utterance, or trial."""

    def __post_init__(self) -> None:
        # Not isinstance, which also accepts `true`.
        check_setting("n_bootstrap", self.n_bootstrap, lambda n: type(n) is int and n >= 0, 1000)
        check_setting("confidence", self.confidence, lambda share: 0 < share < 1, 0.95)
        check_setting("seed", self.seed, lambda n: type(n) is int and n >= 0, 0)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that the numbers depend on, as plain data."""
        values = asdict(self)
        # The same metric under another name gives the same numbers.
        del values["name"]
        return values

    def named(self, name: str) -> Self:
        """Return a copy with another name."""
        return replace(self, name=name)

    @property
    def stem(self) -> str:
        """Stem of the names of its files."""
        return file_stem(self.name or type(self).__name__)

    def interval(self, values: Sequence[float] | NDArray[np.float64]) -> Interval:
        """Return where the middle share `confidence` of the values lies; None of none."""
        if not len(values):
            return None
        ends = np.quantile(values, [(1 - self.confidence) / 2, (1 + self.confidence) / 2])
        return float(ends[0]), float(ends[1])


@dataclass(frozen=True)
class UtteranceScore(SetScore):
    """A score that is computed from sums over the utterances; a subclass says of what.

    Called with the texts or paths of a test set, it returns the numbers of the set and writes, into
    the folder of the test set, `<name>.jsonl` (each utterance) and `<name>.by_<group>.tsv`.
    """

    key: ClassVar[str]
    """What the score is called in `metrics.json`; the interval is `<key>_interval`."""

    ref_key: str | Sequence[str] = "ref"
    """Field with the references, or several fields."""
    hyp_key: str | Sequence[str] = "hyp"
    """Field with what is measured."""
    by: Sequence[str] | str | None = None
    """Groups to break the score down by: `speaker`, or any other field that names a group for each
    utterance."""
    resample: str = _UTTERANCE
    """What the interval is about: other utterances, or, with `speaker` or another field, other
    groups."""
    speaker_key: str = "speaker"
    """Field that `speaker` stands for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("ref_key", "hyp_key"):
            # Lists arrive as those of OmegaConf, which cannot be compared or written.
            value = getattr(self, key)
            value = value if isinstance(value, str) else as_tuple(value)
            object.__setattr__(self, key, value)
            check_setting(key, value, bool, "FIELD")
        object.__setattr__(self, "by", as_tuple(self.by))
        for key in ("resample", "speaker_key"):
            value = getattr(self, key)
            check_setting(key, value, lambda name: isinstance(name, str) and name, "FIELD")
        check_spelling("resample", self.resample, _UTTERANCE)

    def rows(self, data: Data, folder: Path) -> Rows:
        """Return a row of numbers for each utterance; sums of rows give scores.

        Args:
            data: Values by key, in one order.
            folder: Of the test set.
        """
        raise NotImplementedError(f"{type(self).__name__} must say what it sums: rows().")

    def score(self, sums: NDArray[np.float64]) -> float:
        """Return the score of a sum of rows."""
        raise NotImplementedError(f"{type(self).__name__} must compute its score: score().")

    def of_utterance(self, row: NDArray[np.float64]) -> dict[str, Any]:
        """Return what `<name>.jsonl` says of an utterance beside its id."""
        return {self.key: self.score(row)}

    def of_set(self, sums: NDArray[np.float64]) -> dict[str, Any]:
        """Return further numbers of a set."""
        return {}

    @property
    def references(self) -> tuple[str, ...]:
        """Fields with references."""
        return as_tuple(self.ref_key) or ()

    @property
    def estimates(self) -> tuple[str, ...]:
        """Fields that are measured."""
        return as_tuple(self.hyp_key) or ()

    @property
    def input_keys(self) -> tuple[str, ...]:
        """The fields that it needs, references first."""
        return tuple(dict.fromkeys((*self.references, *self.estimates, *self.group_keys)))

    @property
    def group_keys(self) -> tuple[str, ...]:
        """Those of them that name a group for each utterance; they may know of more utterances."""
        wanted = [group for group in (*self._by, self.resample) if group != _UTTERANCE]
        return tuple(dict.fromkeys(map(self._group_key, wanted)))

    def compute(self, data: Data, folder: Path | None = None) -> dict[str, Any]:
        """Return the numbers of a set, and write nothing."""
        return self._numbers(data, self.rows(data, folder or Path()))

    def __call__(self, data: Data, test_name: str, inference_dir: Path) -> dict[str, Any]:
        """Return the numbers of a test set and write its detail files.

        Args:
            data: Values by key, in one order: `utt_id`, and those in `input_keys`.
            test_name: Folder of the test set.
            inference_dir: Folder of all test sets.
        """
        folder = Path(inference_dir) / test_name
        rows = self.rows(data, folder)
        numbers = self._numbers(data, rows)
        folder.mkdir(parents=True, exist_ok=True)
        for group in self._by:
            self._write_groups(folder, group, data[self._group_key(group)], rows)
        if self.details:
            with open_atomic(folder / f"{self.stem}.jsonl") as file:
                for id, row in zip(data["utt_id"], rows, strict=True):
                    file.write(dump_json({"id": id, **self.of_utterance(row)}) + "\n")
        return numbers

    def _numbers(self, data: Data, rows: Rows) -> dict[str, Any]:
        groups = None
        if self.resample != _UTTERANCE:
            groups = data[self._group_key(self.resample)]
        drawn = rows if groups is None else sum_by(rows, groups)
        interval = None
        # One says nothing about how much another would differ.
        if len(drawn) > 1 and self.n_bootstrap:
            sums = resample_sums(drawn, self.n_bootstrap, self.seed)
            interval = self.interval([self.score(row) for row in sums])
        total = rows.sum(axis=0)
        return {
            self.key: self.score(total),
            f"{self.key}_interval": interval,
            **self.of_set(total),
            "n_utterances": len(rows),
            "confidence": self.confidence,
        }

    def _write_groups(self, folder: Path, group: str, labels: Sequence[str], rows: Rows) -> None:
        members: dict[str, list[int]] = {}
        for number, label in enumerate(labels):
            members.setdefault(label, []).append(number)
        with open_atomic(folder / f"{self.stem}.by_{safe_name(group)}.tsv") as file:
            file.write(f"{group}\t{self.key}\tn_utterances\n")
            for label, chosen in sorted(members.items()):
                score = self.score(rows[chosen].sum(axis=0))
                file.write(f"{escape_value(label)}\t{score:.2f}\t{len(chosen)}\n")

    def _group_key(self, group: str) -> str:
        return self.speaker_key if group == "speaker" else group

    @property
    def _by(self) -> tuple[str, ...]:
        return as_tuple(self.by) or ()


def place_of(id: str, source: Path | None) -> str:
    """Return `FILE:LINE` of an id in an SCP file, for an error; the file where it has no line."""
    if source is None:
        return id
    try:
        ids = (found for found, _ in read_scp(source))
        return next((f"{source}:{n}" for n, found in enumerate(ids, 1) if found == id), str(source))
    except (OSError, RecordError):
        return str(source)


def find_file(value: str, folder: Path) -> Path:
    """Return the file that an SCP file names.

    What `infer` wrote is relative to the folder of the test set; other lists are relative to the
    current folder, as those of Kaldi are.
    """
    inside = folder / value
    return inside if inside.is_file() else Path(value)

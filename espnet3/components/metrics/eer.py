"""Equal error rate of speaker verification, from embeddings and a list of trials."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from espnet3.components.metrics.error_rate import check_setting, check_spelling
from espnet3.components.metrics.set_score import Data, SetScore, find_file, place_of
from espnet3.errors import ConfigError, EspnetError, RecordError
from espnet3.io.artifacts import read_artifact
from espnet3.io.atomic import open_atomic
from espnet3.text import count, first_few

_LABELS = {"target": True, "1": True, "nontarget": False, "0": False}
_DRAWS_AT_ONCE = 1 << 22
"""Bounds the memory: 32 MB of counts."""
_MOST_THRESHOLDS = 20_000
_SHOWN = 5

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class EER(SetScore):
    """Equal error rate in percent, and minimum detection cost, of pairs of utterances.

    The score of a trial is the cosine of its two embeddings, which `infer` wrote as artifacts of
    type npy. Trials are the lines of a file, `ENROL TEST LABEL` or `LABEL ENROL TEST`, where LABEL
    is `target` or `nontarget`, 1 or 0; or `ENROL*TEST LABEL`, as ESPnet2 writes them. The arguments
    are those of `SetScore`, and those below.
    """

    trials: str = "data/{test_set}/trials"
    """The list of trials; `{test_set}` stands for the name of the test set."""
    embedding_key: str = "embedding"
    """Field with the paths of the embeddings."""
    p_target: float = 0.05
    """Share of target trials that `min_dcf` assumes."""
    c_miss: float = 1.0
    """Cost of a rejected target, in `min_dcf`."""
    c_fa: float = 1.0
    """Cost of an accepted nontarget, in `min_dcf`."""
    resample: str = "trial"
    """What the intervals are about: other trials, or, with `enrolment`, all trials of other
    enrolled utterances. These are alike, so this interval is wider and more honest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("trials", "embedding_key"):
            value = getattr(self, key)
            check_setting(key, value, lambda text: isinstance(text, str) and text, "NAME")
        check_setting("p_target", self.p_target, lambda share: 0 < share < 1, 0.05)
        for key in ("c_miss", "c_fa"):
            check_setting(key, getattr(self, key), lambda cost: cost > 0, 1)
        for word in ("trial", "enrolment"):
            check_spelling("resample", str(self.resample), word)
        check_setting("resample", self.resample, ("trial", "enrolment").__contains__, "trial")

    @property
    def input_keys(self) -> tuple[str, ...]:
        """The field that it needs."""
        return (self.embedding_key,)

    def files(self, test_name: str) -> dict[str, Path]:
        """Return the further files that it reads for a test set, by argument."""
        return {"trials": Path(self.trials.replace("{test_set}", test_name))}

    def check(
        self, data: Data, test_name: str, inference_dir: Path, sources: Mapping[str, Path]
    ) -> None:
        """Look at the trials and at the files of the embeddings, before anything is computed.

        Args:
            data: As in a call.
            test_name: As in a call.
            inference_dir: As in a call.
            sources: The SCP file of each key, for the errors.

        Raises:
            RecordError: A line cannot be read, or an embedding is missing.
            ConfigError: There are no target or no nontarget trials.
        """
        trials, folder = read_trials(self.files(test_name)["trials"]), inference_dir / test_name
        values = dict(zip(data["utt_id"], data[self.embedding_key], strict=True))
        source = sources.get(self.embedding_key)
        check_trials(trials, values, source)
        for id in dict.fromkeys(id for trial in trials.lines for id in trial[:2]):
            if not find_file(values[id], folder).is_file():
                raise RecordError(
                    f"{place_of(id, source)}: {self.embedding_key} of {id} is {values[id]!r:.200}, "
                    f"which is no file in {folder}. Write embeddings as files, in the inference "
                    f"config: output_artifacts: {{{self.embedding_key}: {{type: npy}}}}"
                )

    def compute(self, data: Data, trials: "Trials", folder: Path | None = None) -> dict[str, Any]:
        """Return the numbers of a set, and write nothing."""
        scores = self._scores(data, trials, folder or Path())
        return self._numbers(scores, trials)

    def __call__(self, data: Data, test_name: str, inference_dir: Path) -> dict[str, Any]:
        """Return the numbers of a test set, and write `<name>.scores` with the score of each trial.

        Args:
            data: `utt_id` and the paths of the embeddings, in one order.
            test_name: Folder of the test set.
            inference_dir: Folder of all test sets.
        """
        folder = Path(inference_dir) / test_name
        trials = read_trials(self.files(test_name)["trials"])
        scores = self._scores(data, trials, folder)
        numbers = self._numbers(scores, trials)
        if self.details:
            folder.mkdir(parents=True, exist_ok=True)
            with open_atomic(folder / f"{self.stem}.scores") as file:
                for (enrol, test, is_target), score in zip(trials.lines, scores, strict=True):
                    label = "target" if is_target else "nontarget"
                    file.write(f"{enrol} {test} {score:.6f} {label}\n")
        return numbers

    def _scores(self, data: Data, trials: "Trials", folder: Path) -> Scores:
        values = dict(zip(data["utt_id"], data[self.embedding_key], strict=True))
        check_trials(trials, values)
        used = dict.fromkeys(id for trial in trials.lines for id in trial[:2])
        vectors, numbers = _read_vectors(used, values, folder), {id: n for n, id in enumerate(used)}
        enrol = np.array([numbers[trial.enrol] for trial in trials.lines])
        test = np.array([numbers[trial.test] for trial in trials.lines])
        # In parts: the vectors of all trials would take gigabytes.
        step = max(1, _DRAWS_AT_ONCE // vectors.shape[1])
        parts = [
            np.einsum("ij,ij->i", vectors[enrol[i : i + step]], vectors[test[i : i + step]])
            for i in range(0, len(enrol), step)
        ]
        return np.concatenate(parts)

    def _numbers(self, scores: Scores, trials: "Trials") -> dict[str, Any]:
        is_target = np.array([trial.is_target for trial in trials.lines])
        curve, whole = _Curve(scores, is_target), np.ones(len(scores))
        found = [self._figures(*draw) for draw in self._draws(scores, is_target, trials)]
        drawn = np.array([pair for pair in found if pair is not None]).reshape(-1, 2)
        figures = self._figures(curve, whole)
        assert figures is not None  # read_trials refuses a list with one kind
        rate, cost = figures
        return {
            "eer": rate,
            "eer_interval": self.interval(drawn[:, 0]),
            "min_dcf": cost,
            "min_dcf_interval": self.interval(drawn[:, 1]),
            "threshold": curve.threshold(whole),
            "n_trials": len(scores),
            "n_target": int(is_target.sum()),
            "n_nontarget": int((~is_target).sum()),
            "confidence": self.confidence,
        }

    def _figures(self, curve: "_Curve", weights: Scores) -> tuple[float, float] | None:
        """Return rate and cost; None of a draw without targets or without nontargets."""
        rates = curve.rates(weights)
        if rates is None:
            return None
        misses, alarms = rates
        costs = self.c_miss * self.p_target * misses + self.c_fa * (1 - self.p_target) * alarms
        trivial = min(self.c_miss * self.p_target, self.c_fa * (1 - self.p_target))
        return 100 * equal_rate(misses, alarms), float(costs.min() / trivial)

    def _draws(
        self, scores: Scores, is_target: NDArray[np.bool_], trials: "Trials"
    ) -> Iterator[tuple["_Curve", Scores]]:
        """Yield how often each trial was drawn, for each resample, and the curve to weigh by it."""
        generator = np.random.default_rng(self.seed)
        if self.resample == "trial":
            # By how often each score occurs: the same distribution as drawing trial by trial.
            values, kinds, counts = _cells(scores, is_target)
            curve, shares = _Curve(values, kinds), counts / counts.sum()
            for _ in range(self.n_bootstrap if len(scores) > 1 else 0):
                yield curve, generator.multinomial(len(scores), shares).astype(np.float64)
            return
        ids = np.array([trial.enrol for trial in trials.lines], dtype=object)
        _, members = np.unique(ids, return_inverse=True)
        n_groups, curve = int(members.max()) + 1, _Curve(scores, is_target)
        for _ in range(self.n_bootstrap if n_groups > 1 else 0):
            chosen = np.bincount(generator.integers(n_groups, size=n_groups), minlength=n_groups)
            yield curve, chosen[members].astype(np.float64)


def _cells(
    scores: Scores, is_target: NDArray[np.bool_]
) -> tuple[Scores, NDArray[np.bool_], NDArray[np.int64]]:
    """Return scores, kinds and counts of trials that are alike.

    Beyond `_MOST_THRESHOLDS` scores, neighbours count as one, which changes an interval by less
    than other random numbers would.
    """
    values, places = np.unique(scores, return_inverse=True)
    if len(values) > _MOST_THRESHOLDS:
        places = places * _MOST_THRESHOLDS // len(values)
    cells, counts = np.unique(2 * places + is_target, return_counts=True)
    return (cells // 2).astype(np.float64), cells % 2 == 1, counts


class Trial(NamedTuple):
    """Two utterances, and whether one speaker said both."""

    enrol: str
    test: str
    is_target: bool


@dataclass(frozen=True)
class Trials:
    """A list of trials; `lines[i]` is line i + 1 of the file."""

    path: Path
    lines: Sequence[Trial]


def read_trials(path: Path) -> Trials:
    """Read a list of trials; see `EER` for its forms. All lines have one form.

    Raises:
        ConfigError: There is no such file, no target, or no nontarget in it.
        RecordError: A line is of another form; the message begins with `FILE:LINE`.
    """
    if not path.is_file():
        raise ConfigError(
            f"trials is {str(path)!r}, but there is no such file.",
            fix="Correct the path; {test_set} in it stands for the name of the test set: "
            'trials: "data/{test_set}/trials"',
        )
    rows = [line.split() for line in path.read_text(encoding="utf-8", errors="replace").split("\n")]
    while rows and not rows[-1]:
        rows.pop()
    form = _form_of(rows, path)
    trials = Trials(path, [_trial(row, form, f"{path}:{n}") for n, row in enumerate(rows, 1)])
    for is_target, kind in ((True, "target"), (False, "nontarget")):
        if not any(trial.is_target is is_target for trial in trials.lines):
            raise ConfigError(
                f"{path} has {count(len(rows), 'trial')}, and none is a {kind} trial, so that "
                "there is no error rate.",
                fix="Give a list with both: ENROL TEST target and ENROL TEST nontarget",
            )
    return trials


_FORMS = "ENROL TEST target|nontarget (or 1|0), LABEL ENROL TEST, or ENROL*TEST LABEL"


def _form_of(rows: Sequence[Sequence[str]], path: Path) -> str:
    """Return where the label stands in all lines: `first` or `last`, or `pair` for ENROL*TEST."""
    if not rows:
        raise RecordError(f"{path} is empty. Write a trial in each line: {_FORMS}")
    if len(rows[0]) == 2:
        return "pair"
    is_first = all(row[0] in _LABELS for row in rows if len(row) == 3)
    is_last = all(row[2] in _LABELS for row in rows if len(row) == 3)
    if is_first and is_last and len(rows[0]) == 3:
        raise RecordError(
            f"{path}:1: the first and the third word of all lines can be labels: "
            f"{' '.join(rows[0])!r:.80}. Write target and nontarget in place of 1 and 0."
        )
    # Where neither fits all, the first line decides, and the line that differs is named.
    return "first" if is_first or (not is_last and rows[0][0] in _LABELS) else "last"


def _trial(row: Sequence[str], form: str, place: str) -> Trial:
    words = list(row)
    if form == "pair" and len(words) == 2 and words[0].count("*") == 1:
        words = [*words[0].split("*"), words[1]]
    elif form == "first" and len(words) == 3:
        words = [*words[1:], words[0]]
    if len(words) != 3 or words[2] not in _LABELS or not words[0] or not words[1]:
        raise RecordError(
            f"{place}: {' '.join(row)!r:.80} is no trial like the lines before. Write in each "
            f"line: {_FORMS}"
        )
    return Trial(words[0], words[1], _LABELS[words[2]])


def check_trials(trials: Trials, known: Mapping[str, Any], source: Path | None = None) -> None:
    """Refuse a list that names utterances without an embedding.

    Raises:
        RecordError: With the first line that does.
    """
    missing = {
        id: number
        for number, trial in reversed(list(enumerate(trials.lines, 1)))
        for id in (trial.test, trial.enrol)
        if id not in known
    }
    if not missing:
        return
    ordered = sorted(missing, key=missing.__getitem__)
    where = f"in {source}" if source else "among the results"
    raise RecordError(
        f"{trials.path}:{missing[ordered[0]]}: {ordered[0]!r} has no embedding {where}. That is so "
        f"for {count(len(ordered), 'id')} of the trials: {first_few(ordered, _SHOWN)}. Decode the "
        "test set that the trials are of, or correct the ids."
    )


def _read_vectors(ids: Mapping[str, Any], values: Mapping[str, str], folder: Path) -> Scores:
    """Return the embeddings as rows of length 1."""
    rows: list[Scores] = []
    for id in ids:
        path = find_file(values[id], folder)
        try:
            vector = np.asarray(read_artifact(path), dtype=np.float64).squeeze()
        except (EspnetError, OSError, TypeError, ValueError) as error:
            raise RecordError(f"The embedding of {id} cannot be read: {error}") from error
        size = float(np.linalg.norm(vector))
        if vector.ndim != 1 or not np.isfinite(size) or size == 0:
            raise RecordError(
                f"{path}: the embedding of {id} has the shape {vector.shape} and the norm "
                f"{size:g}, but must be a vector of numbers, not all zero.",
                fix="Let the model return one vector for each utterance.",
            )
        if rows and len(rows[0]) != len(vector):
            raise RecordError(
                f"{path}: the embedding of {id} has {len(vector)} numbers, but that of "
                f"{next(iter(ids))} {len(rows[0])}. Decode all with one model."
            )
        rows.append(vector / size)
    return np.stack(rows)


class _Curve:
    """Error rates at each threshold, of trials that are counted with weights."""

    def __init__(self, scores: Scores, is_target: NDArray[np.bool_]) -> None:
        self._order = np.argsort(scores, kind="stable")
        self._sorted = scores[self._order]
        self._is_target = is_target[self._order]
        # Equal scores are accepted or rejected together.
        self._ends = np.flatnonzero(np.append(np.diff(self._sorted) > 0, True))

    def rates(self, weights: Scores) -> tuple[Scores, Scores] | None:
        """Return shares of missed targets and accepted nontargets, thresholds ascending.

        The first accepts all, each next one rejects one more value. None without both kinds.
        """
        weights = weights[self._order]
        rejected = np.cumsum(weights * self._is_target)[self._ends]
        others = np.cumsum(weights * ~self._is_target)[self._ends]
        if rejected[-1] == 0 or others[-1] == 0:
            return None
        misses = np.concatenate([[0.0], rejected / rejected[-1]])
        alarms = np.concatenate([[1.0], 1 - others / others[-1]])
        return misses, alarms

    def threshold(self, weights: Scores) -> float:
        """Return the score from which on trials are accepted where both rates are nearest."""
        rates = self.rates(weights)
        assert rates is not None
        nearest = int(np.argmin(np.abs(rates[0] - rates[1])))
        values = self._sorted[self._ends]
        return float(values[min(nearest, len(values) - 1)])


def equal_rate(misses: Scores, alarms: Scores) -> float:
    """Return where both rates are equal, on the line between the two points around it."""
    after = int(np.argmax(misses >= alarms))
    before = max(0, after - 1)
    gap_before, gap_after = alarms[before] - misses[before], misses[after] - alarms[after]
    whole = gap_before + gap_after
    share = gap_before / whole if whole else 0.0
    return float(misses[before] + share * (misses[after] - misses[before]))

"""Collect the scores and the other parts of the report; missing ones become hints."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from espnet3.commands import recipe_command
from espnet3.components.metrics.error_rate import Counts, file_stem, n_errors, n_units, percentage
from espnet3.errors import IncompleteRunError, RecordError
from espnet3.io.scp import read_scp
from espnet3.shards.commit import Done
from espnet3.shards.layout import manifest_path, shard_of
from espnet3.shards.manifest import load_manifest
from espnet3.shards.merge import read_coverage, read_failures, read_success
from espnet3.systems.base.context import also_found
from espnet3.systems.base.inference_config import named_test_sets
from espnet3.systems.base.metric import metrics_path
from espnet3.systems.base.report_clips import (
    NoClip,
    ReportConfig,
    TestSetData,
    load_report_config,
    open_data,
)
from espnet3.systems.base.results_table import (
    MEASURED_FROM,
    interval_of,
    is_error_rate,
    plain_numbers,
    stale_inputs,
)
from espnet3.systems.base.stages import Stage, read_record, stages_of
from espnet3.trainer.reporting.history import HistoryEntry, read_history

if TYPE_CHECKING:
    from espnet3.systems.base.system import BaseSystem


DASH = "\u2013"
_KINDS = ("correct", "substitutions", "deletions", "insertions")
_MOST_BINS = 8
_STEPS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 3600.0)


@dataclass(frozen=True)
class Score:
    """The numbers of one metric on one test set."""

    metric: str
    test_set: str
    numbers: Mapping[str, Any]

    @property
    def is_error_rate(self) -> bool:
        """Tell whether it counts edits of words, characters or tokens."""
        return is_error_rate(self.numbers)

    @property
    def rate(self) -> float | None:
        """In percent; None without any unit in the references."""
        return self.numbers.get("rate")

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the rate."""
        found = self.numbers.get("interval")
        return None if found is None else (float(found[0]), float(found[1]))

    @property
    def unit(self) -> str:
        """Such as `words`."""
        return str(self.numbers.get("unit", ""))

    @property
    def settings(self) -> Mapping[str, Any]:
        """Those of the metric, as they were when it was measured."""
        found: Mapping[str, Any] = self._record.get("settings", {})
        return found

    def input_path(self, key: str, base: Path) -> Path | None:
        """Return the file that an input was read from; None if it is not on record."""
        entry = self._record.get("inputs", {}).get(key)
        return base / entry["path"] if isinstance(entry, Mapping) else None

    @property
    def scalars(self) -> dict[str, Any]:
        """The plain numbers and texts, of any metric."""
        return plain_numbers(self.numbers)

    def interval_of(self, key: str) -> tuple[float, float] | None:
        """Return the interval of one of them."""
        return interval_of(self.numbers, key)

    @property
    def _record(self) -> Mapping[str, Any]:
        found = self.numbers.get(MEASURED_FROM)
        return found if isinstance(found, Mapping) else {}


def read_scores(path: Path) -> list[Score]:
    """Read `metrics.json`; none if there is no such file.

    Raises:
        IncompleteRunError: it is damaged.
    """
    if not path.is_file():
        return []
    try:
        results = json.loads(path.read_bytes())
        return [
            Score(metric, test_set, numbers)
            for metric, sets in results.items()
            for test_set, numbers in sets.items()
        ]
    except (ValueError, AttributeError) as error:
        raise IncompleteRunError(
            f"{path} cannot be read ({error}). Measure again: {recipe_command('measure')}"
        ) from error


def main_score(scores: Sequence[Score], test_set: str) -> Score | None:
    """Return the error rate that the details of a test set are about: of words, if there is one."""
    rates = [score for score in scores if score.test_set == test_set and score.is_error_rate]
    return next((score for score in rates if score.unit == "words"), next(iter(rates), None))


@dataclass(frozen=True)
class Utterances:
    """Ids, and a row of counts for each."""

    ids: list[str]
    counts: Counts

    def worst(self, n_wanted: int) -> list[int]:
        """Return the numbers of those with the most errors; of equals, the shortest first."""
        errors, units = n_errors(self.counts), n_units(self.counts)
        order = np.lexsort((units, -errors))[:n_wanted]
        # Utterances without errors are not worst, even if there is room for them.
        return [int(number) for number in order if errors[number]]


@dataclass(frozen=True)
class UtteranceGroup:
    """A part of a test set, such as the utterances of one speaker."""

    label: str
    rate: float | None
    n_utterances: int
    n_units: int


def read_utterances(path: Path) -> Utterances | None:
    """Read `<metric>.jsonl` of a test set; None if it is not there, or of another kind."""
    if not path.is_file():
        return None
    ids, rows = [], []
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                ids.append(str(record["id"]))
                rows.append([record[kind] for kind in _KINDS])
    except (ValueError, KeyError, TypeError):
        return None
    return Utterances(ids, np.array(rows, dtype=np.int64).reshape(len(rows), len(_KINDS)))


def by_units(counts: Counts) -> list[UtteranceGroup]:
    """Break down by the length of the reference: each length, or ranges with as many each."""
    lengths = n_units(counts)
    found = np.unique(lengths)
    if len(found) <= _MOST_BINS + 2:
        starts = found.tolist()
    else:
        shares = np.arange(_MOST_BINS) / _MOST_BINS
        # A set, because quantiles of a few frequent lengths coincide.
        starts = sorted({int(start) for start in np.quantile(lengths, shares)})
    stops = [*(start - 1 for start in starts[1:]), int(found[-1]) if len(found) else 0]
    labels = [f"{a}" if a == b else f"{a}{DASH}{b}" for a, b in zip(starts, stops, strict=True)]
    return _grouped(counts, lengths, starts, labels.__getitem__)


def by_seconds(counts: Counts, seconds: NDArray[np.float64]) -> list[UtteranceGroup]:
    """Break down by duration: ranges of one round width, and the rest."""
    if not len(seconds):
        return []
    # Not the longest: one recording of an hour would put all others into the first bin.
    reach = float(np.quantile(seconds, 0.98))
    step = next((step for step in _STEPS if reach / step <= _MOST_BINS), _STEPS[-1])
    n_bins = max(1, min(_MOST_BINS, int(np.ceil(reach / step))))
    starts = [step * i for i in range(n_bins)]
    return _grouped(counts, seconds, starts, lambda i: _seconds_label(i, step, n_bins))


def _seconds_label(number: int, step: float, n_bins: int) -> str:
    start = step * number
    return f"{start:g} s +" if number == n_bins - 1 else f"{start:g}{DASH}{start + step:g} s"


def _grouped(
    counts: Counts,
    values: NDArray[np.int64] | NDArray[np.float64],
    starts: Sequence[float],
    label: Callable[[int], str],
) -> list[UtteranceGroup]:
    members = np.searchsorted(np.asarray(starts), values, side="right") - 1
    errors, units = n_errors(counts), n_units(counts)
    return [
        _group(label(i), errors[members == i], units[members == i])
        for i in range(len(starts))
        if (members == i).any()
    ]


def _group(label: str, errors: Counts, units: Counts) -> UtteranceGroup:
    total = int(units.sum())
    return UtteranceGroup(label, percentage(int(errors.sum()), total), len(errors), total)


def read_groups(path: Path) -> list[UtteranceGroup]:
    """Read a table `<metric>.by_<field>.tsv`; lines of another form are passed over."""
    with path.open(encoding="utf-8") as lines:
        titles = next(lines, "").rstrip("\n").split("\t")
        rows = [line.rstrip("\n").split("\t") for line in lines]
    return list(_parsed(titles, rows))


def _parsed(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[UtteranceGroup]:
    for row in rows:
        cells = dict(zip(titles[1:], row[1:], strict=False))
        try:
            rate = float(cells["rate"]) if cells["rate"] else None
            yield UtteranceGroup(row[0], rate, int(cells["n_utterances"]), int(cells["n_units"]))
        except (KeyError, ValueError):
            continue


logger = logging.getLogger(__name__)

_MOST_GROUPS = 100


@dataclass(frozen=True)
class Learning:
    """The history of a training, and means over it; None where nothing was logged."""

    history: list[HistoryEntry]
    n_steps: int
    n_epochs: int
    audio_per_second: float | None
    """Seconds of audio in a second, over all processes."""
    samples_per_second: float | None
    wait_share: float | None
    padding_share: float | None
    memory_gb: float | None
    startup_seconds: float | None
    averages: list[dict[str, Any]]
    """What each average of checkpoints says of itself, with its name."""


@dataclass(frozen=True)
class StageTime:
    """The time of a stage."""

    name: str
    seconds: float
    """Of the longest run that ended well, with the broken ones that it resumed: the same
    command again finds all done, and takes no time."""
    state: str
    """How the last run ended."""
    start: str
    record: Mapping[str, Any]


@dataclass(frozen=True)
class ShardSpan:
    """The work on one shard, in seconds since 1970."""

    shard: int
    worker: tuple[str, int]
    """Host and process id."""
    start: float
    load_end: float
    end: float
    n_items: int
    n_failed: int = 0
    n_deaths: int = 0

    @classmethod
    def of(cls, done: Done) -> "ShardSpan":
        """Take it from the done marker of a shard; older ones do not record the start."""
        start = done.started or done.finished - done.seconds - done.load_seconds
        return cls(
            done.shard,
            (done.host, done.pid),
            start,
            min(start + done.load_seconds, done.finished),
            # A bar must not end before it begins, even if a clock was set back.
            max(done.finished, start),
            done.n_items,
            done.n_failed,
            done.n_deaths,
        )


@dataclass(frozen=True)
class RunFacts:
    """Facts of a run of `infer`, from the folder of a test set."""

    test_set: str
    success: Mapping[str, Any]
    """The content of `_SUCCESS.json`; empty if the run is not complete."""
    spans: list[ShardSpan] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work for a second of audio, over all workers; loading does not count."""
        audio, work = self.success.get("audio_seconds"), self.success.get("worker_seconds")
        return work / audio if audio and work is not None else None


@dataclass(frozen=True)
class Breakdown:
    """An error rate of the parts of a test set."""

    metric: str
    by: str
    unit: str
    groups: list[UtteranceGroup]
    n_hidden: int
    is_ordered: bool
    """The order says something, as that of lengths does."""


@dataclass(frozen=True)
class TestSetReport:
    """Results of a test set."""

    __test__ = False  # pytest takes the name for a test

    name: str
    scores: list[Score]
    main: Score | None
    run: RunFacts | None
    utterances: Utterances | None
    breakdowns: list[Breakdown]
    data: TestSetData | None
    no_data: str
    """Why the samples cannot be had."""


@dataclass(frozen=True)
class ReportFacts:
    """All facts, before they are laid out."""

    inference_dir: Path
    exp_dir: Path
    recipe_dir: Path
    config: ReportConfig
    test_sets: list[TestSetReport]
    learning: Learning | None
    stages: list[StageTime]
    notes: list[str] = field(default_factory=list)
    """What is missing, and what would bring it."""

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing at all to show."""
        return not self.learning and not any(t.scores or t.run for t in self.test_sets)


def gather(system: "BaseSystem") -> ReportFacts:
    """Read the files of an experiment and its results; only a damaged one is an error."""
    loaded = system.config_for("report")
    inference_dir, exp_dir = Path(str(loaded.config["inference_dir"])), system.exp_dir
    config = load_report_config(loaded)
    scores = read_scores(metrics_path(inference_dir))
    # Scores without a folder count too, as inputs of a metric may come from elsewhere.
    found = dict.fromkeys([*(score.test_set for score in scores), *_run_folders(inference_dir)])
    named = _named(system, inference_dir)
    names = [name for name in named or found if name in found]
    others = [name for name in found if name not in names]
    test_sets = [_gather_test_set(system, inference_dir, name, scores) for name in names]
    learning = read_learning(exp_dir)
    stages = read_stage_times(exp_dir, stages_of(type(system)))
    report = ReportFacts(
        inference_dir, exp_dir, system.recipe_dir, config, test_sets, learning, stages
    )
    report.notes.extend(_notes(report))
    if others:
        report.notes.append(f"{inference_dir}: {also_found(others)}")
    return report


def _named(system: "BaseSystem", inference_dir: Path) -> list[str]:
    """Return the test sets that the configs name, in the order of the inference config."""
    configs = (system.inference, system.metrics)
    names = [name for loaded in configs for name in named_test_sets(loaded, inference_dir)]
    return list(dict.fromkeys(names))


def _run_folders(inference_dir: Path) -> list[str]:
    if not inference_dir.is_dir():
        return []
    folders = [path for path in inference_dir.iterdir() if path.is_dir()]
    return sorted(
        path.name
        for path in folders
        if shard_of(path.name) is None and manifest_path(path).exists()
    )


def _gather_test_set(
    system: "BaseSystem", inference_dir: Path, name: str, scores: list[Score]
) -> TestSetReport:
    main = main_score(scores, name)
    run = read_run(inference_dir, name)
    stem = file_stem(main.metric) if main else ""
    utterances = read_utterances(inference_dir / name / f"{stem}.jsonl") if main else None
    data, no_data = _open(system, inference_dir, name, main, run)
    return TestSetReport(
        name,
        [score for score in scores if score.test_set == name],
        main,
        run,
        utterances,
        _breakdowns(inference_dir / name, stem, main, utterances, data) if main else [],
        data,
        no_data,
    )


def _open(
    system: "BaseSystem", base: Path, name: str, main: Score | None, run: RunFacts | None
) -> tuple[TestSetData | None, str]:
    if system.inference is None:
        return None, "give --inference_config conf/inference.yaml, which says where the data is"
    path = main.input_path(str(main.settings.get("hyp_key", "hyp")), base) if main else None
    if path is None or not path.is_file():
        return None, "it is not on record where the hypotheses came from"
    failed = [failure.get("index") for failure in run.failures] if run else []
    try:
        ids = [id for id, _ in read_scp(path)]
        return open_data(system.inference, name, ids, _flat(failed)), ""
    except (NoClip, RecordError) as error:
        return None, str(error)


def _flat(indices: list[Any]) -> list[Any]:
    return [i for index in indices for i in (index if isinstance(index, list) else [index])]


def _breakdowns(
    folder: Path,
    stem: str,
    main: Score,
    utterances: Utterances | None,
    data: TestSetData | None,
) -> list[Breakdown]:
    found: list[Breakdown] = []
    if not main.numbers.get("errors"):
        return found
    for path in sorted(folder.glob(f"{stem}.by_*.tsv")):
        by = path.name.removeprefix(f"{stem}.by_").removesuffix(".tsv")
        if by != "length" or utterances is None:
            groups = sorted(read_groups(path), key=lambda group: -(group.rate or 0.0))
            shown = groups[:_MOST_GROUPS]
            hidden = len(groups) - len(shown)
            found.append(Breakdown(main.metric, by, main.unit, shown, hidden, by == "length"))
    if utterances is not None:
        groups = by_units(utterances.counts)
        by = f"number of {main.unit}"
        found.append(Breakdown(main.metric, by, main.unit, groups, 0, True))
        seconds = data.durations_of(utterances.ids) if data else None
        if seconds is not None:
            groups = by_seconds(utterances.counts, seconds)
            found.append(Breakdown(main.metric, "duration", main.unit, groups, 0, True))
    return found


def _notes(report: ReportFacts) -> list[str]:
    notes = []
    path = metrics_path(report.inference_dir)
    if not report.test_sets:
        notes.append(
            f"No results: {report.inference_dir} has no test set yet. Run: "
            f"{recipe_command('infer', 'measure', 'report')}"
        )
    elif not path.is_file():
        notes.append(f"No scores: {path} is not there. Run: {recipe_command('measure', 'report')}")
    elif stale := stale_inputs(path):
        notes.append(
            f"The scores are out of date: {'; '.join(stale)}. Run the measure stage again: "
            f"{recipe_command('measure', 'report')}"
        )
    if report.learning is None:
        notes.append(
            f"No training: {report.exp_dir} has no history.jsonl. If another folder has it, give "
            "--training_config conf/training.yaml"
        )
    if not report.stages:
        notes.append("No stage times: run the stages by the recipe's run.py, which records them.")
    for test_set in report.test_sets:
        notes += _test_set_notes(test_set)
    return notes


def _test_set_notes(test_set: TestSetReport) -> list[str]:
    notes = []
    if test_set.run and not test_set.run.success:
        notes.append(f"{test_set.name}: the run is not complete. Run the infer stage again.")
    if test_set.main and test_set.utterances is None:
        notes.append(
            f"{test_set.name}: no numbers of single utterances. Write details: true in "
            f"{test_set.main.metric}, and measure again."
        )
    if (
        test_set.breakdowns
        and test_set.main
        and not any(not b.is_ordered for b in test_set.breakdowns)
    ):
        notes.append(
            f"{test_set.name}: nothing by speaker. Write by: [speaker] in {test_set.main.metric} "
            "of the metrics config, and speaker in output_keys of the inference config."
        )
    if test_set.run and not test_set.run.spans:
        notes.append(f"{test_set.name}: no timeline, because the folders of its shards are gone.")
    return notes


def read_run(inference_dir: Path, test_set: str) -> RunFacts | None:
    """Read the folder of a test set; None if no run of ours wrote it."""
    folder = inference_dir / test_set
    manifest = load_manifest(folder) if folder.is_dir() else None
    if manifest is None:
        return None
    committed = read_coverage(folder, manifest).committed
    success = read_success(manifest.layout(folder), manifest.run_id) or {}
    spans = [ShardSpan.of(done) for done in committed.values()]
    return RunFacts(test_set, success, spans, read_failures(folder))


def read_learning(exp_dir: Path) -> Learning | None:
    """Read the history of an experiment; None if nothing was trained there."""
    history = read_history(exp_dir)
    if not history:
        return None
    return Learning(
        history,
        max(entry.step for entry in history),
        max(entry.epoch for entry in history),
        _mean(history, "perf/audio_seconds_per_second"),
        _mean(history, "perf/samples_per_second"),
        _mean(history, "perf/data_wait_share"),
        _mean(history, "perf/padding_share"),
        max(_values(history, "perf/memory_gb"), default=None),
        next(_values(history, "startup/total"), None),
        list(_averages(exp_dir)),
    )


def _values(history: Sequence[HistoryEntry], name: str) -> Iterator[float]:
    found = (entry.values.get(name, math.nan) for entry in history)
    return (value for value in found if math.isfinite(value))


def _mean(history: Sequence[HistoryEntry], name: str) -> float | None:
    """Return a mean over time: log points stand for unequally many batches of unequal length."""
    total = weights = 0.0
    last_batch = 0
    for entry in history:
        value, step_seconds = (entry.values.get(key) for key in (name, "perf/step_seconds"))
        if value is None or step_seconds is None or not math.isfinite(value * step_seconds):
            continue
        weight = max(entry.batch - last_batch, 1) * step_seconds
        last_batch = entry.batch
        total, weights = total + weight * value, weights + weight
    return total / weights if weights else None


def _averages(exp_dir: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(exp_dir.glob("*.ave_*best.json")):
        try:
            values = json.loads(path.read_bytes())
            yield {
                "name": path.stem,
                "monitor": str(values["criterion"]["monitor"]),
                "best": [float(entry["value"]) for entry in values["averaged"]],
                "epochs": [int(entry["epoch"]) for entry in values["averaged"]],
            }
        except (OSError, ValueError, KeyError, TypeError):
            # Of another version, or damaged: the page does without it.
            continue


def read_stage_times(exp_dir: Path, stages: Sequence[Stage]) -> list[StageTime]:
    """Return the stages that ran in this experiment, in order, without `report` itself."""
    found = []
    for stage in stages:
        record = read_record(exp_dir / "config" / f"{stage.name}.json")
        if not record or stage.name == "report":
            continue
        seconds = _longest(record)
        if seconds is not None:
            state, start = str(record.get("state", "")), str(record.get("start", ""))
            found.append(StageTime(stage.name, seconds, state, start, record))
    return found


def _longest(record: Mapping[str, Any]) -> float | None:
    """Return the seconds of the longest chain of broken runs that ends with a good one."""
    earlier = record.get("earlier")
    runs = [*(earlier if isinstance(earlier, list) else []), record]
    chains, current = list[float](), 0.0
    for run in runs:
        current += float(run.get("seconds") or 0.0)
        # "skipped" also ends a chain, since it means that the work was done.
        if run.get("state") in ("done", "skipped"):
            chains.append(current)
            current = 0.0
    return max(chains, default=None)

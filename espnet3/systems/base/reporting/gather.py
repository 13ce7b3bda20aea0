"""Collect the parts of the report; missing ones become hints."""

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.commands import recipe_command
from espnet3.components.metrics.error_rate import file_stem
from espnet3.errors import RecordError
from espnet3.io.scp import read_scp
from espnet3.shards.commit import Done
from espnet3.shards.layout import manifest_path, shard_of
from espnet3.shards.manifest import load_manifest
from espnet3.shards.merge import read_coverage, read_failures
from espnet3.shards.success import read_success
from espnet3.systems.base.inference_config import also_found, named_test_sets
from espnet3.systems.base.metric import metrics_path
from espnet3.systems.base.provenance import read_record
from espnet3.systems.base.reporting.clips import (
    NoClip,
    ReportConfig,
    TestSetData,
    load_report_config,
    open_data,
)
from espnet3.systems.base.reporting.scores import (
    Score,
    UtteranceGroup,
    Utterances,
    by_seconds,
    by_units,
    main_score,
    read_groups,
    read_scores,
    read_utterances,
)
from espnet3.systems.base.results_table import stale_inputs
from espnet3.systems.base.stages import Stage, stages_of
from espnet3.trainer.reporting.history import HistoryEntry, read_history

if TYPE_CHECKING:
    from espnet3.systems.base.system import BaseSystem

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

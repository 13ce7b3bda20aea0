"""Stage 8, `report`: one page with the scores, the curves, the worst utterances and the workers."""

import base64
import hashlib
import logging
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import resources
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

from espnet3.commands import recipe_command
from espnet3.components.metrics.error_rate import align, n_errors, n_units, percentage
from espnet3.components.text.spelling import TextCleaner
from espnet3.errors import IncompleteRunError, RecordError
from espnet3.io.atomic import write_text
from espnet3.io.scp import read_scp
from espnet3.systems.base.report_charts import draw_curves, make_timeline
from espnet3.systems.base.report_clips import ClipMaker, EmbeddedAudio, NoClip
from espnet3.systems.base.report_data import DASH, ReportFacts, Score, TestSetReport, gather
from espnet3.systems.base.stages import Skipped
from espnet3.text import duration, share_text, shortened

if TYPE_CHECKING:
    from espnet3.systems.base.system import BaseSystem


logger = logging.getLogger(__name__)

FILE_NAME = "report.html"


def report(system: "BaseSystem") -> Path | Skipped:
    """Write `<inference_dir>/report.html` from what the other stages left, and log a summary.

    Nothing is recomputed, so it may be run at any time. What is not there yet is left out, with
    a line on the page that says what would bring it.

    Returns:
        The path of the page. After other stages that left nothing to show, such as those of a
        system with outputs of its own, it is skipped.

    Raises:
        ConfigError: the block `report` is wrong.
        IncompleteRunError: there is nothing to show though it alone was asked for, or
            `metrics.json` is damaged.
    """
    facts = gather(system)
    if facts.is_empty:
        found = (
            f"{facts.inference_dir} has no results and no scores, and {facts.exp_dir} no training"
        )
        if set(system.planned) - {"report"}:
            return Skipped(found)
        raise IncompleteRunError(
            f"There is nothing to report: {found}.",
            fix=f"Run the stages before: {recipe_command('infer', 'measure', 'report')}",
        )
    for note in facts.notes:
        logger.info("Not in the report: %s", note)
    path = report_path(system)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(facts))
    logger.info("Results\n\n%s\n", format_summary(facts))
    logger.info("Report: %s (open it in a browser: %s)", path, path.absolute().as_uri())
    return path


def report_path(system: "BaseSystem") -> Path:
    """Return where the page is written."""
    return Path(str(system.config_for("report").config["inference_dir"])) / FILE_NAME


def check_report(system: "BaseSystem") -> None:
    """Check the block `report`; what the page is made of may be missing yet.

    Raises:
        ConfigError: it is wrong.
    """
    from espnet3.systems.base.report_clips import load_report_config

    load_report_config(system.config_for("report"))


def describe_report(system: "BaseSystem") -> list[str]:
    """Return what would be read, and whether it is there."""
    from espnet3.systems.base.metric import metrics_path

    path = report_path(system)
    sources = (
        (metrics_path(path.parent), "stage 7, measure, writes it"),
        (system.exp_dir / "history.jsonl", "stage 4, train, writes it"),
    )
    lines = [
        f"reads {source} ({'exists' if source.is_file() else f'missing: {writer}'})"
        for source, writer in sources
    ]
    if system.inference is None:
        lines.append("without audio: --inference_config says where the data is")
    state = " (there already, and replaced)" if path.is_file() else ""
    return [*lines, f"writes {path}{state}"]


_MOST_FAILURES = 20
_MOST_CONFIG_CHARACTERS = 100_000
_CONFIGS = ("train", "infer", "measure")
_GIT = ("commit", "branch", "dirty", "changes")
_WIDTH = 100
NOTHING = DASH
"""What a table has where there is no number."""


def render(report: ReportFacts) -> str:
    """Return the page; all texts that come from data or configs are escaped."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    # StrictUndefined: a misspelt name in the template fails, and does not leave a gap in the page.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        rate=rate, interval=interval, count=count, short=short,
        number=number, minutes=minutes, percent=share_text, duration=duration,
    )  # fmt: skip
    style, script = _asset("page.css"), _asset("page.js")
    return environment.from_string(_asset("page.html")).render(
        title=_title(report),
        # Of files of ours, so that nothing else may run or be loaded, whatever a text contains.
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        **_content(report),
    )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("report_assets", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return what a browser may do with the page: run our script, and play what is in it."""
    # By digest: code that some text smuggled into the page has another one, and is not run.
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "media-src data:; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _title(report: ReportFacts) -> str:
    recipe = "/".join(report.recipe_dir.absolute().parts[-2:])
    return f"{recipe} · {report.exp_dir.name}"


def _content(report: ReportFacts) -> dict[str, Any]:
    records = [stage.record for stage in report.stages]
    last: Mapping[str, Any] = records[-1] if records else {}
    return {
        "report": report,
        "cards": [_card(test_set) for test_set in report.test_sets],
        "rates": [s for t in report.test_sets for s in t.scores if s.is_error_rate],
        "others": _other_tables(report),
        "worst": find_worst(report),
        "learning": report.learning,
        "charts": draw_curves(report.learning.history) if report.learning else [],
        "timelines": [_timeline(t) for t in report.test_sets if t.run and t.run.spans],
        "failures": [
            _failures(t, report.inference_dir / t.name)
            for t in report.test_sets
            if t.run and t.run.failures
        ],
        "stages": report.stages,
        "longest_stage": max((stage.seconds for stage in report.stages), default=0.0) or 1.0,
        "git": {**dict.fromkeys(_GIT), **(last.get("git") or {})},
        "versions": last.get("versions") or {},
        "command": str(last.get("command", "")),
        "host": str(last.get("host", "")),
        "configs": _configs(report),
        "largest_rate": _largest_rate,
    }


def _card(test_set: TestSetReport) -> dict[str, Any]:
    others = [s for s in test_set.scores if s.is_error_rate and s is not test_set.main]
    run = test_set.run
    return {
        "name": test_set.name,
        "main": test_set.main,
        "others": others,
        "plain": [s for s in test_set.scores if not s.is_error_rate],
        "rtf": run.real_time_factor if run else None,
        "audio_seconds": run.success.get("audio_seconds") if run else None,
        "n_failed": len(run.failures) if run else 0,
    }


def _other_tables(report: ReportFacts) -> list[dict[str, Any]]:
    """Return a table for each metric that is no error rate."""
    tables: dict[str, list[Any]] = {}
    for test_set in report.test_sets:
        for score in test_set.scores:
            if not score.is_error_rate:
                tables.setdefault(score.metric, []).append(score)
    return [
        {
            "metric": metric,
            "columns": list(dict.fromkeys(key for score in scores for key in score.scalars)),
            "scores": scores,
        }
        for metric, scores in tables.items()
    ]


def _timeline(test_set: TestSetReport) -> dict[str, Any]:
    assert test_set.run is not None
    run = test_set.run
    return {
        "name": test_set.name,
        "line": make_timeline(run.spans),
        "padding": run.success.get("padded_share"),
        "load_seconds": sum(span.load_end - span.start for span in run.spans),
        "n_shards": len(run.spans),
        "n_retried": sum(span.n_deaths > 0 for span in run.spans),
        "n_failed": sum(span.n_failed for span in run.spans),
    }


def _failures(test_set: TestSetReport, folder: Path) -> dict[str, Any]:
    assert test_set.run is not None
    failures = test_set.run.failures
    return {
        "name": test_set.name,
        "shown": [
            {
                "index": ", ".join(f.get("ids") or [str(f.get("index"))]),
                "error": shortened(str(f.get("error", "")), 400),
            }
            for f in failures[:_MOST_FAILURES]
        ],
        "n_all": len(failures),
        "command": f"espnet3 failed {shlex.quote(str(folder))}",
    }


def _configs(report: ReportFacts) -> list[tuple[str, str]]:
    """Return the configs of the main stages, as they were when these last ran."""
    found = []
    for stage in _CONFIGS:
        path = Path(report.exp_dir) / "config" / f"{stage}.yaml"
        if path.is_file():
            # "replace", because a config with an odd byte must not cost the whole page.
            text = path.read_text(encoding="utf-8", errors="replace")
            found.append((stage, shortened(text, _MOST_CONFIG_CHARACTERS)))
    return found


def _largest_rate(groups: Sequence[Any]) -> float:
    return max((group.rate or 0.0 for group in groups), default=0.0) or 1.0


def format_summary(report: ReportFacts) -> str:
    """Return the tables as plain text of at most 100 columns, for a terminal or a log file."""
    parts: list[RenderableType] = []
    if any(test_set.scores or test_set.run for test_set in report.test_sets):
        parts.append(_scores(report))
    if report.learning is not None:
        parts.append(_training(report))
    if report.stages:
        parts.append(_minutes(report))
    buffer = StringIO()
    # Without markup and emoji, which rich would otherwise make of names such as "[dev]" or ":x:".
    console = Console(file=buffer, width=_WIDTH, highlight=False, markup=False, emoji=False)
    for part in parts:
        console.print(part)
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    return "\n".join(lines).strip("\n")


def _table(*titles: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, title in enumerate(titles):
        table.add_column(title, justify="right" if i else "left", overflow="fold")
    return table


def _scores(report: ReportFacts) -> Table:
    metrics = list(dict.fromkeys(s.metric for t in report.test_sets for s in t.scores))
    rates = {s.metric for t in report.test_sets for s in t.scores if s.is_error_rate}
    titles = [f"{metric} %" if metric in rates else metric for metric in metrics]
    table = _table("Test set", *titles, "RTF")
    for test_set in report.test_sets:
        scores = {score.metric: score for score in test_set.scores}
        rtf = test_set.run.real_time_factor if test_set.run else None
        cells = [_cell(scores.get(metric)) for metric in metrics]
        table.add_row(test_set.name, *cells, short(rtf))
    return table


def _cell(score: Score | None) -> str:
    if score is None:
        return NOTHING
    if not score.is_error_rate:
        return ", ".join(_named_number(score, key) for key in score.scalars)
    if score.interval is None:
        return rate(score.rate)
    return f"{rate(score.rate)} [{score.interval[0]:.2f}, {score.interval[1]:.2f}]"


def _named_number(score: Score, key: str) -> str:
    ends = score.interval_of(key)
    shown = f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else ""
    return f"{key} {number(score.scalars[key])}{shown}"


def _training(report: ReportFacts) -> str:
    learning = report.learning
    assert learning is not None
    speed = (
        f"{short(learning.audio_per_second)} audio seconds per second"
        if learning.audio_per_second is not None
        else f"{short(learning.samples_per_second)} samples per second"
    )
    return f"\nTraining: {speed}, {learning.n_steps:,} steps, {learning.n_epochs} epochs\n"


def _minutes(report: ReportFacts) -> Table:
    table = _table("Stage", "Minutes")
    for stage in report.stages:
        table.add_row(stage.name, minutes(stage.seconds))
    table.add_section()
    table.add_row("together", minutes(sum(stage.seconds for stage in report.stages)))
    return table


def rate(value: float | None) -> str:
    """Return a rate in percent, without the sign.

    Example:
        >>> rate(3.4014), rate(0.0)
        ('3.40', '0.00')
    """
    return NOTHING if value is None else f"{value:.2f}"


def interval(ends: Sequence[float] | None) -> str:
    """Return both ends of an interval, with a dash; nothing if there is none."""
    return "" if ends is None else f"{ends[0]:.2f}{DASH}{ends[1]:.2f}"


def count(value: float | None) -> str:
    """Return a count with separators."""
    return NOTHING if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Return three digits, such as of a real-time factor.

    Example:
        >>> short(0.00191), short(612.3), short(0.25)
        ('0.0019', '612', '0.25')
    """
    if value is None:
        return NOTHING
    if value and abs(value) < 0.01:
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def number(value: Any) -> str:
    """Return any value of a metric."""
    if value is None:
        return NOTHING
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def minutes(seconds: float) -> str:
    """Return seconds as minutes.

    Example:
        >>> minutes(84.0), minutes(0.1)
        ('1.40', '<0.01')
    """
    return f"{seconds / 60:.2f}" if seconds >= 0.3 else "<0.01"


_MOST_UNITS = 2000
"""A decoder that repeats itself must not make the page endless."""
_MOST_SHOWN = 300
_LETTERS = {"equal": "", "replace": "S", "delete": "D", "insert": "I"}
_MOST_ALIGNED = 20_000
"""Utterances with errors that are searched for the most frequent ones."""
_MOST_CONFUSIONS = 12


@dataclass(frozen=True)
class Cell:
    """A unit of both sides; one is empty where the other has nothing to stand against."""

    kind: str
    """Empty for what is right, else S, D or I."""
    ref: str
    hyp: str


@dataclass(frozen=True)
class Alignment:
    """Aligned texts of an utterance, as shown."""

    cells: list[Cell]
    n_hidden: int
    """Cells that were left out at the end."""


@dataclass(frozen=True)
class WorstUtterance:
    """Aligned texts of an utterance, as shown."""

    id: str
    n_errors: int
    n_units: int
    rate: float | None
    alignment: Alignment
    reference: str
    hypothesis: str
    clip: EmbeddedAudio | None
    no_clip: str
    """Why it cannot be heard."""


@dataclass(frozen=True)
class WorstOfTestSet:
    """Those of a test set."""

    test_set: str
    unit: str
    utterances: list[WorstUtterance]
    n_with_errors: int
    n_all: int
    confusions: list[tuple[Cell, int]] = field(default_factory=list)
    """The most frequent errors, and how often they came."""
    problem: str = ""
    """Why there is nothing to show."""


def find_worst(report: ReportFacts) -> list[WorstOfTestSet]:
    """Return the worst of each test set, in equal shares of `n_worst`."""
    chosen = [t for t in report.test_sets if t.main is not None and t.utterances is not None]
    if not chosen or not report.config.n_worst:
        return []
    # Rounded up, so that each test set shows at least one.
    n_each = math.ceil(report.config.n_worst / len(chosen))
    clips = ClipMaker(report.config)
    return [_of_test_set(test_set, report, clips, n_each) for test_set in chosen]


def _of_test_set(
    test_set: TestSetReport, report: ReportFacts, clips: ClipMaker, n_each: int
) -> WorstOfTestSet:
    main, utterances = test_set.main, test_set.utterances
    assert main is not None
    assert utterances is not None
    errors, units = n_errors(utterances.counts), n_units(utterances.counts)
    numbers = utterances.worst(n_each)
    n_wrong, n_all = int((errors > 0).sum()), len(utterances.ids)
    ids = [utterances.ids[number] for number in numbers]
    # Bounded: to align all of a large test set could take longer than the rest of the page.
    wrong = [utterances.ids[number] for number in (errors > 0).nonzero()[0][:_MOST_ALIGNED]]
    try:
        texts = _texts(main, report.inference_dir, [*ids, *wrong])
        aligner = Aligner(main.unit, main.settings)
    except Exception as error:  # a file or a cleaner that is not there any more
        return WorstOfTestSet(test_set.name, main.unit, [], n_wrong, n_all, problem=str(error))
    confusions = _confusions(aligner, [texts[id] for id in wrong])
    found = []
    for number, id in zip(numbers, ids, strict=True):
        reference, hypothesis = texts[id]
        clip, no_clip = _clip(test_set, id, clips)
        n_wrong_here, n_here = int(errors[number]), int(units[number])
        rate = percentage(n_wrong_here, n_here)
        alignment = aligner(reference, hypothesis)
        found.append(
            WorstUtterance(
                id, n_wrong_here, n_here, rate, alignment, reference, hypothesis, clip, no_clip
            )
        )
    return WorstOfTestSet(test_set.name, main.unit, found, n_wrong, n_all, confusions)


def _confusions(aligner: "Aligner", texts: Iterable[tuple[str, str]]) -> list[tuple[Cell, int]]:
    counts = Counter(cell for pair in texts for cell in aligner.errors(*pair))
    # Of equals the first in the alphabet, so that the same results give the same page.
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0].ref, item[0].hyp))
    return ranked[:_MOST_CONFUSIONS]


def _clip(test_set: TestSetReport, id: str, clips: ClipMaker) -> tuple[EmbeddedAudio | None, str]:
    if not clips.config.audio_megabytes:
        return None, ""
    if test_set.data is None:
        return None, test_set.no_data
    try:
        return clips.make(test_set.data.sample(id), test_set.data.duration(id)), ""
    except NoClip as error:
        return None, str(error)


def _texts(score: Score, base: Path, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return reference and hypothesis of a few ids; files are read line by line."""
    wanted = set(ids)
    sides = []
    for role in ("ref_key", "hyp_key"):
        path = score.input_path(str(score.settings.get(role, role.removesuffix("_key"))), base)
        if path is None:
            raise RecordError(f"metrics.json does not record where {role} was read from.")
        sides.append({id: text for id, text in read_scp(path) if id in wanted})
    return {id: (sides[0].get(id, ""), sides[1].get(id, "")) for id in ids}


class Aligner:
    """Cuts texts as a metric did, from its settings in `metrics.json`.

    Args:
        unit: `words` or `characters`; other units, such as tokens, are shown as words.
        settings: of the metric.
    """

    def __init__(self, unit: str, settings: Any) -> None:
        self._clean = TextCleaner(settings.get("clean_types"))
        self._is_of_characters = unit == "characters"
        self._blank = " " if settings.get("count_spaces", True) else ""

    def __call__(self, reference: str, hypothesis: str) -> Alignment:
        """Return the alignment that the metric counted."""
        ref, hyp = self._units(reference), self._units(hypothesis)
        cells = list(_cells(ref[:_MOST_UNITS], hyp[:_MOST_UNITS]))
        n_cut = max(0, max(len(ref), len(hyp)) - _MOST_UNITS)
        return Alignment(cells[:_MOST_SHOWN], max(0, len(cells) - _MOST_SHOWN) + n_cut)

    def errors(self, reference: str, hypothesis: str) -> Iterator[Cell]:
        """Yield only what is wrong."""
        ref, hyp = self._units(reference), self._units(hypothesis)
        cells = _cells(ref[:_MOST_UNITS], hyp[:_MOST_UNITS])
        return (cell for cell in cells if cell.kind)

    def _units(self, text: str) -> list[str]:
        words = self._clean(text).split()
        return list(self._blank.join(words)) if self._is_of_characters else words


def _cells(reference: Sequence[str], hypothesis: Sequence[str]) -> Iterator[Cell]:
    for span in align(reference, hypothesis):
        refs = reference[span.ref_start : span.ref_stop]
        hyps = hypothesis[span.hyp_start : span.hyp_stop]
        for ref, hyp in zip_longest(refs, hyps, fillvalue=""):
            yield Cell(_LETTERS[span.kind], ref, hyp)

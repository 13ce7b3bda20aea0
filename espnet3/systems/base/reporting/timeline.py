"""Timeline of a run: which worker ran which shard when, without the time that no worker ran."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from espnet3.shards.commit import Done
from espnet3.shards.manifest import load_manifest
from espnet3.shards.merge import read_coverage
from espnet3.shards.status import read_failures
from espnet3.shards.success import read_success


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
            max(done.finished, start),
            done.n_items,
            done.n_failed,
            done.n_deaths,
        )


@dataclass(frozen=True)
class RunFacts:
    """What a run of `infer` left in the folder of a test set."""

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


_MOST_LANES = 48
_MOST_BARS = 3000
_LEAST_PAUSE_SECONDS = 5.0
_LEAST_PAUSE_SHARE = 0.1
_PAUSE_WIDTH_SHARE = 0.02


@dataclass(frozen=True)
class Bar:
    """A stretch of a lane, in percent of the axis."""

    kind: str
    """load, work, retried or failed."""
    left: float
    width: float
    title: str


@dataclass(frozen=True)
class Lane:
    """What one worker did."""

    label: str
    title: str
    bars: list[Bar]


@dataclass(frozen=True)
class Stretch:
    """A period of work, and its offset on the axis."""

    start: float
    end: float
    offset: float
    n_workers: int


@dataclass(frozen=True)
class Timeline:
    """The lanes, and where the time of the workers went."""

    lanes: list[Lane]
    n_hidden: int
    """Workers beyond those that are shown."""
    n_workers: int
    seconds: float
    """Of the axis: from the first start to the last end, without pauses."""
    pauses: list[tuple[float, float]]
    """Where the axis leaves something out, in percent, and how many seconds."""
    ticks: list[tuple[float, float]]
    """Percent and seconds."""
    load_share: float
    work_share: float
    idle_share: float


def make_timeline(spans: Sequence[ShardSpan]) -> Timeline | None:
    """Lay shards out in lanes; None if there are none."""
    if not spans:
        return None
    stretches = _stretches(spans)
    gap = _PAUSE_WIDTH_SHARE * _working(stretches)
    axis = stretches[-1].offset + stretches[-1].end - stretches[-1].start
    axis = max(axis, 1e-3)
    workers = _by_worker(spans)
    shown = dict(list(workers.items())[:_MOST_LANES])
    place = _Place(stretches, axis)
    lanes = [_lane(i, worker, own, place) for i, (worker, own) in enumerate(shown.items(), 1)]
    if sum(len(lane.bars) for lane in lanes) > _MOST_BARS:
        lanes = [Lane(lane.label, lane.title, _joined(lane.bars)) for lane in lanes]
    load = sum(span.load_end - span.start for span in spans)
    work = sum(span.end - span.load_end for span in spans)
    there = max(sum(s.n_workers * (s.end - s.start) for s in stretches), load + work, 1e-9)
    return Timeline(
        lanes,
        len(workers) - len(shown),
        max(stretch.n_workers for stretch in stretches),
        _working(stretches),
        [
            (100 * (after.offset - gap / 2) / axis, after.start - before.end)
            for before, after in pairwise(stretches)
        ],
        _ticks(stretches, axis),
        load / there,
        work / there,
        max(0.0, 1 - (load + work) / there),
    )


def _working(stretches: Sequence[Stretch]) -> float:
    return sum(stretch.end - stretch.start for stretch in stretches)


def _stretches(spans: Sequence[ShardSpan]) -> list[Stretch]:
    """Cut long idle periods, as between a kill and the next start."""
    merged = list[tuple[float, float]]()
    for start, end in sorted((span.start, span.end) for span in spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    busy = sum(end - start for start, end in merged)
    least = max(_LEAST_PAUSE_SECONDS, _LEAST_PAUSE_SHARE * busy)
    groups = [[merged[0][0], merged[0][1]]]
    for start, end in merged[1:]:
        if start - groups[-1][1] > least:
            groups.append([start, end])
        else:
            groups[-1][1] = end
    gap = _PAUSE_WIDTH_SHARE * sum(end - start for start, end in groups)
    stretches, offset = list[Stretch](), 0.0
    for start, end in groups:
        inside = {span.worker for span in spans if start <= span.start <= end}
        stretches.append(Stretch(start, end, offset, len(inside)))
        offset += end - start + gap
    return stretches


def _by_worker(spans: Sequence[ShardSpan]) -> dict[tuple[str, int], list[ShardSpan]]:
    workers: dict[tuple[str, int], list[ShardSpan]] = {}
    for span in sorted(spans, key=lambda span: span.start):
        workers.setdefault(span.worker, []).append(span)
    return workers


@dataclass(frozen=True)
class _Place:
    stretches: Sequence[Stretch]
    axis: float

    def __call__(self, moment: float) -> float:
        """Return where a moment is, in percent."""
        stretch = next((s for s in reversed(self.stretches) if s.start <= moment), None)
        stretch = stretch or self.stretches[0]
        return 100 * (stretch.offset + min(moment, stretch.end) - stretch.start) / self.axis


def _lane(number: int, worker: tuple[str, int], spans: list[ShardSpan], place: _Place) -> Lane:
    bars = list[Bar]()
    for span in spans:
        if span.load_end > span.start:
            seconds = span.load_end - span.start
            bars.append(_bar("load", span.start, span.load_end, f"loading, {seconds:.2f} s", place))
        kind = "failed" if span.n_failed else "retried" if span.n_deaths else "work"
        bars.append(_bar(kind, span.load_end, span.end, _title(span), place))
    host, pid = worker
    return Lane(str(number), f"process {pid} on {host}", bars)


def _bar(kind: str, start: float, end: float, title: str, place: _Place) -> Bar:
    left = place(start)
    return Bar(kind, round(left, 3), round(max(place(end) - left, 0.05), 3), title)


def _title(span: ShardSpan) -> str:
    parts = [
        f"shard {span.shard}, {span.n_items} items, {span.end - span.load_end:.2f} s",
        f"{span.n_failed} failed" if span.n_failed else "",
        f"after {span.n_deaths} death(s) of its worker" if span.n_deaths else "",
    ]
    return ", ".join(filter(None, parts))


def _joined(bars: Sequence[Bar]) -> list[Bar]:
    """Join neighbours of one kind that a reader could not tell apart."""
    joined = list[Bar]()
    n_joined = 1
    for bar in bars:
        last = joined[-1] if joined else None
        is_near = last is not None and bar.left - last.left - last.width < 0.1
        if last is not None and is_near and bar.kind == last.kind == "work":
            n_joined += 1
            width = bar.left + bar.width - last.left
            joined[-1] = Bar(bar.kind, last.left, round(width, 3), f"{n_joined} shards")
        else:
            joined.append(bar)
            n_joined = 1
    return joined


def _ticks(stretches: Sequence[Stretch], axis: float) -> list[tuple[float, float]]:
    """Return round seconds of the first stretch; behind a pause they would count other things."""
    first = stretches[0].end - stretches[0].start
    step = round_step(axis / 6)
    n_ticks = int(first / step) + 1
    return [(100 * i * step / axis, i * step) for i in range(n_ticks)]


def round_step(size: float) -> float:
    """Return the least of 1, 2, 5, 10, ... (times a power of ten) that is not below `size`."""
    power = 1e-6
    while power * 10 <= size:
        power *= 10
    return next((power * n for n in (1, 2, 5, 10) if power * n >= size * 0.999), power * 10)

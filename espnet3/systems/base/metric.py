"""The `measure` stage: score the fields that `infer` wrote, by the metrics of a config.

A metric is any callable `metric(data, test_name, inference_dir)` that returns a dict of numbers;
`data` holds a list for each of its inputs, and `utt_id`, all in one order. It may have `ref_key`
and `hyp_key`, which name its inputs; see `espnet3.components.metrics.error_rate.ErrorRate`. A check
and a dry run build metrics too, so a model that one needs is best loaded at its first call.

A `BaseMetric` gets the paths of the files in place of lists, as in the public ESPnet3. A metric may
have `files(test_name)`, further files that it reads, and `check(data, test_name,
inference_dir, sources)`, which is called for all test sets before anything is computed.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from espnet3.commands import recipe_command
from espnet3.components.metrics.base_metric import BaseMetric
from espnet3.components.metrics.set_score import place_of
from espnet3.config.redact import redact
from espnet3.config.sources import names_places
from espnet3.errors import ConfigError, IncompleteRunError, suggest
from espnet3.io.atomic import write_json, write_text
from espnet3.io.scp import load_scp
from espnet3.shards.manifest import load_manifest
from espnet3.shards.merge import read_failures, read_success
from espnet3.shards.status import read_status
from espnet3.systems.base.context import SCORES, also_found, found_test_sets
from espnet3.systems.base.inference_config import (
    InferenceConfig,
    WrittenFields,
    chosen_test_sets,
    listed_test_sets,
    load_inference_config,
    named_test_sets,
    written_fields,
)
from espnet3.systems.base.inference_output import Need
from espnet3.systems.base.metric_config import (
    UTT_ID,
    MetricInput,
    MetricsConfig,
    PreparedMetric,
    load_metrics_config,
    prepare_metrics,
)
from espnet3.systems.base.results_table import (
    MEASURED_FROM,
    format_results,
    identify,
    stale_inputs,
    summary_lines,
)
from espnet3.text import count, first_few

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig
    from espnet3.systems.base.inference_config import WrittenFields


_SHOWN_IDS = 10

Table = Mapping[str, str]


@dataclass(frozen=True)
class Joined:
    """The data of a metric on a test set."""

    data: dict[str, list[str]]
    n_missing: int
    """Ids that were left out, or had no hypothesis."""


def run_facts(folder: Path) -> dict[str, Any] | None:
    """Return what the inference run in a folder says of itself; None if the files are not of a run.

    Raises:
        IncompleteRunError: The run is not complete; the message says how to continue.
    """
    manifest = load_manifest(folder) if folder.is_dir() else None
    if manifest is None:
        return None
    success = read_success(manifest.layout(folder), manifest.run_id)
    if success is not None:
        return success
    status = read_status(folder)
    progress = f"{status.n_done} of {status.n_items} items are done"
    if status.state == "running":
        raise IncompleteRunError(
            f"The run in {folder} is still running: {progress}. Wait for its end; this shows how "
            f"far it is: espnet3 status {quote(str(folder))}"
        )
    raise IncompleteRunError(
        f"The run in {folder} is not complete: {progress}. Its results would be measured on a part "
        f"of the test set. Finish it first, with its own config: {recipe_command('infer')}"
    )


def check_files(
    metrics: Sequence[PreparedMetric],
    inference_dir: Path,
    test_sets: Sequence[str],
) -> None:
    """Refuse before anything is computed if a file is missing.

    Args:
        metrics: What is to be measured.
        inference_dir: The folder of the results.
        test_sets: Those to measure.

    Raises:
        IncompleteRunError: A field that the `infer` stage writes is missing.
        ConfigError: A file that `inputs` names is missing.
    """
    # A wrong path comes first: decoding again would not mend it.
    check_named_files(metrics, test_sets)
    missing: dict[Path, tuple[PreparedMetric, MetricInput]] = {}
    for test_set in test_sets:
        for metric in metrics:
            for entry in metric.inputs:
                path = entry.path(inference_dir, test_set)
                if not path.is_file():
                    missing.setdefault(path, (metric, entry))
    if missing:
        raise IncompleteRunError(_lacking(missing))


def check_named_files(metrics: Sequence[PreparedMetric], test_sets: Sequence[str]) -> None:
    """Refuse files that a config names, and that no `infer` stage will write.

    Raises:
        ConfigError: One is missing.
    """
    for metric in metrics:
        for test_set in test_sets:
            for key, (value, path) in metric.named_files(test_set).items():
                if not path.is_file():
                    raise ConfigError(
                        f"{metric.key}.{key} is {value!r}, but {path} is no file. "
                        "Correct the path; {test_set} in it stands for the name of the test set."
                    )


def fields_needed(metrics: Sequence[PreparedMetric]) -> list[Need]:
    """Return the fields that metrics read of what `infer` writes."""
    return [
        Need(entry.source, entry.key, f"{metric.key} ({metric.name}) of the metrics config")
        for metric in metrics
        for entry in metric.inputs
        if not entry.is_path
    ]


def check_fields(needs: Sequence[Need], written: "WrittenFields", folders: Sequence[Path]) -> None:
    """Refuse before decoding what `measure` would miss after it.

    Args:
        needs: What the metrics read.
        written: What is known of the fields that `infer` will write.
        folders: Those of the test sets; what is there already is not missing.

    Raises:
        ConfigError: A field will not be written, with what to write instead.
    """
    for need in needs:
        if folders and all((folder / f"{need.field}.scp").is_file() for folder in folders):
            continue
        if written.names is not None and need.field not in written.names:
            raise ConfigError(_not_written(need, written))
        renamed = dict(zip(_USUAL, written.usual, strict=False)).get(need.field, need.field)
        if written.names is None and written.usual and renamed not in (need.field, *_USUAL):
            role = f"{need.field}_key"
            raise ConfigError(
                f"{need.reader} needs the field {need.field!r}, but {role} of the inference config "
                f"is {renamed!r}, so that {renamed}.scp is written.",
                fix=f"Write in the metric: {role}: "
                f"{renamed}; or in the inference config: {role}: {need.field}",
            )


_USUAL = ("hyp", "ref")  # in the order of WrittenFields.usual


def _not_written(need: Need, written: "WrittenFields") -> str:
    begin = (
        f"{need.reader} needs the field {need.field!r}, which the infer stage will not write: "
        f"{written.why}."
    )
    file = f'inputs: {{{need.key}: "data/{{test_set}}/FILE"}}'
    if not written.names:
        return f"{begin} Derive it from InferenceRunner, or name a file that has it: {file}"
    return (
        f"{begin}{suggest(need.field, written.names)} If the output or the samples have it, write "
        f"in the inference config: output_keys: [{', '.join([*written.names, need.field])}]; or "
        f"let the metric read another field, inputs: {{{need.key}: {written.names[0]}}}, or a "
        f"file: {file}"
    )


def _lacking(missing: Mapping[Path, tuple[PreparedMetric, MetricInput]]) -> str:
    path, (metric, entry) = next(iter(missing.items()))
    paths = first_few(missing, _SHOWN_IDS)
    files = "file is" if len(missing) == 1 else "files are"
    present = sorted(file.stem for file in path.parent.glob("*.scp"))
    if not present:
        first = recipe_command("infer", "measure")
        return f"{len(missing)} {files} missing: {paths}. Run the infer stage first: {first}"
    lacking = dict.fromkeys(e.source for p, (_, e) in missing.items() if p.parent == path.parent)
    keys = ",".join([*present, *lacking])
    again = recipe_command("infer", overrides=[f"output_keys=[{keys}]", "runner.resume=false"])
    return (
        f"{len(missing)} {files} missing: {paths}. {path.parent} has the fields "
        f"{', '.join(present)}.{suggest(entry.source, present)} Name one of them: {metric.key}."
        f"inputs: {{{entry.key}: FIELD}}; or write {', '.join(map(repr, lacking))} in the infer "
        f"stage, which decodes again: {again}"
    )


class Tables:
    """The files of a test set; each is read once, though several metrics need it."""

    def __init__(self) -> None:
        self._tables: dict[Path, dict[str, str]] = {}

    def load(self, path: Path) -> dict[str, str]:
        """Return the values of a file by id."""
        if path not in self._tables:
            self._tables[path] = load_scp(path)
        return self._tables[path]


def join_tables(metric: PreparedMetric, tables: Mapping[str, Table], folder: Path) -> Joined:
    """Return the values of all keys in the order of the references.

    Args:
        metric: What the data is for.
        tables: Values by id, by key; the references first.
        folder: Of the test set.

    Raises:
        IncompleteRunError: Ids are missing and that is not accepted, or none is left.
    """
    texts = {key: table for key, table in tables.items() if key not in metric.group_keys}
    # The references define what is measured; hypotheses alone must not decide it.
    anchor = next(iter(texts.values()))
    lacking = {key: [id for id in anchor if id not in table] for key, table in texts.items()}
    extra = {key: [id for id in table if id not in anchor] for key, table in texts.items()}
    fills = metric.on_missing == "count_as_deletions"
    # A hypothesis without a reference has no score, so it cannot be counted as a deletion.
    if any(extra.values()) and metric.on_missing != "skip":
        raise IncompleteRunError(_mismatch(metric, texts, lacking, extra, folder))
    if any(lacking.values()) and metric.on_missing == "raise":
        raise IncompleteRunError(_mismatch(metric, texts, lacking, extra, folder))
    absent = {id for ids in lacking.values() for id in ids}
    ids = [id for id in anchor if fills or id not in absent]
    if not ids:
        sizes = " and ".join(f"{key} ({len(table)} ids)" for key, table in texts.items())
        raise IncompleteRunError(
            f"{metric.name} has no utterance of {folder} to measure: {sizes} have no id in common, "
            "or are empty.",
            fix=f"Run the infer stage again: {recipe_command('infer')}",
        )
    _check_groups(metric, tables, ids, folder)
    data = {key: [table.get(id, "") for id in ids] for key, table in tables.items()}
    n_extra = len({id for ids in extra.values() for id in ids})
    return Joined({UTT_ID: ids, **data}, len(absent) + n_extra)


def check_whole(metric: PreparedMetric, joined: Joined, folder: Path) -> None:
    """Refuse to hand over files of which some lines should be left out.

    Raises:
        ConfigError: Ids are missing, and the metric reads the files itself.
    """
    if joined.n_missing:
        raise ConfigError(
            f"{metric.key}.on_missing is {metric.on_missing!r}, but {metric.name} reads the files "
            f"of {folder.name} itself, which differ in {count(joined.n_missing, 'id')}.",
            fix="Write the metric as a function of values, def my_metric(data, test_name, "
            "inference_dir), or complete the files.",
        )


def check_failures(metric: PreparedMetric, run: Mapping[str, Any] | None, folder: Path) -> None:
    """Refuse to measure what is left of a run that gave up on items, unless that is accepted.

    Such an item has neither a hypothesis nor a reference in the results, so joining by id would not
    miss it; only references from elsewhere know of it.

    Raises:
        IncompleteRunError: with what can be done.
    """
    n_failed = run.get("n_failed", 0) if run else 0
    if not n_failed or metric.inputs[0].is_path:
        return
    see = f"espnet3 failed {quote(str(folder))}"
    if metric.on_missing == "skip":
        logger.warning(
            "%s of %s: %d of %d items failed in inference and are not measured; see: %s",
            metric.name, folder.name, n_failed, (run or {}).get("n_items", 0), see,
        )  # fmt: skip
        return
    again = recipe_command("infer", overrides=["runner.retry_failed=true"])
    references = f'{metric.key}.inputs: {{{metric.inputs[0].key}: "data/{{test_set}}/text"}}'
    raise IncompleteRunError(
        f"{metric.name} of {folder.name}: {n_failed} of {(run or {}).get('n_items', 0)} items "
        f"failed in inference, so the score would be that of a part; see: {see}.",
        fix=f"Run them again: {again} ; or accept it in {metric.key}: on_missing: skip "
        "leaves them out, on_missing: count_as_deletions counts them if the references come from "
        f"a file of their own, {references}",
    )


def _mismatch(
    metric: PreparedMetric,
    texts: Mapping[str, Table],
    lacking: Mapping[str, list[str]],
    extra: Mapping[str, list[str]],
    folder: Path,
) -> str:
    anchor = next(iter(texts))
    files = {entry.key: entry.path(folder.parent, folder.name) for entry in metric.inputs}
    problems = []
    for key in texts:
        if lacking[key]:
            problems.append(
                f"{len(lacking[key])} of the {len(texts[anchor])} ids in {anchor} are not in "
                f"{key}: {first_few(lacking[key], _SHOWN_IDS)} "
                f"({place_of(lacking[key][0], files[anchor])})"
            )
        if extra[key]:
            problems.append(
                f"{len(extra[key])} of the {len(texts[key])} ids in {key} are not in {anchor}: "
                f"{first_few(extra[key], _SHOWN_IDS)} ({place_of(extra[key][0], files[key])})"
            )
    return (
        f"{metric.name} of {folder.name}: {'; '.join(problems)}."
        f"{_failed_on_purpose(folder, lacking)} Run the infer stage again: "
        f"{recipe_command('infer')} ; or accept it in {metric.key}: on_missing: skip leaves them "
        "out, on_missing: count_as_deletions takes a missing hypothesis for an empty one."
    )


def _failed_on_purpose(folder: Path, lacking: Mapping[str, list[str]]) -> str:
    """Return a sentence on the ids that the run skipped, as its config allows."""
    if not folder.is_dir() or load_manifest(folder) is None:
        return ""
    failures = read_failures(folder)
    if not failures:
        return ""
    # An item is known by its index, which is its id in some runners only.
    absent = {id for ids in lacking.values() for id in ids}
    known = (failure.get("ids") or [failure.get("index")] for failure in failures)
    n_known = len(absent & {str(id) for ids in known for id in ids})
    which = f"{n_known} of them" if n_known else f"{count(len(failures), 'item')} of the run"
    return (
        f" {which} failed, which on_error: skip allows, and there is no line for that; see: "
        f"espnet3 failed {quote(str(folder))}."
    )


def _check_groups(
    metric: PreparedMetric, tables: Mapping[str, Table], ids: Sequence[str], folder: Path
) -> None:
    for key in metric.group_keys:
        lacking = [id for id in ids if id not in tables[key]]
        if lacking:
            raise IncompleteRunError(
                f"{metric.name} of {folder.name}: {len(lacking)} of {len(ids)} ids have no {key}: "
                f"{first_few(lacking, _SHOWN_IDS)}.",
                fix="Add them to the file, or name another one in "
                f'{metric.key}: inputs: {{{key}: "data/{{test_set}}/utt2spk"}}',
            )


logger = logging.getLogger(__name__)

_RUN_KEYS = ("n_items", "n_failed", "audio_seconds", "worker_seconds")


@names_places
def measure(loaded: "LoadedConfig", inference: "LoadedConfig | None" = None) -> Path:
    """Score all test sets by all metrics.

    Afterwards `inference_dir` holds `metrics.json` (`{metric: {test set: numbers}}`, with what they
    were measured from) and `RESULTS.md`, the same as tables; our metrics add files to the folders
    of the test sets. What was there before is replaced.

    Args:
        loaded: The metrics config.
        inference: The inference config, if it is known: results that it does not list are of an
            earlier one, and are left out.

    Returns:
        The path of `metrics.json`.

    Raises:
        ConfigError: The config is wrong.
        IncompleteRunError: A file is missing, a run is not complete, or ids do not match.
        RecordError: A file is damaged, or has an id twice; or a number cannot be written as JSON.
    """
    folder, metrics, test_sets, others = _plan(loaded, inference)
    if not test_sets:
        left = f" ({also_found(others)})" if others else ""
        raise IncompleteRunError(
            f"{folder} holds no results to measure: no folder in it has .scp files{left}.",
            fix=f"Run the infer stage first: {recipe_command('infer', 'measure')}",
        )
    # Before anything is computed: an incomplete run must not be scored on a part of its items.
    runs = {test_set: run_facts(folder / test_set) for test_set in test_sets}
    check_files(metrics, folder, test_sets)
    # Before the metrics run, so that a missing tokenizer shows at once.
    settings = {metric.name: redact(metric.settings()) for metric in metrics}
    for name in test_sets:
        _check_values(metrics, _TestSet(name, folder, runs[name], Tables()))
    results: dict[str, dict[str, Any]] = {metric.name: {} for metric in metrics}
    for name in test_sets:
        # Tables are kept for one test set only, or the texts of all would be in memory together.
        test_set = _TestSet(name, folder, runs[name], Tables())
        for metric in metrics:
            results[metric.name][name] = _measure_one(metric, test_set, settings[metric.name])
    path = metrics_path(folder)
    folder.mkdir(parents=True, exist_ok=True)  # all inputs may be files from elsewhere
    write_json(path, results)
    write_text(folder / "RESULTS.md", format_results(results))
    for line in summary_lines(results):
        logger.info("%s", line)
    if others:
        logger.info("%s: %s", folder, also_found(others))
    logger.info("Written to %s and RESULTS.md beside it", path)
    return path


@names_places
def describe_measure(loaded: "LoadedConfig", inference: "LoadedConfig | None" = None) -> list[str]:
    """Return what `measure` would read and write, line by line, without reading any of it.

    Raises:
        ConfigError: The config is wrong.
    """
    folder, metrics, test_sets, others = _plan(loaded, inference)
    written = _written(inference, folder)
    lines = [
        f"{metric.name} of {test_set} reads {_described_files(metric, folder, test_set, written)}"
        for test_set in test_sets
        for metric in metrics
    ]
    if not test_sets:
        names = ", ".join(metric.name for metric in metrics)
        lines.append(f"{names} of each test set that stage 6 will have written below {folder}")
        needs = dict.fromkeys(need.field for need in fields_needed(metrics))
        lines += [f"reads {field}.scp of each: {_origin(field, written)}" for field in needs]
    if others:
        lines.append(f"leaves out what is {also_found(others)}")
    return [*lines, f"writes {metrics_path(folder)} and RESULTS.md{_described_age(folder)}"]


@names_places
def check_measure(
    loaded: "LoadedConfig",
    inference: "LoadedConfig | None" = None,
    *,
    decodes_first: bool = False,
    makes_data: bool = False,
) -> None:
    """Check the config and build its metrics; files may be missing yet.

    Args:
        loaded: The metrics config.
        inference: The inference config, if it is known.
        decodes_first: Whether `infer` runs before, so that what is missing must come from it.
        makes_data: Whether data is made before, so that files outside of results may come.

    Raises:
        ConfigError: The config is wrong, or needs a field that `infer` will not write.
    """
    folder, metrics, test_sets, _ = _plan(loaded, inference)
    written = _written(inference, folder) if decodes_first else None
    if inference is not None and written is not None:
        folders = [folder / name for name in test_sets]
        check_fields(fields_needed(metrics), written, folders)
        key = "test_set" if loaded.has("test_set") else "dataset.test"
        config = load_inference_config(inference)
        _check_decoded(key, config, test_sets)
        if not makes_data:
            decoded = chosen_test_sets(listed_test_sets(config.dataset), config.test_set)
            check_named_files(metrics, test_sets or decoded)


@names_places
def needs_of(loaded: "LoadedConfig", inference: "LoadedConfig") -> list[Need]:
    """Return the fields that `measure` will read of what an inference config writes.

    Raises:
        ConfigError: The metrics config is wrong.
    """
    config = load_metrics_config(loaded)
    if _written(inference, Path(config.inference_dir)) is None:
        return []
    return fields_needed(prepare_metrics(config, loaded.config.metrics))


def _written(inference: "LoadedConfig | None", folder: Path) -> WrittenFields | None:
    """Return what is known of the fields in a folder of results, if the config is about those."""
    if inference is None or not inference.has("inference_dir"):
        return None
    own = Path(str(inference.config["inference_dir"]))
    return written_fields(inference) if own.absolute() == folder.absolute() else None


def _check_decoded(key: str, config: InferenceConfig, test_sets: Sequence[str]) -> None:
    """Refuse a test set that `infer` does not decode, and that has no results of before."""
    decoded = chosen_test_sets(listed_test_sets(config.dataset), config.test_set)
    there = found_test_sets(Path(config.inference_dir))
    for name in test_sets:
        if name not in decoded and name not in there:
            raise ConfigError(
                f"{key} of the metrics config",
                key=key,
                problem=f" has {name!r}, which the infer stage does not decode: it decodes "
                f"{', '.join(map(repr, decoded))}, and {config.inference_dir} has no results of it",
                fix=f"{suggest(name, decoded)} Write in the metrics config: test_set: {decoded[0]}",
            )


def _plan(
    loaded: "LoadedConfig", inference: "LoadedConfig | None"
) -> tuple[Path, list[PreparedMetric], list[str], list[str]]:
    config = load_metrics_config(loaded)
    metrics = prepare_metrics(config, loaded.config.metrics)
    folder, listed = Path(config.inference_dir), listed_test_sets(config.dataset)
    decoded = [] if listed or config.test_set else named_test_sets(inference, folder)
    return folder, metrics, *_find_test_sets(config, listed, decoded)


def metrics_path(inference_dir: Path) -> Path:
    """Return the file with all numbers."""
    return inference_dir / SCORES


def _find_test_sets(
    config: MetricsConfig, listed: list[str], decoded: list[str]
) -> tuple[list[str], list[str]]:
    """Return the test sets to measure, and what else there are results of.

    Those are what `test_set` says, or the names in `dataset.test`; or else the folders of results,
    of which only those count that the inference config lists, if it has a list.

    Args:
        config: of the metrics.
        listed: the names in its `dataset.test`.
        decoded: those that the inference config lists.

    Raises:
        ConfigError: `test_set` names none of them.
    """
    if config.test_set is not None:
        # A choice, so that all others are no surprise.
        return chosen_test_sets(listed, config.test_set), []
    found, named = found_test_sets(Path(config.inference_dir)), listed or decoded
    others = [name for name in found if named and name not in named]
    return listed or [name for name in named or found if name in found], others


@dataclass(frozen=True)
class _TestSet:
    name: str
    inference_dir: Path
    run: Mapping[str, Any] | None
    tables: Tables

    @property
    def folder(self) -> Path:
        return self.inference_dir / self.name


def _check_values(metrics: Sequence[PreparedMetric], test_set: _TestSet) -> None:
    """Let metrics look at what they will read, if they can, before any of them computes."""
    for metric in metrics:
        check = getattr(metric.metric, "check", None)
        if callable(check):
            data, sources = _data_of(metric, test_set)
            with _blamed(metric, test_set):
                check(data.data, test_set.name, test_set.inference_dir, sources)


def _data_of(metric: PreparedMetric, test_set: _TestSet) -> tuple[Joined, dict[str, Path]]:
    """Return what a metric is called with, and the files that it comes from."""
    paths = {
        entry.key: entry.path(test_set.inference_dir, test_set.name) for entry in metric.inputs
    }
    tables = {key: test_set.tables.load(path) for key, path in paths.items()}
    check_failures(metric, test_set.run, test_set.folder)
    return join_tables(metric, tables, test_set.folder), paths


@contextmanager
def _blamed(metric: PreparedMetric, test_set: _TestSet) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # A note, and not another exception: the metric's own type and traceback are worth seeing.
        error.add_note(f"Raised by {metric.key}.metric ({metric.name}) on {test_set.name}.")
        raise


def _measure_one(
    metric: PreparedMetric, test_set: _TestSet, settings: Mapping[str, Any]
) -> dict[str, Any]:
    base = test_set.inference_dir
    joined, paths = _data_of(metric, test_set)
    data: Mapping[str, Any] = joined.data
    if isinstance(metric.metric, BaseMetric):
        check_whole(metric, joined, test_set.folder)
        data = paths
    with _blamed(metric, test_set):
        numbers = metric.metric(data, test_set.name, base)
    if not isinstance(numbers, Mapping) or not numbers:
        raise ConfigError(
            f"{metric.key}.metric ({metric.name}) returned {numbers!r:.80}, of type "
            f'{type(numbers).__name__}. Let it return a dict of numbers, such as {{"rate": 1.5}}.'
        )
    record = {
        "inputs": {
            key: identify(path, base) for key, path in metric.files(base, test_set.name).items()
        },
        "settings": settings,
        "on_missing": metric.on_missing,
        "n_missing": joined.n_missing,
        **({"run": _speed(test_set.run)} if test_set.run else {}),
    }
    return {**numbers, MEASURED_FROM: record}


def _speed(run: Mapping[str, Any]) -> dict[str, Any]:
    facts = {key: run[key] for key in _RUN_KEYS if key in run}
    # Audio of zero seconds would divide by zero.
    if facts.get("audio_seconds") and "worker_seconds" in facts:
        facts["real_time_factor"] = facts["worker_seconds"] / facts["audio_seconds"]
    return facts


def _described_files(
    metric: PreparedMetric, folder: Path, test_set: str, written: WrittenFields | None
) -> str:
    def state(entry: MetricInput, path: Path) -> str:
        if path.is_file():
            return "exists"
        return "missing" if entry.is_path else f"missing: {_origin(entry.source, written)}"

    paths = [(entry, entry.path(folder, test_set)) for entry in metric.inputs]
    lines = [f"{path} ({state(entry, path)})" for entry, path in paths]
    further = [
        f"{path} ({'exists' if path.is_file() else 'missing'})"
        for key, (_, path) in metric.named_files(test_set).items()
        if key.startswith("metric.")
    ]
    return ", ".join([*lines, *further])


def _origin(field: str, written: WrittenFields | None) -> str:
    """Say whether `infer` writes a field, as far as that is known."""
    if written is None:
        return "stage 6 writes it, if its config says so"
    if written.names is not None:
        is_written = field in written.names
        return "stage 6 writes it" if is_written else f"stage 6 does not write it: {written.why}"
    if field in written.usual:
        return "stage 6 writes it for a model that returns a text, and samples with a text"
    return f"whether stage 6 writes it shows at its first item: {written.why}"


def _described_age(folder: Path) -> str:
    path = metrics_path(folder)
    if not path.is_file():
        return ""
    changed = stale_inputs(path)
    state = f"out of date: {'; '.join(changed)}" if changed else "up to date with its inputs"
    return f" (there already, {state})"

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
from typing import TYPE_CHECKING, Any

from espnet3.commands import recipe_command
from espnet3.components.metrics.base_metric import BaseMetric
from espnet3.config.redact import redact
from espnet3.config.sources import names_places
from espnet3.errors import ConfigError, IncompleteRunError, suggest
from espnet3.io.atomic import write_json, write_text
from espnet3.systems.base.inference_checks import WrittenFields, written_fields
from espnet3.systems.base.inference_config import (
    SCORES,
    InferenceConfig,
    also_found,
    chosen_test_sets,
    found_test_sets,
    listed_test_sets,
    load_inference_config,
    named_test_sets,
)
from espnet3.systems.base.inference_output import Need
from espnet3.systems.base.metric_config import (
    MetricInput,
    MetricsConfig,
    PreparedMetric,
    load_metrics_config,
    prepare_metrics,
)
from espnet3.systems.base.metric_data import (
    Joined,
    Tables,
    check_failures,
    check_fields,
    check_files,
    check_named_files,
    check_whole,
    fields_needed,
    join_tables,
    run_facts,
)
from espnet3.systems.base.results_table import (
    MEASURED_FROM,
    format_results,
    identify,
    stale_inputs,
    summary_lines,
)

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

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

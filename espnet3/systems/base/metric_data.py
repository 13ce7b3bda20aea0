"""The texts that metrics are called with: found for each test set, read, and joined by id."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from espnet3.commands import recipe_command
from espnet3.components.metrics.set_score import place_of
from espnet3.errors import ConfigError, IncompleteRunError, suggest
from espnet3.io.scp import load_scp
from espnet3.shards.manifest import load_manifest
from espnet3.shards.merge import read_failures
from espnet3.shards.status import read_status
from espnet3.shards.success import read_success
from espnet3.systems.base.inference_output import Need
from espnet3.systems.base.metric_config import UTT_ID, MetricInput, PreparedMetric
from espnet3.text import count, first_few

if TYPE_CHECKING:
    from espnet3.systems.base.inference_checks import WrittenFields

logger = logging.getLogger(__name__)
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

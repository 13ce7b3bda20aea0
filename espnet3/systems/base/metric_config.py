"""Keys of a metrics config that `measure` reads, and the metrics that are built from them."""

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from espnet3.components.metrics.error_rate import file_stem
from espnet3.config.instantiate import instantiate
from espnet3.config.schema import FrozenConfig, Names, validate
from espnet3.config.sources import names_places
from espnet3.config.targets import locate
from espnet3.errors import ConfigError, suggest
from espnet3.systems.base.inference_config import check_some

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

OnMissing = Literal["raise", "skip", "count_as_deletions"]

_EXAMPLE = "metrics: [{metric: {_target_: espnet3.systems.asr.metrics.wer.WER}}]"
UTT_ID = "utt_id"
_ROLES = ("ref_key", "hyp_key")

Metric = Callable[[Any, str, Path], Mapping[str, Any]]


class MetricEntry(FrozenConfig):
    """One metric, and what it is fed."""

    metric: dict[str, Any]
    """A `_target_` and its arguments."""
    inputs: Names | dict[str, str] | None = None
    """Field, or fields, that the metric reads: `[ref, hyp]`. As a mapping, from its keys to other
    fields, or to files such as `{ref: "data/{test_set}/text"}`; a value with a `/` is a path."""
    name: str | None = None
    """What it is called in `metrics.json`; by default its class, and what sets it apart."""
    on_missing: OnMissing = "raise"
    """What to do about ids that one file has and another lacks: stop, leave them out, or take the
    missing hypothesis for an empty one."""

    @field_validator("metric")
    @classmethod
    def _has_a_target(cls, metric: dict[str, Any]) -> dict[str, Any]:
        if "_target_" not in metric:
            raise ValueError(
                "needs a _target_. Write: metric: {_target_: espnet3.systems.asr.metrics.wer.WER}"
            )
        return metric


class MetricsConfig(FrozenConfig):
    """Settings of stage `measure`."""

    metrics: list[MetricEntry] = Field(min_length=1)
    """The metrics; each is measured on each test set."""
    inference_dir: str
    """The folder of the `infer` stage, with a folder for each test set."""
    test_set: str | list[str] | None = None
    """Measure this one, or these, instead of all."""
    dataset: dict[str, Any] | None = None
    """`test` lists the test sets; without it, they are the folders in `inference_dir`, of which
    only those count that the inference config lists."""

    @field_validator("test_set", mode="after")
    @classmethod
    def _some_test_set(cls, value: str | list[str] | None) -> str | list[str] | None:
        return check_some(value)


KEYS = tuple(MetricsConfig.model_fields)


@names_places
def load_metrics_config(loaded: "LoadedConfig") -> MetricsConfig:
    """Check the keys that the stage reads; a config may hold others, for other readers.

    Raises:
        ConfigError: one that lists every problem, with its place.
    """
    values = loaded.plain()
    # Before pydantic, whose message would not have an example to paste.
    if not values.get("metrics"):
        raise ConfigError(
            "The config lists no metrics, so nothing is measured.", fix=f"Write: {_EXAMPLE}"
        )
    _check_form(values["metrics"])
    if not values.get("inference_dir"):
        raise ConfigError(
            "inference_dir is not set, so the results to measure are not known.",
            fix="Pass --inference_config conf/inference.yaml too, or write: inference_dir: FOLDER",
        )
    present = {key: values[key] for key in KEYS if key in values}
    return validate(MetricsConfig, present, loaded=loaded)


def _check_form(metrics: Any) -> None:
    """Refuse what is nearly a list of metrics, with the list that is meant."""
    if isinstance(metrics, Mapping):
        block = metrics if "metric" in metrics else {"metric": metrics}
        raise ConfigError(
            key="metrics",
            problem="is a mapping, but must be a list",
            fix=f"Write: metrics: [{json.dumps(block)}]",
        )
    for i, entry in enumerate(metrics if isinstance(metrics, list) else ()):
        if isinstance(entry, Mapping) and "_target_" in entry and "metric" not in entry:
            raise ConfigError(
                key=f"metrics.{i}",
                problem="has a _target_, which belongs one level below",
                fix=f"Write: metrics: [{json.dumps({'metric': entry})}]",
            )


@dataclass(frozen=True)
class MetricInput:
    """A key of the data that a metric is called with, and the field or file that it comes from."""

    key: str
    source: str

    @property
    def is_path(self) -> bool:
        """Tell whether it is a file outside of the results."""
        return "/" in self.source

    def path(self, inference_dir: Path, test_set: str) -> Path:
        """Return the file for a test set."""
        if self.is_path:
            return Path(self.source.replace("{test_set}", test_set))
        return inference_dir / test_set / f"{self.source}.scp"


@dataclass(frozen=True)
class PreparedMetric:
    """A metric that is ready to be called."""

    key: str
    """Of its entry in the config, such as `metrics.0`."""
    name: str
    metric: Metric
    inputs: tuple[MetricInput, ...]
    """The references first."""
    group_keys: tuple[str, ...]
    """Keys that are looked up for each utterance; their files may know of more."""
    on_missing: OnMissing
    arguments: dict[str, Any]
    """Of its `_target_`, as the config has them."""

    def files(self, inference_dir: Path, test_set: str) -> dict[str, Path]:
        """Return all files that it reads for a test set, by the key of an input or argument."""
        inputs = {entry.key: entry.path(inference_dir, test_set) for entry in self.inputs}
        return {**inputs, **self._further(test_set)}

    def named_files(self, test_set: str) -> dict[str, tuple[Any, Path]]:
        """Return the files that its config names, with the value of their key."""
        inputs = {
            f"inputs.{entry.key}": (entry.source, entry.path(Path(), test_set))
            for entry in self.inputs
            if entry.is_path
        }
        further = {
            f"metric.{key}": (self.arguments.get(key, str(path)), path)
            for key, path in self._further(test_set).items()
        }
        return {**inputs, **further}

    def _further(self, test_set: str) -> dict[str, Path]:
        files = getattr(self.metric, "files", None)
        return dict(files(test_set)) if callable(files) else {}

    def settings(self) -> dict[str, Any]:
        """Return what the numbers depend on besides the inputs.

        Raises:
            ConfigError: A file that the metric needs, such as its tokenizer, is missing.
        """
        try:
            settings = getattr(self.metric, "settings", self.arguments)
        except ConfigError as error:
            raise ConfigError(f"{self.key}.metric: {error}") from error
        # The target is added, since the arguments alone could be those of another metric.
        return {"_target_": self.arguments["_target_"], **settings}


def prepare_metrics(config: MetricsConfig, blocks: Sequence[Any]) -> list[PreparedMetric]:
    """Build all metrics, with names that differ.

    Args:
        config: what they are fed.
        blocks: the entries as they were written, of which Hydra builds the metrics.

    Raises:
        ConfigError: A metric cannot be built or called, needs inputs that are not named, or is
            listed twice.
    """
    pairs = enumerate(zip(config.metrics, blocks, strict=True))
    metrics = [_prepare(f"metrics.{i}", entry, block["metric"]) for i, (entry, block) in pairs]
    return _with_names(metrics)


def _prepare(key: str, entry: MetricEntry, block: Any) -> PreparedMetric:
    metric = _build(f"{key}.metric", block)
    if not callable(metric):
        raise ConfigError(
            key=f"{key}.metric",
            problem=f"is of type {type(metric).__name__}, which cannot be called",
            fix="Write in it: def __call__(self, data, test_name, inference_dir): ...",
        )
    return PreparedMetric(
        key=key,
        name=str(entry.name or entry.metric.get("name") or ""),
        metric=metric,
        inputs=_inputs(metric, entry, f"{key}.inputs"),
        group_keys=tuple(getattr(metric, "group_keys", ())),
        on_missing=entry.on_missing,
        arguments={name: value for name, value in entry.metric.items() if name != "name"},
    )


def _build(key: str, block: Any) -> Any:
    from omegaconf import OmegaConf

    if _is_function(block.get("_target_")):
        # Otherwise Hydra would call a function while building it.
        block = OmegaConf.merge(block, {"_partial_": True})  # itself, with the arguments it has
    try:
        return instantiate(block, key=key)
    except ConfigError as error:
        # `instantiate` adds a note to what the target itself has raised.
        if not hasattr(error, "__notes__"):
            raise
        # Raised by the metric itself, which does not know where its arguments were set.
        raise ConfigError(key=key, problem=f": {error}") from error


def _is_function(target: Any) -> bool:
    try:
        return inspect.isfunction(locate(str(target)))
    except Exception:  # building it says what is wrong
        return False


def _inputs(metric: Any, entry: MetricEntry, key: str) -> tuple[MetricInput, ...]:
    given = entry.inputs or {}
    sources = given if isinstance(given, dict) else dict(zip(given, given, strict=True))
    # `utt_id` is given to every metric, and is no file.
    sources = {name: source for name, source in sources.items() if name != UTT_ID}
    declared = getattr(metric, "input_keys", None)
    needed = list(declared or (getattr(metric, role) for role in _ROLES if hasattr(metric, role)))
    if not needed and not sources:
        raise ConfigError(
            f"{key} is not set",
            key=key,
            problem=f"and {_class_name(metric)} does not say what it reads",
            fix="Write: inputs: [ref, hyp]",
        )
    unknown = [name for name in sources if declared and name not in needed]
    if unknown:
        raise ConfigError(
            f"{key} has {unknown[0]!r}",
            key=key,
            problem=f"which {_class_name(metric)} does not read",
            fix=f"{suggest(unknown[0], needed)} It reads: {', '.join(needed)}.",
        )
    keys = dict.fromkeys([*needed, *sources])
    return tuple(MetricInput(name, sources.get(name, name)) for name in keys)


def _class_name(metric: Any) -> str:
    while isinstance(metric, partial):
        metric = metric.func
    return str(getattr(metric, "__name__", type(metric).__name__))


def _with_names(metrics: Sequence[PreparedMetric]) -> list[PreparedMetric]:
    """Give the first of a class its plain name, and the others what sets them apart from it."""
    first: dict[str, PreparedMetric] = {}
    taken: dict[str, str] = {}
    named = []
    for prepared in metrics:
        name = prepared.name or _class_name(prepared.metric)
        if not prepared.name and first.setdefault(name, prepared) is not prepared:
            names = _distinguish(name, first[name], prepared)
            # Two names may differ only in characters that names of files drop.
            name = next((longer for longer in names if file_stem(longer) not in taken), name)
        other = taken.setdefault(file_stem(name), prepared.key)
        if other != prepared.key:
            raise ConfigError(
                f"{prepared.key} and {other} are both called {name!r}, and would overwrite each "
                "other.",
                fix=f"Remove one, or write in {prepared.key}: name: {name}_2",
            )
        named.append(_rename(prepared, name))
    return named


def _distinguish(name: str, first: PreparedMetric, other: PreparedMetric) -> Iterator[str]:
    """Yield names with one difference, two, and so on."""
    before, after = _description(first), _description(other)
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    labels = [f"{key}={_short(after.get(key))}" for key in changed]
    for count in range(1, len(labels) + 1):
        yield f"{name} ({', '.join(labels[:count])})"


def _description(prepared: PreparedMetric) -> dict[str, Any]:
    roles = {getattr(prepared.metric, role, None): role.removesuffix("_key") for role in _ROLES}
    sources = {roles.get(entry.key, entry.key): entry.source for entry in prepared.inputs}
    others = {key: value for key, value in prepared.arguments.items() if key not in _ROLES}
    return {**sources, **others, "on_missing": prepared.on_missing}


def _short(value: Any) -> str:
    if value is None:
        return "none"
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _rename(prepared: PreparedMetric, name: str) -> PreparedMetric:
    rename = getattr(prepared.metric, "named", None)
    metric = rename(name) if callable(rename) else prepared.metric
    return dataclasses.replace(prepared, name=name, metric=metric)

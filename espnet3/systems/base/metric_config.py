"""The keys of a metrics config that the `measure` stage itself reads."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from espnet3.config.schema import FrozenConfig, Names, validate
from espnet3.config.sources import names_places
from espnet3.errors import ConfigError
from espnet3.systems.base.inference_config import check_some

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

OnMissing = Literal["raise", "skip", "count_as_deletions"]

_EXAMPLE = "metrics: [{metric: {_target_: espnet3.systems.asr.metrics.wer.WER}}]"


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
    """What is measured, and where its results are."""

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
    if not values.get("metrics"):
        raise ConfigError(f"The config lists no metrics, so nothing is measured. Write: {_EXAMPLE}")
    _check_form(values["metrics"])
    if not values.get("inference_dir"):
        raise ConfigError(
            "inference_dir is not set, so the results to measure are not known. Pass "
            "--inference_config conf/inference.yaml too, or write: inference_dir: FOLDER"
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

"""The block `report` of a metrics or inference config."""

from typing import TYPE_CHECKING

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from espnet3.config.schema import FrozenConfig, validate

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


class ReportConfig(FrozenConfig):
    """What the page shows of single utterances."""

    n_worst: NonNegativeInt = 20
    """Utterances with the most errors, over all test sets."""
    audio_megabytes: NonNegativeFloat = 6.0
    """Most that their audio may add to the page; 0 leaves it out."""
    audio_key: str = "speech"
    """The field of a sample that is played."""
    sample_rate: PositiveInt | None = None
    """Its rate in Hz, where neither the sample nor the durations of the dataset tell."""


def load_report_config(loaded: "LoadedConfig") -> ReportConfig:
    """Check the block; without one, all is as by default.

    Raises:
        ConfigError: one that lists every problem, with its place.
    """
    block = loaded.plain().get("report")
    return validate(ReportConfig, block, prefix="report", loaded=loaded)

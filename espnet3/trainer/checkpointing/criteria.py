"""`best_model_criterion`: which checkpoints are kept, and averaged."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import set_in
from espnet3.errors import ConfigError, suggest

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

KEY = "best_model_criterion"
_EXAMPLE = f"{KEY}: [[valid/loss, 3, min]]"


@dataclass(frozen=True)
class Criterion:
    """Keep the `k` checkpoints with the smallest or largest value of a metric."""

    monitor: str
    """Name of the metric, such as `valid/loss`."""
    k: int
    mode: str
    """`min` or `max`."""

    @property
    def stem(self) -> str:
        """Name of the averaged files without their ending: `valid.loss.ave_3best`."""
        return f"{self.monitor.replace('/', '.')}.ave_{self.k}best"

    def rank(self, value: float) -> float:
        """Return a number that is smaller for a better value."""
        return value if self.mode == "min" else -value

    def __str__(self) -> str:
        return f"{self.monitor} ({self.mode}, best {self.k})"


def parse_criteria(value: Any, loaded: "LoadedConfig | None" = None) -> tuple[Criterion, ...]:
    """Read `[[monitor, K, mode], ...]`; None and an empty list mean that only the last is kept.

    Raises:
        ConfigError: naming the entry, its place, and what to write.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{KEY} is {value!r}{set_in(KEY, loaded)}, no list. Write: {_EXAMPLE}")
    if value and isinstance(value[0], str):
        raise ConfigError(
            f"{KEY} is {list(value)}{set_in(KEY, loaded)}, one list, but must be a list of lists. "
            f"Write: {KEY}: [[{', '.join(map(str, value))}]]"
        )
    criteria = tuple(_criterion(entry, index, loaded) for index, entry in enumerate(value))
    for index, criterion in enumerate(criteria):
        if criterion.monitor in [c.monitor for c in criteria[:index]]:
            raise ConfigError(
                f"{KEY}{set_in(KEY, loaded)} names {criterion.monitor} twice. Keep one entry, with "
                "the larger number."
            )
    return criteria


def _criterion(entry: Any, index: int, loaded: "LoadedConfig | None") -> Criterion:
    key = f"{KEY}.{index}"
    start = f"{key} is {entry!r}{set_in(key, loaded)}, "
    if not isinstance(entry, list | tuple) or len(entry) != 3:
        raise ConfigError(f"{start}but needs metric, number and min or max. Write: {_EXAMPLE}")
    monitor, k, mode = entry
    if not isinstance(monitor, str) or not monitor:
        raise ConfigError(f"{start}but starts with no name of a metric. Write: {_EXAMPLE}")
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ConfigError(
            f"{start}but {k!r} is no number of checkpoints (1 or more). "
            f"Write: [{monitor}, 3, {mode}]"
        )
    if mode not in ("min", "max"):
        hint = suggest(str(mode), ("min", "max"))
        raise ConfigError(
            f"{start}but the mode {mode!r} is neither min nor max.{hint} "
            f"Write: [{monitor}, {k}, {'max' if 'acc' in monitor else 'min'}]"
        )
    return Criterion(monitor, k, mode)

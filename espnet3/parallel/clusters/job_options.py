"""What a job's cluster class is given: the user's options, and what makes them right by default."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


def complete_options(config: "ParallelConfig") -> dict[str, Any]:
    """Return the user's options, word for word, and what makes them right by default."""
    return dict(config.options)

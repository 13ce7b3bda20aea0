"""Numbers as the report writes them."""

from collections.abc import Sequence
from typing import Any

DASH = "\u2013"
NOTHING = DASH
"""What a table has where there is no number."""


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

"""Numbers as people read them in a log or on a plot."""

import math

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def duration(seconds: float) -> str:
    """Return a time span as people say it.

    Example:
        >>> duration(0.25), duration(7.1), duration(84), duration(7500)
        ('0.25 s', '7.1 s', '1 min 24 s', '2 h 05 min')
    """
    if seconds < 1:
        return f"{seconds:.2f} s"
    if round(seconds) < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 10:
        return f"{minutes} min {rest:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def amount(number: float) -> str:
    """Return a large count in three digits.

    Example:
        >>> amount(812), amount(29_812_345), amount(1.2e9)
        ('812', '29.8 M', '1.2 G')
    """
    for size, unit in _UNITS:
        if abs(number) >= size * 0.9995:
            return f"{_three_digits(number / size)} {unit}"
    return f"{number:,.0f}"


def _three_digits(value: float) -> str:
    text = f"{value:.3g}"
    return f"{value:.0f}" if "e" in text else text


def n_bytes(number: float) -> str:
    """Return a size such as `119 MB`."""
    return amount(number).rstrip() + ("B" if number >= 999.5 else " B")


def counted(number: int, noun: str) -> str:
    """Return such as `1 item` or `1,200 items`; `batch` becomes `batches`."""
    plural = "es" if noun.endswith(("tch", "s", "x")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def value_text(value: float) -> str:
    """Return a metric in four digits: `2.134`, `0.0312`, `1.5e-05`, `12,345`, `nan`."""
    if not math.isfinite(value):
        return str(float(value))
    if value == 0 or 1e-4 <= abs(value) < 9999.5:
        return f"{value:.4g}"
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e9 else f"{value:.3g}"


def share_text(value: float) -> str:
    """Return a share of 1 in percent; small ones keep a digit behind the point."""
    return f"{100 * value:.1f}%" if 0 < value < 0.0995 else f"{100 * value:.0f}%"

"""Text for people: counts, times, lists, ends of logs, texts of others.

The bottom module: it imports nothing of ours, and is on the start-up path of workers.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

TYPE_CHECKING = False  # what `typing.TYPE_CHECKING` is, without the import of `typing`
if TYPE_CHECKING:
    from typing import Any

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_N_LINES = 15
_N_BYTES = 20_000
_LONG_LINE = 4096
# Those of ASCII and Latin-1, among them \n, \r, \v, \f, \x1b and \x85; Unicode's own line ends; and
# halves of characters, which no file can hold and no terminal can show.
_CONTROL_CHARACTERS = "\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
# Patterns are compiled when they are first used: that would be half of what the import costs.
_CONTROL = f"[{_CONTROL_CHARACTERS}]"
# Marks that turn the direction of writing could hide what a line says.
_UNPRINTABLE = f"[{_CONTROL_CHARACTERS}\u202a-\u202e\u2066-\u2069]"


def count(number: int, noun: str) -> str:
    """Return such as `1 item`, `1,200 items` or `2 batches`."""
    plural = "es" if noun.endswith(("tch", "sh", "s", "x")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def part_of(number: int, total: int, noun: str, verb: str = "") -> str:
    """Return such as `3 of 8 jobs`, with a verb behind it, given as for one.

    Example:
        >>> part_of(1, 1, "job", "is"), part_of(3, 8, "job", "is"), part_of(1, 8, "job", "runs")
        ('1 of 1 job is', '3 of 8 jobs are', '1 of 8 jobs run')
    """
    many = {"is": "are", "was": "were", "has": "have"}.get(verb, verb.removesuffix("s"))
    verb = verb if total == 1 else many
    return f"{number:,} of {count(total, noun)}{' ' if verb else ''}{verb}"


def amount(number: float) -> str:
    """Return a large count in three digits.

    Example:
        >>> amount(812), amount(29_812_345), amount(1.2e9)
        ('812', '29.8 M', '1.2 G')
    """
    for size, unit in _UNITS:
        # What three digits would round up to the next unit is shown in it: 999,600 is 1 M.
        if abs(number) >= size * 0.9995:
            return f"{_three_digits(number / size)} {unit}"
    return f"{number:,.0f}"


def _three_digits(value: float) -> str:
    text = f"{value:.3g}"
    return f"{value:.0f}" if "e" in text else text


def n_bytes(number: float) -> str:
    """Return a size such as `119 MB`."""
    return amount(number) + ("B" if number >= 999.5 else " B")


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


def duration(seconds: float) -> str:
    """Return a time span as people say it.

    Example:
        >>> duration(0.25), duration(7.1), duration(84), duration(7500)
        ('0.25 s', '7.1 s', '1 min 24 s', '2 h 05 min')
    """
    if seconds < 1:
        return f"{seconds:.2f} s" if seconds else "0 s"
    # Rounded first, or 59.7 would be shown as 60 s.
    if round(seconds) < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 10 and rest:
        return f"{minutes} min {rest:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def hms(seconds: float) -> str:
    """Return a time span as schedulers write a walltime: `36:05:00`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"


def local_time(seconds: float) -> str:
    """Return a moment, in seconds since 1970, by the clock on the wall."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def utc_time(seconds: float) -> str:
    """Return a moment for comparison with that of another machine."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def listed(words: Iterable[object]) -> str:
    """Return a list as in a sentence.

    Example:
        >>> listed("abc"), listed("a")
        ('a, b and c', 'a')
    """
    *first, last = [str(word) for word in words] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def first_few(names: Iterable[object], most: int) -> str:
    """Return the first of many names, and how many more there are.

    Example:
        >>> first_few("abc", 3), first_few("abcdef", 2)
        ('a, b, c', 'a, b and 4 more')
    """
    words = [str(name) for name in names]
    rest = f" and {len(words) - most:,} more" if len(words) > most else ""
    return ", ".join(words[:most]) + rest


def folded(value: object) -> str:
    """Return a text, such as an error of another program, on one line: its white space folded."""
    return " ".join(str(value).split())


def first_line(value: object) -> str:
    """Return the first line of a text that is not empty; empty if there is none."""
    return str(value).strip().partition("\n")[0].rstrip()


def shortened(text: str, most: int) -> str:
    """Return a text, or its beginning and how much was left out."""
    if len(text) <= most:
        return text
    return f"{text[:most]} ... ({len(text) - most:,} more characters)"


def short_repr(value: object, most: int = 80) -> str:
    """Return the repr, cut in the middle to about `most` characters."""
    text, half = repr(value), most // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


def printable(text: str) -> str:
    """Return a text with control characters spelled out; line ends and tabs stay.

    Escape sequences in an error message must not steer the terminal, and a file name that is not
    UTF-8 could not be printed at all.
    """
    return re.sub(_UNPRINTABLE, lambda m: m[0] if m[0] in "\n\t" else _spelled(m[0]), text)


def on_one_line(value: object) -> str:
    r"""Return a value, such as a path or an error, as one printable line: with `\n` spelled out."""
    return re.sub(_UNPRINTABLE, lambda match: _spelled(match[0]), str(value))


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()


def has_control_characters(text: str) -> bool:
    r"""Tell whether a text has a line break or another control character.

    A line break in a name that goes into a job script becomes an option of its own for the
    scheduler; and not only `\n` breaks a line.
    """
    return re.search(_CONTROL, text) is not None


def first_control_character(text: str) -> str:
    r"""Return the first one as it would be typed, such as `\n`; empty if there is none."""
    found = re.search(_CONTROL, text)
    return _spelled(found[0]) if found else ""


def find_control_characters(
    value: Any, key: str = "", *, allowed: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the texts below a value that have such characters, each with its key, as in `a.b[0]`.

    Args:
        value: a text, or a mapping or list with such; what else it is does not count.
        key: its own.
        allowed: keys below which line breaks are meant.
    """
    if isinstance(value, str):
        if has_control_characters(value):
            yield key, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            if has_control_characters(str(name)):
                yield key or "a key", str(name)
            elif name not in allowed:
                yield from find_control_characters(each, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple | set | frozenset):
        for number, each in enumerate(value):
            yield from find_control_characters(each, f"{key}[{number}]")


def read_end(log: str | os.PathLike[str] | None, n_bytes: int = _N_BYTES) -> str:
    """Return the end of a file; empty if there is none, or it cannot be read."""
    if log is None or not os.path.isfile(log):  # a pipe would keep its reader waiting
        return ""
    try:
        with open(log, "rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - n_bytes, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_lines(log: str | os.PathLike[str] | None, n_lines: int = _N_LINES) -> list[str]:
    """Return the last lines of a file, without reading all of it; nothing if it cannot be read."""
    if log is None or not os.path.isfile(log):
        return []
    n_bytes = _N_BYTES
    lines = read_end(log).rstrip().splitlines()
    # A progress bar can make one line of a gigabyte: then the end of that line is enough.
    most = min(os.path.getsize(log), n_lines * _LONG_LINE)
    while len(lines) <= n_lines and n_bytes < most:
        n_bytes *= 4
        lines = read_end(log, n_bytes).rstrip().splitlines()
    return lines[-n_lines:]


def end_of_log(log: str | os.PathLike[str] | None, n_lines: int = _N_LINES) -> str:
    """Return the last lines of a log below its name, for an error message; empty if it has none."""
    lines = last_lines(log, n_lines)
    if log is None or not lines:
        return ""
    return f"\nThe end of {os.fspath(log)}:\n" + "\n".join(f"  {line}" for line in lines)

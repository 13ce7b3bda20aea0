r"""Characters that end a line, or steer a terminal, where only a word is meant.

A line break in a name that goes into a job script becomes an option of its own for the scheduler;
and not only `\n` breaks a line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

TYPE_CHECKING = False  # what `typing.TYPE_CHECKING` is, without the import of `typing`
if TYPE_CHECKING:
    from typing import Any

# Those of ASCII and Latin-1, among them \n, \r, \v, \f, \x1b and \x85; Unicode's own line ends; and
# halves of characters, which no file can hold.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def has_control_characters(text: str) -> bool:
    """Tell whether a text has a line break or another control character."""
    return _CONTROL.search(text) is not None


def first_control_character(text: str) -> str:
    r"""Return the first one as it would be typed, such as `\n`; empty if there is none."""
    found = _CONTROL.search(text)
    return found[0].encode("unicode_escape").decode() if found else ""


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

"""Read values as people write them elsewhere; each raises `Unfit` for what our key would refuse."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml


class Unfit(ValueError):
    """The value cannot be meant for the key; the message says what that takes."""


def keep(value: Any) -> Any:
    """Return it as it is."""
    return value


def number(value: Any) -> float | int:
    """Return an int or a float; `1e-3` is a text in YAML."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise Unfit(f"takes a number, and this is {value!r:.60}") from None


def whole(value: Any, least: int = 0) -> int:
    """Return an int of `least` or more."""
    found = number(value)
    if not abs(found) < 2**63 or int(found) != found:
        raise Unfit(f"takes a whole number, and this is {value!r:.60}")
    if found < least:
        raise Unfit(f"takes {least} or more, and this is {value!r:.60}")
    return int(found)


def count(value: Any) -> int:
    """Return an int of 1 or more."""
    return whole(value, least=1)


def positive(value: Any) -> float | int:
    """Return a number above 0."""
    found = number(value)
    if not 0 < found < float("inf"):
        raise Unfit(f"takes a number above 0, and this is {value!r:.60}")
    return found


def not_negative(value: Any) -> float | int:
    """Return a number of 0 or more."""
    found = number(value)
    if not 0 <= found < float("inf"):
        raise Unfit(f"takes a number of 0 or more, and this is {value!r:.60}")
    return found


_SWITCHES = {
    **dict.fromkeys(("true", "yes", "on", "1", ""), True),
    **dict.fromkeys(("false", "no", "off", "0", "none"), False),
}


def switch(value: Any) -> bool:
    """Return true or false; a shell option without a value means true."""
    if str(value).lower() not in _SWITCHES:
        raise Unfit(f"takes true or false, and this is {value!r:.60}")
    return _SWITCHES[str(value).lower()]


def text(value: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str | int | float) or isinstance(value, bool) or value == "":
        raise Unfit(f"takes a text, and this is {value!r:.60}")
    return str(value)


def names(value: Any) -> list[str]:
    """Read `a b`, `a,b` or a list."""
    parts = value if isinstance(value, list | tuple) else re.split(r"[\s,]+", str(value).strip())
    found = [str(part) for part in parts if str(part)]
    if not found:
        raise Unfit("takes a list of names")
    return found


def choice(*words: str) -> Callable[[Any], str]:
    """Return what takes one of these words only."""

    def chosen(value: Any) -> str:
        word = str(value).lower()
        if word not in words:
            raise Unfit(f"takes {' or '.join(words)}, and this is {value!r:.60}")
        return word

    return chosen


def pattern(form: str, example: str) -> Callable[[Any], str]:
    """Return what takes texts of one form."""

    def matched(value: Any) -> str:
        if not re.fullmatch(form, text(value), re.IGNORECASE):
            raise Unfit(f"takes texts such as {example}, and this is {value!r:.60}")
        return text(value)

    return matched


def built(value: Any) -> Any:
    """Return a `_target_`, or a list of such."""
    nodes = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(node, Mapping) and "_target_" in node for node in nodes):
        raise Unfit(f"takes classes by their _target_, and this is {value!r:.60}")
    return value


def mapping(value: Any) -> Any:
    """Return a block of keys."""
    if not isinstance(value, Mapping):
        raise Unfit(f"takes a block of keys, and this is {value!r:.60}")
    return value


def share(value: Any) -> float | int:
    """Return a number between 0 and 1."""
    found = positive(value)
    if found >= 1:
        raise Unfit(f"takes a number between 0 and 1, and this is {value!r:.60}")
    return found


def function(value: Any) -> Any:
    """Return a dotted path, or a `_target_`."""
    if isinstance(value, Mapping) or re.fullmatch(r"\w+(\.\w+)+", str(value)):
        return built(value) if isinstance(value, Mapping) else value
    raise Unfit(f"takes a dotted path such as src.data.collate, and this is {value!r:.60}")


def existing(value: Any) -> str:
    """Return the path of a file that is there."""
    if not Path(text(value)).exists():
        raise Unfit(f"takes a file, and {value!r:.200} does not exist")
    return text(value)


def trial(value: Any) -> bool | int:
    """Return what `fast_dev_run` takes."""
    return switch(value) if str(value).lower() in ("true", "false") else count(value)


def lines(value: Any) -> list[str]:
    """Return a list of texts, of which one may stand alone."""
    return [text(part) for part in (value if isinstance(value, list | tuple) else [value])]


def flow(value: Any) -> str:
    """Return a value as YAML on one line, to stand after `key=` or `key: `."""
    is_plain = not isinstance(value, Mapping | list | tuple)
    # A text such as cuda:1 needs quotes within braces only.
    options: dict[str, Any] = {} if is_plain else {"default_flow_style": True}
    try:
        shown = yaml.safe_dump(value, width=100_000, sort_keys=False, allow_unicode=True, **options)
    except yaml.YAMLError:  # no plain value
        return "..."
    line = str(shown).strip().removesuffix("\n...")
    return line if "\n" not in line else "..."

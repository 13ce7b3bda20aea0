"""Overrides from the command line: `key.path=value`, with the value read as YAML."""

from dataclasses import dataclass
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from espnet3.config.files import quote_times
from espnet3.config.limits import MOST_LEVELS, compose
from espnet3.config.redact import redact, redact_command
from espnet3.config.sources import Source, dotted
from espnet3.errors import ConfigError


@dataclass(frozen=True)
class Override:
    """One parsed override."""

    text: str
    path: tuple[str, ...]
    value: Any

    @property
    def source(self) -> Source:
        """The place to name in errors and in what is saved, so without secrets."""
        return Source(f"command line: {redact_command([self.text])[0]}")


def parse_override(text: str) -> Override:
    """Parse `key.path=value`; `a=` is the empty string and `a=null` is None.

    Raises:
        ConfigError: There is no `=`, no key, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if key[:1] in {"+", "~"}:
        raise ConfigError(
            f"Override {text!r} begins with {key[0]!r}, which is not needed here: "
            "a new key is added as it is.",
            fix=f"Write: {key.lstrip('+~')}={value}",
        )
    path = tuple(dotted(key).split("."))
    if not equals or not all(path):
        example = f"{key}=VALUE" if key and not equals and all(path) else "parallel.n_workers=4"
        raise ConfigError(
            f"Override {text!r} is not of the form key.path=value.",
            fix=f"Write, for example: {example}",
        )
    if len(path) > MOST_LEVELS:
        raise ConfigError(
            f"Override {text!r:.80}... sets a key of {len(path):,} parts, and {MOST_LEVELS} is the "
            "most. Is a dot too many?"
        )
    return Override(text, path, _parse_value(text, key, value))


def _parse_value(text: str, key: str, value: str) -> Any:
    if not value.strip():
        return ""
    try:
        root = compose(value, f"the override {text:.80}")
        parsed = OmegaConf.from_dotlist([f"value={quote_times(value, root)}"])
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError) as error:
        raise ConfigError(
            f"The value of the override {text!r:.300} is not valid YAML.",
            fix=f"Quote it twice, for the shell and for YAML: '{key}=\"{value:.300}\"'",
        ) from error
    return OmegaConf.to_container(parsed)["value"]  # type: ignore[call-overload, index]


def as_patch(override: Override, current: Any) -> Any:
    """Return the mapping to merge into `current` (plain containers) to apply the override.

    Lists replace lists in a merge, so an index into a list gives a changed copy of that list.
    """
    return _patch(current, override.path, override)


def _patch(current: Any, path: tuple[str, ...], override: Override) -> Any:
    if not path:
        return override.value
    head, rest = path[0], path[1:]
    if isinstance(current, list):
        return _patched_list(current, path, override)
    if isinstance(current, dict):
        # The key may be a number in YAML: `speakers: {1: anna}`.
        known = next((key for key in current if str(key) == head), head)
        return {known: _patch(current.get(known), rest, override)}
    if current is None or _is_placeholder(current):
        return {head: _patch(None, rest, override)}
    parent = ".".join(override.path[: -len(path)])
    shown = redact({parent: current})[parent]
    raise ConfigError(
        f"Override {override.text!r} sets a key below {parent}, but {parent} is {shown!r}.",
        fix=f"Write: {parent}=VALUE",
    )


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, str) and (value == "???" or value.startswith("${"))


def _patched_list(current: list[Any], path: tuple[str, ...], override: Override) -> list[Any]:
    if not path[0].isdigit() or int(path[0]) >= len(current):
        parent = ".".join(override.path[: -len(path)])
        raise ConfigError(
            f"Override {override.text!r}: {parent} is a list of {len(current)}, which has no item "
            f"{path[0]!r}. Count from 0, or give the whole list: {parent}=[...]"
        )
    index = int(path[0])
    item = _patch(current[index], path[1:], override)
    if isinstance(current[index], dict) and isinstance(item, dict):
        item = OmegaConf.to_container(OmegaConf.merge(current[index], item))
    return [*current[:index], item, *current[index + 1 :]]

"""Say why an interpolation cannot be resolved: which key, set where, and what to write instead."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from omegaconf import Container, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from espnet3.config.merge import keys_in, value_at
from espnet3.config.resolvers import suggest_resolver
from espnet3.config.sources import absolute_key, dotted, self_and_parents, set_in
from espnet3.errors import suggest
from espnet3.text import first_line

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_REFERENCE = re.compile(r"\$\{\s*([\w$-][\w$.\[\]-]*)\s*\}")
_GENERAL_HINT = (
    r" Set the key that it refers to; for a literal ${X}, as in a shell command, write \${X}; "
    "for an environment variable, ${oc.env:X}."
)


def explain(
    error: OmegaConfBaseException, config: Any, prefix: str, loaded: "LoadedConfig | None"
) -> str:
    """Return one line about the key that OmegaConf failed on.

    Args:
        error: What resolving `config` raised.
        config: A DictConfig or ListConfig, maybe a part of a larger one.
        prefix: Dotted key of `config`, if it was cut out of the larger one.
        loaded: Where the config comes from, so that the line names file and line.
    """
    root = config._get_root()
    plain = OmegaConf.to_container(root)
    known = set(keys_in(plain))
    at_fault = _follow(root, plain, _existing(dotted(error.full_key or ""), known), ())
    key = absolute_key(at_fault, prefix, loaded)
    reason = _reason(first_line(error), known, at_fault, loaded)
    return f"{key}{set_in(key, loaded)} cannot be resolved: {reason}"


def _existing(key: str, known: set[str]) -> str:
    """Return the key, or the parent that is an interpolation and so should have held it."""
    return next((k for k in self_and_parents(key) if k in known), key)


def _follow(root: Any, plain: Any, key: str, seen: tuple[str, ...]) -> str:
    """Return the key at the end of the chain of references that begins at `key`."""
    known = set(keys_in(plain))
    for name in _references(value_at(plain, key)):
        if failed := _failed(root, name):
            end = _existing(failed, known)
            return key if end in (*seen, key) else _follow(root, plain, end, (*seen, key))
    return key


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from (dotted(name) for name in _REFERENCE.findall(value))


def _failed(root: Any, name: str) -> str | None:
    """Return the key that fails when `name` is read."""
    try:
        value = OmegaConf.select(root, name)
        if isinstance(value, Container):
            OmegaConf.to_container(value, resolve=True)
    except OmegaConfBaseException as error:
        return dotted(error.full_key or name)
    return None


def _reason(message: str, known: set[str], key: str, loaded: "LoadedConfig | None") -> str:
    """Return what is wrong and how to mend it."""
    kind, _, reason = message.rpartition(" while resolving interpolation: ")
    if kind == "ConfigError raised":  # by a resolver of ours, which says how
        return reason
    if match := re.match(r"Interpolation key '(.*)' not found", reason):
        return f"{reason}.{_close_key(match[1], known, key) or _GENERAL_HINT}"
    if match := re.match(r"Missing mandatory value: (.*)", reason):
        return _open_value(dotted(match[1]), loaded)
    if match := re.match(r"Unsupported interpolation type (.*)", reason):
        return f"there is no resolver {match[1]!r}.{suggest_resolver(match[1])}"
    if match := re.match(r"\"?Environment variable '(.*)' not found", reason):
        return (
            f"the environment variable {match[1]} is not set. Run: export {match[1]}=VALUE, or "
            f"give a default: ${{oc.env:{match[1]},DEFAULT}}"
        )
    if reason == "Recursive interpolation detected":
        return "it refers to itself, directly or in a circle. Write a value without ${...}"
    return f"{reason.rstrip('.')}.{_GENERAL_HINT}"


def _close_key(name: str, known: set[str], key: str) -> str:
    others = known - {key}
    # As a relative reference, such as ${.name} or ${..name}, spells them.
    near = {
        other.removeprefix(f"{parent}.") for parent in self_and_parents(key) for other in others
    }
    return suggest(dotted(name), others | near)


def _open_value(name: str, loaded: "LoadedConfig | None") -> str:
    parent, _, last = name.rpartition(".")
    where = f" under {parent}" if parent else ""
    return f"it refers to {name}, which is '???'{set_in(name, loaded)}. Write{where}: {last}: VALUE"

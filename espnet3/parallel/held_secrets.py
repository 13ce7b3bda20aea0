"""Find secrets that a provider holds, to redact them from errors.

An exception may say with which token it was refused. Its message and traceback are written to
`failed.jsonl` and to logs, which others can read, and are shown by several commands.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

_MAX_DEPTH = 6
_MAX_PARTS = 1000  # of one container: longer ones are data
_MAX_VALUES = 20_000
_PLAIN = (int, float, complex, bytes, bytearray, type(None), type, ModuleType)


def secrets_held(*things: Any) -> frozenset[str]:
    """Return the texts that objects, dicts, configs and functions hold under names of secrets.

    Attributes, keys, arguments of `functools.partial`, and what a function has taken from around
    it; a few levels deep.
    """
    from espnet3.config.redact import is_secret, secrets_in  # not on the start-up path of workers

    found: set[str] = set()
    for name, value in _named_values(things):
        if isinstance(value, str) and is_secret(name):
            found |= secrets_in({name: value})
    return frozenset(found)


def _named_values(things: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Yield what is reachable, each with the name under which it is."""
    todo: list[tuple[str, Any, int]] = [("", thing, 0) for thing in things]
    seen: set[int] = set()
    n_values = 0
    while todo and n_values < _MAX_VALUES:
        name, value, depth = todo.pop()
        n_values += 1
        if isinstance(value, str):
            yield name, value
        elif depth < _MAX_DEPTH and not isinstance(value, _PLAIN) and id(value) not in seen:
            seen.add(id(value))
            todo += [(key, child, depth + 1) for key, child in _children(name, value)]


def _children(name: str, value: Any) -> list[tuple[str, Any]]:
    try:
        return list(islice(_parts(name, value), _MAX_PARTS))
    except Exception:  # an object of the user's that does not like to be looked at
        return []


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if type(value).__module__.startswith("omegaconf."):
        from omegaconf import OmegaConf

        value = OmegaConf.to_container(value, resolve=True)
    if isinstance(value, dict):  # other mappings may read files at each step
        yield from ((str(key), child) for key, child in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((name, child) for child in value)  # named like the list
    elif isinstance(value, MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, partial):
        yield from [(name, value.func), (name, value.args), ("", value.keywords)]
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        yield from ((variable, cell.cell_contents) for variable, cell in cells)
        yield from (("", value.__kwdefaults__ or {}),)
    else:
        yield from vars(value).items()

"""Find keys that are misspelt or stand in the wrong block.

A recipe may add top-level keys of its own, so an unknown one is refused only where it was surely
meant otherwise: nothing refers to it, and it is close to a known one, or a block has it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from espnet3.config.advice import Advice, advise, is_override, yaml_line
from espnet3.config.redact import redact
from espnet3.config.sources import dotted, join_key
from espnet3.errors import ConfigError, closest

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_REFERENCE = re.compile(
    r"\$\{\s*(?:oc\.(?:select|dict\.keys|dict\.values)\s*:\s*)?"
    r"\.*([\w$-]+(?:[.\[][\w-]+\]?)*)"
)
_CLOSE = 0.8
_LONGEST_LINE = 100


def check_keys(
    loaded: "LoadedConfig",
    known: Collection[str],
    *,
    homes: Mapping[str, str],
    stages: Collection[str] = (),
) -> None:
    """Refuse top-level keys that are misspelt or belong into a block.

    Args:
        loaded: The config of a recipe.
        known: The top-level keys that are read.
        homes: The block that a key belongs under, such as `{"n_workers": "parallel"}`; the block
            may be a dotted key.
        stages: Names of those that read the config; what a key means may depend on them.

    Raises:
        ConfigError: With the line to write for each such key.
    """
    values = redact(loaded.config)
    own = {*(key.partition(".")[0] for key in references(loaded)), *known}
    problems = list[str]()
    for key in (key for key in values if str(key) not in own):
        close = closest(str(key), sorted(known), cutoff=_CLOSE)
        # A word of others comes first: inference_nj is no slip of inference_dir.
        is_foreign = close and stages and advise((str(key),), values[key], stages) is not None
        if str(key) in homes or is_foreign:
            home = homes.get(str(key), "")
            problems.append(_misplaced(loaded, str(key), values[key], home, stages))
        elif close:
            problems.append(_misspelt(loaded, str(key), values[key], close, stages))
    raise_any(problems)


def check_block(
    loaded: "LoadedConfig", block: str, homes: Mapping[str, str], stages: Collection[str] = ()
) -> None:
    """Refuse keys in a block that belong under another, such as `n_workers` in `trainer`.

    Args:
        loaded: The config of a recipe.
        block: A top-level key; there is nothing to refuse where it is not set or no mapping.
        homes: As for `check_keys`.
        stages: As for `check_keys`.

    Raises:
        ConfigError: With the line to write for each such key.
    """
    from omegaconf import OmegaConf

    node = OmegaConf.select(loaded.config, block, throw_on_resolution_failure=False)
    values = redact(node) if isinstance(node, Mapping) else {}
    raise_any(
        [
            _misplaced(loaded, join_key(block, key), value, homes[key], stages)
            for key, value in values.items()
            if homes.get(key, block) != block
        ]
    )


def references(loaded: "LoadedConfig") -> dict[str, set[str]]:
    """Return the dotted keys that interpolations refer to, each with the top-level keys that do."""
    from omegaconf import OmegaConf

    values: Any = OmegaConf.to_container(loaded.config)
    found: dict[str, set[str]] = {}
    for key, value in values.items():
        for name in _references(value):
            found.setdefault(dotted(name), set()).add(str(key))
    return found


def _references(values: Any) -> Iterator[str]:
    """Yield each key that an interpolation refers to."""
    if isinstance(values, str):
        yield from _REFERENCE.findall(values)
    elif isinstance(values, dict | list):
        for child in values.values() if isinstance(values, dict) else values:
            yield from _references(child)


def _misplaced(
    loaded: "LoadedConfig", key: str, value: Any, home: str, stages: Collection[str]
) -> str:
    start = f"{key} in {loaded.source_of(key)}"
    name = key.rpartition(".")[2]
    advice = advise(tuple(key.split(".")), value, stages, has=loaded.has)
    if advice is not None and not advice.key:
        return f"{start}: {advice.why}"
    advice = advice or Advice(f"{home}.{name}", value, "")
    home, _, right = advice.key.rpartition(".")
    where = f"belongs under {home}" if home else "belongs at the top"
    called = f", where it is called {right}" if right != name else ""
    if home == key.rpartition(".")[0]:
        where, called = f"is called {right}", ""
    line = advice.override() if is_override(key, loaded) else advice.line()
    line = " and ".join(line.splitlines())
    if len(line) > _LONGEST_LINE:
        parts = advice.key.split(".")
        line = ": {".join(parts) + ": ..." + "}" * (len(parts) - 1)
    return f"{start} {where}{called}. Write: {line}"


def _misspelt(
    loaded: "LoadedConfig", key: str, value: Any, right: str, stages: Collection[str]
) -> str:
    start = f"{key} in {loaded.source_of(key)} is not a known key. Did you mean {right!r}?"
    # Spelled right, it may still be a key of another stage.
    advice = advise((right,), value, stages, has=loaded.has) if stages else None
    if advice is not None and not advice.key:
        return f"{start} {advice.why}"
    if is_override(key, loaded) or advice is not None:
        advice = advice or Advice(right, value, "")
        line = advice.override() if is_override(key, loaded) else advice.line()
    else:
        line = yaml_line(right, value)
    return f"{start} Write: {line if len(line) <= _LONGEST_LINE else f'{right}: ...'}"


def raise_any(problems: Sequence[str]) -> None:
    """Raise one error with all problems, if there are any.

    Raises:
        ConfigError: with a line for each.
    """
    if problems:
        raise as_error(problems)


def as_error(problems: Sequence[str]) -> ConfigError:
    """Return one error with a line for each problem; the fix of a single one is its fix."""
    if len(problems) == 1:
        return ConfigError(problems[0])
    return ConfigError(f"{len(problems)} problems:\n" + "\n".join(f"- {p}" for p in problems))

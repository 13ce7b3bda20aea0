"""Refuse keys that are misspelt or stand in the wrong block, and suggest what to write instead.

A key may be another toolkit's word, stand in the wrong block, or be meant for another stage:
`trainer` is for training, `parallel` for the workers of runners, which people confuse most. The
words themselves are in `config.words`. A recipe may add top-level keys of its own, so an unknown
one is refused only where it was surely meant otherwise: nothing refers to it, and it is close to a
known one, or a block has it.
"""

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from espnet3.commands import is_typed_below, same_command
from espnet3.config.foreign_keys import BLOCKS, WORDS
from espnet3.config.known_keys import ALL, OWN, READERS, SIZES, Unfit, UnfitKey, flow
from espnet3.config.redact import redact
from espnet3.config.resolve import REFERENCE
from espnet3.config.sources import add_place, dotted, join_key
from espnet3.config.value_translations import Has, Place, Rule, Settings, env_for, to
from espnet3.errors import ConfigError, Note, closest
from espnet3.text import listed

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


_CLOSE = 0.8
"""Of a misspelt key to a known one; lower, keys of a recipe's own would be refused."""
_LONGEST_LINE = 100


@dataclass(frozen=True)
class Advice:
    """The setting of ours for a word that is not, or why there is none."""

    key: str
    """Dotted; empty if there is no counterpart."""
    value: Any
    """The value to write there, translated where the unit differs."""
    why: str
    """One sentence; where there is no key, it says what to do instead."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further keys that belong to it, such as `parallel.env` to the number of GPUs."""

    @property
    def settings(self) -> Settings:
        """All keys and values; none if there is no counterpart."""
        return {self.key: self.value, **self.more} if self.key else {}

    def override(self) -> str:
        """Return `parallel.n_workers=8`, as one types it into a shell; empty without a key."""
        return " ".join(map(shlex.quote, self.overrides()))

    def in_place_of(self, key: str) -> str:
        """Return the line that was typed, with this in place of an override of another key."""
        # As it was typed: `optimizer={lr: 1}` would be read, but is not what the user wrote.
        settings = _leaves(self.settings) if is_typed_below(key) else self.settings
        return same_command(*_overrides(settings), without=[key])

    def overrides(self) -> list[str]:
        """Return an override for each setting, not quoted."""
        return _overrides(self.settings)

    def line(self) -> str:
        """Return `parallel: {n_workers: 8}` as YAML; empty without a key."""
        tree: dict[str, Any] = {}
        for key, value in self.settings.items():
            *above, last = key.split(".")
            node = tree
            for part in above:
                node = node.setdefault(part, {})
            node[last] = value
        # One line for each top-level key: a file has no braces around them.
        return "\n".join(f"{key}: {flow(value)}" for key, value in tree.items())


def _overrides(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={flow(value)}" for key, value in settings.items()]


def _leaves(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by dotted keys, without mappings but empty ones."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= _leaves({f"{key}.{name}": child for name, child in value.items()})
        else:
            found[key] = value
    return found


def advise(
    path: tuple[str, ...],
    value: Any,
    stages: Collection[str],
    *,
    has: Callable[[str], bool] | None = None,
) -> Advice | None:
    """Say what to write for a key that the stages do not read where it stands.

    Args:
        path: the key as it was written, such as `("nj",)` or `("parallel", "num_workers")`.
        value: as it was written.
        stages: names of those that run; none if it is not known.
        has: returns whether the config has a dotted key.

    Returns:
        None for a word that is not known, and for a key that is right as it is.

    Example:
        >>> advise(("nj",), 8, ["infer"]).override()
        'parallel.n_workers=8'
        >>> advise(("devices",), 2, ["infer"]).line()
        'parallel: {n_workers: 2, env: local_gpu}'
        >>> advise(("devices",), 2, ["train"]).line()
        'trainer: {devices: 2}'
    """
    path = tuple(str(part) for part in path)
    known = [stage for stage in stages if stage in ALL]
    if not path or _is_right(path, value, known):
        return None
    rule = _rule_for(path)
    if rule is None:
        return _unread(path, known)
    # The value goes into a message, and from there into logs.
    shown = redact({path[-1]: value})[path[-1]]
    return _apply(rule, path, shown, known, has or _has_nothing)


def _has_nothing(key: str) -> bool:
    return False


def _is_right(path: tuple[str, ...], value: Any, stages: Collection[str]) -> bool:
    """Tell whether the stages read this key, so that only its value can be wrong."""
    block, name = _split(path)
    if (block, name) == ("parallel", "env") and env_for(value) not in (None, value):
        return False  # a word for one of ours; others may be registered
    readers = READERS.get(path[0], ())
    is_read = not stages or not set(readers).isdisjoint(stages)
    return is_read and name in OWN.get(block, ())


def _split(path: tuple[str, ...]) -> tuple[str, str]:
    """Return the block, without places in lists, and the word as it is looked up."""
    *above, last = path
    return ".".join(part for part in above if not part.isdigit()), last.replace("-", "_")


def _rule_for(path: tuple[str, ...]) -> Rule | None:
    block, name = _split(path)
    found = BLOCKS.get(block, {}).get(name) or WORDS.get(name) or WORDS.get(name.lower())
    if found is None and block and name in READERS:
        return (Place(READERS[name], to(name), "It stands at the top, in no other block."),)
    return found


def _unread(path: tuple[str, ...], stages: Collection[str]) -> Advice | None:
    """Return the advice for a key of ours that the stages do not read."""
    readers = READERS.get(path[0])
    if readers is None or not stages or not set(readers).isdisjoint(stages):
        return None
    return Advice("", None, f"{path[0]} is read by {listed(readers)}, not by {listed(stages)}.")


def _apply(
    rule: Rule, path: tuple[str, ...], value: Any, stages: Collection[str], has: Has
) -> Advice | None:
    fitting = [place for place in rule if not stages or not set(place.stages).isdisjoint(stages)]
    place = (fitting or rule)[0]
    answer = _translate(place, path, value, has)
    if isinstance(answer, str):
        return Advice("", None, answer)
    if not fitting:
        return _for_others(place, path, answer, stages)
    # What is said of loaders holds for both, if the second is not to be as the first.
    if path[:2] == ("dataloader", "valid") and any(has(f"dataloader.valid.{n}") for n in SIZES):
        answer = {k.replace("dataloader.train.", "dataloader.valid."): answer[k] for k in answer}
    (key, right), *more = answer.items()
    if key == ".".join(path) and right == value and not more:
        return None
    return Advice(key, right, place.why, dict(more))


def _translate(place: Place, path: tuple[str, ...], value: Any, has: Has) -> Settings | str:
    """Return our settings for a value, or the sentence that says why there are none."""
    try:
        return place.way(value, has)
    except UnfitKey as unfit:
        return str(unfit)
    except Unfit as unfit:
        return f"{'.'.join(path)} {unfit}."


def _for_others(
    place: Place, path: tuple[str, ...], answer: Settings, stages: Collection[str]
) -> Advice:
    """Return the advice for a word that means nothing in the stages that run."""
    key, value = next(iter(answer.items()))
    text = Advice(key, value, "").override()
    name, readers = ".".join(path), listed(place.stages)
    why = f"{name} means nothing to {listed(stages)}; {readers} would read {text}."
    return Advice("", None, why)


def did_you_mean(
    key: str, value: Any, known: Iterable[str], loaded: "LoadedConfig | None" = None
) -> str:
    """Return what to write for a key that its block does not know, with a space before it.

    Another toolkit's word goes before a similar spelling: `gpus` is no slip of `plugins`.

    Args:
        key: dotted, from the top of the config.
        value: that was given.
        known: the keys of the block.
        loaded: where it comes from.

    Returns:
        An empty string if nothing comes near.
    """
    known = list(known)
    *above, name = key.split(".")

    def has(other: str) -> bool:
        return loaded is not None and other != key and loaded.has(other)

    advice = advise((*above, name), value, _stages_of(above, loaded), has=has)
    block = ".".join(above)
    if advice is not None and _can_be(advice, block, known):
        return _worded(advice, key, block, loaded)
    close = closest(name, known)
    if close is None:
        return ""
    line = yaml_line(close, value)
    if is_override(key, loaded):
        line = Advice(join_key(block, close), value, "").in_place_of(key)
    return f" Did you mean {close!r}? Write: {line}"


def _stages_of(above: list[str], loaded: "LoadedConfig | None") -> tuple[str, ...]:
    """Return the stage that a block is for first of all: for others, a line might be refused."""
    block = above[0] if above else ""
    if block in READERS or loaded is None:
        return READERS.get(block, ())[:1]
    trains = loaded.has("optimizer") or loaded.has("optimizers")
    return ("train",) if trains else ("infer",)


def _can_be(advice: Advice, block: str, known: Collection[str]) -> bool:
    """Tell whether the line would be accepted: what is in the same block must be known there."""
    home, _, name = advice.key.rpartition(".")
    return home != block or not advice.key or name in known


def _worded(advice: Advice, key: str, block: str, loaded: "LoadedConfig | None") -> str:
    if not advice.key:
        return f" {advice.why}"
    home, _, name = advice.key.rpartition(".")
    if is_override(key, loaded):
        return f" {advice.why} Write: {advice.in_place_of(key)}".replace("  ", " ")
    if home == block and not advice.more:
        return f" Did you mean {name!r}? Write: {yaml_line(name, advice.value)}"
    return f" {advice.why} Write: {' and '.join(advice.line().splitlines())}".replace("  ", " ")


def is_override(key: str, loaded: "LoadedConfig | None") -> bool:
    """Tell whether a key was typed into a shell, so that the answer can be as well."""
    return loaded is not None and loaded.is_typed(key)


def yaml_line(key: str, value: object) -> str:
    """Return `key: value` as a line of YAML to paste."""
    import yaml  # here: only what is wrong needs it

    is_scalar = not isinstance(value, Mapping | list | tuple | set)
    try:
        style = False if is_scalar else None
        # A width of its own: PyYAML folds at 80 columns.
        text = yaml.safe_dump({key: value}, default_flow_style=style, width=1000).strip()
    except yaml.YAMLError:
        text = "\n"
    return f"{key}: ..." if "\n" in text else str(text)


def check_top_level_keys(
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
    problems = list[str]()  # a Note where there is a line to write
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
        homes: As for `check_top_level_keys`.
        stages: As for `check_top_level_keys`.

    Raises:
        ConfigError: With the line to write for each such key.
    """
    from omegaconf import OmegaConf

    # An interpolation that leads nowhere is reported where the block is read.
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
        yield from (name.lstrip(".") for name in REFERENCE.findall(values))
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
    is_typed = is_override(key, loaded)
    line = advice.in_place_of(key) if is_typed else advice.line()
    line = " and ".join(line.splitlines())
    if len(line) > _LONGEST_LINE and not is_typed:
        parts = advice.key.split(".")
        line = ": {".join(parts) + ": ..." + "}" * (len(parts) - 1)
    return Note(f"{start} {where}{called}.", fix=f"Write: {line}")


def _misspelt(
    loaded: "LoadedConfig", key: str, value: Any, right: str, stages: Collection[str]
) -> str:
    start = f"{key} in {loaded.source_of(key)} is not a known key."
    meant = f"Did you mean {right!r}?"
    # Spelled right, it may still be a key of another stage.
    advice = advise((right,), value, stages, has=loaded.has) if stages else None
    if advice is not None and not advice.key:
        return Note(start, fix=f"{meant} {advice.why}")
    if is_override(key, loaded) or advice is not None:
        advice = advice or Advice(right, value, "")
        line = advice.in_place_of(key) if is_override(key, loaded) else advice.line()
    else:
        line = yaml_line(right, value)
    is_short = len(line) <= _LONGEST_LINE or is_override(key, loaded)
    line = line if is_short else f"{right}: ..."
    return Note(start, fix=f"{meant} Write: {line}")


def raise_any(problems: Sequence[str]) -> None:
    """Raise one error with all problems, if there are any.

    Raises:
        ConfigError: with a line for each.
    """
    if problems:
        raise as_error(problems)


def raise_together(errors: Sequence[ConfigError]) -> None:
    """Raise errors about several keys of the config at hand as one, if there are any.

    Raises:
        ConfigError: the only one, or one with a line for each.
    """
    if len(errors) == 1:
        raise errors[0]
    for error in errors:
        add_place(error)
    raise_any([problem for error in errors for problem in split_problems(str(error))])


def split_problems(text: str) -> list[str]:
    """Return the problems of an error that may list several."""
    head, _, rest = text.partition("\n- ")
    return rest.split("\n- ") if rest and head.endswith(" problems:") else [text]


def as_error(problems: Sequence[str]) -> ConfigError:
    """Return one error with a line for each problem; the fix of a single one is its fix."""
    if len(problems) == 1:
        return ConfigError(problems[0])
    return ConfigError(f"{len(problems)} problems:\n" + "\n".join(f"- {p}" for p in problems))

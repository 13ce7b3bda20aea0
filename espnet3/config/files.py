"""Read YAML files: values, the line of each key, and the files that a `defaults` list pulls in.

A few hundred bytes of YAML can stand for gigabytes, by aliases: all is counted before it is built.
"""

import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from espnet3.commands import corrected_command
from espnet3.config.resolve import MOST_LEVELS, RunNames, bind
from espnet3.config.sources import Layer, Source, dotted, find_source, join_key
from espnet3.config.trust import checked_path, current_trust
from espnet3.errors import ConfigError
from espnet3.text import first_line

_MERGE_TAG = "tag:yaml.org,2002:merge"
_INTEGER_TAG = "tag:yaml.org,2002:int"
_MOST_VALUES = 100_000
_MOST_CHARACTERS = 10_000_000


def read_file(path: Path) -> Layer:
    """Read a file; an empty one is an empty config.

    Raises:
        ConfigError: The file is missing, not UTF-8, not YAML, not a mapping, sets a key twice, or
            would grow too large by its aliases.
    """
    text = _read_text(path)
    try:
        parsed = _parse(text, path)
    except yaml.YAMLError as error:
        raise ConfigError(_syntax_message(error, path)) from error
    except (ValueError, RecursionError, OverflowError) as error:  # such as an endless number
        raise ConfigError(
            f"{path} has a value that cannot be read ({error!s:.200}).",
            fix="Quote it, or write it in another way.",
        ) from error
    return Layer(copy.deepcopy(parsed.values), dict(parsed.sources))


# A recipe loads each file three times: by itself, with its experiment, and to see what kind it is.
@lru_cache(maxsize=32)
def _parse(text: str, path: Path) -> Layer:
    root = compose(text, path)
    if root is None or _is_null(root):
        return Layer()
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(
            f"{path} holds {_kind(root)}, but a configuration is a mapping.",
            fix="Write: key: value",
        )
    # From the nodes, because OmegaConf drops the lines of what it reads.
    sources = dict(_walk(root, "", path, ()))
    try:
        values: Any = OmegaConf.to_container(OmegaConf.create(quote_times(text, root)))
    except OmegaConfBaseException as error:
        _raise_bad_value(error, sources, path)
    return Layer(values, sources)


def compose(text: str, name: object) -> yaml.Node | None:
    """Parse YAML into nodes, without following its aliases.

    Args:
        text: The YAML.
        name: Of its file, for the errors.

    Raises:
        ConfigError: It is nested too deeply, or has too many values, those of aliases counted.
        yaml.YAMLError: It is no YAML.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(
            f"{name} has {len(text):,} characters, but a config has {_MOST_CHARACTERS:,} at most.",
            fix="Put data into a file of its own, and name that.",
        )
    loader = _Composer(text, name)
    try:
        node: yaml.Node | None = loader.get_single_node()
        return node
    finally:
        loader.dispose()


class _Composer(yaml.SafeLoader):
    """Counts what the nodes stand for while they are made, so that none is followed twice."""

    def __init__(self, text: str, name: object) -> None:
        super().__init__(text)
        self._name = name
        self._level = 0
        self._known: dict[int, tuple[int, int]] = {}
        """Values and levels of each node, by its id; they live as long as the tree does."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        line = self.peek_event().start_mark.line + 1
        is_alias = self.check_event(yaml.AliasEvent)
        self._level += 1
        self._check_levels(self._level, line)
        node: yaml.Node | None = super().compose_node(parent, index)
        if node is not None and not is_alias:
            self._known[id(node)] = self._count(node)
        # A node that contains itself is not known yet, and is refused by the walk over the tree.
        n_values, n_levels = self._known.get(id(node), (1, 1))
        self._check_levels(self._level + n_levels - 1, line)
        if n_values > _MOST_VALUES:
            raise ConfigError(
                f"{self._name}:{line} stands for {n_values:,} values, those of its aliases (*name) "
                f"counted, but a config has {_MOST_VALUES:,} at most.",
                fix="Put data into a file of its own, and name that.",
            )
        self._level -= 1
        return node

    def _count(self, node: yaml.Node) -> tuple[int, int]:
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        else:
            children = node.value if isinstance(node, yaml.SequenceNode) else []
        counts = [self._known.get(id(child), (1, 1)) for child in children]
        return 1 + sum(n for n, _ in counts), 1 + max((levels for _, levels in counts), default=0)

    def _check_levels(self, n_levels: int, line: int) -> None:
        if n_levels > MOST_LEVELS:
            raise ConfigError(
                f"{self._name}:{line} is nested more than {MOST_LEVELS} levels deep, which no "
                "config needs. Is a bracket or an alias (*name) too many?"
            )


def quote_times(text: str, root: yaml.Node | None) -> str:
    """Return YAML in which a time is a text, whatever it begins with.

    YAML 1.1 takes 10:00:00 for a number to the base of 60, and 04:00:00 for a text.

    Args:
        text: The YAML.
        root: Its nodes.
    """
    places = {
        (node.start_mark.index, node.end_mark.index)
        for node in _values(root, set())
        # One in quotes is an integer only by a tag (!!int), and more quotes would break it.
        if node.tag == _INTEGER_TAG and node.style is None and ":" in node.value
    }
    # From the end, so that the positions before it stay valid.
    for start, end in sorted(places, reverse=True):
        text = f"{text[:start]}'{text[start:end]}'{text[end:]}"
    return text


def _values(node: yaml.Node | None, seen: set[int]) -> Iterator[yaml.ScalarNode]:
    """Yield the values below a node, those of aliases once, and no keys."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        yield node
        return
    pairs = isinstance(node, yaml.MappingNode)
    for child in [value for _, value in node.value] if pairs else node.value:
        yield from _values(child, seen)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return f"the single value {node.value!r:.80}"


def _walk(
    node: yaml.Node, prefix: str, path: Path, above: tuple[yaml.Node, ...]
) -> Iterator[tuple[str, Source]]:
    """Yield the dotted key and the place of everything below `node`, parents first."""
    if any(node is parent for parent in above):
        raise ConfigError(
            f"{prefix} in {path}:{_line(node)} contains itself through the alias of an anchor.",
            fix="Write the values out instead of the alias (*name).",
        )
    for name, child, line in _children(node, path):
        if name is None:
            yield from _walk(child, prefix, path, (*above, node))
        else:
            key = join_key(prefix, name)
            yield key, Source(str(path), line)
            yield from _walk(child, key, path, (*above, node))


def _children(node: yaml.Node, path: Path) -> Iterator[tuple[str | None, yaml.Node, int]]:
    """Yield name, node and line of each child; the name of a merge (`<<: *base`) is None."""
    if isinstance(node, yaml.SequenceNode):
        yield from ((str(i), child, _line(child)) for i, child in enumerate(node.value))
    elif isinstance(node, yaml.MappingNode):
        _refuse_duplicates(node, path)
        merges = [value for key, value in node.value if key.tag == _MERGE_TAG]
        # First, so that what the mapping itself sets replaces what it merges in.
        for value in merges:
            bases = value.value if isinstance(value, yaml.SequenceNode) else [value]
            # In YAML the first of several bases wins; here it is the last that is yielded.
            yield from ((None, base, _line(base)) for base in reversed(bases))
        for key, value in node.value:
            if key.tag != _MERGE_TAG:
                yield str(key.value), value, _line(key)


def _refuse_duplicates(node: yaml.MappingNode, path: Path) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        # With the tag, because 1 and "1" are two keys.
        name = (key.tag, str(key.value))
        if name in lines:
            raise ConfigError(
                f"{key.value!s:.80} is set twice in {path}: in line {lines[name]} and in line "
                f"{_line(key)}.",
                fix="Delete or rename one of the two.",
            )
        lines[name] = _line(key)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        hint = "" if path.suffix in (".yaml", ".yml") else f" To set a key, write: {path}=VALUE"
        raise ConfigError(
            f"Config file {path} does not exist.{hint or find_neighbours(path)}"
        ) from error
    except IsADirectoryError as error:
        raise ConfigError(
            f"{path} is a folder, not a config file.{find_neighbours(path)}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).",
            fix=f"Convert it: iconv -f latin1 -t utf-8 '{path}' -o '{path}.utf8'",
        ) from error


def find_neighbours(path: Path) -> str:
    """Return the close names of YAML files in the folder of a file that is missing, or all."""
    folder = path if path.is_dir() else path.parent
    if not folder.is_dir():
        return f" Its folder {folder} does not exist either; the current folder is {Path.cwd()}."
    names = sorted(p.name for p in folder.iterdir() if p.suffix in {".yaml", ".yml"})
    close = get_close_matches(path.name, names, n=3)
    # A name alone is mostly that of a file in conf/.
    if not close and not path.is_absolute() and (folder / "conf" / path.name).is_file():
        folder, close = folder / "conf", [path.name]
    if close:
        line = corrected_command([str(path)], [str(folder / close[0])])
        write = f" Write: {line}" if line else ""
        return (
            " Did you mean " + " or ".join(repr(str(folder / name)) for name in close) + f"?{write}"
        )
    return f" YAML files in {folder}: {', '.join(names[:10]) or 'none'}."


def _syntax_message(error: yaml.YAMLError, path: Path) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    place = f"{path}:{mark.line + 1}" if mark else str(path)
    return f"{place} is not valid YAML: {problem}.{_syntax_hint(problem)}"


def _syntax_hint(problem: str) -> str:
    hints = {
        "'\\t'": " Indent with spaces, not with tabs.",
        "another document": " Put what follows '---' into a file of its own.",
        "mapping values are not allowed": ' Quote a value that contains ": ".',
        "could not determine a constructor": " Remove the tag (!...), or quote the value.",
    }
    found = (hint for part, hint in hints.items() if part in problem)
    return next(found, " Check the indentation, quotes and brackets there and in the line above.")


def _raise_bad_value(
    error: OmegaConfBaseException, sources: dict[str, Source], path: Path
) -> NoReturn:
    key = dotted(error.full_key or "")
    place = find_source(key, sources) or path
    reason = first_line(error)
    raise ConfigError(
        f"{key or 'A key'} in {place} cannot be read: {reason}. "
        r"For a literal ${...}, as in a shell command, write \${...}; keys and values are text, "
        "numbers, true/false, null, lists and mappings."
    ) from error


_KEY = "defaults"
_SELF = "_self_"
_SUFFIXES = (".yaml", ".yml")
_MOST_FILES = 500
_FORMS = "An entry is a file (- base), a file of a folder (- model: small), - _self_, or - null."


def read_layers(path: Path, names: RunNames) -> list[tuple[Path, Layer]]:
    """Read a file and all that its `defaults` pull in, in the order of merging.

    Raises:
        ConfigError: A file is missing or malformed, an entry is no name, or a file pulls in itself.
    """
    return _Reader(names).read(path, ())


@dataclass(frozen=True)
class _Entry:
    """One name in a `defaults` list."""

    name: str
    below: tuple[str, ...]
    """The key that gets the values of the file, part by part; empty for the root."""
    source: Source

    def path_beside(self, file: Path) -> Path:
        """Return the file that is meant.

        Raises:
            ConfigError: There is none.
        """
        base = file.parent.joinpath(*self.below, self.name)
        names = [base] if base.suffix in _SUFFIXES else [Path(f"{base}{s}") for s in _SUFFIXES]
        found = next((name for name in names if name.is_file()), None)
        if found is None:
            raise ConfigError(
                f"{_KEY} in {self.source} names {self.name!r}, but {names[0]} does not exist."
                f"{find_neighbours(names[0])}"
            )
        return found


class _Reader:
    """Reads a file and all that it pulls in.

    Args:
        names: What the resolvers without an argument stand for.
    """

    def __init__(self, names: RunNames) -> None:
        self._names = names
        self._n_files = 0

    def read(self, path: Path, chain: tuple[Path, ...]) -> list[tuple[Path, Layer]]:
        """Return the layers of a file that the files of `chain` pulled in, the first one first."""
        layer = read_file(checked_path(path))
        if (trust := current_trust()) is not None:
            trust.check_file(layer.values, path)
        listed = layer.values.pop(_KEY, None)
        sources = {
            k: s for k, s in layer.sources.items() if k != _KEY and not k.startswith(f"{_KEY}.")
        }
        # Bound here: once merged, nothing says any more which file a relative path stood in.
        own = path, Layer(bind(layer.values, self._names, path.parent), sources)
        layers = list[tuple[Path, Layer]]()
        entries = list(_entries(listed, layer.sources))
        for entry in entries:
            layers += [own] if entry is None else self._pulled_in(entry, path, chain)
        return layers if None in entries else [*layers, own]

    def _pulled_in(
        self, entry: _Entry, path: Path, chain: tuple[Path, ...]
    ) -> list[tuple[Path, Layer]]:
        pulled_in = entry.path_beside(path)
        chain = (*chain, path)
        if os.path.realpath(pulled_in) in map(os.path.realpath, chain):
            raise ConfigError(
                f"{_KEY} in {entry.source} names {entry.name!r}, which goes in a circle: "
                f"{' -> '.join(map(str, (*chain, pulled_in)))}.",
                fix="Delete this entry.",
            )
        # Without any circle, two entries in each file still double their number level by level.
        self._n_files += 1
        if len(chain) > MOST_LEVELS or self._n_files > _MOST_FILES:
            raise ConfigError(
                f"{_KEY} in {entry.source} names {entry.name!r}, by which {chain[0]} pulls in more "
                f"than {_MOST_FILES} files, or through more than {MOST_LEVELS} others.",
                fix="Name fewer files, or put them into one.",
            )
        layers = self.read(pulled_in, chain)
        if not entry.below:
            return layers
        return [(file, layer.moved_below(entry.below, entry.source)) for file, layer in layers]


def _entries(listed: Any, sources: dict[str, Source]) -> Iterator[_Entry | None]:
    """Yield the entries in order; None stands for the file itself."""
    if listed is not None and not isinstance(listed, list):
        raise ConfigError(
            f"{_KEY} in {sources[_KEY]} is {listed!r:.80}, but must be a list. {_FORMS}"
        )
    if (listed or []).count(_SELF) > 1:
        raise ConfigError(
            f"{_KEY} in {sources[_KEY]} has {_SELF} twice.", fix="Delete one of the two."
        )
    for i, item in enumerate(listed or []):
        source = sources[f"{_KEY}.{i}"]
        if item == _SELF:
            yield None
        elif isinstance(item, dict) and len(item) == 1:
            [(key, name)] = item.items()
            if name is not None:
                yield _Entry(_name(name, source), _below(str(key), source), source)
        elif item is not None:
            yield _Entry(_name(item, source), (), source)


def _below(key: str, source: Source) -> tuple[str, ...]:
    parts = tuple(key.split("/"))
    if len(parts) > MOST_LEVELS:
        raise ConfigError(
            f"{_KEY} in {source} has {key:.80}..., which is nested more than {MOST_LEVELS} levels "
            f"deep. {_FORMS}"
        )
    return parts


def _name(value: Any, source: Source) -> str:
    if not isinstance(value, str) or not value or "${" in value:
        raise ConfigError(f"{_KEY} in {source} has {value!r:.80}, which is no file name. {_FORMS}")
    return value

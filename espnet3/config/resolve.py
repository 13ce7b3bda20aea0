"""Interpolations: our resolvers, plain copies with everything resolved, errors, and limits.

What `self_name`, `set_corpus_and_system`, `config_path` and `load_line` stand for depends on the
file that holds them, which OmegaConf does not pass to a resolver. So a file is bound when it is
read: `${self_name:}` becomes `${self_name:'train'}`, and `${load_line:f}` becomes
`${load_line_in:'/recipe/conf',f}`. A config saved in this form keeps its values wherever it is
loaded again.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import (
    Source,
    absolute_key,
    copied_containers,
    dotted,
    find_source,
    join_key,
    keys_in,
    self_and_parents,
    set_in,
    value_at,
)
from espnet3.errors import ConfigError, suggest
from espnet3.text import first_line

if TYPE_CHECKING:
    from omegaconf import ListConfig
    from omegaconf.errors import OmegaConfBaseException

    from espnet3.config.load import LoadedConfig

MOST_LEVELS = 40
"""OmegaConf fails at about 80, with an error that explains nothing."""
_MOST_STEPS = 25
"""From one interpolation to the next."""
_LARGEST_EXPANSION = 1_000_000
REFERENCE = re.compile(
    r"\$\{\s*(?:oc\.(?:select|create|decode|dict\.values|dict\.keys)\s*:\s*)?(\.*[\w$-][\w$.\[\]-]*)"
)
"""The key that an interpolation refers to, with the dots of a relative one."""
# An even number of backslashes before it: an odd one makes it text.
_OPEN = r"(?<!\\)((?:\\\\)*)\$\{\s*"
_OF_RUN = re.compile(_OPEN + r"(self_name|set_corpus_and_system)\s*:\s*\}")
_OF_FILE = re.compile(_OPEN + r"(config_path|load_line)\s*:\s*(\}?)")
_CALL = re.compile(r"\$\{\s*([\w.]+)\s*:")
_CONSTANT = ("self_name", "set_corpus_and_system", "config_path_in")
"""Resolvers that give the same text each time; others read files, variables or the machine."""


def resolved(values: Any, *, prefix: str = "", loaded: "LoadedConfig | None" = None) -> Any:
    """Copy dicts, lists and configs into plain containers; `values` itself is left alone.

    Interpolations are resolved in OmegaConf's containers only: in a plain dict `${HOME}` is text,
    such as a line of a shell script. What is `???` stays so.

    Raises:
        ConfigError: An interpolation leads nowhere.
    """
    if type(values).__module__.startswith("omegaconf."):
        if loaded is None:
            return resolve_config(values, prefix)
        if values is loaded.config:
            return loaded.plain()
        whole, path = loaded.constant_values(), _path_below(values, loaded.config)
        if whole is None or path is None:
            return resolve_config(values, prefix, loaded)
        # A config is read hundreds of times in a run, and resolving it takes milliseconds.
        return _at(whole, path)
    if isinstance(values, Mapping):
        return {
            key: resolved(value, prefix=join_key(prefix, key), loaded=loaded)
            for key, value in values.items()
        }
    if type(values) in (list, tuple):
        items = enumerate(values)
        return type(values)(
            resolved(item, prefix=join_key(prefix, i), loaded=loaded) for i, item in items
        )
    return values


def _path_below(node: Any, root: Any) -> list[Any] | None:
    """Return the keys that lead from a config to one of its blocks; None if it is none of them."""
    path: list[Any] = []
    while node is not root:
        if node is None:
            return None
        path.insert(0, node._key())
        node = node._get_parent()
    return path


def _at(values: Any, path: list[Any]) -> Any:
    for key in path:
        values = values[key]
    return copied_containers(values)


def resolve_config(config: Any, prefix: str = "", loaded: "LoadedConfig | None" = None) -> Any:
    """Return the plain containers of a config of OmegaConf, resolved now.

    Raises:
        ConfigError: An interpolation leads nowhere.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_explain(error, config, prefix, loaded)) from error
    except RecursionError as error:
        raise ConfigError(
            f"{prefix or 'The config'} is nested too deeply, or its interpolations are.",
            fix="Write values instead of ${...}",
        ) from error


@dataclass(frozen=True)
class RunNames:
    """Values of the resolvers without an argument; None where there is no file."""

    self_name: str | None
    set_corpus_and_system: str

    @classmethod
    def of(cls, files: Sequence[Path], recipe_dir: str | Path | None) -> "RunNames":
        """Take the names from the first file, and from its recipe unless that is given."""
        first = files[0] if files else None
        if recipe_dir is None:
            recipe_dir = _recipe_of(first) if first else "."
        recipe = Path(os.path.abspath(recipe_dir))
        return cls(first.stem if first else None, f"{recipe.parent.name}_{recipe.name}")


def _recipe_of(file: Path) -> Path:
    folder = Path(os.path.abspath(file)).parent
    return folder.parent if folder.name == "conf" else folder


def bind(values: Any, names: RunNames, folder: str | Path) -> Any:
    """Copy plain containers, with the resolvers in them bound to a run and to a folder."""
    if isinstance(values, dict):
        return {key: bind(value, names, folder) for key, value in values.items()}
    if isinstance(values, list):
        return [bind(value, names, folder) for value in values]
    return _bind_text(values, names, folder) if isinstance(values, str) else values


def _bind_text(text: str, names: RunNames, folder: str | Path) -> str:
    def of_run(match: re.Match[str]) -> str:
        name = getattr(names, match[2])
        return match[0] if name is None else f"{match[1]}${{{match[2]}:{quoted(name)}}}"

    def of_file(match: re.Match[str]) -> str:
        end = "''}" if match[3] else ""  # without a file name, which is refused when it is read
        return f"{match[1]}${{{match[2]}_in:{quoted(os.path.abspath(folder))},{end}"

    if "${" not in text:
        return text
    return _OF_FILE.sub(of_file, _OF_RUN.sub(of_run, text))


def depend_on_config_alone(values: Any) -> bool:
    """Tell whether all interpolations in plain containers have the same value at any time."""
    if isinstance(values, dict):
        return all(map(depend_on_config_alone, values.values()))
    if isinstance(values, list):
        return all(map(depend_on_config_alone, values))
    if not isinstance(values, str):
        return True
    return all(name in _CONSTANT for name in _CALL.findall(values))


def register_resolvers() -> None:
    """Register the resolvers with OmegaConf; once or often makes no difference."""
    from omegaconf import OmegaConf

    for name, resolver in _RESOLVERS.items():
        # Each time: other code in this process may have cleared all resolvers.
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def suggest_resolver(name: str) -> str:
    """Return a did-you-mean for a misspelt resolver, or the list of those that there are."""
    known = (
        "self_name", "config_path", "load_line", "set_corpus_and_system", "n_cores", *_BUILT_IN,
    )  # fmt: skip
    return suggest(name, known) or f" There are: {', '.join(known)}."


def _named(*name: Any) -> str:
    if len(name) != 1:
        raise ConfigError(
            "there is no config file to take the name from.", fix="Write the name itself."
        )
    return str(name[0])


def _config_path_in(folder: str, *names: Any) -> str:
    return _path(folder, names, "config_path")


def _load_line_in(folder: str, *names: Any) -> "ListConfig":
    from omegaconf import OmegaConf

    path = Path(_path(folder, names, "load_line"))
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist.{_nearby(path)}") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a folder.", fix="Name a file with lines in it.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text.", fix="Convert it with iconv.") from error
    # A plain list would be one opaque value, which ${tokens[0]} cannot reach into.
    return OmegaConf.create([escaped(line.strip()) for line in text.split("\n") if line.strip()])


def _nearby(path: Path) -> str:
    names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    return (
        suggest(path.name, names) or " Correct the name; it is relative to the file that holds it."
    )


def _n_cores(*most: Any) -> int:
    """Return how many cores this process may use; `${n_cores:8}` is at most 8."""
    if len(most) > 1 or not all(isinstance(n, int) and n > 0 for n in most):
        raise ConfigError(
            "n_cores takes the most that it may be, if any.", fix="Write: ${n_cores:8}"
        )
    # Slurm and taskset restrict a process to some cores; `cpu_count` has those of the machine.
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min([own or 1, *map(int, most)])


def _path(folder: str, names: tuple[Any, ...], resolver: str) -> str:
    if len(names) != 1 or not str(names[0]):
        raise ConfigError(
            f"{resolver} takes one file name.",
            fix=f"Write: ${{{resolver}:FILE}}, or with quotes around a "
            f"name that has a comma: ${{{resolver}:'a,b.txt'}}",
        )
    return os.path.normpath(os.path.join(folder, str(names[0])))


_BUILT_IN = ("oc.env", "oc.select", "oc.decode", "oc.create", "oc.dict.keys", "oc.dict.values")
_RESOLVERS: dict[str, Callable[..., Any]] = {
    "self_name": _named,
    "set_corpus_and_system": _named,
    "config_path_in": _config_path_in,
    "load_line_in": _load_line_in,
    "n_cores": _n_cores,
}


_PLAIN_REFERENCE = re.compile(r"\$\{\s*([\w$-][\w$.\[\]-]*)\s*\}")
_GENERAL_HINT = (
    r" Set the key that it refers to; for a literal ${X}, as in a shell command, write \${X}; "
    "for an environment variable, ${oc.env:X}."
)


def _explain(
    error: "OmegaConfBaseException", config: Any, prefix: str, loaded: "LoadedConfig | None"
) -> str:
    """Return one line about the key that OmegaConf failed on.

    Args:
        error: What resolving `config` raised.
        config: A DictConfig or ListConfig, maybe a part of a larger one.
        prefix: Dotted key of `config`, if it was cut out of the larger one.
        loaded: Where the config comes from, so that the line names file and line.
    """
    from omegaconf import OmegaConf

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
        yield from (dotted(name) for name in _PLAIN_REFERENCE.findall(value))


def _failed(root: Any, name: str) -> str | None:
    """Return the key that fails when `name` is read."""
    from omegaconf import Container, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        value = OmegaConf.select(root, name)
        if isinstance(value, Container):
            OmegaConf.to_container(value, resolve=True)
    except OmegaConfBaseException as error:
        return dotted(error.full_key or name)
    return None


def _reason(message: str, known: set[str], key: str, loaded: "LoadedConfig | None") -> str:
    """Return what is wrong and how to fix it."""
    # OmegaConf puts type and text of a resolver's error into a message of its own.
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


def escaped(text: str) -> str:
    r"""Spell `${X}` as `\${X}`, so that it is text and no interpolation."""
    # Backslashes before `${` are an escape to OmegaConf, so those that are meant are doubled.
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text)


def quoted(text: str) -> str:
    """Spell text as an argument of a resolver, whatever it contains."""
    spelled = re.sub(
        r"(\\*)(\$\{|'|\Z)",
        lambda match: match[1] * 2 + ("\\" + match[2] if match[2] else ""),
        text,
    )
    return f"'{spelled}'"


def escaped_values(values: Any) -> Any:
    """Copy plain containers with all their strings escaped."""
    if isinstance(values, dict):
        return {key: escaped_values(value) for key, value in values.items()}
    if isinstance(values, list):
        return [escaped_values(value) for value in values]
    return escaped(values) if isinstance(values, str) else values


def check_values(values: Mapping[Any, Any], sources: Mapping[str, Source]) -> None:
    """Refuse merged values that are nested too deeply, hold a NUL, or refer to each other too much.

    Args:
        values: Plain containers; interpolations are text.
        sources: The place of each key.

    Raises:
        ConfigError: Naming the key and its place.
    """
    leaves: dict[str, str] = {}
    for key, n_levels, value in _walk(values):
        if n_levels > MOST_LEVELS:
            raise ConfigError(
                f"{key:.80}... in {_place(key, sources)} is nested more than {MOST_LEVELS} levels "
                "deep, which no config needs. Is a part of the key too many?"
            )
        if "\0" in key or (isinstance(value, str) and "\0" in value):
            raise ConfigError(
                f"{key!r:.80} in {_place(key, sources)} is {value!r:.80}, with a NUL character, "
                r"which no path and no text has.",
                fix=r"Delete the \0.",
            )
        if isinstance(value, str) and "${" in value:
            leaves[key] = value
    expansion = _Expansion(leaves, values, sources)
    for key in leaves:
        expansion.size(key, 0)


def _walk(values: Any) -> Iterator[tuple[str, int, Any]]:
    """Yield key, level and value of everything, without recursion."""
    # Recursion would overflow the stack on the very configs that are to be refused.
    left: list[tuple[str, int, Any]] = [("", 0, values)]
    while left:
        key, level, value = left.pop()
        if key:
            yield key, level, value
        if isinstance(value, Mapping):
            left += [(join_key(key, name), level + 1, child) for name, child in value.items()]
        elif isinstance(value, list):
            left += [(join_key(key, i), level + 1, child) for i, child in enumerate(value)]


class _Expansion:
    """Counts what interpolations stand for; those whose name is interpolated itself count as 1."""

    def __init__(
        self, texts: Mapping[str, str], values: Mapping[Any, Any], sources: Mapping[str, Source]
    ) -> None:
        self._texts = texts
        self._values = values
        self._sources = sources
        self._sizes: dict[str, int] = {}
        self._below: dict[str, list[str]] = {}
        for key in texts:
            for parent in self_and_parents(key):
                self._below.setdefault(parent, []).append(key)

    def size(self, key: str, n_steps: int) -> int:
        """Return the characters and values of a key, or of all that is below it."""
        if key in self._sizes:
            return self._sizes[key]
        if n_steps > _MOST_STEPS:
            raise ConfigError(
                f"{key} in {_place(key, self._sources)} is reached by more than {_MOST_STEPS} "
                "interpolations, one after the other.",
                fix="Write its value, or refer to it directly.",
            )
        self._sizes[key] = 0  # self-references are reported when they are resolved
        total = self._own(key, n_steps) if key in self._texts else self._parts(key, n_steps)
        if total > _LARGEST_EXPANSION:
            raise ConfigError(
                f"{key} in {_place(key, self._sources)} would become {total:,} characters and "
                f"values by its interpolations, but {_LARGEST_EXPANSION:,} is the most. Refer to "
                "fewer others, or write the value out."
            )
        self._sizes[key] = total
        return total

    def _own(self, key: str, n_steps: int) -> int:
        text = self._texts[key]
        names = (_absolute(name, key) for name in REFERENCE.findall(text))
        return len(text) + sum(self.size(name, n_steps + 1) for name in names)

    def _parts(self, key: str, n_steps: int) -> int:
        below = [name for name in self._below.get(key, ()) if name != key]
        return 1 + sum(self.size(name, n_steps) for name in below)


def _absolute(name: str, key: str) -> str:
    """Return the key that `${.name}` or `${..name}` means in `key`; without dots, the name."""
    bare = name.lstrip(".")
    n_dots = len(name) - len(bare)
    parents = key.split(".")[: len(key.split(".")) - n_dots] if n_dots else []
    return dotted(".".join([*parents, bare]))


def _place(key: str, sources: Mapping[str, Source]) -> str:
    return str(find_source(key, sources) or "an override")

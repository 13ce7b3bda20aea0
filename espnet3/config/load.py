"""Load YAML files and overrides into one read-only config that knows where each key was set."""

import enum
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from espnet3.config.files import compose, quote_times, read_layers
from espnet3.config.redact import redact, redact_command
from espnet3.config.resolve import (
    MOST_LEVELS,
    RunNames,
    bind,
    check_values,
    depend_on_config_alone,
    escaped_values,
    register_resolvers,
    resolve_config,
    resolved,
)
from espnet3.config.sources import (
    ALIAS,
    CURRENT,
    NAME,
    Layer,
    Source,
    add_place,
    copied,
    copied_containers,
    dotted,
    find_source,
    join_key,
    keys_in,
    merge,
    rename_keys,
    rename_references,
    value_at,
    warn_of_alias,
)
from espnet3.errors import ConfigError, suggest

logger = logging.getLogger(__name__)

_CONSTANT = "_constant_values"

__all__ = ["ConfigSource", "LoadedConfig", "Source", "as_loaded", "load_config"]


@dataclass(frozen=True)
class LoadedConfig:
    """A merged config and the place that set each of its keys.

    To be read, it is like the config itself: `loaded.parallel`, `loaded["parallel"]`. A key that is
    called like an attribute of this class is `loaded["files"]`.
    """

    config: DictConfig
    """Read-only; interpolations are resolved when a value is read."""
    sources: Mapping[str, Source]
    """By dotted key, list items included: `callbacks.0.monitor`."""
    files: tuple[str, ...] = ()
    """All files that were read, those of `defaults` lists included, in the order of merging."""
    names: RunNames = field(default=RunNames(None, ""), repr=False)
    """Values of `${self_name:}` and `${set_corpus_and_system:}`."""

    def __getattr__(self, name: str) -> Any:
        """Return a value of the config; only asked for what this class does not have."""
        config = self.__dict__.get("config")  # not there while it is unpickled
        # copy, pickle and IPython probe for dunder names, and expect a plain AttributeError.
        if config is None or name.startswith("__"):
            raise AttributeError(name)
        # So that `get`, `items` and the other methods of a DictConfig work as well.
        if name in config or hasattr(type(config), name):
            return getattr(config, name)
        raise AttributeError(
            f"The config of {' '.join(self.files) or 'no file'} has no key {name!r}."
            f"{suggest(name, map(str, config))}"
        )

    def __getitem__(self, key: str) -> Any:
        return self.config[key]

    def __contains__(self, key: object) -> bool:
        return key in self.config

    def __iter__(self) -> Iterator[Any]:
        return iter(self.config)

    def find_source(self, key: str) -> Source | None:
        """Return the place that set `key` or else its nearest parent."""
        return find_source(key, self.sources)

    def source_of(self, key: str) -> str:
        """Return the place as text, such as `conf/parallel_slurm.yaml:3`."""
        return str(self.find_source(key) or "an unknown place (no file or override sets it)")

    def set_in(self, key: str) -> str:
        """Return `' (set in conf/a.yaml:3)'`, or an empty text where that is not known."""
        source = self.find_source(key)
        return f" (set in {source})" if source else ""

    def is_typed(self, key: str) -> bool:
        """Tell whether a key was given on the command line."""
        return str(self.find_source(key)).startswith("command line")  # see `Override.source`

    @contextmanager
    def naming_places(self) -> Iterator[None]:
        """Add file and line to errors about keys, raised by code that gets only values."""
        token = CURRENT.set(self)
        try:
            yield
        except Exception as error:
            add_place(error)
            raise
        finally:
            CURRENT.reset(token)

    def has(self, key: str) -> bool:
        """Tell whether a dotted key is set; null counts, `???` does not."""
        nothing = object()
        found = OmegaConf.select(
            self.config, dotted(key), default=nothing, throw_on_resolution_failure=False
        )
        if found is not nothing:
            return True
        # An interpolation that leads nowhere is set all the same; so is a key that is a number.
        raw = value_at(OmegaConf.to_container(self.config), dotted(key), default=nothing)
        return raw is not nothing and raw != "???"

    def resolved(self) -> DictConfig:
        """Return a read-only copy without interpolations, which needs no resolvers to be read.

        Raises:
            ConfigError: An interpolation leads nowhere.
        """
        plain = escaped_values(self.plain())
        copy: DictConfig = OmegaConf.create(plain, flags={"allow_objects": True})
        OmegaConf.set_readonly(copy, True)
        return copy

    def plain(self) -> dict[str, Any]:
        """Return the values in dicts and lists of one's own, without interpolations.

        They are resolved once, unless one of them reads a file or a variable, which may change.

        Raises:
            ConfigError: An interpolation leads nowhere.
        """
        values = self.constant_values()
        if values is None:
            register_resolvers()
            values = resolve_config(self.config, loaded=self)
        found: dict[str, Any] = copied_containers(values)
        return found

    def constant_values(self) -> dict[str, Any] | None:
        """Return the plain values, not to be changed; None if they may be others next time."""
        if _CONSTANT not in self.__dict__:
            register_resolvers()
            is_constant = depend_on_config_alone(OmegaConf.to_container(self.config))
            try:
                values = resolve_config(self.config, loaded=self) if is_constant else None
            except ConfigError:
                values = None  # raised where all of it is needed; a block may be right
            self.__dict__[_CONSTANT] = values  # frozen is what users see
        found: dict[str, Any] | None = self.__dict__[_CONSTANT]
        return found

    @contextmanager
    def read_once(self) -> Iterator[None]:
        """Inside the block, resolve also what reads a file or a variable only once."""
        if self.constant_values() is not None:
            yield
            return
        with suppress(ConfigError):  # raised by who needs all of it
            self.__dict__[_CONSTANT] = resolve_config(self.config, loaded=self)
        try:
            yield
        finally:
            self.__dict__[_CONSTANT] = None

    def to_yaml(self) -> str:
        """Return the merged config as YAML, without secrets, and with interpolations as text."""
        return OmegaConf.to_yaml(OmegaConf.create(redact(self.config)))

    def save(self, path: str | Path) -> None:
        """Write `to_yaml()`; a reader sees the old file or the whole new one."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not by io.atomic, which is a layer above. By pid, since two processes may save at once.
        part = path.with_name(f".{path.name}.part-{os.getpid()}")
        part.write_text(self.to_yaml(), encoding="utf-8")
        part.replace(path)


ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | LoadedConfig
"""Sources of a config: a YAML file, a dict, an OmegaConf config, a loaded one."""

_IN_PYTHON = Source("a config given in Python")


def load_config(
    files: ConfigSource | Sequence[ConfigSource],
    overrides: Sequence[str] = (),
    *,
    below: Mapping[str, Any] | None = None,
    above: LoadedConfig | None = None,
    recipe_dir: str | Path | None = None,
) -> LoadedConfig:
    """Merge `below`, the files and dicts left to right, `above` and the overrides.

    The later one wins; a mapping merges into a mapping, a list replaces a list. A later `???`
    leaves an earlier value alone. An override may add a key that no file sets. A file may pull in
    others with a `defaults` list. In a dict, `${key}` refers to another key, as in a file.

    Args:
        files: One or several of these: a file, of which an empty one is an empty config; a dict or
            an OmegaConf config, which is copied; what an earlier call returned.
        overrides: `key.path=value`, the value read as YAML: `a=1`, `a=[1,2]`, `a=null`, `a.0.b=x`.
        below: Defaults, with interpolations as in a file; errors name their place as `default`.
        above: Values that win over the files and keep the places that set them.
        recipe_dir: What `${set_corpus_and_system:}` is taken from; else the folder of the first
            file, or its parent where that is called `conf`.

    Raises:
        ConfigError: A file is missing or malformed, an override is, or a dict holds an object.

    Example:
        >>> loaded = load_config({"exp": "exp/a", "log": "${exp}/log"}, ["exp=exp/b"])
        >>> loaded.config.log, loaded.source_of("log")
        ('exp/b/log', 'a config given in Python')
    """
    register_resolvers()
    given = _listed(files)
    names = _names(given, recipe_dir)
    layers = [read for one in given for read in _read(one, names)]
    # Defaults take part in the merge, so that errors and interpolations see them as any other key.
    merged = Layer.of(bind(copied(below or {}), names, "."), Source("default"))
    for layer in rename_keys([layer for _, layer in layers]):
        merged = merge(merged, layer)
    if above is not None:
        merged = merge(merged, _layer(above))
    for text in overrides:
        merged = _apply(merged, rename_override(parse_override(text), merged), names)
    files_read = tuple(file for found, _ in layers for file in found)
    # References last: only now is it known whether the config has a key expdir of its own.
    return _loaded(_translated(rename_references(merged)), files_read, names)


_OF_PUBLIC_RECIPES = frozenset(
    {"task", "trainer.init", "dataloader.collate_fn._target_"}
    | {
        f"dataloader.{split}.{name}"
        for split in ("train", "valid")
        for name in ("iter_factory", "multiple_iterator", "num_shards", "batch_distribution")
    }
)
"""Keys of which a config has one that `public_recipes` may have to read; few others do."""


def _translated(layer: Layer) -> Layer:
    if _OF_PUBLIC_RECIPES.isdisjoint(layer.sources):
        return layer
    from espnet3.config.public_recipes import translated

    return translated(layer)


_KEPT_FILES = 16
_kept: dict[str, tuple[bytes, Any]] = {}
# Values that are elsewhere: in the environment, or in another file.
_OF_OTHERS = (b"${", b"defaults")


def read_values(file: str | Path) -> dict[str, Any]:
    """Return what a config file says, as plain values; parsed once as long as it is the same.

    That of a training lies beside its weights, and each test set and each part of a stage asks it.

    Raises:
        ConfigError: As `load_config`, or an interpolation leads nowhere.
    """
    path = os.path.abspath(file)
    content = _content(path)
    before, values = _kept.get(path, (b"", {}))
    if content is None or path not in _kept or content != before:
        values = resolved(load_config(file).config)
        is_constant = content is not None and not any(word in content for word in _OF_OTHERS)
        # Read again: it may have been replaced meanwhile.
        if is_constant and _content(path) == content:
            if len(_kept) >= _KEPT_FILES:
                _kept.clear()
            _kept[path] = content or b"", values
    found: dict[str, Any] = deepcopy(values)
    return found


def _content(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:  # `load_config` says what is wrong
        return None


def as_loaded(config: ConfigSource | Sequence[ConfigSource]) -> LoadedConfig:
    """Return a config as `load_config` does; one that is loaded is returned as it is."""
    return config if isinstance(config, LoadedConfig) else load_config(config)


def _listed(files: ConfigSource | Sequence[ConfigSource]) -> list[ConfigSource]:
    is_many = isinstance(files, Iterable) and not isinstance(files, str | Mapping | LoadedConfig)
    return list(files) if is_many else [files]  # type: ignore[arg-type, list-item]


def _names(given: Sequence[ConfigSource], recipe_dir: str | Path | None) -> RunNames:
    """Take the names from the first file; without one, from the first config that has them."""
    paths = [Path(one) for one in given if isinstance(one, str | os.PathLike)]
    loaded = next((one for one in given if isinstance(one, LoadedConfig)), None)
    if loaded is not None and not paths and recipe_dir is None:
        return loaded.names
    return RunNames.of(paths, recipe_dir)


def _read(one: ConfigSource, names: RunNames) -> list[tuple[tuple[str, ...], Layer]]:
    """Return the layers of a file or of values, each with the files that it comes from."""
    if isinstance(one, LoadedConfig):
        return [(one.files, _layer(one))]
    if isinstance(one, Mapping):
        return [((), Layer.of(bind(as_plain(one), names, "."), _IN_PYTHON))]
    if not isinstance(one, str | os.PathLike):
        raise ConfigError(
            f"{one!r:.80} of type {type(one).__name__} is no config.",
            fix="Give a YAML file, a dict or "
            'an OmegaConf config: load_config("conf/training.yaml")',
        )
    path = Path(one)
    layers = read_layers(path, names)
    if not any(layer.values for _, layer in layers):
        _warn_of_empty(str(path))
    return [((str(file),), layer) for file, layer in layers]


@cache
def _warn_of_empty(path: str) -> None:
    """Name a file that sets nothing, once: an error about what is missing would not."""
    logger.warning("%s is empty: it sets no key.", path)


def _apply(merged: Layer, override: "Override", names: RunNames) -> Layer:
    patch: Any = as_patch(override, merged.values)
    key, source = ".".join(override.path), override.source
    # The parents, and the other items of a changed list, keep the place that set them.
    changed = {
        k: source
        for k in keys_in(patch)
        if k == key or k.startswith(f"{key}.") or k not in merged.sources
    }
    # Relative to the current folder, as a path that is typed.
    return merge(merged, Layer(bind(patch, names, "."), changed))


def _layer(loaded: LoadedConfig) -> Layer:
    values: Any = OmegaConf.to_container(loaded.config)
    return Layer(values, dict(loaded.sources))


def _loaded(layer: Layer, files: tuple[str, ...], names: RunNames) -> LoadedConfig:
    # Before OmegaConf parses it, whose own errors at such sizes explain nothing.
    check_values(layer.values, layer.sources)
    config = OmegaConf.create(layer.values)
    OmegaConf.set_readonly(config, True)
    return LoadedConfig(config, layer.sources, files, names)


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
    # Prefixes of Hydra's overrides, by which people add and delete keys.
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
        # By our own reader first, which counts aliases and levels before they are expanded.
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
    # A slip such as `token.x=1` must not print the token.
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


def rename_override(override: Override, merged: Layer) -> Override:
    """Return an override of `exp_dir` for one of `expdir`, unless that is a key of the config."""
    if override.path != (ALIAS,) or ALIAS in merged.values:
        return override
    warn_of_alias(str(override.source))
    return Override(override.text, (NAME,), override.value)


_SCALARS = (str, int, float, bool, type(None))
_GIVEN = {"model": "model=...", "dataset": "train=..., valid=...", "dataloader": "train=..."}
"""Objects that are given to `train`, by the block that would describe it."""


def as_plain(config: Mapping[Any, Any]) -> dict[Any, Any]:
    """Copy a dict or an OmegaConf config into plain containers; interpolations stay text.

    Paths become text, tuples lists, and numbers of NumPy those of Python.

    Raises:
        ConfigError: A value is an object, which no file could hold; naming its key.
    """
    plain: dict[Any, Any] = _plain(config, "", ())
    if "defaults" in plain:
        raise ConfigError(
            "defaults is set in a config given in Python, but names files beside a file.",
            fix='Load them in order: load_config(["conf/base.yaml", {...}])',
        )
    return plain


def _plain(value: Any, key: str, above: tuple[int, ...]) -> Any:
    # By exact type: numpy.float64 is a subclass of float, and is converted below.
    if type(value) in _SCALARS:
        return value
    if id(value) in above:
        raise ConfigError(f"{key} contains itself.", fix="Write a config without circles.")
    if type(value).__module__.startswith("omegaconf."):
        return _of_omegaconf(value, key)
    inside = (*above, id(value))
    if isinstance(value, Mapping):
        return {_key(k, key): _plain(v, join_key(key, k), inside) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, join_key(key, i), inside) for i, item in enumerate(value)]
    # Before texts and numbers: an enum may be a subclass of either.
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    if isinstance(value, str | int | float):  # of a class of one's own
        kind: Any = next(one for one in (int, float, str) if isinstance(value, one))
        return kind(value)
    raise ConfigError(_no_value(value, key))


def _of_omegaconf(value: Any, key: str) -> Any:
    if value._get_parent() is not None:  # a part of a config, whose ${...} refer to the whole
        return _plain(escaped_values(resolved(value, prefix=key)), key, ())
    return _plain(OmegaConf.to_container(value, enum_to_str=True), key, ())


def _key(key: Any, parent: str) -> Any:
    if isinstance(key, _SCALARS) and key is not None:
        return key
    raise ConfigError(f"{key!r} is a key of {parent or 'the config'}, but must be a text.")


def _no_value(value: Any, key: str) -> str:
    text = (
        f"{key} is {_called(value)}, but a config holds texts, numbers, True, False, None, lists "
        "and dicts. "
    )
    block = key.partition(".")[0]
    ways = list(_ways(value, block))
    return text + "; or ".join(ways)


def _ways(value: Any, block: str) -> Iterator[str]:
    kind = value if isinstance(value, type) else type(value)
    named = value if hasattr(value, "__qualname__") else kind
    path = f"{named.__module__}.{named.__qualname__}"
    if block in _GIVEN:
        yield f"Give the object to espnet3.trainer.train(config, {_GIVEN[block]})"
    # What is defined in a function (`<locals>`) or in a script cannot be imported by its path.
    if "<" not in path and not path.startswith(("__main__", "builtins", "numpy", "torch.Tensor")):
        yield f'Write how it is built: {{"_target_": "{path}"}}'
    elif block not in _GIVEN:
        yield 'Write how it is built: {"_target_": "package.module.Name"}'


def _called(value: Any) -> str:
    if hasattr(value, "__qualname__"):
        return f"{value.__qualname__}, {'a class' if isinstance(value, type) else 'a function'}"
    return f"an object of {type(value).__qualname__}"

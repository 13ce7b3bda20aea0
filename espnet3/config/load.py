"""Load YAML files and overrides into one read-only config that knows where each key was set."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from espnet3.config.files import read_file
from espnet3.config.overrides import Override, as_patch, parse_override
from espnet3.config.sources import Source, dotted, join_key, self_and_parents
from espnet3.errors import ConfigError

__all__ = ["LoadedConfig", "Source", "load_config"]

Sources = dict[str, Source]


@dataclass(frozen=True)
class LoadedConfig:
    """A merged config and the place that set each of its keys."""

    config: DictConfig
    """Read-only; interpolations are resolved when a value is read."""
    sources: Mapping[str, Source]
    """By dotted key, list items included: `callbacks.0.monitor`."""

    def find_source(self, key: str) -> Source | None:
        """Return the place that set `key` or else its nearest parent."""
        parents = self_and_parents(dotted(key))
        return next((self.sources[k] for k in parents if k in self.sources), None)

    def source_of(self, key: str) -> str:
        """Return the place as text, such as `conf/parallel_slurm.yaml:3`."""
        return str(self.find_source(key) or "an unknown place (no file or override sets it)")

    def to_yaml(self) -> str:
        """Return the merged config as YAML, with interpolations as they were written."""
        return OmegaConf.to_yaml(self.config)

    def save(self, path: str | Path) -> None:
        """Write `to_yaml()`; a reader sees the old file or the whole new one."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part-{os.getpid()}")
        part.write_text(self.to_yaml(), encoding="utf-8")
        part.replace(path)


def load_config(
    files: Sequence[str | Path] | str | Path, overrides: Sequence[str] = ()
) -> LoadedConfig:
    """Merge files left to right, then apply the overrides.

    The later one wins; a mapping merges into a mapping, a list replaces a list. A later `???`
    leaves an earlier value alone. An override may add a key that no file sets.

    Args:
        files: One file or several; an empty file is an empty config.
        overrides: `key.path=value`, the value read as YAML: `a=1`, `a=[1,2]`, `a=null`, `a.0.b=x`.

    Raises:
        ConfigError: A file is missing or malformed, or an override is.
    """
    config, sources = OmegaConf.create({}), Sources()
    for file in [files] if isinstance(files, str | Path) else files:
        values, lines = read_file(Path(file))
        config, sources = _merge(config, sources, values, lines)
    for text in overrides:
        config, sources = _apply(config, sources, parse_override(text))
    OmegaConf.set_readonly(config, True)
    return LoadedConfig(config, sources)


def _apply(config: DictConfig, sources: Sources, override: Override) -> tuple[DictConfig, Sources]:
    patch = OmegaConf.create(as_patch(override, OmegaConf.to_container(config)))
    key = ".".join(override.path)
    # The parents, and the other items of a changed list, keep the place that set them.
    changed = {
        k: override.source
        for k in _keys(OmegaConf.to_container(patch))
        if k == key or k.startswith(f"{key}.") or k not in sources
    }
    return _merge(config, sources, patch, changed)


def _merge(
    old: DictConfig, old_sources: Sources, new: DictConfig, new_sources: Sources
) -> tuple[DictConfig, Sources]:
    base, top = OmegaConf.to_container(old), OmegaConf.to_container(new)
    _drop_clashes(base, top)
    try:
        merged = OmegaConf.merge(base, top)
    except OmegaConfBaseException as error:
        first = next(iter(new_sources.values()), "an override")
        raise ConfigError(
            f"The values from {first} on do not merge into what was set before: "
            f"{str(error).splitlines()[0]}. Do not mix a list and a mapping under one key."
        ) from error
    assert isinstance(merged, DictConfig)
    kept = {k: s for k, s in new_sources.items() if k not in old_sources or not _is_open(top, k)}
    present = set(_keys(OmegaConf.to_container(merged)))
    return merged, {k: s for k, s in {**old_sources, **kept}.items() if k in present}


def _drop_clashes(base: Any, top: Any) -> None:
    """Make way for a list over a mapping and the reverse, which OmegaConf refuses to merge."""
    for key in base.keys() & top.keys():
        pair = base[key], top[key]
        if all(isinstance(value, dict) for value in pair):
            _drop_clashes(*pair)
        elif all(isinstance(value, dict | list) for value in pair):
            base[key] = None


def _is_open(values: Any, key: str) -> bool:
    """Tell whether `key` is `???`, which a merge skips."""
    for part in key.split("."):
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return bool(values == "???")


def _keys(values: Any, prefix: str = "") -> Iterator[str]:
    children: Any = ()
    if isinstance(values, dict):
        children = values.items()
    elif isinstance(values, list):
        children = enumerate(values)
    for name, child in children:
        key = join_key(prefix, name)
        yield key
        yield from _keys(child, key)

"""Which test sets a config names, and where their results go."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import set_in
from espnet3.errors import ConfigError, suggest
from espnet3.io.names import safe_name

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

ONLY = "test"
"""The name of the test set where a provider builds its one dataset without a list of names."""


def listed_test_sets(dataset: Mapping[str, Any] | None, loaded: "LoadedConfig") -> list[str]:
    """Return the names in `dataset.test`; none if it has no such list.

    Raises:
        ConfigError: if the list is empty, or a name is missing, there twice, or no name for a
            folder.
    """
    entries = (dataset or {}).get("test")
    if isinstance(entries, Mapping):
        names = [(f"dataset.test.{name}", name) for name in entries]
    elif isinstance(entries, list):
        names = [
            (f"dataset.test.{i}.name", entry.get("name") if isinstance(entry, Mapping) else None)
            for i, entry in enumerate(entries)
        ]
    else:
        return []
    if not names:
        raise ConfigError(
            f"dataset.test is empty{set_in('dataset.test', loaded)}. Write: "
            "test: [{name: NAME, data_src: SOURCE, data_src_args: {...}}]"
        )
    seen: dict[str, str] = {}
    for key, name in names:
        _check_name(key, name, loaded)
        if name in seen:
            raise ConfigError(
                f"{key} is {name!r}{set_in(key, loaded)}, and so is {seen[name]}; their results "
                f"would go to one folder. Give each its own, such as: name: {name}_2"
            )
        seen[name] = key
    return list(seen)


def _check_name(key: str, name: Any, loaded: "LoadedConfig") -> None:
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{key}{set_in(key, loaded)} is missing: each test set needs a name, which its folder "
            "of results gets. Write: name: test_clean"
        )
    if safe_name(name) != name:
        raise ConfigError(
            f"{key} is {name!r}{set_in(key, loaded)}, which cannot be the name of a folder. Write: "
            f"name: {safe_name(name).replace('%2F', '_').replace('%20', '_')}"
        )


def chosen_test_sets(
    known: list[str], wanted: str | list[str] | None, loaded: "LoadedConfig"
) -> list[str]:
    """Return the test sets to decode: those that `test_set` names, else all.

    Raises:
        ConfigError: if `test_set` names one that is not listed.
    """
    if wanted is None:
        return known or [ONLY]
    names = [wanted] if isinstance(wanted, str) else wanted
    for name in names:
        if known and name not in known:
            hint = suggest(name, known) or f" Write: test_set: {known[0]}"
            raise ConfigError(
                f"test_set is {name!r}{set_in('test_set', loaded)}, but dataset.test has "
                f"{', '.join(map(repr, known))}.{hint}"
            )
        _check_name("test_set", name, loaded)
    return list(dict.fromkeys(names))


def results_folder(inference_dir: str, test_set: str) -> Path:
    """Return the folder of a test set's results."""
    return Path(inference_dir) / test_set

"""Test sets of a config, and their result folders."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.components.data.data_organizer import check_name, check_names
from espnet3.errors import ConfigError, suggest
from espnet3.io.atomic import is_temp_name
from espnet3.shards.layout import manifest_path, shard_of

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

ONLY = "test"
"""The name of the test set where a provider builds its one dataset without a list of names."""


def listed_test_sets(dataset: Mapping[str, Any] | None) -> list[str]:
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
            "dataset.test is empty",
            key="dataset.test",
            fix="Write: test: [{name: NAME, data_src: SOURCE, data_src_args: {...}}]",
        )
    check_names(names)
    return [name for _, name in names]


def chosen_test_sets(known: list[str], wanted: str | list[str] | None) -> list[str]:
    """Return the test sets to decode: those that `test_set` names, else all.

    Raises:
        ConfigError: if `test_set` names one that is not listed.
    """
    if wanted is None:
        return known or [ONLY]
    names = [wanted] if isinstance(wanted, str) else wanted
    for name in names:
        if known and name not in known:
            raise ConfigError(
                key="test_set",
                value=name,
                problem=f"but dataset.test has {', '.join(map(repr, known))}",
                fix=suggest(name, known) or f"Write: test_set: {known[0]}",
            )
        check_name("test_set", name)
    return list(dict.fromkeys(names))


def named_test_sets(loaded: "LoadedConfig | None", inference_dir: Path) -> list[str]:
    """Return the test sets that a config names for the results in a folder; none if it does not.

    Raises:
        ConfigError: as `listed_test_sets`.
    """
    if loaded is None:
        return []
    values = loaded.plain()
    own = values.get("inference_dir")
    if own is not None and Path(own).absolute() != inference_dir.absolute():
        return []  # it is about results elsewhere
    dataset = values.get("dataset")
    with loaded.naming_places():
        return listed_test_sets(dataset if isinstance(dataset, Mapping) else None)


def found_test_sets(inference_dir: Path) -> list[str]:
    """Return the folders of results, sorted: also one that has begun but has no results yet."""
    if not inference_dir.is_dir():
        return []
    return sorted(
        path.name
        for path in inference_dir.iterdir()
        if path.is_dir()
        and shard_of(path.name) is None
        and (manifest_path(path).exists() or any(_is_scp(file) for file in path.glob("*.scp")))
    )


def also_found(names: Iterable[str]) -> str:
    """Return the line about results that no config names."""
    return f"also found, not in the config: {', '.join(names)}"


def _is_scp(path: Path) -> bool:
    return path.is_file() and not is_temp_name(path.name)


def results_folder(inference_dir: str, test_set: str) -> Path:
    """Return the folder of a test set's results."""
    return Path(inference_dir) / test_set

"""The names of test sets, each of which is a folder of results."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import set_in
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


def check_name(key: str, name: Any, loaded: "LoadedConfig | None" = None) -> None:
    """Raise a `ConfigError` unless a test set, and so a folder, can have this name."""
    where = set_in(key, loaded)
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{key} is not set{where}. A test set needs a name, which is also the folder of its "
            "results. Write: name: test_clean"
        )
    if "/" in name or name in (".", "..") or not name.isprintable():
        better = "_".join(name.replace("/", " ").split()).strip(".") or "test"
        raise ConfigError(
            f"{key} is {name!r}{where}, which cannot be the name of one folder. "
            f"Write: name: {better}"
        )


def check_names(names: Sequence[tuple[str, Any]], loaded: "LoadedConfig | None" = None) -> None:
    """Check each name, and that no two are the same.

    Args:
        names: The dotted key of each name, such as `dataset.test.0.name`, and the name.
        loaded: Where they come from, so that the errors name file and line.

    Raises:
        ConfigError: A name is missing, there twice, or no name of a folder.
    """
    first: dict[str, str] = {}
    for key, name in names:
        check_name(key, name, loaded)
        if name in first:
            raise ConfigError(
                f"{key} is {name!r}{set_in(key, loaded)}, which is the name of "
                f"{first[name].removesuffix('.name')} as well. Write another one: name: {name}_2"
            )
        first[name] = key

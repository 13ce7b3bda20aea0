"""Say where a key was set in errors of code that knows the values, but not their files."""

import re
from typing import TYPE_CHECKING

from espnet3.config.sources import set_in
from espnet3.errors import EspnetError
from espnet3.systems.base.inference_config import KEYS

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

# A provider sees one test set, which is then the first.
_ENTRY = re.compile(r"dataset\.test\.0((?:\.\w+)*)")


def place_entry(error: EspnetError, position: int, loaded: "LoadedConfig") -> EspnetError:
    """Return an error about an entry of `dataset.test` with its true position, file and line."""

    def placed(match: re.Match[str]) -> str:
        key = f"dataset.test.{position}{match[1]}"
        return f"{key}{set_in(key, loaded)}"

    return type(error)(_ENTRY.sub(placed, str(error), count=1))


def place_key(error: EspnetError, loaded: "LoadedConfig") -> EspnetError:
    """Return an error that begins with a key of the config with the file and line of that key."""
    key, _, rest = str(error).partition(" ")
    known = key in KEYS and "(set in " not in rest
    if known and not loaded.has(key):  # the block of the runner may have it instead
        key, known = f"runner.{key}", loaded.has(f"runner.{key}")
    # "input_key is 'speach', but ...": the place stands behind the value.
    head, comma, tail = rest.partition(", but ")
    return type(error)(f"{key} {head}{set_in(key, loaded)}{comma}{tail}") if known else error

"""Read JSON that others wrote: a file may be absent, damaged, or unreadable from here.

Only a file that is not there, or is there with other content than it should have, says something
about the run. An EIO, ESTALE or EACCES says something about this node: it is raised as it is, and
nothing may be removed, taken over or computed again on its account.
"""

import json
import os
import re
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from espnet3.errors import RunFolderError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
_SURROGATE = re.compile(rb"(?<!\\)((?:\\\\)*)\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class DamagedFileError(RunFolderError):
    """A file could be read, but does not hold what it should."""


def read_record(path: str | os.PathLike[str], kind: type[T]) -> T | None:
    """Read a JSON file as a dataclass or pydantic model, each value of its declared type.

    Keys that the class does not have are ignored, so that a newer version may add some.

    Returns:
        None if there is no such file.

    Raises:
        DamagedFileError: It is no JSON, or a value is missing or of another type; names the file.
        OSError: It cannot be read from here, which says nothing of its content.
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    return parse_record(content, kind, path)


def parse_record(content: bytes, kind: type[T], path: str | os.PathLike[str]) -> T:
    """Do the same with the content of a file.

    Raises:
        DamagedFileError: As above.
    """
    from pydantic import ValidationError  # on the start-up path of workers: imported when needed

    adapter = _adapter(cast(Hashable, kind))
    try:
        if _SURROGATE.search(content) is None or not is_dataclass(kind):
            record: T = adapter.validate_json(content, strict=True)
        else:
            # Names that are no UTF-8, which `json` writes and reads and pydantic does not: it only
            # looks at the types.
            adapter.validate_json(_SURROGATE.sub(rb"\1?", content), strict=True)
            values, names = json.loads(content), {each.name for each in fields(kind)}
            record = kind(**{name: value for name, value in values.items() if name in names})
    except ValidationError as error:
        raise DamagedFileError(
            f"{os.fspath(path)} is damaged, or of another version: {_problem(error)}."
        ) from None
    return record


@cache
def _adapter(kind: Hashable) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(cast(Any, kind))


def _problem(error: Any) -> str:
    first, *rest = error.errors(include_url=False, include_context=False)
    place = ".".join(map(str, first["loc"])) or "the file"
    more = f" (and {len(rest)} more)" if rest else ""
    return f"{place}: {first['msg'][:200].rstrip('.')}, found {first['input']!r:.60}{more}"

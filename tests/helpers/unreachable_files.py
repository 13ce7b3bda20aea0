"""Let a process be refused some files, as on a node whose file server or rights have gone.

What is asked for fails with a number of one's choice; all else, also names and renames, goes well,
as with a Lustre target that is down. In this process: `unreachable`; in any Python that is started:
`environment_of`.
"""

import builtins
import errno
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

VARIABLE = "ESPNET3_UNREACHABLE_FILES"
_ROOT = Path(__file__).parents[2]
_OPEN = (("builtins", "open"), ("io", "open"), ("os", "open"))
_CALLS = {
    "open": _OPEN,
    "stat": (("os", "stat"), ("os", "lstat")),
    "list": (("os", "scandir"), ("os", "listdir")),
}
_MODULES = {"builtins": builtins, "io": io, "os": os}


def environment_of(pattern: str, code: str, scratch: Path, *calls: str) -> dict[str, str]:
    """Return the variables with which any Python that is started is refused such files."""
    scratch.mkdir(parents=True, exist_ok=True)
    start = "from tests.helpers.unreachable_files import install_if_asked\ninstall_if_asked()\n"
    (scratch / "sitecustomize.py").write_text(start)
    settings = {"pattern": pattern, "code": code, "calls": calls or ["open"]}
    return {VARIABLE: json.dumps(settings), "PYTHONPATH": f"{scratch}{os.pathsep}{_ROOT}"}


def install_if_asked() -> None:
    """Install what the environment asks for, for good."""
    if settings := os.environ.get(VARIABLE):
        _install(**json.loads(settings))


@contextmanager
def unreachable(pattern: str, code: str, *calls: str) -> Iterator[list[str]]:
    """Refuse this process the files whose path has the pattern; yield those that were refused."""
    refused: list[str] = []
    undo = _install(pattern, code, calls or ("open",), refused)
    try:
        yield refused
    finally:
        undo()


def _install(
    pattern: str, code: str, calls: Any, refused: list[str] | None = None
) -> Callable[[], None]:
    wanted, number = re.compile(pattern), getattr(errno, code)
    before = []
    for module, name in (place for call in calls for place in _CALLS[call]):
        real = getattr(_MODULES[module], name)
        before.append((_MODULES[module], name, real))
        setattr(_MODULES[module], name, _refusing(real, wanted, number, refused))

    def undo() -> None:
        for module, name, real in before:
            setattr(module, name, real)

    return undo


def _refusing(
    real: Callable[..., Any], wanted: re.Pattern[str], number: int, refused: list[str] | None
) -> Callable[..., Any]:
    @wraps(real)
    def call(path: Any = ".", *args: Any, **values: Any) -> Any:
        if not isinstance(path, int) and wanted.search(os.fsdecode(path)):
            if refused is not None:
                refused.append(os.fsdecode(path))
            raise OSError(number, os.strerror(number), path)
        return real(path, *args, **values)

    return call

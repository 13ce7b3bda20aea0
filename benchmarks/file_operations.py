"""Count what a process asks of the file system about one folder."""

import builtins
import io
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

_BY_PATH = {
    "open": "open", "stat": "stat", "lstat": "stat", "access": "stat", "scandir": "list",
    "listdir": "list", "mkdir": "mkdir", "rmdir": "rmdir", "unlink": "unlink", "remove": "unlink",
    "rename": "rename", "replace": "rename", "link": "link", "utime": "utime", "chmod": "chmod",
}  # fmt: skip
"""Functions of `os`, and what they ask for. Reading, writing and closing belong to the open."""


class FileOperations:
    """Counts operations by kind inside its `with` block, of all threads of this process.

    A large listing is one operation here, though a network file system needs several requests.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._real: list[tuple[Any, str, Callable[..., Any]]] = []
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> "FileOperations":
        for name, kind in _BY_PATH.items():
            self._replace(os, name, kind)
        self._replace(os, "fsync", "fsync")
        self._replace(io, "open", "open")
        self._replace(builtins, "open", "open")
        return self

    def __exit__(self, *exc_info: object) -> None:
        for module, name, real in self._real:
            setattr(module, name, real)

    def _replace(self, module: Any, name: str, kind: str) -> None:
        real = getattr(module, name)
        self._real.append((module, name, real))
        setattr(module, name, self._counting(kind, real))

    def _counting(self, kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **values: Any) -> Any:
            if self._is_inside(args, values):
                self.counts[kind] += 1
            return real(*args, **values)

        return call

    def _is_inside(self, args: tuple[Any, ...], values: dict[str, Any]) -> bool:
        """Tell whether a call is about the folder; of a descriptor one cannot tell, so it is."""
        path = args[0] if args else values.get("path", values.get("file", "."))
        if isinstance(path, int) or values.get("dir_fd") is not None:
            return True
        return os.path.abspath(os.fsdecode(path)).startswith(self._folder)

"""Restrict the code and files that an untrusted config can reach.

A packed model comes from others. While its parts are built, and whenever they load something later,
its `Trust` is in force: `instantiate`, `locate`, and whatever opens a file that a config names ask
for it. So it does not matter how a config was reached.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from espnet3.errors import EspnetError

_CODE_KEYS = ("_target_", "lm_loader")
"""Keys whose value is imported by its name."""
_CONVERSIONS = ("none", "partial", "object", "all")
_SWITCHES = ("_partial_", "_recursive_")
_DEFAULTS = "defaults"
_PACK_AGAIN = "Pack the model again with: python run.py --stages pack_model"


class PackedModelError(EspnetError):
    """A packed model is damaged, incomplete, or would run foreign code."""


@dataclass(frozen=True)
class Trust:
    """Objects that the parts of one packed model may use; it is pickled along with them."""

    root: str
    """Its folder; paths are compared as `realpath` gives them."""
    files: frozenset[str]
    """Real paths of the files whose checksums were compared; no others are read."""
    allows: Callable[[str], bool]
    """Tell whether a dotted name leads to something that may be built."""
    code: bool = False
    """Whether all its code is trusted (`trust_remote_code`), which switches every check off."""

    def check(self, values: Any, key: str, file: str = "") -> None:
        """Refuse a block that names code or paths that it must not reach.

        Args:
            values: Plain containers.
            key: Of the block, for the errors.
            file: That it comes from, if that is known.

        Raises:
            PackedModelError: Naming the key.
        """
        if self.code:
            return
        where = f" in {file}" if file else ""
        for place, name, value in _walk(values, key):
            called = f"{place}{where} is {value!r:.80}"
            if name in _CODE_KEYS:
                self._check_code(value, called)
            elif name in _SWITCHES and not isinstance(value, bool):
                raise PackedModelError(f"{called}, but must be true or false. {_PACK_AGAIN}")
            elif name == "_convert_" and value not in _CONVERSIONS:
                raise PackedModelError(f"{called}, which is no conversion. {_PACK_AGAIN}")
            if isinstance(value, str):
                self._check_text(value, called)

    def check_file(self, values: Mapping[Any, Any], path: Path) -> None:
        """Refuse a config file that reads others, or that a later step could turn into another."""
        if self.code:
            return
        if _DEFAULTS in values:
            raise PackedModelError(
                f"{path} reads other files by its defaults list, which a packed config does not. "
                f"{_PACK_AGAIN}"
            )
        self.check(values, "", str(path))

    def path(self, path: str | os.PathLike[str]) -> Path:
        """Return a path to read from.

        Raises:
            PackedModelError: It is outside of the folder, no plain file or folder, or holds a file
                whose checksum is not known.
        """
        given = Path(path)
        left, seen = ([] if self.code else [os.fspath(path)]), set[str]()
        while left:
            real = self._real_path(left.pop())
            if real not in self.files and real not in seen:  # links may go in a circle
                seen.add(real)
                # Loaders that get the folder skip hidden files.
                left += [one.path for one in os.scandir(real) if not one.name.startswith(".")]
        return given

    def _real_path(self, given: str) -> str:
        """Return the real path of a file with a checksum, or of a folder inside."""
        try:
            # Otherwise realpath returns something for missing files and circular links as well.
            real = os.path.realpath(given, strict=True)
            mode = os.stat(real).st_mode
        except (OSError, ValueError) as error:
            raise PackedModelError(
                f"{given!r:.200} cannot be read ({error!s:.80}).",
                fix="Copy the packed model again.",
            ) from error
        # A pipe or device that took the place of the file could block its reader for good.
        if real in self.files and stat.S_ISREG(mode):
            return real
        # The folder itself may be reached by a link.
        if not _is_below(real, os.path.realpath(self.root)):
            raise PackedModelError(
                f"{given!r:.200} leads out of the packed model {self.root}. A packed model "
                "reads nothing but its own files.",
                fix="Do not use it; get the model from elsewhere.",
            )
        if not stat.S_ISDIR(mode):
            raise PackedModelError(
                f"{given!r:.200} has no checksum in the meta.yaml of the packed model, or is "
                f"no plain file, so it is not read. {_PACK_AGAIN}"
            )
        return real

    def _check_code(self, value: Any, called: str) -> None:
        if not isinstance(value, str) or not self.allows(value):
            raise PackedModelError(
                f"{called}, which is no part of ESPnet3: building it would run foreign code. If "
                "you trust those who packed the model, and their code is installed: "
                "from_packed(path, trust_remote_code=True)"
            )

    def _check_text(self, text: str, called: str) -> None:
        if "${" in text:  # could turn into a target when it is resolved
            raise PackedModelError(
                f"{called}, an interpolation, which a packed config does not have. {_PACK_AGAIN}"
            )
        if any(ord(character) < 32 or ord(character) == 127 for character in text):
            raise PackedModelError(f"{called}, which has control characters. {_PACK_AGAIN}")
        if leads_out(text) and not (os.path.isabs(text) and self._is_own(text)):
            raise PackedModelError(
                f"{called}, a path that leads out of the packed model. {_PACK_AGAIN}"
            )

    def _is_own(self, path: str) -> bool:
        real = os.path.realpath(path)
        return real in self.files or _is_below(real, os.path.realpath(self.root))


def leads_out(text: str) -> bool:
    """Tell whether text is a path that could lead out of the folder it counts from.

    On some system: backslashes, drives and addresses count as well.
    """
    posix, windows = PurePosixPath(text), PureWindowsPath(text)
    return (
        posix.is_absolute()
        or bool(windows.drive or windows.root)
        or ".." in (*posix.parts, *windows.parts)
        or text.startswith("~")
        or "://" in text
        or text.lower().startswith("file:")
    )


_active: ContextVar[Trust | None] = ContextVar("trust", default=None)


def current_trust() -> Trust | None:
    """Return what is in force here; None where all comes from the user."""
    return _active.get()


@contextmanager
def under(trust: Trust | None) -> Iterator[None]:
    """Put a trust in force; None for what comes from the user."""
    token = _active.set(trust)
    try:
        yield
    finally:
        _active.reset(token)


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return a path that a config names, to be read from.

    Raises:
        PackedModelError: The config is of a packed model, and the path is none of its files.
    """
    trust = _active.get()
    return Path(path) if trust is None else trust.path(path)


def _is_below(path: str, root: str) -> bool:
    # With the separator: /models/ab is not below /models/a.
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _walk(values: Any, key: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the dotted key, the last part of it, and the value, of all in plain containers."""
    if isinstance(values, Mapping):
        children = [(str(name), child) for name, child in values.items()]
    elif isinstance(values, list | tuple):
        children = [(str(i), child) for i, child in enumerate(values)]
    else:
        children = []
        if not key:
            yield "", "", values
    for name, child in children:
        place = f"{key}.{name}" if key else name
        yield place, name, child
        yield from _walk(child, place)

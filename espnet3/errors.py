"""The errors that users see.

Each says what is wrong with its value, where it was set, and how to fix it, and is built from one
message, so that it survives the trip from a worker process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

TYPE_CHECKING = False  # as in `typing`, which is not imported: workers start with this module
if TYPE_CHECKING:
    from typing import Any, Protocol, Self

    class Places(Protocol):
        """Protocol: the file and line of each key of a config; see `LoadedConfig`."""

        def set_in(self, key: str) -> str:
            """Return `' (set in FILE:LINE)'`, or an empty text."""


# None is a value that a setting can have.
_NOT_GIVEN = object()


class EspnetError(Exception):
    """Base of all errors raised on purpose by ESPnet3.

    Args:
        message: what is wrong, with its value and where it was set.
        fix: the line to write, or what else to do; the end of the text.
    """

    fix = ""
    key = ""
    """The setting that the message begins with, until `locate` has added its place."""

    def __init__(self, message: object = "", *, fix: str = "") -> None:
        super().__init__(f"{message!s} {fix}".strip() if fix else message)
        if isinstance(message, Note):
            fix = fix or message.fix
        if fix:  # else there is nothing to pickle beside the message
            self.fix = fix

    def at(self, key: str) -> EspnetError:
        """Return an error of the same type that begins with the key of the config to blame."""
        error = type(self)(f"{key}: {self}")
        error.key, error.fix = key, self.fix
        return error

    def move(self, old: str, new: str) -> None:
        """Name a key as the user's config does, where code got another one with a part of it."""
        if f"{self.key}.".startswith(f"{old}."):
            self.key = new + self.key.removeprefix(old)
            self.args = (new + str(self).removeprefix(old),)

    def locate(self, config: Places) -> None:
        """Add where the key was set, once, if the config knows it."""
        place = config.set_in(self.key) if self.key else ""
        if place:
            self.args = (f"{self.key}{place}{str(self).removeprefix(self.key)}",)
            self.key = ""


class Note(str):
    """A message for a log or an error that knows which part of it says what to do.

    Example:
        >>> note = Note("No walltime is set.", fix="Write: walltime: 1:00:00")
        >>> print(note, "|", note.fix)
        No walltime is set. Write: walltime: 1:00:00 | Write: walltime: 1:00:00
    """

    fix: str

    def __new__(cls, problem: str, *, fix: str = "") -> Note:
        """Join both to one text."""
        note = super().__new__(cls, f"{problem} {fix}".strip())
        note.fix = fix
        return note

    @property
    def problem(self) -> str:
        """The text without what to do."""
        return self.removesuffix(self.fix).rstrip()


class SettingError(EspnetError):
    """A setting is wrong, or asks for what is not there; see `ConfigError` and `ResourceError`.

    Code that gets a setting, but not the config that it comes from, gives the parts; where the
    config is known, `locate` adds file and line.

    Args:
        message: the whole text; or, with a key, the beginning of the sentence in place of the key
            and its value, behind which the place is added.
        key: dotted, such as `runner.on_error`.
        value: what it is set to, if that is worth showing.
        problem: what is wrong with it, as the end of that sentence.
        fix: the line to write, or what else to do; or what returns it for the config, because one
            types another line into a shell than into a file.

    Example:
        >>> print(SettingError(key="a.b", value=3, problem="but must be a name", fix="Write: b: x"))
        a.b is 3, but must be a name. Write: b: x
    """

    def __init__(
        self,
        message: str = "",
        *,
        key: str = "",
        value: object = _NOT_GIVEN,
        problem: str = "",
        fix: str | Callable[[Any], str] = "",
    ) -> None:
        if isinstance(message, Note):
            fix = message.fix
            message = message.problem
        self.key, self._fix = key, fix
        is_said = value is not _NOT_GIVEN or bool(message)
        self._head = message or (f"{key} is {value!r:.200}" if is_said else key)
        comma = "," if is_said and problem[:1].isalpha() else ""
        self._tail = f"{comma}{' ' if problem[:1].isalnum() else ''}{problem}"
        super().__init__(self._text("", None))

    def locate(self, config: Places) -> None:
        """Add where the key was set, once, if the config knows it."""
        place = config.set_in(self.key) if self.key else ""
        if place:
            self.args = (self._text(place, config),)
            self.key = ""

    def at(self, key: str) -> Self:
        """Return an error that begins with the key of the block that is to blame."""
        error = type(self)(key, key=key, problem=f": {self}")
        error.fix = self.fix
        return error

    def move(self, old: str, new: str) -> None:
        """Name a key as the user's config does, where code got another one with a part of it."""
        if f"{self.key}.".startswith(f"{old}."):
            self._head = new + self._head.removeprefix(old)
        super().move(old, new)

    def below(self, block: str) -> Self:
        """Return the same error about the key of this name in a block of the config."""
        if not self.key:
            return self
        key = f"{block}.{self.key}"
        head = key + self._head.removeprefix(self.key)
        return type(self)(head, key=key, problem=self._tail, fix=self._fix)

    def _text(self, place: str, config: Places | None) -> str:
        fix = self._fix if isinstance(self._fix, str) else self._fix(config)
        self.fix = fix.strip()
        said = self._tail or self._head
        end = "." if fix and not said.endswith((".", ":", "?")) else ""
        return f"{self._head}{place}{self._tail}{end} {self.fix}".strip()

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave a function behind: the message has what it said."""
        state = {**self.__dict__}
        if not isinstance(self._fix, str):
            state |= {"_tail": str(self).removeprefix(self._head), "_fix": ""}
        return type(self), self.args, state


class ConfigError(SettingError):
    """A setting is wrong: misspelt, of the wrong type, out of range, or at odds with another."""


class ResourceError(SettingError):
    """The machine or the cluster cannot give what was asked for."""


class MissingExtraError(ResourceError):
    """An optional package is needed and not installed."""


class ProviderError(EspnetError):
    """A provider or runner breaks its contract, or its environment cannot be built."""


class ItemError(EspnetError):
    """The user's function failed on an item; the message holds the user's traceback."""


class WorkerError(EspnetError):
    """A worker died, hung, or never started."""


class StaleRunError(EspnetError):
    """A run folder holds results of another model, config, data or code."""


class RunFolderError(EspnetError):
    """A run folder cannot be read or written: wrong version, damaged, read-only, or full."""


class FileSystemError(RunFolderError):
    """A file cannot be reached from this node, which says nothing of the run: others continue."""


class RecordError(EspnetError, ValueError):
    """A record cannot be written or read: its id, its value, or its line is wrong."""


class IncompleteRunError(EspnetError):
    """Results are not whole: items, ids or files are missing, or there twice."""


class TrainingError(EspnetError):
    """A training cannot continue: the model breaks its contract, or its loss is no number."""


def blame(error: BaseException, key: str, note: str) -> None:
    """Add to an error of others, such as a library's, which key of the config it comes from.

    Where the config is known, `LoadedConfig.naming_places` adds file and line.
    """
    error.add_note(note)
    error.__dict__["config_key"] = key


class RunInterrupted(SystemExit, KeyboardInterrupt):
    """The run was stopped by Ctrl-C (exit code 130) or SIGTERM (143).

    Uncaught, it ends the program with that code and without a traceback; code that catches
    `KeyboardInterrupt` sees it as well.
    """


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `' Did you mean "x"?'` for the closest of the known words, or an empty string."""
    close = closest(word, known)
    return f" Did you mean {close!r}?" if close else ""


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that is spelled most like another, if it can be a slip of it.

    Parts that both have do not count: `num_nodes` is no slip of `num_workers`.

    Example:
        >>> closest("channls", ["n_mels", "channels"]), closest("num_workers", ["num_nodes"])
        ('channels', None)
        >>> closest("batch_sec", ["batch_size", "batch_seconds"])
        'batch_seconds'
    """
    # Imported when needed: this module is on the start-up path of workers.
    from difflib import SequenceMatcher, get_close_matches

    def is_slip(other: str) -> bool:
        mine, theirs = str(word).lower().split("_"), other.lower().split("_")
        rest = [part for part in mine if part not in theirs]
        other_rest = [part for part in theirs if part not in mine]
        if not rest or not other_rest:
            return True  # one says more than the other
        return is_like("_".join(rest), "_".join(other_rest), 0.6) or is_like(word, other, 0.8)

    def is_like(one: str, other: str, least: float) -> bool:
        return SequenceMatcher(None, str(one).lower(), other.lower()).ratio() >= least

    known = list(known)
    if same := next((other for other in known if other.lower() == str(word).lower()), None):
        return same
    # Several, as `is_slip` may rule out the closest.
    close = get_close_matches(str(word), known, n=5, cutoff=cutoff)
    # What it is the beginning of comes first: batch_sec is short for batch_seconds.
    close.sort(key=lambda other: not other.lower().startswith(str(word).lower()))
    return next(filter(is_slip, close), None)

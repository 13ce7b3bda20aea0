"""The errors that users see.

Each says what is wrong with its value, where it was set, and how to fix it, and is built from one
message, so that it survives the trip from a worker process.
"""

from collections.abc import Iterable


class EspnetError(Exception):
    """Base of all errors raised on purpose by ESPnet3."""


class ConfigError(EspnetError):
    """A setting is wrong: misspelt, of the wrong type, out of range, or at odds with another."""


class ResourceError(EspnetError):
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
    """A file cannot be reached from this node, which says nothing of the run: others go on."""


class IncompleteRunError(EspnetError):
    """Results are not whole: items, ids or files are missing, or there twice."""


class TrainingError(EspnetError):
    """A training cannot go on: the model breaks its contract, or its loss is no number."""


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

    close = get_close_matches(str(word), list(known), n=5, cutoff=cutoff)
    return next(filter(is_slip, close), None)

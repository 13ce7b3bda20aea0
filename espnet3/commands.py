"""Lines to type that messages suggest: stages of a recipe, called as the user called it.

Every layer asks here, so that a suggested line has the configs and overrides of the line that was
typed. Whoever reads that line says so with `use_line`; without one, such as in a notebook, a
suggestion names the usual files of the recipe in the current folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

TYPE_CHECKING = False  # as in `typing`, which is not imported: workers start with this module
if TYPE_CHECKING:
    from typing import Protocol

    class Line(Protocol):
        """A command line that was typed, which can be typed again in another way."""

        def for_stages(self, stages: Sequence[str], overrides: Sequence[str]) -> list[str]:
            """Return the words that run these stages, with further overrides."""

        def words(self) -> list[str]:
            """Return it as it was typed."""

        def again(self, overrides: Sequence[str], without: Sequence[str]) -> list[str]:
            """Return the same words with further overrides, and without those of some keys."""


_KINDS = {"infer": "inference", "measure": "metrics", "report": "metrics",
          "pack_model": "publication", "upload_model": "publication"}  # fmt: skip
_DATA = "create_dataset"
_line: ContextVar[Line | None] = ContextVar("line", default=None)
_corrections: ContextVar[Corrections | None] = ContextVar("corrections", default=None)


@contextmanager
def use_line(line: Line) -> Iterator[None]:
    """Let messages suggest lines like the one that was typed."""
    token = _line.set(line)
    try:
        yield
    finally:
        _line.reset(token)


class Corrections:
    """Overrides that suggested lines have replaced, each line one of them."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._is_ambiguous = False

    def note(self, wrong: Sequence[str], right: Sequence[str]) -> None:
        """Take note of keys that are left out of a line, and what is written in their place."""
        known = self._made.setdefault(tuple(dict.fromkeys(wrong)), tuple(right))
        self._is_ambiguous |= known != tuple(right)

    def line(self, n_mistakes: int) -> str:
        """Return the line with all of them; empty unless each of so many mistakes has one."""
        if self._is_ambiguous or len(self._made) != n_mistakes:
            return ""
        right = [word for words in self._made.values() for word in words]
        return same_command(*right, without=[key for keys in self._made for key in keys])


@contextmanager
def gather_corrections() -> Iterator[Corrections]:
    """Gather what the lines that are suggested inside the block correct."""
    corrections = Corrections()
    token = _corrections.set(corrections)
    try:
        yield corrections
    finally:
        _corrections.reset(token)


def _note_correction(wrong: Sequence[str], right: Sequence[str]) -> None:
    corrections = _corrections.get()
    if corrections is not None:
        corrections.note(wrong, right)


def recipe_command(*stages: str, overrides: Sequence[str] = ()) -> str:
    """Return the line that runs stages of the recipe, with the user's own configs and overrides.

    Args:
        stages: names.
        overrides: such as `runner.retry_failed=true`; each replaces one of the same key.
    """
    line = _line.get()
    words = None if line is None else _attempt(lambda: line.for_stages(stages, overrides))
    return _join(words or _usual(stages, overrides))


def same_command(*overrides: str, without: Sequence[str] = ()) -> str:
    """Return the line that was typed with further overrides; only these if none was typed.

    Args:
        overrides: each replaces one of the same key.
        without: keys of overrides to leave out.
    """
    line = _line.get()
    if without:
        _note_correction(without, overrides)
    words = None if line is None else _attempt(lambda: line.again(overrides, without))
    return _join(words or list(overrides))


def corrected_command(wrong: Sequence[str], right: Sequence[str]) -> str:
    """Return the line that was typed with other words in place of wrong ones.

    Args:
        wrong: words that stand one behind the other; none, to add others at the end.
        right: what to write there.

    Returns:
        An empty text if no line was typed, or not with these words.
    """
    line = _line.get()
    words = [] if line is None else line.words()
    if not wrong and words:
        return _join([*words, *right])
    for start in range(len(words)):
        if words[start : start + len(wrong)] == list(wrong):
            _note_correction([override_key(word) for word in wrong], right)
            return _join([*words[:start], *right, *words[start + len(wrong) :]])
    return ""


def replace_overrides(
    words: Sequence[str], overrides: Sequence[str], without: Sequence[str] = ()
) -> list[str]:
    """Return words of a line without those that others replace, which come last.

    Example:
        >>> replace_overrides(["--stages", "infer", "model.beam_size=3"], ["model.beam_size=5"])
        ['--stages', 'infer', 'model.beam_size=5']
        >>> replace_overrides(["modle.beam_size=3"], ["model.beam_size=3"], without=["modle"])
        ['model.beam_size=3']
    """
    keys = {*without, *(override_key(word) for word in overrides)}
    below = tuple(f"{key}." for key in without)

    def is_replaced(word: str) -> bool:
        key = override_key(word)
        return key in keys or key.startswith(below)

    kept = [word for word in words if word.startswith("-") or not is_replaced(word)]
    return [*kept, *overrides]


def is_typed_below(key: str) -> bool:
    """Tell whether the line that was typed sets something below a key, such as `key.name=3`."""
    line = _line.get()
    words = [] if line is None else line.words()
    return any(override_key(word).startswith(f"{key}.") for word in words if "=" in word)


def free_name(path: str | os.PathLike[str]) -> str:
    """Return the path with the first number behind it that nothing has: `exp/a` gives `exp/a_2`."""
    number = 2
    while os.path.lexists(f"{os.fspath(path)}_{number}"):
        number += 1
    return f"{os.fspath(path)}_{number}"


def usual_config(stage: str, folder: str = "") -> tuple[str, str] | None:
    """Return kind and file of the config of a recipe's `conf/` that a stage is likely to read.

    Data are made by what has arguments for that, of training before inference.
    """
    kinds = ("training", "inference") if stage == _DATA else (_KINDS.get(stage, "training"),)
    files = [(kind, name) for kind in kinds for name in _files(kind, folder)]
    if stage == _DATA:
        with_arguments = [one for one in files if _makes_data(os.path.join(folder, one[1]))]
        files = with_arguments or files
    return files[0] if files else None


def _attempt(words: Callable[[], list[str]]) -> list[str] | None:
    try:
        return words()
    except Exception:  # this is part of an error message, and must not raise another error
        return None


def _join(words: Sequence[str]) -> str:
    import shlex

    from espnet3.text import on_one_line

    return on_one_line(shlex.join(words))


def override_key(override: str) -> str:
    """Return the key that an override changes."""
    return override.partition("=")[0].lstrip("+~")


def _usual(stages: Sequence[str], overrides: Sequence[str]) -> list[str]:
    words = ["python", "run.py", "--stages", *stages]
    for kind, file in dict(map(_config_of, stages)).items():
        words += [f"--{kind}_config", file]
    return [*words, *overrides]


def _config_of(stage: str) -> tuple[str, str]:
    kind = _KINDS.get(stage, "training")
    return usual_config(stage) or (kind, f"conf/{kind}.yaml")


def _files(kind: str, folder: str) -> list[str]:
    """Return files for a kind of config; the shortest first: training.yaml, then training_lm."""
    try:
        names = os.listdir(os.path.join(folder, "conf"))
    except OSError:
        return []
    fitting = [n for n in names if n.startswith(kind) and n.endswith((".yaml", ".yml"))]
    return [f"conf/{name}" for name in sorted(fitting, key=lambda name: (len(name), name))]


def _makes_data(file: str) -> bool:
    try:
        # Not parsed as YAML: this is part of an error message, and must not raise another error.
        with open(file, encoding="utf-8", errors="replace") as lines:
            return any(line.startswith(f"{_DATA}:") for line in lines)
    except OSError:
        return False

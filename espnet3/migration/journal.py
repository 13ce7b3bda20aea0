"""Remember what became of each option, key and file that was read; MIGRATION.md is made of it."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from espnet3.text import on_one_line, shortened


class Outcome(Enum):
    """Outcome of something that was read."""

    TAKEN = "taken over"
    UNNEEDED = "not needed"
    LEFT_OUT = "left out"
    """Without consequence for results."""
    CHANGES = "LEFT OUT, CHANGES RESULTS"


@dataclass(frozen=True)
class Origin:
    """A place in the old recipe."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Entry:
    """One line of the table in MIGRATION.md."""

    origin: Origin
    name: str
    """The option, key or file."""
    value: Any
    outcome: Outcome
    became: str
    """The key of ours that it is now; empty where it has none."""
    note: str


@dataclass
class Journal:
    """All that was read, in the order in which it was."""

    entries: list[Entry] = field(default_factory=list)
    todos: list[str] = field(default_factory=list)
    """Steps to take before the recipe runs."""

    def taken(self, origin: Origin, name: str, value: Any, became: str, note: str = "") -> None:
        """Note what has a counterpart here."""
        self.entries.append(Entry(origin, name, value, Outcome.TAKEN, became, note))

    def unneeded(self, origin: Origin, name: str, value: Any, note: str) -> None:
        """Note what has no counterpart because nothing is missing without it."""
        self.entries.append(Entry(origin, name, value, Outcome.UNNEEDED, "", note))

    def left_out(self, origin: Origin, name: str, value: Any, note: str) -> None:
        """Note what is missing without changing results."""
        self.entries.append(Entry(origin, name, value, Outcome.LEFT_OUT, "", note))

    def changes(self, origin: Origin, name: str, value: Any, note: str, became: str = "") -> None:
        """Note what is missing, or different, so that results are."""
        self.entries.append(Entry(origin, name, value, Outcome.CHANGES, became, note))

    def todo(self, text: str) -> None:
        """Note what must be done by hand; once."""
        if text not in self.todos:
            self.todos.append(text)

    @property
    def is_complete(self) -> bool:
        """True if nothing that changes results was left out."""
        return not self.left_behind

    @property
    def left_behind(self) -> list[Entry]:
        """Entries that were left out, or are different, and change results."""
        return [entry for entry in self.entries if entry.outcome is Outcome.CHANGES]

    def table(self, entries: list[Entry] | None = None) -> str:
        """Return entries, or all of them, as a table of Markdown."""
        lines = ["| where | what | value | became | |", "|---|---|---|---|---|"]
        for entry in self.entries if entries is None else entries:
            became = f"`{entry.became}`" if entry.became else entry.outcome.value
            if entry.became and entry.outcome is Outcome.CHANGES:
                became += f", {entry.outcome.value}"
            cells = [str(entry.origin), entry.name, _shown(entry.value), became, entry.note]
            lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
        return "\n".join(lines)


def _shown(value: Any) -> str:
    if value is None or value == "":
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{shortened(text, 80).replace('`', chr(39))}`"


def _cell(text: str) -> str:
    return on_one_line(text).replace("|", "\\|")

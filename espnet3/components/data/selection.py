"""Which samples come in an epoch, and how often: datasets may have weights.

An epoch is made of tickets. A ticket is `copy * n_items + index`, so that the second reading of a
sample in one epoch can be told from the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Part:
    """The items of one dataset that take part, and how often each comes."""

    items: "Ints"
    weight: float = 1.0


@dataclass(frozen=True)
class Slots:
    """Places in an epoch, of which each is taken by one item, or by some neighbours in turn.

    A weight of 1.5 makes a place of its own for each item, and one more for each two of them. So
    each epoch has as many samples, of nearly the same lengths.
    """

    items: "Ints"
    starts: "Ints"
    """Where the items of a place begin."""
    counts: "Ints"
    """How many take turns."""
    copies: "Ints"
    """How many other places of the same items come before."""
    turns: "Ints"
    """Which one begins."""

    def __len__(self) -> int:
        return len(self.starts)

    def tickets(self, epoch: int, n_items: int) -> "Ints":
        """Return the ticket for each place."""
        own = self.starts + (self.turns + epoch) % self.counts
        return self.copies * n_items + self.items[own]

    def at(self, order: "Ints") -> "Slots":
        """Return these places, in this order."""
        return Slots(
            self.items,
            *(x[order] for x in (self.starts, self.counts, self.copies, self.turns)),
        )

    def bounds(self, lengths: "Floats") -> tuple["Floats", "Floats"]:
        """Return the longest and the shortest that may take each place, if items fall in length."""
        return lengths[self.items[self.starts]], lengths[self.items[self.starts + self.counts - 1]]

    def candidates(self, start: int, end: int) -> "Ints":
        """Return the items that may take one of the places from `start` to `end`."""
        import numpy as np

        counts = self.counts[start:end]
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        found: Ints = self.items[np.repeat(self.starts[start:end], counts) + offsets]
        return found


def find_slots(parts: Sequence[Part], seed: int) -> Slots:
    """Return the places of all datasets; neighbours among a dataset's items share one."""
    import numpy as np

    rng = np.random.default_rng([seed, 3])
    columns: list[list[Ints]] = [[], [], [], []]
    n_before = 0
    for part in parts:
        n_items, n_whole = len(part.items), int(part.weight)
        n_shared = round((part.weight - n_whole) * n_items)
        for copy in range(n_whole + (n_shared > 0)):
            n_slots = n_shared if copy == n_whole else n_items
            edges = np.arange(n_slots + 1) * n_items // n_slots
            columns[0].append(n_before + edges[:-1])
            columns[1].append(np.diff(edges))
            columns[2].append(np.full(n_slots, copy))
            columns[3].append(rng.integers(0, 2**31, n_slots))
        n_before += n_items
    items = np.concatenate([part.items for part in parts])
    return Slots(items, *(np.concatenate(column) for column in columns))


def tickets_of(indices: "Ints", n_items: int) -> "Ints":
    """Return the tickets of indices that may come several times."""
    import numpy as np

    order = np.argsort(indices, kind="stable")
    in_order = indices[order]
    is_first = np.ones(len(indices), dtype=bool)
    is_first[1:] = in_order[1:] != in_order[:-1]
    firsts = np.flatnonzero(is_first)
    run = np.cumsum(is_first) - 1
    copies = np.empty_like(indices)
    copies[order] = np.arange(len(indices)) - firsts[run]
    return copies * n_items + indices

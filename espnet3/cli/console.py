"""Tables for people: readable at 80 columns, and without colours where output is piped."""

from collections.abc import Collection

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def make_console() -> Console:
    """Return a console that prints text as it is: `[brackets]` in a path are no markup."""
    return Console(highlight=False, markup=False, emoji=False)


def make_table(*titles: str, right: Collection[str] = ()) -> Table:
    """Return an empty table; long cells go on in the next line, so that nothing is cut off.

    Args:
        titles: of the columns.
        right: those of columns of numbers.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, title_style="bold")
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left", overflow="fold")
    return table


def make_facts() -> Table:
    """Return an empty grid of names and values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table

"""What a wrong call raises, and values that several verbs take."""

import argparse

from espnet3.errors import EspnetError


class UsageError(EspnetError):
    """The command line itself is wrong: exit code 2, as from argparse."""


def seconds(text: str, least: float = 0.0) -> float:
    """Read a number of seconds, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {least:g} on")
    return number

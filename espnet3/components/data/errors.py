"""Errors in data."""

from espnet3.commands import recipe_command
from espnet3.errors import EspnetError


class DataError(EspnetError, ValueError):
    """A dataset breaks its contract, or what it was made from is missing, damaged or at odds."""


class AudioError(DataError):
    """An audio file is missing, unreadable, too short, or not of the form that was asked for."""


def create_command() -> str:
    """Return the line that makes the data of the recipe."""
    return recipe_command("create_dataset")

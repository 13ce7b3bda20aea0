"""What a wrong call raises."""

from espnet3.errors import EspnetError


class UsageError(EspnetError):
    """The command line itself is wrong: exit code 2, as from argparse."""

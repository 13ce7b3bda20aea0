"""`espnet3 VERB ...`: nothing heavy is imported before the verb is known."""


def main() -> None:
    """Run the command line."""

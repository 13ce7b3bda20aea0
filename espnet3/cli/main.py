"""`espnet3 VERB ...`: nothing heavy is imported before the verb is known."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from espnet3 import __version__
from espnet3.errors import EspnetError, suggest

VERBS = {
    "status": "show how far runs are, from their folders alone",
    "failed": "list the items that failed, with their tracebacks",
    "merge": "join the shards of a finished run whose driver died",
}
"""Each verb is a module beside this one, with `add_arguments(parser)` and `run(args)`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 if all went well, 1 after an error, 2 for a wrong call, 130 after Ctrl-C.
    """
    _escape_what_cannot_be_encoded()
    try:
        code = _guarded(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:  # None if the caller closed it
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _discard_stdout()
        return 1
    except KeyboardInterrupt:
        return 130


def _escape_what_cannot_be_encoded() -> None:
    r"""Print `\xe9` for `é` where the terminal's encoding has none, rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _guarded(argv: list[str]) -> int:
    try:
        return _run(argv)
    except BrokenPipeError:
        raise
    except (EspnetError, OSError) as error:
        from espnet3.cli.plain import print_error

        print_error(error)
        return 1
    except SystemExit as error:  # how argparse ends, after it has said all
        return error.code if isinstance(error.code, int) else 0


def _run(argv: list[str]) -> int:
    if not argv or argv[0].startswith("-"):
        parser = _parser()
        parser.parse_args(argv)
        parser.print_help()
        return 0
    verb = argv[0]
    if verb not in VERBS:
        known = ", ".join(VERBS)
        message = f"espnet3: there is no command {verb!r}.{suggest(verb, VERBS)} Commands: {known}."
        print(message, file=sys.stderr)
        return 2
    module = import_module(f"espnet3.cli.{verb}")
    parser = argparse.ArgumentParser(
        prog=f"espnet3 {verb}", description=module.__doc__, allow_abbrev=False
    )
    module.add_arguments(parser)
    args = parser.parse_args(argv[1:])
    code: int = module.run(args)
    return code


def _parser() -> argparse.ArgumentParser:
    verbs = "\n".join(f"  {verb:8}{text}" for verb, text in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="espnet3",
        usage="espnet3 [-h] [--version] COMMAND ...",
        description="Look at and look after the runs of ESPnet3.",
        epilog=f"commands:\n{verbs}\n\n`espnet3 COMMAND --help` tells more of each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"espnet3 {__version__}")
    return parser


def _discard_stdout() -> None:
    """Send what is still buffered nowhere, or Python would complain of the pipe when it ends."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)

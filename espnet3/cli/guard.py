"""How every command ends: with an exit code, and with one message instead of a traceback."""

import io
import os
import signal
import sys
import threading
from collections.abc import Callable

from espnet3.cli.usage import UsageError
from espnet3.errors import EspnetError


def guarded(run: Callable[[], int]) -> int:
    """Run a command.

    Returns:
        Its exit code: 1 after an error, 2 for a wrong call, 130 after Ctrl-C, 143 after SIGTERM.
    """
    _escape_what_cannot_be_encoded()
    _heed_ctrl_c()
    try:
        code = _guarded(run)
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


def _heed_ctrl_c() -> None:
    """Let Ctrl-C end what shows something on a terminal, also where a script ignores it.

    What a script starts with `&` ignores it, and Python then leaves it at that.
    """
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    on_main = threading.current_thread() is threading.main_thread()
    if is_ignored and on_main and sys.stdout is not None and sys.stdout.isatty():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _guarded(run: Callable[[], int]) -> int:
    try:
        return run()
    except BrokenPipeError:
        raise
    except (EspnetError, OSError) as error:
        from espnet3.cli.plain import print_error

        if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
            from espnet3.io.folders import folder_trouble

            error = EspnetError(f"{error}: {folder_trouble(error)}")
        print_error(error)
        return 2 if isinstance(error, UsageError) else 1
    except SystemExit as error:  # how argparse ends, after it has said all
        return error.code if isinstance(error.code, int) else 0


def _discard_stdout() -> None:
    """Send what is still buffered nowhere, or Python would complain of the pipe when it ends."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)

"""`espnet3 VERB ...`: nothing heavy is imported before the verb is known."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module

from espnet3 import __version__
from espnet3.cli.console import UsageError, guarded
from espnet3.errors import closest

VERBS = {
    "init": "write a new recipe: for a corpus of yours, or from a template",
    "migrate": "turn a recipe of ESPnet2 into one of ESPnet3 that runs",
    "run": "run stages of a recipe, from any folder",
    "transcribe": "turn audio files and folders into text with a model, without a recipe",
    "plan": "estimate how long a run would take, on how many workers",
    "doctor": "check a parallel block, and all around it, before jobs wait in a queue",
    "status": "show how far runs are, from their folders alone; --watch: live",
    "explain": "explain why a run makes no progress, and what to do about it",
    "logs": "show what workers wrote, of one, of a shard, or where something failed",
    "failed": "list the items that failed, with their tracebacks",
    "wait": "wait for detached runs to end",
    "cancel": "stop detached runs and their jobs; finished shards are kept",
    "resume": "give detached runs more workers, here or on another backend",
    "retry": "compute the shards with failed items again",
    "merge": "join the shards of a finished run whose driver died",
    "tidy": "pack the shards of merged runs, so that few files are left",
    "launch": "submit a training to Slurm, PBS, SGE or LSF",
    "scaling": "measure how a parallel block scales, on 1, 2, 4 ... workers",
    "completion": "print the script that completes commands, stages, files and keys in a shell",
    "schema": "write JSON Schemas of config files, with which editors check keys",
}
_MODULES = {
    **dict.fromkeys(("explain", "failed", "logs"), "run_diagnosis"),
    **dict.fromkeys(("cancel", "wait", "resume", "retry"), "run_control"),
    "run": "recipe",
    "scaling": "plan",
    "tidy": "merge",
}
"""The module of each verb that has none of its own name. A verb is a function of this name, which
reads the rest of the line and returns the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 if all went well, 1 after an error, 2 for a wrong call, 130 after Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _run(arguments))


def _run(argv: list[str]) -> int:
    if not argv or argv[0].startswith("-"):
        parser = _parser()
        parser.parse_args(argv)
        parser.print_help()
        return 0
    verb = argv[0]
    if verb not in VERBS:
        close = closest(verb, VERBS)
        write = f" Write: {shlex.join(['espnet3', close, *argv[1:]])}" if close else ""
        raise UsageError(f"there is no command {verb!r}. Commands: {', '.join(VERBS)}.{write}")
    # Only that of the verb: `espnet3 --help` need not import torch.
    module = import_module(f"espnet3.cli.{_MODULES.get(verb, verb)}")
    code: int = getattr(module, verb)(argv[1:])
    return code


def _parser() -> argparse.ArgumentParser:
    verbs = "\n".join(f"  {verb:11}{text}" for verb, text in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="espnet3",
        usage="espnet3 [-h] [--version] COMMAND ...",
        description="Write and run recipes, and look after the runs of ESPnet3.",
        epilog=f"commands:\n{verbs}\n\n`espnet3 COMMAND --help` says more about each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"espnet3 {__version__}")
    return parser

"""The program of a detached worker: `python -m espnet3.parallel.detached.work RUN_DIR ...`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m espnet3.parallel.detached.work")
    parser.add_argument("run_dirs", nargs="+", type=Path)
    parser.add_argument("--env", default="local")
    parser.add_argument("--job", default="")
    parser.add_argument("--generation", type=int, default=0)
    parser.add_argument("--submitted", type=float)
    parser.add_argument("--walltime", type=float)
    parser.add_argument("--trust")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Work on the folders, one after the other; return the exit code."""
    _parser().parse_args(arguments)
    raise NotImplementedError


if __name__ == "__main__":
    sys.exit(main())

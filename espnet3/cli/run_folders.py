"""Find the runs that a folder on the command line stands for."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from espnet3.errors import RunFolderError, closest
from espnet3.shards.layout import leases_folder, manifest_path
from espnet3.shards.lease import living_owners
from espnet3.shards.manifest import require_manifest
from espnet3.shards.records import RecordPaths, read_stop
from espnet3.text import on_one_line

_DEPTH = 6  # exp/TAG/inference/sweep/VALUES/TEST_SET, from the folder above exp
_SHOWN = 5


def add_dirs(parser: argparse.ArgumentParser) -> None:
    """Declare the folders of a verb that takes several."""
    parser.add_argument(
        "dirs", metavar="DIR", nargs="+", type=Path, help="a run folder, or a folder of such"
    )


def find_runs(folder: Path) -> list[Path]:
    """Return the folder itself if it holds a run, else the run folders below it, not too deep.

    Raises:
        RunFolderError: if there is none.
    """
    if not folder.exists():
        raise RunFolderError(f"{on_one_line(folder)} does not exist.{_similar(folder)}")
    runs = _search(folder, _DEPTH) if folder.is_dir() else []
    if not runs:
        require_manifest(folder)  # says what is wrong with the folder
    return runs


def find_all_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the runs that some folders stand for, each once.

    Raises:
        RunFolderError: if one of them has none.
    """
    return list(dict.fromkeys(run for folder in folders for run in find_runs(folder)))


def find_detached_runs(
    folders: Sequence[Path], also: Callable[[Path], object] = lambda run: False
) -> list[Path]:
    """Return the same, without runs of drivers that merely lie in one of the folders.

    Such a run that is named itself is returned, for an error that says what is wrong with it; a
    folder above it stands for the others, and for those of drivers that `also` finds.
    """
    chosen: dict[Path, None] = {}
    for folder in folders:
        runs = find_runs(folder)
        meant = [run for run in runs if RecordPaths(run).run.exists() or also(run)]
        for run in runs if meant else ():
            if run not in meant:
                print(f"{on_one_line(run)} was not detached, and is left alone.")
        chosen |= dict.fromkeys(meant or runs)
    return list(chosen)


def has_owner(run_dir: Path) -> bool:
    """Tell whether a driver or worker is at work in a run folder."""
    return bool(living_owners(leases_folder(run_dir)))


def is_stopped(run_dir: Path) -> bool:
    """Tell whether a run has a stop mark."""
    return read_stop(RecordPaths(run_dir)) is not None


def find_run(folder: Path) -> Path:
    """Return the one run that a folder stands for.

    Raises:
        RunFolderError: if there is none, or if there are several.
    """
    runs = find_runs(folder)
    if len(runs) == 1:
        return runs[0]
    listed = "".join(f"\n  {on_one_line(run)}" for run in runs[:_SHOWN])
    rest = f"\n  and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
    raise RunFolderError(f"{on_one_line(folder)} holds {len(runs)} runs; name one:{listed}{rest}")


def _search(folder: Path, depth: int) -> list[Path]:
    if manifest_path(folder).exists():
        return [folder]
    if depth == 0:
        return []
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    # A folder of another user must not hide the runs beside it.
    except PermissionError:
        return []
    return [run for name in names for run in _search(folder / name, depth - 1)]


def _similar(folder: Path) -> str:
    try:
        close = closest(folder.name, os.listdir(folder.parent))
    except OSError:
        return ""
    return f" Did you mean {str(folder.parent / close)!r}?" if close else ""

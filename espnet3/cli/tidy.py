"""Pack the shards of merged runs into one file each, so that few files are left.

A shard is a folder with two files or more, and quotas limit how many files a user has. The shards
of a merged run become split.tar and split.tar.index; those that hold results to which merged files
point stay. All commands answer as before; what computes or merges again takes the shards out first.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from espnet3.cli.console import command, make_parser, print_error, print_json
from espnet3.cli.run_folders import add_dirs, find_all_runs
from espnet3.errors import EspnetError, RunFolderError
from espnet3.io.shared_files import is_there
from espnet3.parallel.detached.folder_access import reports_folder_errors
from espnet3.parallel.folder_run import TIDY, folder_errors, sweep
from espnet3.shards.layout import RunLayout
from espnet3.shards.lease import Lease, Owner, living_owners
from espnet3.shards.manifest import Manifest, require_manifest
from espnet3.shards.merge import has_outputs, read_coverage, read_success, shards_in_use
from espnet3.shards.pack import Tidied, pack_shards, unpack_shards
from espnet3.text import count, on_one_line


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("tidy", __doc__ or "")
    add_dirs(parser)
    parser.add_argument("--undo", action="store_true", help="take the shards out again")
    parser.add_argument("--json", action="store_true", help="print one JSON document for scripts")
    return parser


@reports_folder_errors
def tidy(argv: Sequence[str]) -> int:
    """Pack each run and print how many files became how many; 1 if a run could not be packed."""
    args = _parser().parse_args(argv)
    done: dict[str, Tidied] = {}
    n_refused = 0
    for run_dir in find_all_runs(args.dirs):
        try:
            with folder_errors(run_dir):
                done[str(run_dir)] = tidy_run(run_dir, undo=args.undo)
        except EspnetError as error:
            print_error(error)
            n_refused += 1
            continue
        if not args.json:
            print(_describe(run_dir, done[str(run_dir)], undo=args.undo))
    if args.json:
        print_json({"runs": [{"run_dir": run, **asdict(each)} for run, each in done.items()]})
    return 1 if n_refused else 0


def tidy_run(run_dir: Path, *, undo: bool = False) -> Tidied:
    """Pack the shards of a run, or take them out again.

    Raises:
        RunFolderError: it is not merged, or a process is at work in it; with what to type.
    """
    manifest = require_manifest(run_dir)
    layout = manifest.layout(run_dir)
    _refuse_company(run_dir, living_owners(layout.leases))
    if undo and not is_there(layout.packed_index) and not is_there(layout.packed):
        return Tidied()
    if not undo:
        _require_merged(run_dir, layout, manifest)
    with Lease(run_dir) as lease:
        # Asked again under the lease, as a driver may have come in the meantime.
        _refuse_company(run_dir, lease.others())
        if not (lease.claim("merge") and lease.claim(TIDY)):
            raise RunFolderError(f"Another process is merging {run_dir} just now.")
        sweep(layout, lease)  # what is left of attempts
        if undo:
            return _undo(layout, manifest)
        values, output_dir = _require_merged(run_dir, layout, manifest)
        committed = read_coverage(run_dir, manifest).committed
        used = shards_in_use(values, layout, output_dir, committed.values())
        return pack_shards(
            layout, manifest.run_id, committed, stays=lambda done: done.shard in used
        )


def _undo(layout: RunLayout, manifest: Manifest) -> Tidied:
    done = unpack_shards(layout, manifest.run_id)
    if not is_there(layout.packed_index):
        # Of one who was killed before there was an index, or when there was none any more.
        layout.packed.unlink(missing_ok=True)
    return done


def _require_merged(
    run_dir: Path, layout: RunLayout, manifest: Manifest
) -> tuple[dict[str, object], Path]:
    output_dir = Path(os.path.normpath(run_dir / manifest.output_dir))  # only to look into
    success = read_success(layout, manifest.run_id)
    if success is None:
        raise RunFolderError(
            f"{on_one_line(run_dir)} is not merged, and its shards are needed until then. See how "
            f"far it is: {command('status', run_dir)}. If all shards are done: "
            f"{command('merge', run_dir)}"
        )
    if not has_outputs(success, output_dir):
        raise RunFolderError(
            f"Merged files in {on_one_line(output_dir)} are gone or changed, and the shards are "
            f"what they can be made from. Merge first: {command('merge', run_dir)}"
        )
    return success, output_dir


def _refuse_company(run_dir: Path, owners: Sequence[Owner]) -> None:
    if owners:
        raise RunFolderError(
            f"{owners[0]} is working in {on_one_line(run_dir)}. Wait for its end: "
            f"{command('wait', run_dir)}"
        )


def _describe(run_dir: Path, done: Tidied, *, undo: bool) -> str:
    where = on_one_line(run_dir)
    if undo:
        shards = f"{count(done.n_shards, 'shard')} ({done.n_files:,} files and folders)"
        return f"{where}: {shards} taken out" if done.n_shards else f"{where}: nothing is packed"
    left = f"; {count(done.n_left, 'shard')} left as folders" if done.n_left else ""
    if not done.n_shards:
        return f"{where}: nothing to pack{left}"
    shards = f"{done.n_files:,} files and folders of {count(done.n_shards, 'shard')}"
    return f"{where}: {shards} became 2{left}. Undo: {command('tidy --undo', run_dir)}"

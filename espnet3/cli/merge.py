"""Join the shards of a run that is complete, but whose driver or workers died before merging.

A detached run is merged by the merge() of its runner. Of others a file of the shards is joined if
it has one line per result, as results.jsonl and scp files have; others stay where they are. A
merge() of your own is then not known here: to have that, run the same command as before again,
which computes nothing again.
"""
# The docstring is the help of `espnet3 merge`; that of `espnet3 tidy`, below, is _TIDY_HELP.

import argparse
import codecs
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.cli.console import (
    command,
    make_console,
    make_parser,
    make_table,
    print_error,
    print_json,
)
from espnet3.cli.run_view import add_dirs, find_all_runs, find_run
from espnet3.errors import EspnetError, RunFolderError
from espnet3.io.shared_files import is_there
from espnet3.parallel.detached.description import user_name
from espnet3.parallel.detached.folder_access import reports_folder_errors
from espnet3.parallel.detached.handle import merge_detached
from espnet3.parallel.folder_run import TIDY, folder_errors, merge_run, sweep, unpack_run
from espnet3.shards.commit import Done
from espnet3.shards.layout import FAILED, RunLayout, is_protocol_name, manifest_path
from espnet3.shards.lease import Lease, Owner, living_owners
from espnet3.shards.manifest import Manifest, require_manifest
from espnet3.shards.merge import (
    check_complete,
    has_artifacts,
    has_outputs,
    join_files,
    read_coverage,
    read_success,
    shards_in_use,
)
from espnet3.shards.pack import Tidied, pack_shards, unpack_shards
from espnet3.shards.records import RecordPaths
from espnet3.text import count, on_one_line

if TYPE_CHECKING:
    from rich.table import Table


_PEEK = 4096


@dataclass(frozen=True)
class Merged:
    """The merged files with their numbers of lines, where known, and what was left, and why."""

    run_dir: str
    output_dir: str
    already_merged: bool
    n_items: int
    n_failed: int
    by_runner: bool = False
    files: dict[str, int | None] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("merge", __doc__ or "")
    parser.add_argument("dir", metavar="DIR", type=Path, help="a run folder")
    parser.add_argument("--json", action="store_true", help="print one JSON document for scripts")
    parser.add_argument(
        "--trust",
        metavar="USER",
        help="of a detached run: run code that this user submitted; without it, only your own",
    )
    parser.add_argument(
        "--join",
        action="store_true",
        help="of a detached run: only join files, without the runner's code",
    )
    return parser


@reports_folder_errors
def merge(argv: Sequence[str]) -> int:
    """Merge a run and report what was written."""
    args = _parser().parse_args(argv)
    run_dir = find_run(args.dir)
    with folder_errors(run_dir):
        # Only a detached run has its code in its folder; that of others is in the user's script.
        if RecordPaths(run_dir).code.exists() and not args.join:
            merged = _merge_by_runner(run_dir, args.trust)
        else:
            merged = merge_folder(run_dir, args.trust)
    if args.json:
        print_json(asdict(merged))
    else:
        _show(merged)
    return 0


def _merge_by_runner(run_dir: Path, trust: str | None) -> Merged:
    manifest = require_manifest(run_dir)
    output_dir = Path(os.path.normpath(run_dir / manifest.output_dir))  # only to look into
    merged = _already_merged(run_dir, output_dir, manifest)
    if merged is not None:
        return merged
    merge_detached(run_dir, trust=trust)
    merged = _already_merged(run_dir, output_dir, manifest)
    assert merged is not None, "it was merged a moment ago"
    return replace(merged, already_merged=False, by_runner=True)


def merge_folder(run_dir: Path, trust: str | None = None) -> Merged:
    """Join what can be joined without the runner, and write `failed.jsonl` and `_SUCCESS.json`.

    Raises:
        IncompleteRunError: with what is missing; nothing is written then.
        RunFolderError: if a driver is at work, or if nothing can be joined.
    """
    run_dir = Path(os.path.normpath(run_dir))
    manifest = require_manifest(run_dir)
    output_dir = _output_dir(run_dir, manifest, trust)
    merged = _already_merged(run_dir, output_dir, manifest)
    if merged is not None:
        return merged
    layout = manifest.layout(run_dir)
    _refuse_company(run_dir, living_owners(layout.leases))
    unpack_run(run_dir, manifest)
    coverage = check_complete(run_dir, manifest, contents=False)  # the merge compares contents
    left = _find_left(layout, coverage.committed, output_dir)
    names = sorted(_names(coverage.committed) - left.keys())
    if left and not names:
        raise RunFolderError(_nothing_to_join(run_dir, left))
    with Lease(run_dir) as lease:
        # Asked again under the lease, as a driver may have come in the meantime.
        _refuse_company(run_dir, lease.others())
        if not lease.claim("merge"):
            raise RunFolderError(f"Another process is merging {run_dir} just now.")
        joiner = _Joiner(output_dir, names)
        files = merge_run(
            run_dir, output_dir, manifest, joiner, keep_result=False, coverage=coverage
        )
    n_failed = sum(done.n_failed for done in coverage.committed.values())
    return Merged(
        str(run_dir), str(output_dir), False, manifest.n_items, n_failed, files=files, left=left
    )


@dataclass(frozen=True)
class _Joiner:
    """Stand-in for the merge() of a runner."""

    output_dir: Path
    names: list[str]

    def __call__(self, shard_dirs: Sequence[Path]) -> dict[str, int]:
        return {name: join_files(shard_dirs, name, self.output_dir / name) for name in self.names}


def _output_dir(run_dir: Path, manifest: Manifest, trust: str | None) -> Path:
    folder = manifest.output_folder(run_dir)
    if folder != run_dir:  # chosen by the author of the plan, who may be another user
        found = manifest_path(run_dir).stat()
        owner = user_name(found.st_uid)
        # Root could write there without our help, so its plan is no greater risk.
        if found.st_uid not in (os.getuid(), 0) and trust != owner:
            raise RunFolderError(
                f"{manifest_path(run_dir)} belongs to {owner}, and says to write into {folder}. If "
                f"you trust them, add: --trust {owner}"
            )
    return folder


def _already_merged(run_dir: Path, output_dir: Path, manifest: Manifest) -> Merged | None:
    success = read_success(manifest.layout(run_dir), manifest.run_id)
    if success is None or not has_outputs(success, output_dir):
        return None
    if not has_artifacts(success, manifest.layout(run_dir)):
        return None
    files: dict[str, int | None] = dict.fromkeys(sorted(success.get("outputs", {})))
    n_failed = success.get("n_failed", 0)
    return Merged(str(run_dir), str(output_dir), True, manifest.n_items, n_failed, files=files)


def _refuse_company(run_dir: Path, owners: Sequence[Owner]) -> None:
    if owners:
        raise RunFolderError(
            f"{owners[0]} is working in {run_dir} and will merge by itself. "
            f"See how far it is: {command('status', run_dir)}"
        )


def _names(shards: dict[int, Done]) -> set[str]:
    return {name for done in shards.values() for name in done.files} - {FAILED}


def _find_left(layout: RunLayout, shards: dict[int, Done], output_dir: Path) -> dict[str, str]:
    """Return the files that cannot be joined, and why."""
    left = {}
    for name in sorted(_names(shards)):
        reason = _why_not(name, layout, output_dir)
        if reason is None:
            reasons = (_why_not_part(name, layout, done) for _, done in sorted(shards.items()))
            reason = next(filter(None, reasons), None)
        if reason is not None:
            left[name] = reason
    return left


def _why_not(name: str, layout: RunLayout, output_dir: Path) -> str | None:
    if "/" in name:
        return "it is a folder"
    if name.startswith("."):
        return "it is a hidden file"
    if output_dir == layout.root and is_protocol_name(name):
        return "a file of the run itself has that name"
    return None


def _why_not_part(name: str, layout: RunLayout, done: Done) -> str | None:
    where = layout.shard_name(done.shard)
    if name not in done.files:
        missing = f"{where} has {count(done.n_written, 'result')}, but no such file"
        return missing if done.n_written else None
    n_lines = done.files[name]["lines"]
    if n_lines != done.n_written:
        found = f"{count(n_lines, 'line')} for {count(done.n_written, 'result')}"
        return f"it has not one line per result: {where} has {found}"
    return None if _is_text(layout.shard(done.shard) / name) else f"it is not UTF-8 text in {where}"


def _is_text(path: Path) -> bool:
    """Tell whether a file looks like whole lines of text; a npy file, too, holds a newline."""
    with path.open("rb") as file:
        head = file.read(_PEEK)
        if not head:
            return True
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n" or b"\0" in head:
            return False
    try:
        # Incremental, because the piece may end within a character.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _nothing_to_join(run_dir: Path, left: dict[str, str]) -> str:
    reasons = "".join(f"\n  {on_one_line(name)}: {reason}" for name, reason in left.items())
    return (
        f"No file of the shards in {run_dir} can be joined without the runner:{reasons}\n"
        "Run the same command as before again: its merge() joins them, and nothing is computed "
        "again."
    )


def _show(merged: Merged) -> None:
    console = make_console()
    for line in _head(merged):
        console.print(line, soft_wrap=True)
    for table in _tables(merged):
        console.print()
        console.print(table)
    if merged.n_failed:
        failed = command("failed", merged.run_dir)
        console.print(
            f"\n{count(merged.n_failed, 'item')} failed and left no line: {failed}", soft_wrap=True
        )
    if not merged.already_merged and not merged.by_runner:
        console.print(
            "\nA merge() of your own was not run. If your runner has one, run the same command as "
            "before again: it repeats the merge, and computes nothing."
        )


def _head(merged: Merged) -> Iterator[str]:
    items = count(merged.n_items, "item")
    if merged.already_merged:
        yield f"{on_one_line(merged.run_dir)} is merged already ({items}); nothing was done."
    else:
        yield f"Merged {on_one_line(merged.run_dir)} ({items})."
    if merged.files:
        yield f"Its files are in {on_one_line(merged.output_dir)}"


def _tables(merged: Merged) -> "Iterator[Table]":
    if merged.files:
        table = make_table("File", "Lines", right=["Lines"])
        for name, n_lines in merged.files.items():
            table.add_row(on_one_line(name), "not counted" if n_lines is None else f"{n_lines:,}")
        yield table
    if merged.left:
        table = make_table("Left in the shards", "Why")
        for name, reason in merged.left.items():
            table.add_row(on_one_line(name), reason)
        yield table


def _tidy_parser() -> argparse.ArgumentParser:
    parser = make_parser("tidy", _TIDY_HELP)
    add_dirs(parser)
    parser.add_argument("--undo", action="store_true", help="take the shards out again")
    parser.add_argument("--json", action="store_true", help="print one JSON document for scripts")
    return parser


_TIDY_HELP = """Pack the shards of merged runs into one file each, so that few files are left.

A shard is a folder with two files or more, and quotas limit how many files a user has. The shards
of a merged run become split.tar and split.tar.index; those that hold results to which merged files
point stay. All commands answer as before; what computes or merges again takes the shards out first.
"""


@reports_folder_errors
def tidy(argv: Sequence[str]) -> int:
    """Pack each run and print how many files became how many; 1 if a run could not be packed."""
    args = _tidy_parser().parse_args(argv)
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
    _refuse_workers(run_dir, living_owners(layout.leases))
    if undo and not is_there(layout.packed_index) and not is_there(layout.packed):
        return Tidied()
    if not undo:
        _require_merged(run_dir, layout, manifest)
    with Lease(run_dir) as lease:
        # Asked again under the lease, as a driver may have come in the meantime.
        _refuse_workers(run_dir, lease.others())
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


def _refuse_workers(run_dir: Path, owners: Sequence[Owner]) -> None:
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

"""What others wrote into a run folder is not what it should be: no command ends in a traceback.

Each value of each JSON file of real run folders is replaced, removed, or its file is cut off. A
sample of that is part of every test run; all of it runs with ESPNET3_ODD_RECORDS=all, which takes
about an hour.
"""

import contextlib
import io
import itertools
import json
import logging
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from espnet3.cli.main import main
from espnet3.errors import EspnetError
from espnet3.parallel import BaseRunner
from tests.unit.cli.conftest import NoEnv, describe, lose_driver, run_square
from tests.unit.cli.detached_folder import DetachedFolder, install_squeue

ALL = os.environ.get("ESPNET3_ODD_RECORDS") == "all"
N_SAMPLED = int(os.environ.get("ESPNET3_ODD_RECORDS_N", 260))
OPTIONS = {"queue": "gpu", "cores": 1, "memory": "1GB", "log_directory": "logs"}
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m"
OTHERS: list[Any] = [
    None, "", "x", -1, 0, 1, 1.5, 1e308, -1e308, float("nan"), float("inf"), 10**40, 2**63, True,
    [], {}, [[]], [None], {"a": 1}, "x" * 200_000, ESCAPE, "\ud800", "../../../../etc", "-u root",
    [[[[[[[[[[[[]]]]]]]]]]]],
]  # fmt: skip
"""What a value is replaced with."""


class Named(BaseRunner):
    """Has items that are no range, and batches by duration."""

    @staticmethod
    def forward(idx: list[str]) -> list[str]:
        return [f"{name} ok" for name in idx]


@dataclass
class Folder:
    """A run folder and what is tried with it."""

    root: Path
    files: list[Path]
    commands: list[list[str]]

    @cached_property
    def _failing(self) -> set[tuple[str, ...]]:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return {tuple(argv) for argv in self.commands if main(argv)}

    def fails(self, argv: list[str]) -> bool:
        """Tell whether a command has something to complain of in the unspoilt folder."""
        return tuple(argv) in self._failing


def _reading(root: Path) -> list[list[str]]:
    where = str(root)
    return [
        ["status", where],
        ["status", where, "--json", "--workers"],
        ["explain", where],
        ["explain", where, "--json"],
        ["failed", where],
        ["failed", where, "--json"],
        ["logs", where],
        ["logs", where, "--failed"],
        ["logs", where, "--shard", "1"],
        ["wait", where, "--timeout", "0"],
    ]


def _first_of_each(root: Path) -> list[Path]:
    """Return the JSON files below a folder, and of those that many shards have two."""
    found = [
        path
        for path in sorted(root.rglob("*"))
        if path.is_file()
        and (path.suffix in (".json", ".jsonl", ".owner", ".claim") or path.name == "done")
        and path.name != "results.jsonl"
    ]
    by_kind = itertools.groupby(sorted(found, key=_kind), key=_kind)
    return [path for _, group in by_kind for path in list(group)[:2]]


def _kind(path: Path) -> str:
    return path.name if path.name == "done" else f"{path.parent.name}/{path.suffix}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Folder]]:
    base = tmp_path_factory.mktemp("odd")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("PATH", f"{base / 'bin'}{os.pathsep}{os.environ['PATH']}")
        install_squeue(base / "bin", ("8", "PENDING", "Resources", 0, ""))
        roots = [*_of_drivers(base), _detached(base / "detached", stack)]
        found = [Folder(root, _first_of_each(root), _reading(root)) for root in roots]
        assert all(folder.fails(["no such", "command"]) is False for folder in found)
        yield found


def _of_drivers(base: Path) -> Iterator[Path]:
    run_square(base / "complete")
    yield base / "complete"
    with contextlib.suppress(EspnetError):
        run_square(base / "failed", on_error="raise")
    yield base / "failed"
    shutil.copytree(base / "complete", base / "stopped")
    lose_driver(base / "stopped")
    shutil.rmtree(next((base / "stopped").glob("split.*2")))
    yield base / "stopped"
    runner = Named(NoEnv(), output_dir=base / "named", batch_seconds=4.0)
    runner(
        [f"utt{number}" for number in range(8)], durations=[1.0, 2.0, 1.5, 1.0, 3.0, 1.0, 2.0, 1.0]
    )
    (base / "named" / "_SUCCESS.json").unlink()
    yield base / "named"


def _detached(root: Path, stack: ExitStack) -> Path:
    run_square(root)
    lose_driver(root)
    for shard in (2, 5):
        shutil.rmtree(next(root.glob(f"split.*{shard}")))
    describe(root, env="slurm", n_workers=2, options=OPTIONS)
    made = DetachedFolder(root, stack)
    made.job("7", log=made.log("detached-slurm-7.log", "shard 2 begins", "a line"))
    made.job("8", after="7", walltime=3600.0)
    made.job("4000000", env="local", machine="elsewhere", started=5)
    alive = made.worker("7", log="logs/detached-slurm-7.log", submitted=time.time() - 100)
    made.take(alive, 2, n_done=0)
    made.record("0" * 16, "6", ended=time.time() - 5, reason="it got SIGTERM", exit_code=1)
    for number in range(3):
        made.death(5, start=number, stop=number + 2, time=time.time() - 9 + number)
    made.stop("failed", "Item 3 failed\n\nTraceback: ...")
    return root


def _changed(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each way in which a file is spoiled."""
    content = path.read_bytes()
    yield "empty", b""
    yield "half", content[: len(content) // 2]
    yield "binary", bytes(range(256))
    yield "deep", b"[" * 100_000
    yield "deep key", b'{"run_id": ' + b'{"a": ' * 2000 + b"1" + b"}" * 2001
    for other in OTHERS:
        yield f"all = {other!r:.30}", json.dumps(other).encode()
    if path.suffix == ".claim":
        return
    lines = content.splitlines() if path.suffix == ".jsonl" else [content]
    first, rest = json.loads(lines[0]), lines[1:]
    for place in _places(first):
        for label, value in _variants(first, place):
            text = json.dumps(value).encode()
            yield f"{'.'.join(map(str, place))} {label}", b"\n".join([text, *rest]) + b"\n"


def _places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in list(children)[:40]:
        yield (*before, key)
        if isinstance(child, dict | list):
            yield from _places(child, (*before, key))


def _variants(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    for other in OTHERS:
        yield f"= {other!r:.30}", _with(value, place, other)
    yield "removed", _with(value, place, ...)


def _with(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    copy = json.loads(json.dumps(value))
    parent = copy
    for key in place[:-1]:
        parent = parent[key]
    if other is ...:
        del parent[place[-1]]
    else:
        parent[place[-1]] = other
    return copy


def _cases(folders: list[Folder]) -> Iterator[tuple[Folder, Path, str, bytes]]:
    for folder in folders:
        for path in folder.files:
            for label, content in _changed(path):
                yield folder, path, label, content


def _tried(folder: Folder, path: Path, label: str, content: bytes, argv: list[str]) -> str:
    """Run a command; return what is wrong with how it ended, or nothing."""
    told = io.StringIO()
    handler = logging.StreamHandler(told)
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            code = main(argv)
    except BaseException as error:
        import traceback

        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return f"{type(error).__name__} at {where}: {str(error)[:80]}"
    finally:
        logging.getLogger().removeHandler(handler)
    text = told.getvalue()
    if {"\x1b", "\x9b", "\x07"}.intersection(text):
        return "it sent an escape sequence to the terminal"
    if code not in (0, 1, 124):
        return f"it ended with {code}"
    if code == 1 and not folder.fails(argv) and path.name not in text:
        return f"it does not name {path.name}: {text[:200]}"
    return ""


def _run(cases: Any) -> list[str]:
    problems = []
    for folder, path, label, content in cases:
        before, times = path.read_bytes(), path.stat()
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        try:
            for argv in folder.commands:
                if wrong := _tried(folder, path, label, content, argv):
                    name = path.relative_to(folder.root.parent)
                    words = " ".join([argv[0], *argv[2:]])
                    problems.append(f"{words} | {name} | {label} | {wrong}")
        finally:
            path.write_bytes(before)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return problems


def test_no_changed_value_ends_a_command_in_a_traceback(folders: list[Folder]) -> None:
    cases = list(_cases(folders))
    if not ALL:
        cases = random.Random(12).sample(cases, N_SAMPLED)
    problems = _run(cases)
    assert not problems, f"{len(problems)} in {len(cases)} cases:\n" + "\n".join(problems[:400])

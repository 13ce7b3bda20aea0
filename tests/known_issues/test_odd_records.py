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
import math
import os
import random
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from espnet3.cli.console import print_error
from espnet3.cli.main import main
from espnet3.errors import EspnetError
from espnet3.parallel import BaseRunner
from espnet3.parallel.detached.overview import look
from espnet3.parallel.detached.worker import DetachedWorker
from espnet3.parallel.open_pool import InlinePool
from espnet3.parallel.signals import EndSignals
from espnet3.shards.records import Identity
from espnet3.shards.status import read_rate
from tests.helpers.run_folders import (
    DetachedFolder,
    NoEnv,
    describe,
    install_squeue,
    lose_driver,
    run_square,
)

LONG = 7200
ALL = os.environ.get("ESPNET3_ODD_RECORDS") == "all"
N_SAMPLED = int(os.environ.get("ESPNET3_ODD_RECORDS_N", 260))
SHARES = [0.05, pytest.param(1.0, marks=pytest.mark.exhaustive)]
OPTIONS = {"queue": "gpu", "cores": 1, "memory": "1GB", "log_directory": "logs"}
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m"
OTHERS: list[Any] = [
    None, "", "x", "a\0b", -1, 0, 1, 1.5, 1e308, -1e308, float("nan"), float("inf"), 10**40,
    2**63, True, [], {}, [[]], [None], {"a": 1}, "x" * 200_000, ESCAPE, "\ud800", "../../../../etc",
    "-u root", [[[[[[[[[[[[]]]]]]]]]]]],
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
            return {tuple(argv) for argv in self.commands if argv[0] != "watch" and main(argv)}

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
        ["watch"],
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


Case = tuple[Folder, Path, str, bytes]


def _cases(folders: list[Folder]) -> Iterator[Case]:
    for folder in folders:
        for path in folder.files:
            for label, content in _changed(path):
                yield folder, path, label, content


def _told_well(run: Callable[[], int], path: Path, *, is_refusal_told: bool = True) -> str:
    """Run a command; return what is wrong with how it ended, or nothing."""
    told = io.StringIO()
    handler = logging.StreamHandler(told)
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            code = run()
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return f"{type(error).__name__} at {where}: {str(error)[:80]}"
    finally:
        logging.getLogger().removeHandler(handler)
    text = told.getvalue()
    if {"\x1b", "\x9b", "\x07"}.intersection(text.replace("is \x1b[31mbroken", "")):
        return "it sent an escape sequence to the terminal"
    if code not in (0, 1, 124):
        return f"it ended with {code}"
    if code == 1 and is_refusal_told and path.name not in text:
        return f"it does not name {path.name}: {text[:200]}"
    return ""


def _run(cases: list[Case]) -> list[str]:
    problems: list[str] = []
    for number, (folder, path, label, content) in enumerate(cases):
        if number and number % 1000 == 0:
            print(f"{number} of {len(cases)} cases, {len(problems)} problems", flush=True)
        before, times = path.read_bytes(), path.stat()
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        try:
            for argv in folder.commands:
                run = partial(_watch, folder.root) if argv[0] == "watch" else partial(main, argv)
                if wrong := _told_well(run, path, is_refusal_told=not folder.fails(argv)):
                    name = path.relative_to(folder.root.parent)
                    words = " ".join([argv[0], *argv[2:]])
                    problems.append(f"{words} | {name} | {label} | {wrong}")
        finally:
            path.write_bytes(before)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return problems


def _watch(root: Path) -> int:
    """Do what `status --watch` does at each look, and what `plan` reads of a folder."""
    from rich.console import Console

    from espnet3.cli.status import line, render

    try:
        seen = look(root)
        print(line(seen, True))
        Console(markup=False, force_terminal=False).print(render([seen], Console(width=80)))
        read_rate(root)
    except (EspnetError, OSError) as error:
        print_error(error)
        return 1
    return 0


def _copied(folder: Folder, path: Path, content: bytes, target: Path) -> Path:
    """Return a spoilt copy of a folder whose workers are long dead."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder.root, target)
    if path.name != "stop.json":
        (target / "detached" / "stop.json").unlink(missing_ok=True)
    spoilt = target / path.relative_to(folder.root)
    mode = spoilt.stat().st_mode
    spoilt.write_bytes(content)
    spoilt.chmod(mode)
    for lease in (target / "leases").iterdir():
        os.utime(lease, (1.0, 1.0))
    return target


def _work(root: Path) -> int:
    """Let a detached worker finish the run."""
    signals = EndSignals()
    agent = DetachedWorker(
        root, Identity(), signals, open_pool=lambda packed: InlinePool(cloudpickle.loads(packed))
    )
    outcome = agent.work(is_patient=False)
    print(outcome.reason)
    return 1 if outcome.code else 0


def _drive(root: Path) -> int:
    """Let a driver continue the run."""
    try:
        run_square(root)
    except EspnetError as error:
        print_error(error)
        return 1
    return 0


def _shards(root: Path) -> dict[str, bytes]:
    """Return the results that a folder has."""
    found = [*root.glob("split.*/results.jsonl"), *root.glob(".*/results.jsonl")]
    return {path.parent.name.partition(".part-")[0]: path.read_bytes() for path in found}


WRITING: dict[str, Callable[[Path], int]] = {
    "merge": lambda root: main(["merge", str(root)]),
    "join": lambda root: main(["merge", "--join", str(root)]),
    "cancel": lambda root: main(["cancel", "--patience", "0", str(root)]),
    "resume": lambda root: main(["resume", str(root), "--workers", "1"]),
    "retry": lambda root: main(["retry", str(root), "--failed"]),
    "work": _work,
    "drive": _drive,
}


def _tried_on_a_copy(verb: str, case: Case, target: Path) -> str:
    """Let a command write into a spoilt copy; return what is wrong with how that ended."""
    folder, path, label, content = case
    root = _copied(folder, path, content, target)
    before = _shards(root)
    if wrong := _told_well(lambda: WRITING[verb](root), path, is_refusal_told=False):
        return f"{verb} | {path.relative_to(folder.root.parent)} | {label} | {wrong}"
    if path.name in ("done", "manifest.json") or verb == "retry":
        return ""
    after = _shards(root)
    lost = [name for name in before if after.get(name) != before[name]]
    return f"{verb} | {path.name} | {label} | it removed {lost}" if lost else ""


@pytest.fixture
def nothing_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "espnet3.parallel.detached.submit.submit_workers", lambda *args, **kwargs: []
    )
    monkeypatch.setattr("espnet3.shards.commit.SETTLE_SECONDS", 0.0)
    monkeypatch.setattr("espnet3.parallel.folder_run._LATE_SECONDS", 0.0)
    monkeypatch.setattr("espnet3.parallel.folder_run.SETTLE_SECONDS", 0.0)
    monkeypatch.setattr("espnet3.parallel.detached.description._LOOK_SECONDS", 0.0)


@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("verb", WRITING)
@pytest.mark.parametrize("share", SHARES)
def test_no_changed_value_harms_a_run_that_is_continued(
    folders: list[Folder], nothing_submitted: None, tmp_path: Path, verb: str, share: float
) -> None:
    kind = {"drive": "stopped", "join": "stopped"}.get(verb, "detached")
    cases = [case for case in _cases(folders) if case[0].root.name == kind]
    cases = cases if ALL else random.Random(verb).sample(cases, math.ceil(N_SAMPLED * share / 40))
    problems = list(filter(None, (_tried_on_a_copy(verb, c, tmp_path / "run") for c in cases)))
    print(f"{len(cases)} cases")
    assert not problems, f"{len(problems)} in {len(cases)} cases:\n" + "\n".join(problems[:400])


@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("share", SHARES)
def test_no_changed_value_ends_a_command_in_a_traceback(
    folders: list[Folder], share: float
) -> None:
    cases = list(_cases(folders))
    if not ALL:
        cases = random.Random(12).sample(cases, math.ceil(N_SAMPLED * share))
    problems = _run(cases)
    print(f"{len(cases)} cases")
    assert not problems, f"{len(problems)} in {len(cases)} cases:\n" + "\n".join(problems[:400])

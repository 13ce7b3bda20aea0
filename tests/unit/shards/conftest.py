import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from espnet3.shards import commit as commit_module
from espnet3.shards.commit import Done, begin_attempt, commit, finish_attempt
from espnet3.shards.items import collect_items
from espnet3.shards.manifest import Manifest, publish_manifest
from espnet3.shards.plan import make_plan

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    """Damage is no late view here, and need not be waited for."""
    with pytest.MonkeyPatch.context() as patch:  # of its own: tests undo theirs
        patch.setattr(commit_module, "SETTLE_SECONDS", 0.0)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name breaks code that splits, quotes or formats paths carelessly."""
    path = tmp_path / 'it\'s a "new\n folder" 100% {é} [0] \\n'
    path.mkdir()
    return path


class Run:
    """A run folder with a plan, and what a worker does in it."""

    def __init__(self, root: Path, n_items: int = 10, n_shards: int = 4, **manifest: object):
        self.root = root
        plan = make_plan(n_items, n_shards)
        items = collect_items(range(n_items))
        values = {"fingerprint": {}, "name": "Decode", "batch_size": None, **manifest}
        planned = Manifest({}, n_items, plan.bounds, plan.costs, **values)
        self.manifest = publish_manifest(root, planned, items)
        self.layout = self.manifest.layout(root)

    @property
    def n_shards(self) -> int:
        return self.manifest.n_shards

    def items(self, shard: int) -> range:
        return range(*self.manifest.bounds[shard : shard + 2])

    def text(self, shard: int) -> str:
        return "".join(f"utt{item} words {item}\n" for item in self.items(shard))

    def begin(self, shard: int, text: str | None = None) -> Path:
        attempt = begin_attempt(self.layout, shard)
        (attempt / "text").write_text(self.text(shard) if text is None else text)
        return attempt

    def finish(self, attempt: Path, shard: int, **values: object) -> Done:
        items = self.items(shard)
        done = {"run_id": self.manifest.run_id, "start": items.start, "stop": items.stop}
        return finish_attempt(attempt, Done(**{**done, "shard": shard, **values}))

    def commit(self, shard: int, text: str | None = None, **values: object) -> bool:
        attempt = self.begin(shard, text)
        return commit(attempt, self.layout, self.finish(attempt, shard, **values))

    def commit_all(self) -> "Run":
        for shard in range(self.n_shards):
            assert self.commit(shard)
        return self

    def shard_dirs(self) -> list[Path]:
        return [self.layout.shard(shard) for shard in range(self.n_shards)]

    def names(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir())

    def start_anew(self, **values: object) -> "Run":
        """Plan again in the same folder, with another run id; the shards stay as they are."""
        (self.root / "manifest.json").unlink()
        return Run(self.root, **{"n_items": self.manifest.n_items, "n_shards": 4, **values})


@pytest.fixture
def make_run(folder: Path) -> Callable[..., Run]:
    return lambda **values: Run(folder, **values)


@pytest.fixture
def run(folder: Path) -> Run:
    return Run(folder)


def start_python(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


@pytest.fixture
def spawn():
    """Start Python with a script; what is still running at the end of the test is killed."""
    processes = []

    def start(code: str, *args: object) -> subprocess.Popen[str]:
        processes.append(start_python(code, *args))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def race(spawn):
    """Run a script in several processes that wait for each other at each `go()`.

    Returns the lines that each of them printed.
    """
    prelude = """
import sys
def go():
    print("ready", flush=True)
    sys.stdin.readline()
"""

    def run_race(code: str, n: int, *args: object, n_goes: int = 1) -> list[list[str]]:
        processes = [spawn(prelude + textwrap.dedent(code), number, *args) for number in range(n)]
        printed: list[list[str]] = [[] for _ in processes]
        for _ in range(n_goes):
            for process, lines in zip(processes, printed, strict=True):
                while (line := process.stdout.readline()) != "ready\n":
                    assert line, f"it ended before go() with code {process.wait(30)}"
                    lines.append(line.rstrip())
            for process in processes:
                process.stdin.write("go\n")
                process.stdin.flush()
        for process, lines in zip(processes, printed, strict=True):
            lines.extend(process.communicate(timeout=60)[0].splitlines())
        assert [process.returncode for process in processes] == [0] * n
        return printed

    return run_race

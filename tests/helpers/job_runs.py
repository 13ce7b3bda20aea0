"""Start `tests/integration/job.py` as a user would, and look at its run folder."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

JOB = Path(__file__).parents[1] / "integration" / "job.py"


class Job:
    """A run of `job.py` in a folder, with settings that stay the same from call to call."""

    has_own_session = False
    """As in a terminal, which sends Ctrl-C to all processes of a session."""
    where: Sequence[str] = ()
    """Words before the command."""
    env: Mapping[str, str] | None = None

    def __init__(self, out: Path, **settings) -> None:
        self.out = out
        self.settings = settings

    def start(self, **more) -> subprocess.Popen:
        settings = json.dumps({**self.settings, **more})
        return subprocess.Popen(
            [*self.where, sys.executable, str(JOB), str(self.out), settings],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=self.has_own_session,
        )

    def run(self, **more) -> subprocess.CompletedProcess:
        process = self.start(**more)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def succeed(self, **more) -> str:
        """Run to the end, expect success, and return what was told."""
        process = self.run(**more)
        assert process.returncode == 0, process.stderr
        return process.stderr

    @property
    def text(self) -> bytes:
        return (self.out / "text").read_bytes()

    @property
    def n_committed(self) -> int:
        return len(self.done_files())

    def done_files(self) -> dict[Path, int]:
        """Return the `done` files of committed shards, with the time of their writing."""
        # By names: a walk through attempts fails where one ends meanwhile.
        found = [
            path
            for path in [*self.out.glob("split.*/done"), *self.out.glob("splits.*/split.*/done")]
            if ".part-" not in path.parent.name
        ]
        return {path: path.stat().st_mtime_ns for path in found}

    def failures(self) -> list[dict]:
        return [json.loads(line) for line in (self.out / "failed.jsonl").read_text().splitlines()]

    def assert_tidy(self) -> None:
        """Nothing is left but outputs: no attempts, temporary files, claims or owners."""
        names = [path.name for path in [*self.out.iterdir(), *self.out.glob("splits.*/*")]]
        assert [name for name in names if ".part-" in name or name.startswith(".")] == []
        assert [path.name for path in (self.out / "leases").iterdir()] == []


def undisturbed_output(folder: Path) -> bytes:
    """Return the output of a run without faults, to compare others with."""
    undisturbed = Job(folder / "out", n_workers=1)
    undisturbed.succeed()
    return undisturbed.text

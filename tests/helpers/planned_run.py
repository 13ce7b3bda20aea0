"""A run folder with a plan, and what workers leave in it."""

from pathlib import Path

from espnet3.shards.commit import Done, begin_attempt, commit, finish_attempt
from espnet3.shards.manifest import Manifest, collect_items, publish_manifest
from espnet3.shards.plan import make_plan
from espnet3.shards.records import CrashNote


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


def done(planned, shard, seconds, load_seconds=0.0):
    start, stop = planned.manifest.bounds[shard : shard + 2]
    return Done(planned.manifest.run_id, shard, start, stop, 0, seconds, load_seconds)


def cut(shard, seconds):
    return CrashNote(shard, "a", "the walltime was over", kind="walltime", seconds=seconds)

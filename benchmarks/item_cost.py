"""What an item costs beyond the user's own code: 200,000 trivial ones, in this process."""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, best_of
from espnet3.parallel import BaseRunner, use_parallel

N_ITEMS = 200_000
LIMIT = 4.0
_N_PLAIN = 3
"""How often the bare loop runs per round: about as long as a run, so both are disturbed alike."""
_ENV = {"dataset": range(N_ITEMS), "model": str}


class TrivialProvider:
    """A dataset of numbers and a model that spells them."""

    def build_env_local(self) -> dict[str, Any]:
        """Return dataset and model."""
        return _ENV

    def build_worker_setup_fn(self) -> Any:
        """Return what builds them elsewhere; unused, as all runs in this process."""
        return dict


class TextRunner(BaseRunner):
    """The text runner of the documentation."""

    @staticmethod
    def forward(idx, dataset, model, **env):
        """Decode one item."""
        sample = dataset[idx]
        hyp = model(sample)
        return {"utt_id": sample, "text": hyp}

    @staticmethod
    def open_writers(shard_dir, **env):
        """Open a text file."""
        return {"text": (shard_dir / "text").open("w", encoding="utf-8")}

    @staticmethod
    def write_record(writers, result, state, **env):
        """Write a line."""
        writers["text"].write(f"{result['utt_id']} {result['text']}\n")

    @staticmethod
    def close_writers(writers):
        """Close the file."""
        for handle in writers.values():
            handle.close()

    def merge(self, shard_dirs):
        """Join the files."""
        with (self.output_dir / "text").open("w", encoding="utf-8") as out:
            for shard_dir in sorted(shard_dirs):
                out.write((shard_dir / "text").read_text(encoding="utf-8"))
        return {}


def write_plainly(path: Path) -> None:
    """Do the same work in a bare loop, without a function call of its own per item."""
    dataset, model = _ENV["dataset"], _ENV["model"]
    with path.open("w", encoding="utf-8") as out:
        for idx in range(N_ITEMS):
            sample = dataset[idx]
            hyp = model(sample)
            result = {"utt_id": sample, "text": hyp}
            out.write(f"{result['utt_id']} {result['text']}\n")


def measure() -> Iterator[Figure]:
    """Compare a whole run, from the plan to the merged file, with the bare loop."""
    with tempfile.TemporaryDirectory() as folder, use_parallel({"env": "local", "n_workers": 1}):
        new_dir = map(Path(folder).joinpath, map(str, itertools.count()))
        plain = Path(folder) / "plain"

        def run() -> None:
            TextRunner(TrivialProvider(), output_dir=next(new_dir))(range(N_ITEMS))

        def repeat_plainly() -> None:
            for _ in range(_N_PLAIN):
                write_plainly(plain)

        ours, bare = best_of(7, run, repeat_plainly)
        bare /= _N_PLAIN
        assert (Path(folder) / "0" / "text").read_bytes() == plain.read_bytes()
    microseconds = 1e6 / N_ITEMS
    what = f"{N_ITEMS:,} trivial items with a text writer, in-process; against a bare loop"
    yield Figure(what, ours * microseconds, "us/item", bare * microseconds, LIMIT)

"""The provider, which builds what a worker needs, and the runner, which says what it does."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from espnet3.components.data.audio import read_audio
from espnet3.config.instantiate import instantiate
from espnet3.io.scp import ScpWriter
from espnet3.parallel import BaseRunner, EnvironmentProvider
from espnet3.shards.merge import join_scp
from src.loudness import LoudnessMeter

FIELDS = ("loudness", "peak", "activity")


class MeterProvider(EnvironmentProvider):
    """Builds the meter in each worker, once; a model would be loaded here."""

    def build_env_local(self) -> dict[str, Any]:
        """Return what the hooks of the runner get, by name."""
        return {
            "audio_dir": Path(self.config["audio_dir"]),
            "meter": instantiate(self.config["meter"], key="meter"),
        }

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return a function that does the same in a worker."""
        return self.build_env_local


class LoudnessRunner(BaseRunner):
    """Writes `<field>.scp`, with a line for each file."""

    @staticmethod
    def forward(idx: str, audio_dir: Path, meter: LoudnessMeter) -> Any:  # type: ignore[override]
        """Measure one file; `idx` is its path below `audio_dir`."""
        audio = read_audio(audio_dir / idx)
        # An id is one word: a blank in a name becomes %20.
        return {"id": quote(idx), **meter(audio.samples, audio.sample_rate)}

    @staticmethod
    def open_writers(shard_dir: Path, **env: Any) -> dict[str, ScpWriter]:
        """Open the files of a shard, which is one part of the work."""
        return {field: ScpWriter(shard_dir / f"{field}.scp") for field in FIELDS}

    @staticmethod
    def write_record(writers: dict[str, ScpWriter], result: Any, state: Any, **env: Any) -> None:
        """Write what `forward` returned for one file."""
        for field, writer in writers.items():
            writer.write(result["id"], f"{result[field]:.2f}")

    @staticmethod
    def close_writers(writers: dict[str, ScpWriter], state: Any, **env: Any) -> None:
        """Close the files of a shard."""
        for writer in writers.values():
            writer.close()

    def merge(self, shard_dirs: Sequence[Path]) -> dict[str, Path]:
        """Join the files of the shards, once all are there."""
        assert self.output_dir is not None
        merged = {field: self.output_dir / f"{field}.scp" for field in FIELDS}
        for path in merged.values():
            join_scp(shard_dirs, path.name, path)
        return merged

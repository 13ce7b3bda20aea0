"""Make the audio of a corpus: what a worker of `corpus` does."""

import importlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.components.data.dataset_module import RECIPE_PREFIX, load_package
from espnet3.components.data.errors import DataError
from espnet3.io.atomic import fsync_dir, fsync_file, write_bytes
from espnet3.io.names import safe_name
from espnet3.io.tables import JsonlWriter, read_jsonl
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.env_provider import EnvironmentProvider

if TYPE_CHECKING:
    import numpy as np

AUDIO = "audio"
_RESULTS = "results.jsonl"


@dataclass(frozen=True)
class RecipeFunction:
    """A function of a recipe's `dataset/`, which no worker could import under its name."""

    file: str
    """The `__init__.py` of the package."""
    module: str
    name: str

    def load(self) -> Any:
        """Return the function."""
        load_package(Path(self.file))
        return getattr(importlib.import_module(self.module), self.name)


class CorpusProvider(EnvironmentProvider):
    """Gives a worker the rows and the function; `config` has `rows`, `folder` and the format."""

    def __init__(self, config: dict[str, Any], make_audio: Callable[[Any], Any]) -> None:
        super().__init__(config)
        self.make_audio = _as_sent(make_audio)

    def build_env_local(self) -> dict[str, Any]:
        """Read the rows."""
        function = self.make_audio
        return {
            "rows": list(read_jsonl(self.config["rows"])),
            "make_audio": function.load() if isinstance(function, RecipeFunction) else function,
            "folder": Path(self.config["folder"]),
            "sample_rate": self.config["sample_rate"],
            "format": self.config["format"],
        }

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return what does the same in a worker."""
        return self.build_env_local


class CorpusRunner(BaseRunner):
    """Writes the audio files to their final place, and where they are to `results.jsonl`.

    A shard may run twice, at the same time even: a file appears whole, and is the same each time.
    """

    can_detach = False  # the manifest is written from what it returns
    not_results = ("config.rows", "config.folder", "make_audio")  # `depends_on` has a digest

    @staticmethod
    def forward(  # type: ignore[override]
        idx: int,
        rows: list[dict[str, Any]],
        make_audio: Callable[[Any], Any],
        folder: Path,
        sample_rate: int,
        format: str,
    ) -> dict[str, Any]:
        """Make one file and return its path and duration."""
        row = rows[idx]
        samples = _checked(make_audio(row), row)
        path = f"{AUDIO}/{safe_name(row['utt_id'])}.{format}"
        # What another file of the shard, or a crash, may take away is forced to disk at its end.
        write_bytes(folder / path, _encode(samples, sample_rate, format), sync=False)
        return {"audio": path, "duration": len(samples) / sample_rate}

    @staticmethod
    def open_writers(shard_dir: Path, **env: Any) -> JsonlWriter:
        """Open the file of results of a shard."""
        return JsonlWriter(shard_dir / _RESULTS)

    @staticmethod
    def write_record(writers: JsonlWriter, result: Any, state: dict[str, Any], **env: Any) -> None:
        """Write a line for a file."""
        state.setdefault("paths", []).append(result["audio"])
        writers.write(result)

    @staticmethod
    def close_writers(writers: JsonlWriter, state: dict[str, Any], **env: Any) -> None:
        """Force the audio of the shard to disk: when it counts as done, it must be there."""
        writers.close()
        for path in state.get("paths", []):
            fsync_file(env["folder"] / path)
        fsync_dir(env["folder"] / AUDIO)

    def merge(self, shard_dirs: Any) -> Path:
        """Join the results."""
        from espnet3.shards.join import join_files

        assert self.output_dir is not None
        join_files(shard_dirs, _RESULTS, self.output_dir / _RESULTS)
        return self.output_dir / _RESULTS


def _as_sent(function: Callable[[Any], Any]) -> Any:
    """Return a function as it can be sent to a worker."""
    package = function.__module__.partition(".")[0]
    if not package.startswith(RECIPE_PREFIX):
        return function
    file = str(sys.modules[package].__file__)
    return RecipeFunction(file, function.__module__, function.__qualname__)


def _checked(samples: Any, row: dict[str, Any]) -> "np.ndarray[Any, Any]":
    import numpy as np

    audio = np.asarray(samples)
    if audio.ndim in (1, 2) and audio.dtype.kind == "f" and len(audio) and np.isfinite(audio).all():
        return audio
    raise DataError(
        f"make_audio returned {audio.dtype} of shape {audio.shape} for {row['utt_id']}, where real "
        "numbers from -1 to 1 of [samples] or [samples, channels] are expected, none of them NaN."
    )


def _encode(samples: "np.ndarray[Any, Any]", sample_rate: int, format: str) -> bytes:
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, samples, sample_rate, format=format, subtype="PCM_16")
    return buffer.getvalue()

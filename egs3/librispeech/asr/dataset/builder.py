"""Make manifests of LibriSpeech."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espnet3.components.data.dataset_builder import DatasetBuilder as BaseBuilder
from espnet3.components.data.file_durations import measure_files
from espnet3.errors import ConfigError
from espnet3.io.atomic import dump_json, open_atomic

from .download import URL, fetch_subset
from .subsets import MD5, check_subsets, read_subset

SUBSETS = ("train-clean-100", "dev-clean", "dev-other", "test-clean", "test-other")


class DatasetBuilder(BaseBuilder):
    """Makes `<data_dir>/<subset>.jsonl` with paths, texts, speakers and durations.

    Each argument is a key of `create_dataset`. `source` is the folder that has the subsets, often
    called LibriSpeech; with `download: true`, what it lacks is fetched from `url`.
    """

    def is_source_prepared(
        self, source: str | Path | None = None, subsets: Sequence[str] = SUBSETS
    ) -> bool:
        """Tell whether the audio is there."""
        folder = _check(source)
        return all((folder / name).is_dir() for name in check_subsets(subsets))

    def prepare_source(
        self,
        source: str | Path | None = None,
        subsets: Sequence[str] = SUBSETS,
        download: bool = False,
        url: str = URL,
    ) -> None:
        """Download what is missing, if that is asked for."""
        folder = _check(source)
        missing = [name for name in check_subsets(subsets) if not (folder / name).is_dir()]
        if not download:
            raise ConfigError(
                f"create_dataset.source is {str(source)!r}, which lacks {', '.join(missing)}. "
                f"Download them from {url}, or let it be done: create_dataset.download=true"
            )
        for name in missing:
            fetch_subset(name, MD5[name], folder, url)

    def is_built(self, data_dir: str | Path, subsets: Sequence[str] = SUBSETS) -> bool:
        """Tell whether the manifests, which appear whole, are there."""
        return all(_manifest(data_dir, name).is_file() for name in check_subsets(subsets))

    def build(
        self,
        data_dir: str | Path,
        source: str | Path | None = None,
        subsets: Sequence[str] = SUBSETS,
    ) -> None:
        """Read transcripts, and lengths from the headers, on the workers of `parallel`."""
        for name in check_subsets(subsets):
            manifest = _manifest(data_dir, name)
            if not manifest.is_file():
                _write_manifest(manifest, read_subset(_check(source) / name))


def _check(source: str | Path | None) -> Path:
    if source is None:
        raise ConfigError(
            "create_dataset.source is not set. Write the folder that has train-clean-100 and so "
            "on: create_dataset.source=/corpora/LibriSpeech; it may be an empty one with "
            "create_dataset.download=true"
        )
    return Path(source)


def _manifest(data_dir: str | Path, subset: str) -> Path:
    return Path(data_dir) / f"{subset}.jsonl"


def _write_manifest(manifest: Path, rows: list[dict[str, Any]]) -> None:
    seconds = measure_files([row["audio"] for row in rows])
    manifest.parent.mkdir(parents=True, exist_ok=True)
    with open_atomic(manifest) as file:
        lines = zip(rows, seconds, strict=True)
        file.writelines(dump_json({**row, "duration": d}) + "\n" for row, d in lines)

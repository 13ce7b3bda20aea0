"""Unpack AN4 and write Kaldi data directories."""

import logging
import shutil
import tarfile
import tempfile
from pathlib import Path

from espnet3.components.data.dataset_builder import DatasetBuilder as BaseBuilder
from espnet3.components.data.errors import DataError
from espnet3.components.data.file_durations import measure_files
from espnet3.errors import ConfigError
from espnet3.io.atomic import open_atomic

from .an4 import Utterance, find_corpus, read_utterances

logger = logging.getLogger(__name__)

SETS = ("train", "valid", "test")
VALID_EVERY = 10  # the first, the eleventh, ... of the training set are for validation
_LAST = "wav.scp"  # what a directory is not one without is written last


class DatasetBuilder(BaseBuilder):
    """Makes `<data_dir>/{train,valid,test}/` with `wav.scp`, `text`, `utt2spk` and `utt2dur`."""

    def is_source_prepared(self, data_dir: str | Path) -> bool:
        """Tell whether the archive was unpacked."""
        return find_corpus(_unpacked(data_dir)) is not None

    def prepare_source(self, data_dir: str | Path, archive: str | Path | None = None) -> None:
        """Unpack the archive; what would land outside of the folder is refused."""
        if archive is None:
            raise ConfigError(
                "create_dataset.archive is not set. Write the path of the corpus, a tar file: "
                "create_dataset.archive=/corpora/mini_an4/downloads.tar.gz"
            )
        if not Path(archive).is_file():
            raise ConfigError(
                f"create_dataset.archive is {str(archive)!r}, which is no file. Correct the path."
            )
        target = _unpacked(data_dir)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpacking-") as folder:
            _unpack(Path(archive), Path(folder))
            if find_corpus(Path(folder)) is None:
                raise DataError(
                    f"{archive} holds no an4/etc/an4_train.transcription, so it is not AN4. "
                    "Name another archive."
                )
            shutil.rmtree(target, ignore_errors=True)
            Path(folder).rename(target)
            Path(folder).mkdir()  # for the end of `with`

    def is_built(self, data_dir: str | Path) -> bool:
        """Tell whether all directories are there."""
        return all((Path(data_dir) / name / _LAST).is_file() for name in SETS)

    def build(self, data_dir: str | Path) -> None:
        """Write the directories; recordings without a transcript are left out, and named."""
        root = Path(data_dir)
        corpus = find_corpus(_unpacked(root))
        assert corpus is not None
        training, without_text = read_utterances(corpus, "train")
        test, without_text_too = read_utterances(corpus, "test")
        left_out = without_text + without_text_too
        if left_out:
            logger.warning(
                "%d recordings have no transcript and are left out: %s",
                len(left_out), ", ".join(left_out),
            )  # fmt: skip
        sets = {
            "train": [u for i, u in enumerate(training) if i % VALID_EVERY],
            "valid": training[::VALID_EVERY],
            "test": test,
        }
        for name, utterances in sets.items():
            _write_directory(root / name, utterances, root)


def _unpacked(data_dir: str | Path) -> Path:
    return Path(data_dir) / "downloads"


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(
            f"{archive} cannot be unpacked: {error}. Copy the archive again."
        ) from error


def _write_directory(folder: Path, utterances: list[Utterance], root: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    seconds = measure_files([utterance.path for utterance in utterances])
    columns = {
        "text": [utterance.text for utterance in utterances],
        "utt2spk": [utterance.speaker for utterance in utterances],
        "utt2dur": [f"{duration:.4f}" for duration in seconds],
        # Relative to the folder above, so that the data can be moved.
        _LAST: [utterance.path.relative_to(root).as_posix() for utterance in utterances],
    }
    for name, values in columns.items():
        with open_atomic(folder / name) as file:
            lines = zip(utterances, values, strict=True)
            file.writelines(f"{utterance.utt_id} {value}\n" for utterance, value in lines)

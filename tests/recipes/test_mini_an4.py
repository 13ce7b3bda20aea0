"""The recipe for mini AN4, from the archive to a score."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from espnet3.components.data.data_organizer import DataSource
from espnet3.components.data.dataset_builder import build_dataset
from espnet3.components.data.errors import DataError
from espnet3.components.data.sources import kaldi
from espnet3.errors import ConfigError
from tests.helpers.recipe_copy import DATA, ROOT, RecipeCopy

RECIPE = ROOT / "egs3" / "mini_an4" / "asr"
ARCHIVE = DATA / "mini_an4" / "downloads.tar.gz"

needs_archive = pytest.mark.skipif(not ARCHIVE.is_file(), reason=f"there is no {ARCHIVE}")


def build(data_dir, **arguments):
    builder = DataSource(recipe_dir=RECIPE).load("DatasetBuilder")()
    context = {"data_dir": data_dir}
    return build_dataset(builder, recipe_dir=RECIPE, arguments=arguments, context=context)


@needs_archive
def test_the_directories_are_those_of_kaldi(tmp_path, caplog):
    build(tmp_path, archive=ARCHIVE)
    train = kaldi.Dataset(tmp_path / "train", sample_rate=16000)
    assert [sample["text"] for sample in train] == [
        "GO", "MARCH THIRD NINETEEN TWENTY EIGHT", "START", "ELEVEN SEVENTEEN FIFTY ONE",
    ]  # fmt: skip
    assert [sample["speaker"] for sample in train] == ["fash", "fbbh", "mwhw", "mwhw"]
    assert train[0]["utt_id"] == "fash-an253-fash-b"
    seconds = [len(sample["speech"]) / 16000 for sample in train]
    assert train.durations() == pytest.approx(seconds, abs=1e-4)
    assert len(kaldi.Dataset(tmp_path / "valid")) == 1
    assert len(kaldi.Dataset(tmp_path / "test")) == 2
    assert "1 recordings have no transcript and are left out: cen7-fash-b" in caplog.text


@needs_archive
def test_what_is_built_is_not_built_again_and_can_be_moved(tmp_path):
    build(tmp_path / "a", archive=ARCHIVE)
    again = build(tmp_path / "a")
    assert all("skipped" in line for line in again)
    (tmp_path / "a").rename(tmp_path / "b")
    assert len(kaldi.Dataset(tmp_path / "b" / "test")[0]["speech"]) > 16000


def test_without_an_archive_the_line_to_write_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"create_dataset\.archive is not set.*downloads\.tar"):
        build(tmp_path)
    with pytest.raises(ConfigError, match="which is no file"):
        build(tmp_path, archive=tmp_path / "nowhere.tar.gz")


def write_archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def test_an_archive_that_writes_elsewhere_or_is_damaged_or_another_is_refused(tmp_path):
    evil = write_archive(tmp_path / "evil.tar.gz", {"../outside.txt": b"here"})
    with pytest.raises(DataError, match=r"evil\.tar\.gz cannot be unpacked"):
        build(tmp_path / "data", archive=evil)
    assert not list(tmp_path.rglob("outside.txt"))
    other = write_archive(tmp_path / "other.tar.gz", {"readme": b"something else"})
    with pytest.raises(DataError, match="is not AN4"):
        build(tmp_path / "data", archive=other)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(other.read_bytes()[:60])
    with pytest.raises(DataError, match=r"cut\.tar\.gz cannot be unpacked"):
        build(tmp_path / "data", archive=cut)
    assert not list((tmp_path / "data").glob(".unpacking*"))


def test_a_transcript_without_recording_is_refused_with_its_line(tmp_path):
    files = {
        "an4/etc/an4_train.transcription": b"<s> HELLO </s> (an1-abcd-b)\n",
        "an4/etc/an4_test.transcription": b"",
    }
    archive = write_archive(tmp_path / "an4.tar.gz", files)
    with pytest.raises(DataError, match=r"an4_train\.transcription:1 has no recording"):
        build(tmp_path / "data", archive=archive)


@needs_archive
def test_all_stages_run_from_the_archive_to_a_score(tmp_path):
    recipe = RecipeCopy("mini_an4/asr", tmp_path / "it's an4")
    told = recipe.run(
        "--stages", "create_dataset-measure", "--training_config", "conf/training.yaml",
        "--inference_config", "conf/inference.yaml", "--metrics_config", "conf/metrics.yaml",
        f"create_dataset.archive={ARCHIVE}",
    )  # fmt: skip
    assert "cen7-fash-b" in told
    results = recipe.folder / "exp" / "training" / "inference"
    metrics = json.loads((results / "metrics.json").read_text())
    assert metrics["WER"]["test"]["n_utterances"] == 2
    assert metrics["WER"]["test"]["n_units"] == 10
    assert len((results / "test" / "hyp.scp").read_text().splitlines()) == 2

"""The recipe for LibriSpeech on one speaker of it: each of its files is loaded and checked."""

import hashlib
import http.server
import json
import re
import tarfile
import threading
from functools import partial
from pathlib import Path

import pytest

from espnet3.cli.main import main
from espnet3.components.data.data_organizer import DataSource
from espnet3.components.data.dataset_builder import build_dataset
from espnet3.components.data.errors import DataError
from espnet3.errors import ConfigError
from espnet3.systems.asr.system import ASRSystem
from tests.helpers.recipe_copy import DATA, ROOT, RecipeCopy

RECIPE = ROOT / "egs3" / "librispeech" / "asr"
SAMPLE = DATA / "librispeech_sample" / "train-clean-100"
# How many utterances of the sample are in each, and where they begin.
SUBSETS = {
    "train-clean-100": (0, 111),
    "train-clean-360": (0, 3),
    "train-other-500": (3, 3),
    "dev-clean": (6, 3),
    "dev-other": (9, 3),
    "test-clean": (12, 3),
    "test-other": (15, 3),
}
# What a machine without GPUs needs.
ON_CPU = ("trainer.accelerator=cpu", "trainer.devices=1", "trainer.precision=32")
ON_ONE_CPU = (*ON_CPU, "trainer.strategy=auto")
SMALL = ("parallel.n_workers=1", "tokenizer.vocab_size=1000")
# What the other config has made already.
OF_100_HOURS = ("stats_dir=exp/stats_100h", "tokenizer.save_path=data/tokenizer_100h")

needs_sample = pytest.mark.skipif(not SAMPLE.is_dir(), reason=f"there is no {SAMPLE}")


def write_corpus(root: Path) -> Path:
    """Make a corpus of the standard layout from the sample, with a speaker in each subset."""
    lines = [
        (file, line)
        for file in sorted(SAMPLE.rglob("*.trans.txt"))
        for line in file.read_text().splitlines()
    ]
    for number, (subset, (first, size)) in enumerate(SUBSETS.items(), start=1):
        for file, line in lines[first : first + size]:
            id, _, text = line.partition(" ")
            _, chapter, rest = id.split("-")
            new_id = f"{number}-{chapter}-{rest}"
            folder = root / subset / str(number) / chapter
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{new_id}.flac").symlink_to(file.with_name(f"{id}.flac"))
            with (folder / f"{number}-{chapter}.trans.txt").open("a") as transcripts:
                transcripts.write(f"{new_id} {text}\n")
    return root


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Return the recipe with a corpus, manifests, a tokenizer and statistics."""
    recipe = RecipeCopy("librispeech/asr", tmp_path_factory.mktemp("libri") / "it's asr")
    corpus = write_corpus(recipe.folder / "LibriSpeech")
    of_each = {
        "100h": ("create_dataset", "train_tokenizer", "collect_stats", *SMALL),
        "960h": ("create_dataset",),
    }
    for hours, words in of_each.items():
        recipe.run_here(
            ASRSystem, "--stages", *words, f"create_dataset.source={corpus}",
            "--training_config", f"conf/training_{hours}.yaml",
        )  # fmt: skip
    return recipe


def build(data_dir, **arguments):
    builder = DataSource(recipe_dir=RECIPE).load("DatasetBuilder")()
    context = {"data_dir": data_dir}
    return build_dataset(builder, recipe_dir=RECIPE, arguments=arguments, context=context)


@needs_sample
def test_the_manifests_have_paths_texts_speakers_and_durations(recipe):
    rows = [
        json.loads(line)
        for line in (recipe.folder / "data" / "train-clean-100.jsonl").read_text().splitlines()
    ]
    assert len(rows) == 111
    assert rows[0]["utt_id"] == "1-198-0000"
    assert rows[0]["speaker"] == "1"
    assert rows[0]["text"].startswith("NORTHANGER ABBEY")
    assert sum(row["duration"] for row in rows) == pytest.approx(25.2 * 60, rel=0.01)
    assert all(Path(row["audio"]).is_file() for row in rows)


@needs_sample
@pytest.mark.parametrize(
    ("hours", "n_items", "millions"), [("100h", 111, (24, 30)), ("960h", 117, (95, 115))]
)
def test_each_training_config_builds_its_model_and_passes_its_checks(
    recipe, capfd, hours, n_items, millions
):
    recipe.run_here(
        ASRSystem, "--stages", "create_dataset-average", "--dry-run", *SMALL, *ON_ONE_CPU,
        *OF_100_HOURS, "create_dataset.source=LibriSpeech",
        "--training_config", f"conf/training_{hours}.yaml",
    )  # fmt: skip
    told = capfd.readouterr().out
    assert millions[0] < float(re.search(r"ASRModel, ([\d.]+) M parameters", told)[1]) < millions[1]
    assert "prepare_source: skipped, is_source_prepared() is true" in told
    assert "build: skipped, is_built() is true" in told
    assert f"train: {n_items} items" in told
    assert "valid: 6 items" in told


@pytest.fixture(scope="module")
def decoding(recipe):
    """Train recogniser and language model for two steps, and return what decodes with them."""
    small = (
        *ON_CPU, "trainer.max_steps=2", "trainer.log_every_n_steps=1",
        "dataloader.train.num_workers=0", "best_model_criterion=[[train/loss, 1, min]]",
    )  # fmt: skip
    recipe.run_here(
        ASRSystem, "--stages", "train", "--training_config", "conf/training_100h.yaml",
        "trainer.strategy=auto", "trainer.accumulate_grad_batches=1", "tokenizer.vocab_size=1000",
        *small, "model.encoder.n_layers=1", "model.decoder.n_layers=1", "model.encoder.hidden=32",
        "model.decoder.hidden=32", "dataloader.train.batch_seconds=60",
        "dataloader.valid.num_workers=0", "exp_tag=small",
    )  # fmt: skip
    recipe.run_here(
        ASRSystem, "--stages", "train", "--training_config", "conf/training_lm.yaml", *small,
        "model.hidden=16", "model.n_layers=1", "model.n_heads=2",
        "dataloader.train.batch_seconds=300",
    )  # fmt: skip
    return (
        "exp_tag=small", "device=cpu", "model.weights=exp/small/last.ckpt",
        "--metrics_config", "conf/metrics.yaml",
    )  # fmt: skip


JOINT = ("model.decoder.lm=exp/lm_100h/last.ckpt",)


@needs_sample
def test_joint_decoding_with_what_was_trained_for_two_steps_is_scored(recipe, decoding):
    recipe.run_here(
        ASRSystem, "--stages", "infer", "measure", "--inference_config", "conf/inference.yaml",
        *decoding, *JOINT, "model.decoder.beam_size=2", "model.decoder.max_length_ratio=0.1",
    )  # fmt: skip
    results = recipe.folder / "exp" / "small" / "inference" / "metrics.json"
    for name in ("test-clean", "test-other"):
        assert json.loads(results.read_text())["WER"][name]["n_utterances"] == 3


@needs_sample
@pytest.mark.parametrize(
    ("files", "more"),
    [
        (["inference", "parallel_slurm"], JOINT),
        (["inference_ctc"], ()),
        (["inference_ctc", "parallel_slurm"], ()),
    ],
)
def test_each_inference_config_passes_its_checks(recipe, decoding, capfd, files, more):
    recipe.run_here(
        ASRSystem, "--stages", "infer", "measure", "--dry-run", *decoding, *more, "exp_tag=other",
        "--inference_config", *(f"conf/{file}.yaml" for file in files),
    )  # fmt: skip
    told = capfd.readouterr().out
    assert "test-clean" in told
    assert "test-other" in told
    assert ("--gres=gpu:1" in told) == ("parallel_slurm" in files)


@needs_sample
def test_the_job_of_960_hours_has_a_process_for_each_gpu(recipe, capfd, monkeypatch):
    monkeypatch.chdir(recipe.folder)
    files = ["conf/training_960h.yaml", "conf/launch_slurm.yaml"]
    small = ("model.encoder.n_layers=1", "model.decoder.n_layers=1")
    assert main(["launch", *files, *OF_100_HOURS, *small, "--dry-run"]) == 0
    assert "#SBATCH --ntasks-per-node=4" in capfd.readouterr().out


def test_a_source_that_lacks_a_subset_is_told_with_how_to_fetch_it(tmp_path):
    with pytest.raises(ConfigError, match=r"create_dataset\.source is not set.*LibriSpeech"):
        build(tmp_path)
    with pytest.raises(ConfigError, match=r"lacks dev-clean.*create_dataset\.download=true"):
        build(tmp_path, source=tmp_path, subsets=["dev-clean"])
    with pytest.raises(ConfigError, match=r"'dev-claen'.*Did you mean 'dev-clean'\?"):
        build(tmp_path, source=tmp_path, subsets=["dev-claen"])


def test_a_text_without_audio_is_refused(tmp_path):
    folder = tmp_path / "dev-clean" / "1" / "2"
    folder.mkdir(parents=True)
    with pytest.raises(DataError, match="dev-clean has no"):
        build(tmp_path / "data", source=tmp_path, subsets=["dev-clean"])
    (folder / "1-2.trans.txt").write_text("1-2-0000 HELLO\n")
    with pytest.raises(DataError, match=r"1-2-0000\.flac is not beside it"):
        build(tmp_path / "data", source=tmp_path, subsets=["dev-clean"])


class Mirror:
    """A server on this machine with an archive that holds a folder LibriSpeech/<subset>."""

    def __init__(self, folder: Path, subset: str = "dev-clean") -> None:
        (folder / "LibriSpeech" / subset / "1" / "2").mkdir(parents=True)
        (folder / "LibriSpeech" / subset / "1" / "2" / "1-2.trans.txt").write_text("1-2-0 HI\n")
        self.archive = folder / f"{subset}.tar.gz"
        with tarfile.open(self.archive, "w:gz") as tar:
            tar.add(folder / "LibriSpeech", "LibriSpeech")
        self.md5 = hashlib.md5(self.archive.read_bytes()).hexdigest()
        handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def mirror(tmp_path):
    mirror = Mirror(tmp_path / "mirror")
    yield mirror
    mirror.server.shutdown()
    mirror.server.server_close()


@pytest.fixture
def download():
    builder = DataSource(recipe_dir=RECIPE).load("DatasetBuilder")
    import sys

    return sys.modules[builder.__module__.rpartition(".")[0] + ".download"]


def test_a_subset_is_fetched_checked_and_unpacked(mirror, download, tmp_path):
    download.fetch_subset("dev-clean", mirror.md5, tmp_path / "corpus", mirror.url)
    assert (tmp_path / "corpus/dev-clean/1/2/1-2.trans.txt").read_text() == "1-2-0 HI\n"
    assert [path.name for path in (tmp_path / "corpus").iterdir()] == ["dev-clean"]


def test_a_part_that_was_fetched_before_is_not_lost(mirror, download, tmp_path):
    part = tmp_path / "corpus" / "dev-clean.tar.part"
    part.parent.mkdir()
    part.write_bytes(mirror.archive.read_bytes()[:50])
    download.fetch_subset("dev-clean", mirror.md5, tmp_path / "corpus", mirror.url)
    assert (tmp_path / "corpus/dev-clean/1/2/1-2.trans.txt").is_file()


def test_another_archive_and_a_silent_server_are_refused(mirror, download, tmp_path):
    with pytest.raises(DataError, match=r"MD5 checksum \w+, but 0+ was published"):
        download.fetch_subset("dev-clean", "0" * 32, tmp_path, mirror.url)
    assert not (tmp_path / "dev-clean").exists()
    with pytest.raises(DataError, match=r"cannot be fetched.*create_dataset\.source=FOLDER"):
        download.fetch_subset("dev-clean", mirror.md5, tmp_path, f"{mirror.url}/nowhere")

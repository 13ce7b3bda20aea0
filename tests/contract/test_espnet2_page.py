"""docs/espnet2.md: its files, its commands and each line of its tables, in a copy of a recipe.

The recipe is egs3/commands/asr, made small, and trained for one epoch, so that there is something
to decode. Commands run as `--dry-run`: with all checks of their stages.
"""

import io
import re
import shlex
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

from espnet3.cli.main import main
from espnet3.cli.recipe import run_recipe
from espnet3.cli.recipe_options import explain_numbers
from espnet3.io.tables import read_jsonl
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.base.stages import STAGES
from tests.helpers.espnet2_recipe import write_recipe
from tests.helpers.exhaustive import few
from tests.helpers.pages import DOCS, blocks, code_in, named_files, table
from tests.helpers.recipe_copy import RecipeCopy

pytest.importorskip("espeakng_loader", reason="needs pip install -e '.[demo]'")

PAGE = DOCS / "espnet2.md"
FILES = named_files(PAGE)
BUILDER = "my_corpus/asr/dataset/builder.py"
CONFIGS = {
    "training": ("--training_config", "conf/training.yaml"),
    "inference": ("--inference_config", "conf/inference.yaml"),
    "metrics": ("--metrics_config", "conf/metrics.yaml"),
    "publication": ("--publication_config", "conf/publication.yaml"),
}
# Of the recipe's own files, and of those of the page.
SMALLER = {
    "n_train: 2400": "n_train: 24",
    "n_valid: 200": "n_valid: 4",
    "n_test: 300": "n_test: 4",
    "num_workers: 1": "num_workers: 0",
    "n_channels: 128": "n_channels: 8",
    "n_layers: 6\n    subsampling": "n_layers: 1\n    subsampling",
    "max_epochs: 10": "max_epochs: 1",
    "hidden: 128": "hidden: 8",
}
TINY_CONFORMER = """
dataloader: {train: {batch_seconds: 60, num_workers: 0}}
model:
  encoder: {hidden: 8, n_heads: 2, feed_forward: 8, n_layers: 1, kernel_size: 3}
  decoder: {hidden: 8, n_heads: 2, feed_forward: 8, n_layers: 1}
trainer: {accelerator: cpu, max_epochs: 1, logger: false}
"""


@contextmanager
def inside(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """Work in a recipe's folder as its run.py does, and leave nothing behind in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("COLUMNS", "1000")
        yield patch
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


def run(words: list[str], folder: Path) -> tuple[int, str]:
    """Run `python run.py ...` or `espnet3 ...` in this process: the exit code, and what it said."""
    told = io.StringIO()
    with redirect_stdout(told), redirect_stderr(told):
        if words[:2] == ["python", "run.py"]:
            code = run_recipe(ASRSystem, words[2:], recipe_dir=folder)
        else:
            assert words[0] == "espnet3", words
            code = main(words[1:])
    return code, told.getvalue()


def run_well(words: list[str], folder: Path) -> str:
    code, told = run(words, folder)
    assert code == 0, f"{shlex.join(words)}\n{told}"
    return told


def line_for(stage: str, words: list[str], *, is_dry: bool = True) -> list[str]:
    """Return a command for a stage: with the configs that it needs, unless the words have them."""
    kinds = {"training", *next(s.configs[:1] for s in STAGES if s.name == stage)}
    if stage in ("pack_model", "upload_model"):
        kinds.add("inference")
    given = [word for kind in kinds for word in CONFIGS[kind] if CONFIGS[kind][0] not in words]
    stages = ["pack_model", stage] if stage == "upload_model" else [stage]
    line = ["python", "run.py", "--stages", *stages, *given, *words]
    if stage == "train_tokenizer":
        line.append("tokenizer.save_path=data/tried")  # that of a trained model is not replaced
    has_folder = any(word.startswith(("exp_tag=", "exp_dir=")) for word in words)
    if stage == "train" and not has_folder and "--training_config" in given:
        # A training of other settings is not mixed with what is there.
        line.append(f"exp_tag={'tried' if is_dry else 'done'}")
    return [*line, "--dry-run"] if is_dry else line


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Return the recipe with the page's files, its corpus, tokenizers, and tiny trainings."""
    folder = tmp_path_factory.mktemp("page") / "it's commands"
    RecipeCopy("commands/asr", folder)
    for path in folder.glob("conf/*.yaml"):
        text = path.read_text()
        for large, small in SMALLER.items():
            text = text.replace(large, small)
        path.write_text(text)
    own = {"src/__init__.py": "", "src/texts.py": named_files(DOCS / "asr.md")["src/texts.py"]}
    for name, text in {**FILES, **own, "conf/tiny.yaml": TINY_CONFORMER}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    make = ["--stages", "create_dataset", "train_tokenizer", "train", *CONFIGS["training"]]
    lm = ["--stages", "train", "--training_config", "conf/training_lm.yaml"]
    with inside(folder):
        for words in (make, lm):
            run_well(["python", "run.py", *words], folder)
        write_kaldi(folder / "dump/raw/test", folder / "data/commands/test_seen.jsonl")
        rows = read_jsonl(folder / "data/commands/train.jsonl")
        text = "".join(f"{row['utt_id']} {row['text']}\n" for row in rows)
        (folder / "data/text").write_text(text)
    return folder


def write_kaldi(folder: Path, manifest: Path) -> None:
    """Write the lists that ESPnet2 keeps in dump/raw for the utterances of a manifest."""
    folder.mkdir(parents=True)
    rows = list(read_jsonl(manifest))
    for name, field in {"text": "text", "utt2spk": "speaker"}.items():
        (folder / name).write_text("".join(f"{r['utt_id']} {r[field]}\n" for r in rows))
    audio = manifest.parent.relative_to(folder.parents[2])  # as seen from the recipe
    paths = [f"{row['utt_id']} {audio / row['audio']}\n" for row in rows]
    (folder / "wav.scp").write_text("".join(paths))


@pytest.fixture
def recipe(trained) -> Iterator[Path]:
    with inside(trained) as patch:
        gpus = [str(number) for number in range(4)]
        patch.setattr("espnet3.parallel.clusters.gpus.visible_gpus", lambda _: gpus)
        yield trained


COMMANDS = [words for block in blocks(PAGE, "sh") for words in block.commands]
ON_SCALING = [words for block in blocks(DOCS / "scaling.md", "sh") for words in block.commands]


@pytest.mark.parametrize("words", few([*COMMANDS, *ON_SCALING], 10), ids=shlex.join)
def test_a_command_of_the_page_runs(recipe, words):
    if "--list-stages" in words or words[1] == "doctor":
        run_well(words, recipe)
    elif words[0] == "python":
        run_well([*words, "--dry-run"], recipe)
    elif words[1] == "migrate":
        if not Path(words[2]).is_dir():
            write_recipe(Path(words[2]))
        run_well(words, recipe)
    else:  # the last of two options counts
        assert words[:2] == ["espnet3", "scaling"]
        small = ["--workers", "1", "--items", "3", "--seconds", "0.01"]
        assert Path(words[2]).is_file()
        run_well([*words[:2], "conf/parallel_local.yaml", *words[3:], *small], recipe)


def test_every_block_is_run_or_is_espnet2s():
    shown = " ".join(shlex.join(words) for words in COMMANDS)
    for block in blocks(PAGE):
        if block.language == "text":  # what migrate prints: test_espnet2_words.py compares it
            continue
        if block.tags:
            assert block.tags == ("espnet2",)
            assert "# ESPnet2" in block.text.splitlines()[0]
            assert block.language != "yaml" or yaml.safe_load(block.text)
        else:
            assert block.language in ("sh", "yaml", "python"), f"line {block.line}"
            if block.language == "yaml":
                assert block.name in shown, f"no command of the page uses {block.name}"
    assert [name for name in FILES if name.endswith(".py")] == [BUILDER]


def test_the_conformer_of_the_page_trains_is_decoded_and_scored(recipe):
    words = shlex.split(
        "--stages train_tokenizer-measure --training_config conf/training_conformer.yaml "
        "conf/tiny.yaml --inference_config conf/decode.yaml --metrics_config conf/metrics.yaml "
        "parallel.n_workers=1 exp_tag=conformer"
    )
    run_well(["python", "run.py", *words], recipe)
    assert "WER" in (recipe / "exp/conformer/decode/RESULTS.md").read_text()
    assert (recipe / "data/tokenizer_bpe/tokens.txt").is_file()
    names = {"<tag>": "conformer", "<inference config>": "decode", "<set>": "test_seen"}
    names["<stage>"] = "train"
    shown = [code for row in table(PAGE, "## Files") for code in code_in(row[1])]
    paths = [code for code in shown if code.startswith("exp/")]
    assert len(paths) == 9
    for path in paths:
        for placeholder, name in names.items():
            path = path.replace(placeholder, name)
        assert (recipe / path).is_file(), path


def test_data_directories_of_espnet2_are_decoded_as_they_are(recipe):
    words = [*CONFIGS["inference"], "conf/from_espnet2.yaml", "parallel.n_workers=1"]
    run_well(line_for("infer", [*words, "inference_dir=exp/from_espnet2"], is_dry=False), recipe)
    lines = (recipe / "exp/from_espnet2/test/ref.scp").read_text().splitlines()
    assert len(lines) == 4


OPTIONS = table(PAGE, "## Options of `asr.sh`")
WRITTEN = [row for row in OPTIONS if row[2]]


@pytest.mark.parametrize("row", few(WRITTEN, 12), ids=lambda row: row[0])
def test_what_to_write_for_an_option_of_asr_sh_is_accepted_by_its_stage(recipe, row):
    (written,) = code_in(row[1])
    run_well(line_for(row[2], shlex.split(written)), recipe)


def test_other_rows_name_stages_or_say_what_to_do_instead(recipe):
    for _, written, stage, mind in OPTIONS:
        if stage:
            continue
        if code_in(written):
            words = [*shlex.split(code_in(written)[0]), *(w for c in CONFIGS.values() for w in c)]
            run_well(["python", "run.py", *words, "--dry-run"], recipe)
        else:
            assert written in ("not here", "not needed", "not a setting")
            assert mind


# Those that most recipes of ESPnet2 set, by a count of the public ones.
MOST_USED = """
train_set valid_set test_sets asr_config use_lm inference_config token_type lang ngpu feats_type
lm_train_text nbpe speed_perturb_factors audio_format max_wav_duration lm_config inference_nj
bpe_train_text inference_asr_model feats_normalize nj local_data_opts stage gpu_inference
nlsyms_txt stop_stage use_word_lm bpe_nlsyms local_score_opts asr_speech_fold_length
asr_text_fold_length lm_fold_length inference_args min_wav_duration asr_tag word_vocab_size
skip_data_prep skip_train skip_eval skip_upload hugging_face_model_name_or_path bpemode fs
asr_args num_nodes
"""


def test_the_45_most_used_options_are_in_the_table():
    shown = " ".join(row[0] for row in OPTIONS)
    names = MOST_USED.split()
    assert len(names) == 45
    assert [name for name in names if f"--{name}" not in shown] == []


def test_all_stages_of_asr_sh_are_in_the_table_with_our_numbers():
    rows = table(PAGE, "## Stages of `asr.sh`")
    assert [row[0] for row in rows] == [str(number) for number in range(1, 16)]
    ours = {stage.name: stage.number for stage in STAGES}
    for _, _, here in rows:
        for name, number in re.findall(r"`(\w+)` \((\d+)\)", here):
            assert ours[name] == int(number)


def test_numbers_that_mean_others_in_asr_sh_are_answered_with_names(recipe):
    numbers = ["--stage", "3", "--stop_stage", "5", *CONFIGS["training"], "exp_tag=tried"]
    told = run_well(["python", "run.py", *numbers, "--dry-run"], recipe)
    assert "--stages collect_stats train average" in told
    assert "asr.sh, write: --stages train_tokenizer\n" in told


@pytest.mark.parametrize("number", range(1, 16))
def test_the_stage_that_is_named_for_a_number_is_that_of_the_table(number):
    told = explain_numbers(str(number), str(number), [])
    row = table(PAGE, "## Stages of `asr.sh`")[number - 1]
    ours = [name for name in code_in(row[2]) if f"`{name}` (" in row[2]]
    assert told.endswith(f"write: --stages {ours[0]}") if ours else "asr.sh" not in told


def test_the_builder_of_the_page_prepares_a_corpus_once(tmp_path):
    folder = tmp_path / "it's mine" / "asr"
    text = FILES[BUILDER]
    files = {
        "dataset/builder.py": text,
        "dataset/__init__.py": "from .builder import DatasetBuilder\n",
        "conf/training.yaml": "parallel: {env: local, n_workers: 2}\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    source, archive = tmp_path / "source", tmp_path / "corpus.tar.gz"
    source.mkdir()
    random, lines = np.random.default_rng(0), ""
    for speaker in (1, 8, 9, 10):
        utt_id = f"spk{speaker:02}-0001"
        soundfile.write(source / f"{utt_id}.wav", random.normal(scale=0.1, size=4000), 8000)
        lines += f"{utt_id} hello {speaker}\n"
    (source / "transcripts.txt").write_text(lines)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source, arcname=".")
    line = ["python", "run.py", "--stages", "create_dataset", *CONFIGS["training"]]
    line.append(f"create_dataset.archive={archive}")
    with inside(folder):
        run_well(line, folder)
        sets = {name: list(read_jsonl(folder / f"data/mine/{name}.jsonl")) for name in
                ("train", "valid", "test")}  # fmt: skip
        assert [len(rows) for rows in sets.values()] == [2, 1, 1]
        assert sets["test"][0]["duration"] == 0.5
        assert soundfile.info(folder / "data/mine" / sets["test"][0]["audio"]).samplerate == 16000
        assert "skipped" in run_well(line, folder)


MISTAKES = table(PAGE, "## Common mistakes")


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row[0])
def test_a_mistake_is_told_with_what_to_write_before_anything_starts(recipe, row, monkeypatch):
    monkeypatch.setattr("espnet3.parallel.clusters.gpus.visible_gpus", lambda _: [])
    (typed,) = code_in(row[0])
    _, stage, *words = shlex.split(typed)
    line = ["python", "run.py", "--stage", stage, *CONFIGS["training"]]
    if not stage.isdigit():
        line = line_for(stage, words, is_dry=False)
    before = sorted(recipe.rglob("*"))
    code, told = run(line, recipe)
    assert code in (1, 2), told
    for essence in code_in(row[1]):
        assert essence in told, told
    assert sorted(recipe.rglob("*")) == before


SETTINGS = [
    setting
    for row in table(PAGE, "## Config Diff")
    for code in code_in(row[1])
    if (setting := re.fullmatch(r"([a-z_.]+): ([^.]*[\w\]*.]+)", code)) and "FILE" not in code
]


@pytest.mark.parametrize("setting", few(SETTINGS, 8), ids=lambda setting: setting[0])
def test_a_setting_of_the_config_diff_is_accepted(recipe, setting):
    key, value = setting.groups()
    stage, more = "train", []
    if key.startswith("model.decoder."):
        stage, more = "infer", ["--inference_config", "conf/inference_joint.yaml"]
    run_well(line_for(stage, [*more, f"{key}={value}"]), recipe)

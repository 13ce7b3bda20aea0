"""The stage train_tokenizer on real folders: what is written, kept, and refused."""

import json
import logging
from pathlib import Path

import pytest

from espnet3.components.text.tokenizer import load_tokenizer
from espnet3.config.load import load_config
from espnet3.errors import ConfigError, EspnetError, StaleRunError
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.asr.tokenizer_training import (
    check_tokenizer_exists,
    describe_train_tokenizer,
    train_tokenizer,
)
from espnet3.systems.base.checks import check_stages
from espnet3.systems.base.stages import Skipped, find_stage, stages_of

TEXTS = ["one two three", "four five six", "seven eight nine", "zero zero seven"]
CHARACTERS = """
dataset:
  train: [{data_src: jsonl, data_src_args: {path: train.jsonl}, weight: 2}]
  preprocessor: {_target_: espnet3.systems.asr.preprocessor.Tokenize, tokenizer: "${tokenizer.save_path}"}
tokenizer: {model_type: characters, save_path: "${recipe_dir}/data/tokenizer"}
"""  # noqa: E501
BPE = CHARACTERS.replace("characters", "bpe, vocab_size: 30")


@pytest.fixture
def recipe(awkward):
    write_manifest(awkward, TEXTS)
    return awkward


@pytest.fixture
def load(recipe):
    """Return a function that loads a config with overrides."""

    def make(*overrides, text=CHARACTERS):
        file = recipe / "training.yaml"
        file.write_text(text)
        below = {
            "recipe_dir": str(recipe),
            "data_dir": str(recipe / "data"),
            "exp_dir": str(recipe / "exp" / "a"),
        }
        return load_config(file, overrides, below=below)

    return make


def write_manifest(folder, texts):
    # There is no audio: whoever opens it fails.
    rows = [{"utt_id": f"u{i}", "audio": f"u{i}.wav", "text": t} for i, t in enumerate(texts)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def build_texts(n=3, kind="list"):
    texts = [f"number {i}" for i in range(n)]
    return {"list": texts, "number": 3, "mixed": [*texts, 3]}.get(kind, iter(texts))


def write_texts(path):
    with open(path, "w") as file:
        file.write("ab ba\n\nc\n")
    return path


def test_characters_of_the_training_texts_without_opening_audio(load, recipe):
    folder = train_tokenizer(load())
    tokens = load_tokenizer(folder).tokens
    assert tokens[2:-1] == ("<space>", *sorted(set("".join(TEXTS)) - {" "}))
    about = json.loads((folder / "tokenizer.json").read_text())
    assert about["made_from"]["texts"]["n_texts"] == 4
    assert folder == recipe / "data" / "tokenizer"


def test_the_folder_has_a_default_and_char_means_characters(load, recipe):
    text = CHARACTERS.replace("characters", "char").replace(
        ', save_path: "${recipe_dir}/data/tokenizer"', ""
    )
    loaded = load("dataset.preprocessor=null", text=text)
    assert train_tokenizer(loaded) == recipe / "data" / "tokenizer"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_are_as_many_as_asked_for(load, kind):
    folder = train_tokenizer(
        load(f"tokenizer.model_type={kind}", "tokenizer.vocab_size=24", text=BPE)
    )
    tokenizer = load_tokenizer(folder)
    assert len(tokenizer.tokens) == 24
    assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == TEXTS


def test_one_that_is_there_is_kept_and_said_so(load):
    before = files_of(train_tokenizer(load(text=BPE)))
    again = train_tokenizer(load("exp_tag=other", text=BPE))
    assert isinstance(again, Skipped)
    assert "made from the same 4 texts" in again.reason
    assert files_of(load_folder(load)) == before


def load_folder(load):
    return Path(load().config.tokenizer.save_path)


@pytest.mark.parametrize("change", ["texts", "settings"])
def test_without_a_trained_model_it_is_made_anew(load, recipe, change, caplog):
    caplog.set_level(logging.INFO)
    train_tokenizer(load(text=BPE))
    if change == "texts":
        write_manifest(recipe, [*TEXTS, "xylophone"])
        folder = train_tokenizer(load(text=BPE))
        assert "other texts: 4 then, 5 now" in caplog.text
        assert load_tokenizer(folder).decode(load_tokenizer(folder).encode("xylo")) == "xylo"
    else:
        folder = train_tokenizer(load("tokenizer.vocab_size=32", text=BPE))
        assert len(load_tokenizer(folder).tokens) == 32
        assert "tokenizer.vocab_size: 30 -> 32" in caplog.text


@pytest.mark.parametrize("experiment", ["a", "another"])
@pytest.mark.parametrize("change", ["texts", "settings"])
def test_one_that_a_trained_model_needs_is_not_replaced(load, recipe, experiment, change):
    folder = train_tokenizer(load(text=BPE))
    before = files_of(folder)
    exp_dir = recipe / "exp" / experiment
    exp_dir.mkdir(parents=True)
    (exp_dir / "config.yaml").write_text(json.dumps({"model": {"tokenizer": str(folder)}}))
    (exp_dir / "last.ckpt").write_text("weights")
    changed = ["tokenizer.vocab_size=32"] if change == "settings" else []
    if change == "texts":
        write_manifest(recipe, [*TEXTS, "xylophone"])
    with pytest.raises(StaleRunError, match=r"(?s)was trained with it as it is.*save_path.*rm -r"):
        train_tokenizer(load(*changed, text=BPE))
    assert files_of(folder) == before
    system = ASRSystem(training=load(*changed, text=BPE))
    if change == "settings":
        with pytest.raises(StaleRunError, match="vocab_size: 30 -> 32"):
            system.check_train_tokenizer()
    else:
        system.check_train_tokenizer()
    (exp_dir / "config.yaml").write_text(json.dumps({"model": {"tokenizer": "elsewhere"}}))
    assert train_tokenizer(load(*changed, text=BPE)) == folder


def test_one_that_came_from_elsewhere_is_not_replaced(load, recipe):
    from espnet3.components.text.tokenizer import CharacterTokenizer

    CharacterTokenizer.from_texts(["abc"]).save(recipe / "data" / "tokenizer")
    with pytest.raises(StaleRunError, match="was not made by this stage"):
        train_tokenizer(load())


def test_texts_of_a_function_or_of_the_file_that_it_names(load, recipe):
    here = __name__
    base = "tokenizer: {model_type: characters, text_builder: {func: %s, %s}}"
    folder = train_tokenizer(load(text=base % (f"{here}.build_texts", "n: 2")))
    assert "n" in load_tokenizer(folder).tokens
    path = json.dumps(str(recipe / "texts.txt"))
    text = base % (f"{here}.write_texts", f"path: {path}")
    assert "".join(load_tokenizer(train_tokenizer(load(text=text))).tokens[3:-1]) == "abc"
    ASRSystem(training=load(text=text)).check_train_tokenizer()
    again = train_tokenizer(load(text=text))
    assert isinstance(again, Skipped)
    yields = base % (f"{here}.build_texts", "kind: iterator")
    assert "3" not in load_tokenizer(train_tokenizer(load(text=yields))).tokens


def test_cleaning_and_a_transform_change_the_texts(load, recipe, monkeypatch):
    write_manifest(recipe, ["One, TWO!"])
    loaded = load("tokenizer.clean_types=[no_punctuation, lower]")
    assert load_tokenizer(train_tokenizer(loaded)).tokens[3:-1] == ("e", "n", "o", "t", "w")


def test_the_plan_tells_what_is_there(load):
    assert describe_train_tokenizer(load(text=BPE)) == [
        f"model_type bpe, vocab_size 30, from the texts of dataset.train: {load_folder(load)}"
    ]
    train_tokenizer(load(text=BPE))
    assert "there is one, from 4 texts" in describe_train_tokenizer(load(text=BPE))[1]
    other = describe_train_tokenizer(load("tokenizer.vocab_size=32", text=BPE))
    assert "other settings: tokenizer.vocab_size: 30 -> 32" in other[1]


HERE = __name__
MISTAKES = [
    ("misspelt kind", "tokenizer.model_type=charact", r"Did you mean 'characters'"),
    ("misspelt key", "tokenizer.vocab_sise=30", r"vocab_sise.*Did you mean 'vocab_size'"),
    ("no size", "tokenizer.model_type=bpe", r"vocab_size is not set. Write.*vocab_size: 500"),
    ("tiny size", "tokenizer.vocab_size=2", r"tokenizer\.vocab_size is 2.*greater than or equal"),
    ("no training set", "dataset.train=[]", r"dataset\.train.*lists no training set.*Write"),
    ("no data", "dataset=null", r"dataset\.train.*lists no training set"),
    ("cleaner", "tokenizer.clean_types=[lowr]", r"tokenizer\.clean_types has 'lowr'.*'lower'"),
    ("no function", "tokenizer.text_builder={n: 3}", r"text_builder\.func is None.*Write"),
    ("lost function", f"tokenizer.text_builder={{func: {HERE}.build_text}}", "build_texts"),
    (
        "wrong argument",
        f"tokenizer.text_builder={{func: {HERE}.build_texts, m: 3}}",
        r"text_builder does not fit .*'?m'?",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("override", "words"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])  # fmt: skip  # noqa: E501
def test_mistakes_are_told_before_anything_runs(load, override, words):
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        ASRSystem(training=load(override)).check_train_tokenizer()


@pytest.mark.parametrize("size", [6, 500])
def test_a_size_that_the_texts_do_not_have_is_told_with_its_place(load, recipe, size):
    with pytest.raises(ConfigError, match=rf"tokenizer\.vocab_size is {size} \(set.*Write: vocab_"):
        train_tokenizer(load(f"tokenizer.vocab_size={size}", text=BPE))
    assert not (recipe / "data" / "tokenizer").exists()


@pytest.mark.parametrize("text", ["", "  ", None])
def test_an_utterance_without_text_is_named(load, recipe, text):
    write_manifest(recipe, ["one", text])
    with pytest.raises(EspnetError, match=r"'u1' has (an empty text|no field 'text')"):
        train_tokenizer(load())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"func: {HERE}.build_texts, n: 0", r"text_builder.*gives no texts"),
        (f"func: {HERE}.build_texts, kind: number", r"returned 3, of type int. Return or yield"),
        (f"func: {HERE}.build_texts, kind: mixed", r"returned 3 among the texts"),
        ("func: os.path.basename, p: /no/file", r"returned 'file', but there is no such file"),
    ],
)
def test_what_a_function_returns_is_checked(load, arguments, words):
    with pytest.raises(ConfigError, match=words):
        train_tokenizer(load(f"tokenizer.text_builder={{{arguments}}}"))


def test_without_a_block_it_is_not_known_what_to_train(load):
    loaded = load("tokenizer=null", "dataset.preprocessor=null")
    with pytest.raises(ConfigError, match=r"(?s)tokenizer.*is not set.*model_type: characters"):
        ASRSystem(training=loaded).check_train_tokenizer()


def test_a_size_for_characters_is_ignored_aloud(load, caplog):
    ASRSystem(training=load("tokenizer.vocab_size=99")).check_train_tokenizer()
    assert "tokenizer.vocab_size is ignored" in caplog.text


def stages(*names):
    return [find_stage(stages_of(ASRSystem), name) for name in names]


def test_a_training_without_tokenizer_is_refused_unless_one_is_about_to_be_made(load, recipe):
    system = ASRSystem(training=load(f"stats_dir={json.dumps(str(recipe / 'stats'))}"))
    refusal = r"(?s)dataset\.preprocessor\.tokenizer is .*--stages train_tokenizer"
    for name in ("collect_stats", "train"):
        with pytest.raises(ConfigError, match=refusal):
            check_stages(system, stages(name))
    check_stages(system, stages("train_tokenizer", "collect_stats"))
    train_tokenizer(load())
    check_stages(system, stages("collect_stats"))


def test_a_recipe_without_a_block_leaves_the_stage_out():
    assert stages("train_tokenizer")[0].needs_any == ("tokenizer",)


@pytest.mark.parametrize("overrides", [["parallel.n_workers=2"], ["parallel.shards_per_worker=3"]])
def test_workers_and_shards_do_not_change_a_byte(load, recipe, overrides):
    text = """
dataset: {train: [{data_src: tests.helpers.text_parts, transform: tests.helpers.text_parts.lower}]}
tokenizer: {model_type: unigram, vocab_size: 40}
"""
    expected = files_of(train_tokenizer(load(text=text)))
    other = json.dumps(str(recipe / "other"))
    folder = train_tokenizer(load(f"tokenizer.save_path={other}", *overrides, text=text))
    assert folder == recipe / "other"
    assert files_of(folder) == expected
    assert "N" not in load_tokenizer(folder).tokens


@pytest.mark.parametrize(
    ("is_built", "stages"),
    [(False, ["create_dataset", "train_tokenizer"]), (True, ["train_tokenizer"])],
)
def test_a_missing_tokenizer_is_reported_with_all_stages_that_make_it(
    recipe, load, is_built, stages
):
    (recipe / "dataset").mkdir()
    (recipe / "dataset" / "__init__.py").write_text(
        "from espnet3.components.data.dataset_builder import DatasetBuilder as Base\n"
        f"class DatasetBuilder(Base):\n    def is_built(self): return {is_built}\n"
        "    def build(self): ...\n"
        "class Dataset: ...\n"
    )
    with pytest.raises(ConfigError) as error:
        check_tokenizer_exists(load())
    words = str(error.value).partition("--stages ")[2].split()
    assert words[: words.index("--training_config")] == stages

"""`${expdir}`, as "Multi-GPU and multi-node training" prints it, is `${exp_dir}`, with a line."""

import pytest

from espnet3.config.load import load_config
from espnet3.config.resolve import resolved
from espnet3.config.sources import _warn_of_reference, warn_of_alias
from espnet3.systems.base.context import DEFAULTS
from tests.helpers.shipped_recipes import ShippedRecipe
from tests.helpers.snippets import SNIPPETS

OWN = "expdir (set in {}) is read as exp_dir, which is its name here"


@pytest.fixture(autouse=True)
def told(caplog):
    warn_of_alias.cache_clear()
    _warn_of_reference.cache_clear()
    caplog.set_level("INFO", "espnet3")
    return caplog


def load(tmp_path, *texts, overrides=()):
    files = []
    for i, text in enumerate(texts):
        files.append(tmp_path / f"{'abc'[i]}.yaml")
        files[-1].write_text(text)
    return resolved(load_config(files, overrides, below=DEFAULTS).config)


def test_the_printed_logger_in_a_shipped_recipe(tmp_path, told):
    recipe = ShippedRecipe("TEMPLATE/asr", tmp_path / "asr")
    block = (SNIPPETS / "trainer_logger.yaml.txt").read_text()
    assert "${expdir}/tensorboard" in block
    (recipe.folder / "conf" / "logger.yaml").write_text(block)
    recipe.run_here(
        recipe.system, "--stages", "1", "3", "4", "create_dataset.n_training=20",
        "--training_config", "conf/training.yaml", "conf/logger.yaml",
        "trainer.accelerator=cpu", "trainer.devices=1",
        "trainer.num_nodes=1", "trainer.strategy=auto", "trainer.max_steps=2",
        "trainer.max_epochs=1", "dataloader.train.num_workers=0", "best_model_criterion=null",
    )  # fmt: skip
    assert list((recipe.folder / "exp/training/tensorboard").rglob("events*"))
    assert told.text.count("which is read as ${exp_dir}") == 1


def test_a_reference_is_told_once_with_its_place(tmp_path, told):
    text = "a: {b: ['${expdir}/x', '${ expdir }/y', '${oc.select:expdir,null}']}\nexp_tag: t\n"
    assert load(tmp_path, text)["a"]["b"] == ["./exp/t/x", "./exp/t/y", "./exp/t"]
    load(tmp_path, text)
    assert told.text.count("a.b.0 (set in") == 1
    assert "a.yaml:1) refers to ${expdir}" in told.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"a: \${expdir}", "${expdir}"),
        ("a: $expdir", "$expdir"),
        ("a: ${expdirs}\nexpdirs: 1", 1),
        ("a: ${expdir}\nexpdir: mine\nexp_dir: other", "mine"),
        ("a: ${expdir}\nexpdir: ${exp_dir}\nexp_tag: t", "./exp/t"),
        ("a: ${exp_dir}\nexpdir: mine\nexp_dir: '${expdir}/x'", "mine/x"),
    ],
)
def test_what_is_something_else_is_left_alone(tmp_path, told, text, expected):
    assert load(tmp_path, text)["a"] == expected
    assert "expdir" not in told.text


def test_the_key_in_a_file_is_read_with_a_line(tmp_path, told):
    values = load(tmp_path, "expdir: exp/mine\na: ${expdir}/b\n", "exp_tag: c\n")
    assert values["exp_dir"] == "exp/mine"
    assert values["a"] == "exp/mine/b"
    assert "expdir" not in values
    assert OWN.format(tmp_path / "a.yaml:1") in told.text.replace("'", "")


def test_the_key_on_the_command_line_is_read_with_a_line(tmp_path, told):
    values = load(tmp_path, "exp_dir: other\na: ${expdir}\n", overrides=["expdir=exp/mine"])
    assert values["exp_dir"] == values["a"] == "exp/mine"
    assert OWN.format("command line: expdir=exp/mine") in told.text


def test_through_a_recipe(tmp_path, told):
    recipe = ShippedRecipe("TEMPLATE/asr", tmp_path / "asr")
    recipe.infer("expdir=exp/mine")
    assert len(recipe.hyps(tag="mine")) == 2
    assert OWN.format("command line: expdir=exp/mine") in told.text

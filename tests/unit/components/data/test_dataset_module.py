import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.components.data.data_organizer import SOURCES, DataSource
from espnet3.errors import ConfigError

DATASET = "class Dataset:\n    marker = {!r}\n    def __len__(self): return 1\n"


def problem(source, export="Dataset") -> str:
    with pytest.raises(ConfigError) as caught:
        source.load(export)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The recipe's own


def test_the_own_datasets_of_two_recipes_do_not_clash(write_recipe):
    one = write_recipe(DATASET.format("one"), "one recipe's")
    two = write_recipe(DATASET.format("two"), "two")
    datasets = [DataSource(None, recipe).load() for recipe in (one, two, one)]
    assert [d.marker for d in datasets] == ["one", "two", "one"]
    assert datasets[0] is datasets[2]


def test_the_own_package_may_import_its_parts(write_recipe):
    part = DATASET.format("part")
    recipe = write_recipe("from .reader import Dataset\n", files={"reader.py": part})
    assert DataSource("", recipe).load().marker == "part"


def test_a_relative_recipe_counts_from_the_current_folder(write_recipe, monkeypatch):
    monkeypatch.chdir(write_recipe(DATASET.format("here")))
    assert DataSource().load().marker == DataSource(None, ".").load().marker == "here"


def test_the_same_call_gives_the_same_class_in_a_fresh_process(write_recipe):
    recipe = write_recipe(DATASET.format("a"))
    here = DataSource(None, recipe).load()
    code = (
        "import sys\nfrom espnet3.components.data.data_organizer import DataSource\n"
        "print(DataSource(None, sys.argv[1]).load())"
    )
    root = Path(__file__).parents[4]
    command = [sys.executable, "-c", code, str(recipe)]
    process = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    assert process.stdout.strip() == str(here)


def test_a_recipe_without_a_dataset_says_which_file_to_write(tmp_path):
    message = problem(DataSource(None, tmp_path, "dataset.test.0.data_src"))
    assert message.startswith(
        f"dataset.test.0.data_src is not set, but the recipe has no {tmp_path}/dataset/__init__.py."
    )
    sources = "kaldi, jsonl, tsv, huggingface, lhotse, folder, tar, parquet, text."
    assert f"data_src: kaldi. Known: {sources}" in message


def test_a_module_without_the_class_says_how_to_export_it(write_recipe):
    source = DataSource(None, write_recipe("class DataSet: pass\n"))
    message = problem(source)
    assert "__init__.py has no class 'Dataset'. Did you mean 'DataSet'?" in message
    assert message.endswith("from .dataset import X as Dataset")
    assert "no class 'DatasetBuilder'" in problem(source, "DatasetBuilder")


def test_an_error_inside_the_module_is_passed_on_each_time(write_recipe):
    recipe = write_recipe("import not_installed_anywhere\n")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
            DataSource(None, recipe).load()


# Another recipe's


def test_a_tag_is_found_from_the_recipe_upwards(write_recipe):
    recipe = write_recipe(DATASET.format("toy"))
    other = write_recipe("from egs3.toy.asr.dataset import Dataset\n", "egs3/other/tts")
    dataset = DataSource("other/tts", recipe).load()
    assert dataset.marker == "toy"
    assert dataset.__module__ == "egs3.toy.asr.dataset"
    assert str(other.parents[2]) in sys.path


def test_a_tag_is_found_from_the_current_folder_upwards(write_recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(write_recipe(DATASET.format("toy")))
    assert DataSource("toy/asr", tmp_path / "elsewhere").load().marker == "toy"


def test_a_tag_means_the_nearest_egs3_even_if_another_one_is_imported(write_recipe):
    first = write_recipe(DATASET.format("first"), "clone1/egs3/toy/asr")
    second = write_recipe(DATASET.format("second"), "clone2/egs3/toy/asr")
    assert DataSource("toy/asr", first).load().marker == "first"
    assert DataSource("toy/asr", second).load().marker == "second"


def test_an_unknown_tag_lists_the_known_ones(write_recipe):
    message = problem(DataSource("toyy/asr", write_recipe(DATASET), "dataset.train.1.data_src"))
    assert message.startswith(
        "dataset.train.1.data_src is 'toyy/asr', but there is no egs3/toyy/asr"
    )
    assert "Did you mean 'toy/asr'?" in message


def test_a_tag_outside_of_any_clone_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p) / "egs3").is_dir()])
    message = problem(DataSource("toy/asr", tmp_path))
    assert "nor a folder above them has an egs3/" in message
    assert message.endswith("data_src: package.module")


@pytest.mark.parametrize("tag", ["a/b/c", "/a", "a/"])
def test_a_tag_has_two_parts(tag):
    assert problem(DataSource(tag)).endswith("Write: data_src: CORPUS/TASK")


# Ours, and any other module


@pytest.mark.parametrize("name", SOURCES)
def test_short_names_mean_our_sources(name):
    assert DataSource(name).load().__module__ == f"espnet3.components.data.sources.{name}"


def test_a_dotted_module_is_imported(tmp_path, monkeypatch):
    (tmp_path / "my_corpora").mkdir()
    (tmp_path / "my_corpora/digits.py").write_text(DATASET.format("digits"))
    monkeypatch.syspath_prepend(tmp_path)
    assert DataSource("my_corpora.digits").load().marker == "digits"
    message = problem(DataSource("my_corpora.digit"))
    assert "'my_corpora' has no module 'digit'. Did you mean 'digits'?" in message
    message = problem(DataSource("my_corpora.digits.Dataset"))
    assert message.endswith("data_src: my_corpora.digits")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kaldy", "there is no module 'kaldy'. Did you mean 'kaldi'?"),
        (
            "no_such_package.x",
            "Write one of kaldi, jsonl, tsv, huggingface, lhotse, folder, tar, parquet, text",
        ),
        ("json..x", "'json' has no module ''"),
        (".x", "that is no name of a module"),
    ],
)
def test_an_unknown_module_says_what_to_write(name, expected):
    message = problem(DataSource(name, key="dataset.test.0.data_src"))
    assert message.startswith(f"dataset.test.0.data_src is {name!r}, but ")
    assert expected in message

from pathlib import Path

import pytest

from espnet3.config.load import LoadedConfig, load_config
from espnet3.errors import ConfigError


@pytest.fixture
def conf(tmp_path):
    """Write files, given as name and text, below a folder with an awkward name."""
    folder = tmp_path / 'it\'s a "conf"'

    def write(**texts: str) -> Path:
        for name, text in texts.items():
            path = folder / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return write


def load(folder: Path, *names: str) -> LoadedConfig:
    return load_config([folder / f"{name}.yaml" for name in names or ("top",)])


def error_of(folder: Path, *names: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, *names)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What is merged, and in which order


@pytest.mark.parametrize("name", ["base", "base.yaml", "./base"])
def test_a_file_wins_over_its_defaults(conf, name):
    folder = conf(base="a: 1\nb: 2\n", top=f"defaults: [{name}]\na: 3\n")
    assert load(folder).config == {"a": 3, "b": 2}


def test_self_says_where_the_file_itself_comes(conf):
    texts = {"first": "a: 1\nb: 1\nc: 1", "last": "a: 3\n"}
    folder = conf(**texts, top="defaults: [first, _self_, last]\na: 2\nb: 2\n")
    loaded = load(folder)
    assert loaded.config == {"a": 3, "b": 2, "c": 1}
    assert [Path(file).stem for file in loaded.files] == ["first", "top", "last"]


def test_a_key_takes_the_file_of_its_folder(conf):
    folder = conf(
        model__small="size: 8\nact: relu\n",
        top="defaults:\n  - model: small\nmodel: {act: gelu}\n",
    )
    assert load(folder).config == {"model": {"size": 8, "act": "gelu"}}


def test_a_key_of_several_folders_is_nested(conf):
    folder = conf(model__encoder__small="size: 8\n", top="defaults:\n  - model/encoder: small\n")
    assert load(folder).config == {"model": {"encoder": {"size": 8}}}


def test_a_name_may_reach_into_other_folders(conf):
    folder = conf(
        shared="a: 1\n", sub__b="defaults: [../shared]\nb: 2\n", top="defaults: [sub/b]\nc: 3\n"
    )
    assert load(folder).config == {"a": 1, "b": 2, "c": 3}


def test_defaults_below_a_key_stay_below_it(conf):
    folder = conf(
        model__base="size: 4\nact: relu\n",
        model__small="defaults: [base]\nsize: 8\n",
        top="defaults: [{model: small}]\n",
    )
    assert load(folder).config == {"model": {"size": 8, "act": "relu"}}


@pytest.mark.parametrize("entries", ["null", "[]", "[null]", "[model: null]", "[_self_]"])
def test_an_entry_without_a_name_is_skipped(conf, entries):
    assert load(conf(top=f"defaults: {entries}\na: 1\n")).config == {"a": 1}


def test_defaults_come_before_the_files_that_follow(conf):
    folder = conf(base="a: 1\nb: 1\n", top="a: 2\n", over="defaults: [base]\n")
    loaded = load(folder, "top", "over")
    assert loaded.config == {"a": 1, "b": 1}
    assert [Path(file).stem for file in loaded.files] == ["top", "base", "over"]


def test_one_file_may_be_pulled_in_on_two_ways(conf):
    folder = conf(
        base="a: 1\n", b="defaults: [base]\n", c="defaults: [base]\n", top="defaults: [b, c]"
    )
    assert load(folder).config == {"a": 1}


def test_a_yml_file_is_found(conf):
    folder = conf(top="defaults: [base]\n")
    (folder / "base.yml").write_text("a: 1\n")
    assert load(folder).config == {"a": 1}


def test_defaults_further_down_are_a_key_like_any_other(conf):
    assert load(conf(top="a: {defaults: [1]}\n")).config == {"a": {"defaults": [1]}}


def test_sources_name_the_file_that_set_a_key(conf):
    folder = conf(
        base="\na: 1\nb: 2\n",
        model__small="\n\nsize: 8\n",
        top="defaults:\n  - base\n  - model: small\nb: 3\n",
    )
    loaded = load(folder)
    assert loaded.source_of("a") == f"{folder / 'base.yaml'}:2"
    assert loaded.source_of("b") == f"{folder / 'top.yaml'}:4"
    assert loaded.source_of("model.size") == f"{folder / 'model/small.yaml'}:3"
    assert loaded.source_of("model") == f"{folder / 'top.yaml'}:3"
    assert loaded.sources.keys() == {"a", "b", "model", "model.size"}


# Errors


def test_a_missing_file_names_entry_line_and_close_name(conf):
    folder = conf(base="", top="a: 1\ndefaults:\n  - bsae\n")
    message = error_of(folder)
    missing = folder / "bsae.yaml"
    assert message.startswith(f"defaults in {folder}/top.yaml:3 names 'bsae', but {missing} does")
    assert message.endswith(f"Did you mean {str(folder / 'base.yaml')!r}?")


def test_a_missing_file_of_a_folder_names_what_is_there(conf):
    folder = conf(model__small="", top="defaults: [model: zzz]\n")
    assert error_of(folder).endswith(f"YAML files in {folder / 'model'}: small.yaml.")


def test_a_circle_is_refused_with_its_chain(conf):
    folder = conf(top="defaults: [b]\n", b="\ndefaults: [c]\n", c="defaults: [top]\n")
    chain = " -> ".join(str(folder / f"{name}.yaml") for name in ("top", "b", "c", "top"))
    assert error_of(folder) == (
        f"defaults in {folder}/c.yaml:1 names 'top', which goes in a circle: {chain}. "
        "Delete this entry."
    )


def test_a_file_that_pulls_in_itself_is_refused(conf):
    assert error_of(conf(top="defaults: [top]\n")).endswith("Delete this entry.")


@pytest.mark.parametrize("entry", ["3", "''", "[a]", "'${name}'", "{model: 3}", "{model: '${m}'}"])
def test_an_entry_that_is_no_name_shows_the_forms(conf, entry):
    folder = conf(top=f"a: 1\ndefaults:\n  - {entry}\n")
    message = error_of(folder)
    assert message.startswith(f"defaults in {folder}/top.yaml:3 has ")
    assert "- model: small" in message


@pytest.mark.parametrize("entries", ["base", "{model: small}", "3"])
def test_defaults_that_are_no_list_show_the_forms(conf, entries):
    folder = conf(top=f"defaults: {entries}\n")
    assert error_of(folder).startswith(f"defaults in {folder}/top.yaml:1 is ")
    assert "must be a list. An entry is a file (- base)" in error_of(folder)


def test_self_twice_is_refused(conf):
    assert "has _self_ twice. Delete one" in error_of(conf(top="defaults: [_self_, _self_]\n"))


def test_an_error_in_a_file_that_is_pulled_in_names_that_file(conf):
    folder = conf(base="a: [1\nb: 2\n", top="defaults: [base]\n")
    assert error_of(folder).startswith(f"{folder / 'base.yaml'}:2 is not valid YAML")

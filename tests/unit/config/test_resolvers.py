import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from espnet3.config.load import load_config
from espnet3.errors import ConfigError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def error_of(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path).resolved()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# self_name


def test_self_name_is_the_stem_of_the_first_file_everywhere(tmp_path):
    write(tmp_path / "base.yaml", "tag: ${self_name:}\n")
    first = write(tmp_path / 'it\'s a "tag" ${x}.yaml', "defaults: [base]\nown: a/${self_name:}\n")
    second = write(tmp_path / "second.yaml", "other: ${self_name:}\n")
    loaded = load_config(
        [first, second], ["typed=${self_name:}-2"], below={"default": "${ self_name: }"}
    )
    name = first.stem
    expected = {"tag": name, "own": f"a/{name}", "other": name, "typed": f"{name}-2"}
    assert dict(loaded.config) == {"default": name, **expected}


def test_self_name_may_stand_inside_of_another_interpolation(tmp_path):
    text = "sizes: {train: 8}\nsize: ${sizes.${self_name:}}\nword: ${oc.env:NOT_SET,${self_name:}}"
    config = load_config(write(tmp_path / "train.yaml", text)).config
    assert (config.size, config.word) == (8, "train")


def test_an_escaped_resolver_is_text(tmp_path):
    text = r"a: \${self_name:}" + "\n" + r"b: \\${self_name:}"
    config = load_config(write(tmp_path / "train.yaml", text)).config
    assert (config.a, config.b) == ("${self_name:}", r"\train")


def test_a_saved_config_keeps_its_values_under_another_name(tmp_path):
    write(tmp_path / "conf/tokens.txt", "a\n")
    text = "tag: ${self_name:}\npath: ${config_path:tokens.txt}\ntokens: ${load_line:tokens.txt}\n"
    loaded = load_config(write(tmp_path / "conf/train.yaml", text))
    loaded.save(tmp_path / "exp/config.yaml")
    again = load_config(tmp_path / "exp/config.yaml")
    assert again.resolved() == loaded.resolved()
    assert again.to_yaml() == loaded.to_yaml()


def test_without_a_file_there_is_no_self_name():
    with pytest.raises(ConfigError, match=r"no config file to take the name from\. Write the name"):
        load_config([], below={"tag": "${self_name:}"}).resolved()


# set_corpus_and_system


@pytest.mark.parametrize("file", ["conf/train.yaml", "train.yaml"])
def test_corpus_and_system_are_the_folders_of_the_recipe(tmp_path, file):
    recipe = tmp_path / "egs3/librispeech/asr"
    path = write(recipe / file, "name: ${set_corpus_and_system:}\n")
    assert load_config(path).config.name == "librispeech_asr"
    assert load_config(path, recipe_dir=tmp_path / "mini/tts").config.name == "mini_tts"


def test_corpus_and_system_are_found_from_inside_of_the_recipe(tmp_path, monkeypatch):
    recipe = tmp_path / "egs3/librispeech/asr"
    write(recipe / "conf/train.yaml", "name: ${set_corpus_and_system:}\n")
    monkeypatch.chdir(recipe)
    assert load_config("conf/train.yaml").config.name == "librispeech_asr"
    assert load_config("conf/train.yaml", recipe_dir=".").config.name == "librispeech_asr"
    assert load_config("conf/train.yaml", recipe_dir="/").config.name == "_"


# config_path and load_line


def test_files_count_from_the_yaml_that_names_them(awkward, monkeypatch):
    write(awkward / "shared/tokens.txt", "a\n")
    write(awkward / "shared/base.yaml", "shared: ${config_path:tokens.txt}\n")
    text = "defaults: [../shared/base]\nown: ${config_path:../x y.txt}\nname: z\n"
    write(awkward / "conf/train.yaml", text + "by_name: ${config_path:${name}.txt}\n")
    monkeypatch.chdir(awkward)
    config = load_config("conf/train.yaml", ["typed=${config_path:a.txt}"]).config
    assert config.shared == str(awkward / "shared/tokens.txt")
    assert config.own == str(awkward / "x y.txt")
    assert config.by_name == str(awkward / "conf/z.txt")
    assert config.typed == str(awkward / "a.txt")


def test_an_absolute_path_stays_as_it_is(tmp_path):
    path = write(tmp_path / "train.yaml", "a: ${config_path:/data/x.txt}\n")
    assert load_config(path).config.a == "/data/x.txt"


def test_load_line_gives_the_lines_that_are_not_empty(awkward):
    write(awkward / "tokens.txt", "<blank>\n\n▁the \r\n${x}\n  \n3\n'\n")
    path = write(awkward / "train.yaml", "tokens: ${load_line:tokens.txt}\nlast: ${tokens[4]}\n")
    expected = ["<blank>", "▁the", "${x}", "3", "'"]
    config = load_config(path).resolved()
    assert list(config.tokens) == expected
    assert config.last == "'"


def test_load_line_names_the_file_that_is_missing(tmp_path):
    write(tmp_path / "tokens.txt", "")
    path = write(tmp_path / "train.yaml", "a: 1\nm: {t: '${load_line:tokns.txt}'}\n")
    assert error_of(path) == (
        f"m.t (set in {path}:2) cannot be resolved: {tmp_path}/tokns.txt does not exist. "
        "Did you mean 'tokens.txt'?"
    )
    write(path, "a: ${load_line:nowhere/x}\n")
    assert error_of(path).endswith("Correct the name; it is relative to the file that holds it.")


def test_load_line_refuses_what_has_no_lines(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin").write_bytes("né".encode("latin1"))
    path = write(tmp_path / "train.yaml", "a: ${load_line:folder}\n")
    assert error_of(path).endswith("is a folder. Name a file with lines in it.")
    write(path, "a: ${load_line:latin}\n")
    assert error_of(path).endswith("is not UTF-8 text. Convert it with iconv.")


@pytest.mark.parametrize("arguments", ["", "a,b"])
def test_a_wrong_number_of_files_shows_the_form(tmp_path, arguments):
    path = write(tmp_path / "train.yaml", f"a: ${{config_path:{arguments}}}\n")
    assert "takes one file name. Write: ${config_path:FILE}" in error_of(path)
    write(path, "a: ${config_path:'a,b'}\n")
    assert load_config(path).config.a == os.fspath(tmp_path / "a,b")


# Misspelt ones


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("${self_nam:}", "self_name"),
        ("${load_lines:x}", "load_line"),
        ("${confg_path:x}", "config_path"),
        ("${set_corpus_system:}", "set_corpus_and_system"),
        ("${env:HOME}", "oc.env"),
    ],
)
def test_a_misspelt_resolver_is_suggested(tmp_path, text, name):
    path = write(tmp_path / "train.yaml", f"\na: {text}\n")
    message = error_of(path)
    assert message.startswith(f"a (set in {path}:2) cannot be resolved: there is no resolver ")
    assert message.endswith(f"Did you mean {name!r}?")


def test_an_unknown_resolver_gets_the_list_of_those_that_there_are(tmp_path):
    path = write(tmp_path / "train.yaml", "a: ${xyz:3}\n")
    assert "no resolver 'xyz'. There are: self_name, config_path," in error_of(path)


def test_a_resolver_of_the_user_is_left_alone(tmp_path):
    OmegaConf.register_new_resolver("test_resolvers", lambda x: x + 1, replace=True)
    path = write(tmp_path / "train.yaml", "a: ${test_resolvers:2}\n")
    assert load_config(path).resolved() == {"a": 3}


def test_n_cores_is_what_the_process_may_use_and_at_most_so_many(tmp_path):
    (tmp_path / "a.yaml").write_text("one: ${n_cores:1}\nall: ${n_cores:}\n")
    config = load_config(tmp_path / "a.yaml").config
    assert (config.one, config.all) == (1, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("most", ["0", "many", "1,2"])
def test_n_cores_of_something_else_tells_what_to_write(tmp_path, most):
    (tmp_path / "a.yaml").write_text(f"n: ${{n_cores:{most}}}\n")
    with pytest.raises(ConfigError, match=r"Write: \$\{n_cores:8\}"):
        load_config(tmp_path / "a.yaml").resolved()

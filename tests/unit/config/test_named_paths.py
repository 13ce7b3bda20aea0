import pytest

from espnet3.config.fingerprint import named_paths, setting_of


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in (
        "a.pt",
        "exp/b.pt",
        "exp/model/c.pt",
        "home/d.pt",
        "with space/e.pt",
        "recipe/f.pt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return tmp_path


def found(value, key="config.x", **others):
    flat = {key: value, **others}
    return {one.key: one.text for one in named_paths(flat)}


@pytest.mark.parametrize(
    "value",
    [
        *("a.pt", "./a.pt", "exp", "exp/", "exp/model", "exp/b.pt", "with space/e.pt", "~/d.pt"),
        *("$HOME/d.pt", "${HOME}/d.pt", "exp/../a.pt"),
    ],
)
def test_a_value_may_be_a_path(value):
    assert found(value) == {"config.x": value}


@pytest.mark.parametrize(
    "value",
    ["", ".", "..", "/", "./", "nothing", "a", "b.pt", "/dev/null", "/proc", "text\0", "x" * 5000,
     "~", 3, None, True, "A sentence. With dots/and a slash.", "https://host/a", "s3://exp"],
)  # fmt: skip
def test_other_values_are_none(value):
    assert found(value) == {}


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("--lm exp/b.pt --n 3", ["exp/b.pt"]),
        ("a.pt,exp/b.pt", ["a.pt", "exp/b.pt"]),
        ("model=exp/model;lm='a.pt'", ["exp/model", "a.pt"]),
        ("exp/*.pt", ["exp/b.pt"]),
        ("train exp", []),
        ("see (exp/b.pt).", ["exp/b.pt"]),
    ],
)
def test_parts_of_a_value_may_be_paths(value, parts):
    assert list(found(value).values()) == parts
    assert {setting_of(key) for key in found(value)} <= {"config.x"}


def test_a_file_url_is_a_path(here):
    assert list(found(f"file://{here}/with%20space/e.pt")) == ["config.x"]


def test_a_key_may_be_a_path():
    keys = found(0.5, key="config.ensemble.exp/b.pt")
    assert keys == {"config.ensemble.exp/b.pt#key1": "exp/b.pt"}
    assert setting_of("config.ensemble.exp/b.pt#key1") == "config.ensemble.exp/b.pt"


def test_relative_paths_count_from_the_recipe_too(here):
    assert found("f.pt") == {}
    assert found("f.pt", **{"config.recipe_dir": str(here / "recipe")}) == {"config.x": "f.pt"}


@pytest.mark.parametrize("name", ["exp_dir", "data_dir", "inference_dir", "exp_tag"])
def test_the_places_of_a_recipe_are_no_input_but_arguments_of_that_name_are(name):
    recipe = {"config.recipe_dir": "recipe"}
    assert found("exp", key=f"config.{name}", **recipe) == {}
    assert found("exp", key=f"config.model.{name}", **recipe)
    assert found("exp", key=f"config.{name}")


@pytest.mark.parametrize(
    "key", ["config.recipe_dir", "params.output_dir", "log_file", "a.cache_dir"]
)
def test_what_is_written_is_no_input(key):
    assert found("exp", key=key) == {}

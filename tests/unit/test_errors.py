"""Errors about settings: worded from parts, located where the config is known."""

import pickle

import pytest

from espnet3.components.data.errors import DataError
from espnet3.config.instantiate import instantiate
from espnet3.config.load import load_config
from espnet3.config.schema import FrozenConfig, validate
from espnet3.config.sources import names_places, place_of
from espnet3.errors import ConfigError, EspnetError


@names_places
def check(loaded, error):
    raise error


def located(error, *overrides, config=None):
    loaded = load_config(config or {"a": {"b": 3}}, overrides)
    with pytest.raises(EspnetError) as raised:
        check(loaded, error)
    assert raised.value is error
    return str(error)


def wrong(**parts):
    return ConfigError(**{"key": "a.b", "problem": "but no name", "fix": "Write: b: x", **parts})


def test_the_place_stands_behind_the_value(tmp_path):
    (tmp_path / "x.yaml").write_text("a:\n  b: 3\n")
    assert located(wrong(value=3), config=tmp_path / "x.yaml") == (
        f"a.b is 3 (set in {tmp_path}/x.yaml:2), but no name. Write: b: x"
    )


def test_the_fix_may_depend_on_where_it_was_set():
    def fix(loaded):
        return "a.b=x" if loaded and loaded.is_typed("a.b") else "b: x"

    assert str(wrong(fix=fix)).endswith(". b: x")
    assert located(wrong(fix=fix), "a.b=4").endswith(
        "(set in command line: a.b=4) but no name. a.b=x"
    )


def test_it_comes_from_a_worker_with_its_key():
    for error in (wrong(value=3), wrong(fix=lambda loaded: "Write: b: x"), ConfigError("a.b is 3")):
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.key) == (str(error), error.key)
        assert located(again) == located(error)


def test_a_place_is_added_once_and_only_for_keys_that_the_config_has():
    error = wrong()
    first = located(error)
    assert located(error, config={"a": {"b": 5}}) == first
    assert located(wrong(key="c")) == "c but no name. Write: b: x"
    assert located(ConfigError("nothing is right")) == "nothing is right"


def test_it_can_be_moved_below_a_block():
    error = ConfigError(key="b", value=3, problem="but no name", fix="Write: b: x").below("a")
    assert located(error) == (
        "a.b is 3 (set in a config given in Python), but no name. Write: b: x"
    )


def test_an_error_of_any_type_names_the_key_that_is_to_blame():
    for kind in (DataError, ConfigError):
        error = kind("no such folder").at("a.b")
        assert type(error) is kind
        again = pickle.loads(pickle.dumps(error))
        assert located(again) == "a.b (set in a config given in Python): no such folder"


def test_a_key_is_named_as_the_users_config_does():
    for error in (DataError("empty").at("c.0.b"), ConfigError("empty").at("c.0.b")):
        error.move("a", "b")
        error.move("c.0", "a")
        assert located(error) == "a.b (set in a config given in Python): empty"


def test_the_problems_of_a_block_get_their_places_later():
    class Block(FrozenConfig):
        b: int = 0

    loaded = load_config({"a": {"b": "x", "c": 1}})
    with pytest.raises(ConfigError, match="2 problems") as caught, loaded.naming_places():
        validate(Block, loaded.plain()["a"], prefix="a")
    assert str(caught.value).count("(set in a config given in Python)") == 2
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert str(type(caught.value)("built from one message")) == "built from one message"


def test_an_error_of_others_gets_the_place_of_what_was_being_built():
    loaded = load_config({"a": {"_target_": "fractions.Fraction", "numerator": "one"}})
    with pytest.raises(ValueError, match="one") as caught, loaded.naming_places():
        instantiate(loaded.plain()["a"], key="a")
    assert caught.value.__notes__[-1] == "a is set in a config given in Python."


def test_code_below_the_border_can_name_the_place_of_a_key():
    loaded = load_config({"a": {"b": 1}})
    with loaded.naming_places():
        assert place_of("a.b") == " (set in a config given in Python)"
        with load_config({"c": 1}).naming_places():
            assert not place_of("a.b")
        assert place_of("a.b")
    assert not place_of("a.b")

import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError


@pytest.fixture
def error_of(tmp_path):
    path = tmp_path / 'it\'s a "conf".yaml'

    def error(text: str) -> str:
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_config(path).resolved()
        message = str(caught.value)
        assert "\n" not in message
        return message.replace(str(path), "FILE")

    return error


def test_a_misspelt_reference_is_suggested(error_of):
    assert error_of("exp_dir: exp\nout:\n  dir: ${exp_dri}/x\n") == (
        "out.dir (set in FILE:3) cannot be resolved: Interpolation key 'exp_dri' not found. "
        "Did you mean 'exp_dir'?"
    )


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a: {size: 1}\nb: ${a.sizes}\n", "'a.size'"),
        ("a: {size: 1, b: '${.sizze}'}\n", "'size'"),
        ("a: {c: {size: 1}, b: {d: '${..c.sizze}'}}\n", "'c.size'"),
        ("l: [{size: 1}]\nb: ${l[0].sizze}\n", "'l.0.size'"),
    ],
)
def test_references_at_any_depth_are_suggested(error_of, text, hint):
    assert error_of(text).endswith(f"Did you mean {hint}?")


def test_without_a_close_key_the_ways_out_are_named(error_of):
    message = error_of("a: ${HOME}/x\n")
    assert r"for a literal ${X}, as in a shell command, write \${X}" in message
    assert "${oc.env:X}" in message


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("out: ${exp_dir}/x\nexp_dir: ${nowhere}/exp\n", "exp_dir (set in FILE:2)"),
        ("a: ${b}\nb: x${c}\nc: ${load_line:nowhere}\n", "c (set in FILE:3)"),
        ("a: ${b}\nb:\n  c: ${nowhere}\n", "b.c (set in FILE:3)"),
        ("a: ${b.x}\nb: ${nowhere}\n", "b (set in FILE:2)"),
    ],
)
def test_the_end_of_a_chain_of_references_is_named(error_of, text, place):
    assert error_of(text).startswith(f"{place} cannot be resolved: ")


@pytest.mark.parametrize("text", ["a: ${a}\n", "a: ${b}\nb: ${a}\n", "a: ${b}\nb: ${c}\nc: ${b}\n"])
def test_a_circle_is_refused(error_of, text):
    assert "refers to itself, directly or in a circle. Write a value" in error_of(text)


def test_a_reference_to_an_open_value_says_where_to_write_it(error_of):
    assert error_of("a: ${b.c}\nb:\n  c: ???\n") == (
        "a (set in FILE:1) cannot be resolved: it refers to b.c, which is '???' (set in FILE:3). "
        "Write under b: c: VALUE"
    )


def test_a_missing_environment_variable_says_how_to_set_it(error_of):
    message = error_of("a: ${oc.env:ESPNET3_NOT_SET}\n")
    assert "Run: export ESPNET3_NOT_SET=VALUE, or give a default: " in message
    assert message.endswith("${oc.env:ESPNET3_NOT_SET,DEFAULT}")


def test_a_key_below_a_number_is_refused(error_of):
    assert "cannot contain `c`. Set the key that it refers to" in error_of("a: ${b.c}\nb: 3\n")

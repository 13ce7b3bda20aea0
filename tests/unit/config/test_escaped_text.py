from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from espnet3.config.resolve import escaped, escaped_values, quoted

PARTS = st.lists(st.sampled_from([*"\\${}'\",: \n[.aé", "${", "\\${", "${a}", "x:"]), max_size=8)
TEXT = PARTS.map("".join)


def read(values: dict[str, Any]) -> Any:
    return OmegaConf.to_container(OmegaConf.create(values), resolve=True)


@given(TEXT)
def test_escaped_text_is_read_back_as_it_is(text):
    assert read({"value": escaped(text)}) == {"value": text}


@given(TEXT)
def test_a_quoted_argument_reaches_the_resolver_as_it_is(text):
    OmegaConf.register_new_resolver("test_literal", lambda *args: args[0], replace=True)
    values = {
        "first": f"${{test_literal:{quoted(text)},x}}",
        "nested": f"${{test_literal:'<${{test_literal:{quoted(text)}}}>'}}",
    }
    assert read(values) == {"first": text, "nested": f"<{text}>"}


def test_strings_in_all_containers_are_escaped():
    values = {"a": ["${x}", 1, None], "b": {"c": "${y}"}}
    assert read(escaped_values(values)) == values

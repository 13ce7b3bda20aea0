import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from espnet3.config.instantiate import instantiate
from espnet3.config.load import load_config
from espnet3.errors import ConfigError


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A user's package `shapes`, importable for the time of the test."""
    package = tmp_path / "shapes"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "round.py").write_text(
        "class Circle:\n"
        "    def __init__(self, radius, colour='red', inner=None):\n"
        "        if radius < 0: raise ValueError('negative')\n"
        "        self.radius, self.colour, self.inner = radius, colour, inner\n"
        "    @classmethod\n"
        "    def unit(cls): return cls(1)\n"
        "def broken(): return 1 + 'x'\n"
        "def takes_any(**kwargs): return kwargs\n"
        "RED = 'red'\n"
    )
    (package / "needs_extra.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "shapes"]:
        del sys.modules[name]


def problem(config: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        instantiate(config, **kwargs)
    return str(caught.value)


CIRCLE = "shapes.round.Circle"


# As Hydra


def test_builds_nested_targets_lists_and_partials(module):
    config = OmegaConf.create(
        {
            "_target_": CIRCLE,
            "radius": 2,
            "inner": [{"_target_": CIRCLE, "radius": 1}, {"plain": 1}],
        }
    )
    outer = instantiate(config, colour="blue")
    assert (outer.radius, outer.colour) == (2, "blue")
    assert outer.inner[0].radius == 1
    assert outer.inner[1].plain == 1
    assert instantiate({"_target_": CIRCLE, "_partial_": True})(radius=3).radius == 3
    assert instantiate({"_target_": f"{CIRCLE}.unit"}).radius == 1
    assert instantiate(None) is None


def test_the_config_is_left_alone_and_may_be_read_only(module, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(f"r: 2\nmodel: {{_target_: {CIRCLE}, radius: '${{r}}'}}\n")
    loaded = load_config(path)
    before = loaded.to_yaml()
    assert instantiate(loaded.config.model, key="model", loaded=loaded).radius == 2
    assert loaded.to_yaml() == before


def test_objects_may_be_passed_by_the_caller(module):
    thing = object()
    assert instantiate({"_target_": CIRCLE, "radius": 1}, inner=thing).inner is thing


def test_a_literal_interpolation_needs_three_backslashes_and_the_error_says_so(module):
    target = "shapes.round.takes_any"
    message = problem(OmegaConf.create({"_target_": target, "x": r"\${HOME}"}), key="m")
    assert message.startswith("m.x cannot be built: Interpolation key 'HOME' not found.")
    assert message.endswith(r"write \\\${X}")
    literal = OmegaConf.create({"_target_": target, "x": r"\\\${HOME}"})
    assert instantiate(literal) == {"x": "${HOME}"}


def test_a_target_below_recursive_false_is_not_touched(module):
    config = {
        "_target_": CIRCLE,
        "_recursive_": False,
        "radius": 1,
        "inner": {"_target_": "no.such"},
    }
    assert instantiate(config).inner == {"_target_": "no.such"}


# Targets that cannot be found


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("shaps.round.Circle", "there is no module 'shaps'. Did you mean 'shapes'?"),
        (
            "shapes.rund.Circle",
            "'shapes' has no 'rund'. Did you mean 'round'? Write: _target_: shapes.round.Circle",
        ),
        (
            "shapes.round.Cirle",
            "'shapes.round' has no 'Cirle'. Did you mean 'Circle'? "
            "Write: _target_: shapes.round.Circle",
        ),
        (
            "shapes.round.Circle.unt",
            "'shapes.round.Circle' has no 'unt'. Did you mean 'unit'? "
            "Write: _target_: shapes.round.Circle.unit",
        ),
        ("shapes.round.Zzz", "It has: Circle, RED, broken, takes_any."),
        ("Circle", "Write: _target_: package.module.Circle"),
        ("shapes..Circle", "Write: _target_: package.module.Name"),
    ],
)
def test_a_target_that_does_not_import_names_the_part_that_failed(module, target, expected):
    message = problem({"_target_": target}, key="model")
    assert message.startswith(f"model._target_ is {target!r}, but ")
    assert expected in message


def test_a_nested_target_names_its_key_and_line(module, tmp_path):
    path = tmp_path / 'it\'s "this".yaml'
    path.write_text(
        f"model:\n  encoder:\n    _target_: {CIRCLE}\n    radius: 1\n    inner:\n"
        "      - _target_: shapes.round.Cirle\n"
    )
    loaded = load_config(path)
    expected = f"model.encoder.inner.0._target_ is 'shapes.round.Cirle' (set in {path}:6), but "
    for key in ("model.encoder", ""):
        message = problem(loaded.config.model.encoder, key=key, loaded=loaded)
        assert message.startswith(expected)


def test_the_key_of_a_list_item_is_found_at_any_depth(module):
    bad = {"_target_": "no.such"}
    config = OmegaConf.create({"m": {"n1": [*[1] * 10, bad], "x": [[{"y": bad}]]}})
    assert problem(config.m.n1).startswith("m.n1.10._target_ is")
    assert problem(config.m.x).startswith("m.x.0.0.y._target_ is")
    assert problem([bad], key="callbacks").startswith("callbacks.0._target_ is")
    items = OmegaConf.create([bad, bad])
    for i in range(2):
        assert problem(items[i]).startswith(f"{i}._target_ is 'no.such'")


def test_an_import_error_inside_the_users_module_is_passed_on_with_a_note(module):
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere") as caught:
        instantiate({"_target_": "shapes.needs_extra.Thing"}, key="model")
    assert caught.value.__notes__ == ["Raised while building model (shapes.needs_extra.Thing)."]


def test_a_target_that_hydra_forbids_or_cannot_call_is_refused(module):
    message = problem({"_target_": "builtins.eval", "_args_": ["1"]}, key="model")
    assert message.startswith("model cannot be built: ")
    assert "callable" in problem({"_target_": "shapes.round.RED"}, key="model")


# Arguments that do not fit


def test_an_unexpected_argument_shows_signature_and_closest_name(module, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(f"model:\n  _target_: {CIRCLE}\n  radius: 1\n  color: blue\n")
    loaded = load_config(path)
    assert problem(loaded.config.model, key="model", loaded=loaded) == (
        f"model does not fit its target: it takes no argument 'color' (set in {path}:4). "
        "Did you mean 'colour'? Write: colour: blue\n"
        f"Signature: {CIRCLE}(radius, colour='red', inner=None)"
    )


def test_an_unexpected_argument_without_a_close_name_lists_the_arguments(module):
    message = problem({"_target_": CIRCLE, "radius": 1, "zzz": 1}, key="model")
    assert "It takes: radius, colour, inner." in message


def test_an_argument_of_the_calling_code_is_called_so(module):
    message = problem({"_target_": CIRCLE, "radius": 1}, key="model", zzz=1)
    assert "no argument 'zzz' (passed by the calling code)" in message


def test_a_missing_argument_says_what_to_write(module):
    message = problem({"_target_": CIRCLE}, key="model")
    assert "missing a required argument: 'radius'. Write: radius: VALUE" in message


def test_the_original_type_error_is_chained(module):
    with pytest.raises(ConfigError) as caught:
        instantiate({"_target_": CIRCLE})
    assert isinstance(caught.value.__cause__, TypeError)


# Errors of the targets themselves


def test_an_error_of_the_constructor_keeps_its_type_and_gets_a_note(module, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(f"model:\n  _target_: {CIRCLE}\n  radius: -1\n")
    loaded = load_config(path)
    with pytest.raises(ValueError, match="negative") as caught:
        instantiate(loaded.config.model, key="model", loaded=loaded)
    assert caught.value.__notes__ == [f"Raised while building model ({CIRCLE}) (set in {path}:1)."]
    assert caught.value.__context__ is None


def test_a_type_error_inside_the_target_is_not_taken_for_a_bad_argument(module):
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        instantiate({"_target_": "shapes.round.broken"}, key="model")
    assert "building model" in caught.value.__notes__[0]


def test_a_type_error_of_a_c_function_is_passed_on():
    with pytest.raises(TypeError):
        instantiate({"_target_": "builtins.int", "_args_": [[1]]}, key="n")
    assert instantiate({"_target_": Fraction, "numerator": 3}) == 3


@pytest.mark.parametrize("value", ["${nowhere}", "???"])
def test_an_open_or_broken_value_names_its_key(module, value):
    config = OmegaConf.create({"m": {"_target_": CIRCLE, "radius": 1, "inner": {"x": value}}})
    config.m.inner._target_ = "shapes.round.takes_any"
    message = problem(config.m, key="m")
    assert message.startswith("m.inner.x ")
    assert "Write: x: VALUE" in message or "Set the key that it refers to" in message


def test_importing_the_module_imports_neither_hydra_nor_omegaconf():
    code = (
        "import sys, espnet3.config.instantiate; "
        "print({'hydra', 'omegaconf', 'pydantic'} & set(sys.modules))"
    )
    root = Path(__file__).parents[3]
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert process.stdout.strip() == "set()", process.stderr

"""Classes and functions as their text shows them, beside what Python makes of the same text."""

import json
import subprocess
import sys

import pytest

from espnet3.config.targets import (
    UNREAD,
    check_arguments,
    find_definition,
    is_ours_alone,
    signature_at,
    written_signature,
)
from espnet3.errors import ConfigError

PATHS = (
    "torch.optim.AdamW",
    "torch.optim.SGD",
    "torch.optim.lr_scheduler.OneCycleLR",
    "torch.optim.lr_scheduler.ReduceLROnPlateau",
    "lightning.pytorch.Trainer",
    "lightning.pytorch.callbacks.EarlyStopping",
    "espnet3.components.models.tdnn.TDNN",
    "espnet3.components.models.conformer.Conformer",
    "espnet3.components.decoding.ctc_beam.PrefixBeamCTC",
    "espnet3.systems.asr.inference.Speech2Text",
    "espnet3.systems.asr.inference.output_fn",
)
_COMPARE = """
import json, sys
from espnet3.config.targets import find_definition
from espnet3.config.targets import argument_names, locate, signature_of

paths = json.loads(sys.argv[1])
found = [find_definition(path) for path in paths]
written = [[list(one.signature().parameters), sorted(one.argument_names() or ())] for one in found]
loaded = sorted({"torch", "lightning", "numpy"} & set(sys.modules))
things = [locate(path) for path in paths]
real = [[list(signature_of(one).parameters), sorted(argument_names(one) or ())] for one in things]
print(json.dumps([loaded, written, real]))
"""


@pytest.mark.exhaustive  # imports what is installed
def test_the_text_of_installed_classes_tells_what_their_signatures_do_and_imports_nothing():
    command = [sys.executable, "-c", _COMPARE, json.dumps(PATHS)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    loaded, written, real = json.loads(output)

    assert loaded == []
    assert dict(zip(PATHS, written, strict=True)) == dict(zip(PATHS, real, strict=True))


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module whose import would fail, so that a test shows that only its text was read."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text, name="written_only"):
        (tmp_path / f"{name}.py").write_text(f"{text}\nraise SystemExit('imported')\n")
        return name

    return write


def test_a_class_without_an_init_is_called_as_its_base_is(module):
    name = module(
        "class Base:\n    def __init__(self, a, /, b=2, *, c=BIG): ...\nclass Net(Base): ..."
    )

    signature = written_signature(f"{name}.Net")

    assert [(p.name, p.kind.name) for p in signature.parameters.values()] == [
        ("a", "POSITIONAL_ONLY"), ("b", "POSITIONAL_OR_KEYWORD"), ("c", "KEYWORD_ONLY"),
    ]  # fmt: skip
    assert signature.parameters["b"].default == 2
    assert signature.parameters["c"].default is UNREAD


def test_names_that_are_handed_on_to_a_base_class_count(module):
    name = module(
        "class Base:\n"
        "    def __init__(self, width): ...\n"
        "class Net(Base):\n"
        "    def __init__(self, depth, **others): ..."
    )

    assert find_definition(f"{name}.Net").argument_names() == {"width", "depth"}


def test_a_name_is_followed_through_relative_imports(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "outer" / "__init__.py").write_text("from .inner import Net as Network\n")
    (tmp_path / "outer" / "inner" / "__init__.py").write_text("from ..deep import Net\n")
    (tmp_path / "outer" / "deep.py").write_text("class Net:\n    def __init__(self, a): ...\n")

    definition = find_definition("outer.Network")

    assert (definition.module, definition.argument_names()) == ("outer.deep", {"a"})
    assert "outer" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        "class Net:\n    def __init__(self, a): ...\nNet = wrap(Net)",
        "if FAST:\n    class Net: ...\nelse:\n    class Net: ...",
        "from elsewhere import *",
        "@dataclass\nclass Net:\n    a: int",
        "class Net(metaclass=Registered):\n    def __init__(self, a): ...",
        "class Net:\n    def __new__(cls, a): ...\n    def __init__(self, b): ...",
        "class Net:\n    @resolved\n    def __init__(self, a): ...",
        "class Net:\n    if FAST:\n        def __init__(self, a): ...",
        "class Net(Missing): ...",
        "class Net(nn.Module): ...",
        "class Net(One, Two): ...",
        "try:\n    from fast import Net\nexcept ImportError:\n    from slow import Net",
        "Net = partial(Other, 1)",
        "import other.Net",
    ],
)
def test_what_the_text_does_not_tell_for_certain_is_left_to_the_import(module, text):
    assert written_signature(f"{module(text)}.Net") is None


def test_a_changed_text_is_read_again(module):
    name = module("def build(a): ...")
    assert list(written_signature(f"{name}.build").parameters) == ["a"]

    module("def build(a, b_is_new): ...")

    assert list(written_signature(f"{name}.build").parameters) == ["a", "b_is_new"]


def test_of_what_is_loaded_the_real_signature_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "loaded_already.py").write_text("def build(a): ...\n")
    import loaded_already

    loaded_already.build = lambda b: None

    assert find_definition("loaded_already.build") is None
    assert list(signature_at("loaded_already.build").parameters) == ["b"]


def test_defaults_that_are_no_literals_are_imported_where_they_are_needed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "with_constant.py").write_text("RATE = 8000\ndef build(rate=RATE): ...\n")

    signature = signature_at("with_constant.build", with_defaults=True)

    assert signature.parameters["rate"].default == 8000


def test_a_misspelt_argument_is_refused_without_importing_the_class(module):
    name = module("class Net:\n    def __init__(self, width): ...")

    with pytest.raises(ConfigError, match=r"model\.widthh is no argument of written_only\.Net"):
        check_arguments("model", f"{name}.Net", {"_target_": f"{name}.Net", "widthh": 1})


def test_only_code_of_espnet3_that_derives_from_no_other_is_ours_alone(module):
    name = module("def build(): ...")

    assert not is_ours_alone(f"{name}.build")
    assert not is_ours_alone("espnet3.components.models.tdnn.TDNN")  # an nn.Module
    assert not is_ours_alone("espnet3.no.such.Thing")

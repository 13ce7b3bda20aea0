"""A module that is missing is to be installed by the name of its package."""

import re

import pytest

from espnet3.config.targets import BadTarget, install_hint, locate, package_of
from tests.helpers.shipped_recipes import ShippedRecipe


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return ShippedRecipe("TEMPLATE/asr", tmp_path_factory.mktemp("t") / "asr")


def absent(name, monkeypatch):
    """Let a module be missing that may be installed here."""
    import sys

    class Finder:
        @staticmethod
        def find_spec(found, path=None, target=None):
            if found.partition(".")[0] == name:
                raise ModuleNotFoundError(f"No module named {found!r}", name=found)

    for loaded in [one for one in sys.modules if one.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])


def test_espnet2_is_in_the_package_espnet(template, capfd, monkeypatch):
    absent("espnet2", monkeypatch)
    template.infer("model._target_=espnet2.bin.asr_inference.Speech2Text", model=False, code=1)
    told = capfd.readouterr().err
    assert "pip install espnet\n" in told
    assert "espnet3'" not in told  # no did-you-mean of our own


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("sklearn", "scikit-learn"),
        ("cv2", "opencv-python"),
        ("PIL", "Pillow"),
        ("yaml", "PyYAML"),
        ("whisper", "openai-whisper"),
        ("no_such_module_here", "no_such_module_here"),
    ],
)
def test_the_package_is_named(module, package, monkeypatch):
    absent(module, monkeypatch)
    with pytest.raises(BadTarget) as caught:
        locate(f"{module}.part.Class")
    assert re.search(r"pip install (\S+)", str(caught.value))[1] == package


def test_an_import_inside_a_module_of_the_recipe_is_told_likewise(template, capfd, monkeypatch):
    absent("sklearn", monkeypatch)
    text = "import sklearn\n\n\nclass Model:\n    def __init__(self, **settings): ...\n"
    (template.folder / "src" / "needs.py").write_text(text)
    template.infer("model._target_=src.needs.Model", model=False, code=1)
    assert "No module named 'sklearn' (pip install scikit-learn)" in capfd.readouterr().err


def test_a_module_that_is_missing_in_a_package_is_no_package():
    assert install_hint(ModuleNotFoundError("x", name="espnet3.no_such")) == ""
    assert install_hint(ValueError()) == ""
    assert package_of("sklearn.metrics") == "scikit-learn"

"""A wheel and an sdist that need no repository: `init`, `doctor` and a recipe run from them."""

import shutil
import tarfile
import zipfile

import pytest
import yaml

from espnet3 import __version__
from espnet3.cli.init import TEMPLATES
from tests.helpers.installed_package import build, install, run
from tests.helpers.recipe_copy import ROOT

pytestmark = pytest.mark.cold


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def commands(built, tmp_path_factory):
    return install(built[1], tmp_path_factory.mktemp("venv") / "it's mine")


def names_in(wheel):
    with zipfile.ZipFile(wheel) as file:
        return {name for name in file.namelist() if ".dist-info/" not in name}


def test_the_wheel_has_types_templates_and_no_results(built):
    names = names_in(built[1])
    assert "espnet3/py.typed" in names
    for template in TEMPLATES.values():
        assert f"espnet3/templates/{template.folder}/run.py" in names
    assert not {name for name in names if "/exp/" in name or "__pycache__" in name}
    assert all(name.startswith("espnet3/") for name in names)


def test_the_wheel_of_the_sdist_is_the_same(built, tmp_path):
    with tarfile.open(built[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    for name in ("CITATION.cff", "CHANGELOG.md", "LICENSE", "constraints.txt", "docs/README.md"):
        assert (source / name).is_file()
    assert names_in(build(tmp_path / "dist", source)[1]) == names_in(built[1])


def test_all_places_tell_one_version(built, commands, tmp_path):
    assert run(commands / "espnet3", "--version", cwd=tmp_path) == f"espnet3 {__version__}\n"
    assert built[1].name.startswith(f"espnet3-{__version__}-")
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_a_recipe_is_written_checked_and_run_without_the_repository(commands, tmp_path):
    home = tmp_path / "empty folder"
    home.mkdir()
    place = run(commands / "python", "-c", "import espnet3; print(espnet3.__file__)", cwd=home)
    assert str(ROOT) not in place
    run(commands / "espnet3", "init", "asr", "--template", "own-model", cwd=home)
    told = run(commands / "espnet3", "doctor", "asr/conf/parallel_local.yaml", cwd=home)
    assert "local" in told
    configs = ("--config", "conf/inference.yaml", "conf/metrics.yaml")
    told = run(commands / "espnet3", "run", "asr", "--stages", "all", *configs, cwd=home)
    assert "WER  clean  20 utterances" in told
    shutil.rmtree(home / "asr")
    assert not list(home.iterdir())

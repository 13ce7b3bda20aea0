import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from espnet3.cli.init import TEMPLATES
from espnet3.cli.main import main

ROOT = Path(__file__).parents[3]
EGS3 = ROOT / "egs3"
OWN_MODEL = EGS3 / TEMPLATES["own-model"].folder
LEFTOVERS = {"__pycache__", "data", "exp", "logs", ".mypy_cache"}
MADE = {*LEFTOVERS, ".schema"}


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files that belong to a recipe, by their path in it."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    names = {path: path.relative_to(folder) for path in paths}
    return {
        name.as_posix(): path.read_bytes()
        for path, name in names.items()
        if not MADE & set(name.parts)
    }


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_is_a_template_for_each_folder():
    folders = {f"TEMPLATE/{path.name}" for path in (EGS3 / "TEMPLATE").iterdir()}
    assert folders == {template.folder for template in TEMPLATES.values()} - {"digits/asr"}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_recipe_is_a_copy_of_its_template(template, here, capsys):
    assert main(["init", "egs3/it's mine/asr", "--template", template]) == 0
    written = contents(here / "egs3" / "it's mine" / "asr")
    assert written == contents(EGS3 / TEMPLATES[template].folder)
    assert {"run.py", "README.md", ".gitignore"} < set(written)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"Wrote egs3/it's mine/asr from the template {template}:"
    assert [line.strip() for line in shown[1 : shown.index("")]] == sorted(written)
    assert """  cd 'egs3/it'"'"'s mine/asr'""" in shown


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_script_has_under_15_lines(template):
    assert len((EGS3 / TEMPLATES[template].folder / "run.py").read_text().splitlines()) < 15


def test_without_data_or_template_both_lines_are_told(here, capsys):
    assert main(["init", "my new"]) == 2
    told = capsys.readouterr().err
    assert "espnet3 init 'my new' --data kaldi --train PATH --valid PATH --test PATH" in told
    assert "espnet3 init 'my new' --template own-model" in told
    assert main(["init", "new", "--train", "a"]) == 2
    assert "--train is set, but --data is not" in capsys.readouterr().err
    assert not list(here.iterdir())


def test_what_was_called_asr_is_found_under_its_new_name(here, capsys):
    assert main(["init", "new", "--template", "asr"]) == 2
    assert "It is called own-model now." in capsys.readouterr().err


def test_a_shipped_recipe_is_copied_without_its_results(here, tmp_path_factory):
    assert main(["init", "new", "--template", "digits"]) == 0
    assert {path.name for path in (here / "new").iterdir()} == {
        ".gitignore", "README.md", "conf", "dataset", "run.py"
    }  # fmt: skip


def test_an_empty_folder_is_filled_even_the_current_one(here, capsys):
    assert main(["init", ".", "--template", "own-model"]) == 0
    assert (here / "run.py").is_file()
    assert "  cd " not in capsys.readouterr().out


def test_a_home_folder_is_found(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here / "me"))
    assert main(["init", "~/new", "--template", "own-model"]) == 0
    assert (here / "me" / "new" / "run.py").is_file()


@pytest.mark.parametrize(
    ("name", "problem", "way_on"),
    [
        (
            "my notes",
            "is not empty",
            "another name: espnet3 init 'my notes_2' --template runner",
        ),
        ("my notes/a.txt", "is no folder", "espnet3 init 'my notes/a.txt_2' --template runner"),
        ("dangling", "is no folder", "espnet3 init dangling_2 --template runner"),
        (".", "is not empty", "espnet3 init my_recipe --template runner"),
    ],
)
def test_nothing_is_written_over(here, capsys, name, problem, way_on):
    (here / "my notes").mkdir()
    (here / "my notes" / "a.txt").write_text("mine")
    (here / "dangling").symlink_to("nowhere")
    before = sorted(here.rglob("*"))
    assert main(["init", name, "--template", "runner"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"espnet3: {name} is there already, and {problem}. ")
    assert captured.err.endswith(f"{way_on}\n")
    assert captured.err.count("\n") == 1
    assert not captured.out
    assert sorted(here.rglob("*")) == before


def test_a_recipe_that_is_there_can_be_run_instead(here, capsys):
    assert main(["init", "a b", "--template", "own-model"]) == 0
    (here / "a b" / "run.py").write_text("mine")
    assert main(["init", "a b", "--template", "own-model"]) == 2
    assert "or use the recipe that is there: espnet3 run 'a b' --list-stages" in (
        capsys.readouterr().err
    )
    assert (here / "a b" / "run.py").read_text() == "mine"


def test_a_misspelt_template_gets_a_suggestion(here, capsys):
    assert main(["init", "new", "--template", "runer"]) == 2
    assert capsys.readouterr().err == (
        "espnet3: there is no template 'runer'. Did you mean 'runner'? Templates: "
        "own-model, classifier, runner, digits.\n"
    )
    assert not (here / "new").exists()


@pytest.fixture
def installed(tmp_path) -> Path:
    """Lay the package out as the wheel does, and return the folder to import it from."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    site = tmp_path / "site packages"
    for source, target in {**dict.fromkeys(wheel["packages"]), **wheel["force-include"]}.items():
        ignore = shutil.ignore_patterns("__pycache__")
        path = site / (target or source)
        if (ROOT / source).is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / source, path)
        else:
            shutil.copytree(ROOT / source, path, ignore=ignore)
    return site


def run_installed(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "espnet3.cli", "init", *arguments],
        cwd=site, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True,
    )  # fmt: skip


def test_an_installed_package_has_the_templates_and_leftovers_are_not_copied(installed, tmp_path):
    template = installed / "espnet3" / "templates" / TEMPLATES["own-model"].folder
    for leftover in ("src/__pycache__/model.pyc", "exp/a/infer.log", "data/a.wav", ".mypy_cache/x"):
        (template / leftover).parent.mkdir(parents=True)
        (template / leftover).touch()
    (template / "run.py").chmod(0o444)
    done = run_installed(installed, str(tmp_path / "new"), "--template", "own-model")
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (tmp_path / "new").rglob("*")}
    assert not LEFTOVERS & written
    assert contents(tmp_path / "new") == contents(OWN_MODEL)
    assert (tmp_path / "new" / "run.py").stat().st_mode & 0o200


def test_an_installation_without_templates_says_what_to_do(installed, tmp_path):
    shutil.rmtree(installed / "espnet3" / "templates")
    done = run_installed(installed, str(tmp_path / "new"), "--template", "own-model")
    assert done.returncode == 1
    assert "Install ESPnet3 again" in done.stderr
    assert not (tmp_path / "new").exists()

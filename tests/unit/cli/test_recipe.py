"""What needs no process of its own; `tests/integration/test_run_py.py` runs real recipes."""

import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.cli.main import main
from espnet3.cli.recipe import run_recipe
from espnet3.cli.recipe_options import program_words, select_stages
from espnet3.cli.stage_loop import describe_failure, print_plan
from espnet3.errors import ConfigError
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.stages import find_stage, stages_of
from espnet3.systems.base.system import BaseSystem

INFER = find_stage(stages_of(BaseSystem), "infer")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A recipe folder without files, which is the current one; `sys.path` is restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "orig_argv", ["python", "run.py"])
    return tmp_path


def test_importing_it_is_quick_and_imports_nothing_heavy():
    heavy = "torch dask distributed lightning hydra omegaconf pydantic numpy rich"
    code = (
        "import sys; from espnet3.cli.recipe import run_recipe; "
        f"print(*[name for name in '{heavy}'.split() if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_no_stage_is_answered_with_the_stages(folder, capsys):
    assert run_recipe(BaseSystem, [], recipe_dir=folder) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("usage: python run.py --stages STAGE ...")
    assert "   6  infer  " in shown.out
    assert not shown.err


def test_configs_without_a_stage_are_a_wrong_call(folder, capsys):
    assert run_recipe(BaseSystem, ["--config", "a.yaml"], recipe_dir=folder) == 2
    assert capsys.readouterr().err == (
        "espnet3: No stage is given. Write, for example: --stages infer measure\n"
    )


def test_a_config_that_no_stage_reads_is_reported(folder, caplog):
    (folder / "a.yaml").touch()
    options = ["--inference_config", "a.yaml", "--config", "b c.yaml"]
    assert run_recipe(BaseSystem, ["--stage", "infer", *options], recipe_dir=folder) == 1
    assert "--config 'b c.yaml' is not used: every stage has a config of its own" in caplog.text


def test_a_missing_file_is_named_with_those_that_there_are(folder, capsys):
    (folder / "conf").mkdir()
    (folder / "conf" / "inference.yaml").touch()
    argv = ["--stage", "infer", "--config", "conf/inferense.yaml"]
    assert run_recipe(BaseSystem, argv, recipe_dir=folder) == 1
    assert capsys.readouterr().err == (
        "espnet3: Config file conf/inferense.yaml does not exist. "
        "Did you mean 'conf/inference.yaml'? Write: python run.py --stage infer --config "
        "conf/inference.yaml\n"
    )


@pytest.mark.parametrize(
    ("typed", "n_arguments", "expected"),
    [
        (["/usr/bin/python3", "run.py", "--stage", "6"], 2, "python3 run.py"),
        (["python", "-X", "dev", "a b/run.py", "x=1"], 1, "python -X dev a b/run.py"),
        (["python", "/venv/bin/espnet3", "run", "egs3/a", "--stage", "6"], 2, "espnet3 run egs3/a"),
        (["python", "-m", "espnet3.cli", "run", "x=1"], 1, "python -m espnet3.cli run"),
        (["python", "run.py"], 0, "python run.py"),
        (["python", "-c", "code", "x=1"], 1, "python run.py"),
        (["python", "-m", "pytest"], 1, "python run.py"),
    ],
)
def test_the_program_is_called_as_it_was_typed(monkeypatch, typed, n_arguments, expected):
    monkeypatch.setattr(sys, "orig_argv", typed)
    argv = typed[len(typed) - n_arguments :] if typed[-1] != "pytest" else ["--stage"]
    assert " ".join(program_words(argv)) == expected


def test_a_failure_shows_notes_and_the_innermost_line_of_the_recipe(folder):
    (folder / "mine.py").write_text("def fail():\n    import json\n    json.loads('{')\n")
    scope = {}
    exec(compile((folder / "mine.py").read_text(), folder / "mine.py", "exec"), scope)
    with pytest.raises(ValueError) as caught:
        scope["fail"]()
    caught.value.add_note("Raised while building model.")
    described = describe_failure(INFER, caught.value, Path("exp/infer.log"))
    assert described.startswith("Stage infer (6) failed: JSONDecodeError: Expecting property name")
    assert described.endswith(
        " (mine.py:3). Traceback: exp/infer.log\nRaised while building model."
    )


def test_a_stage_that_exits_has_failed():
    described = describe_failure(INFER, SystemExit(0), None)
    assert described == "Stage infer (6) failed: it called sys.exit(0)."


class Dependent(BaseSystem):
    def create_dataset(self): ...

    def infer(self): ...

    def describe_infer(self):
        raise ConfigError("data/ is not there.\nRun create_dataset.")


def test_a_dry_run_goes_on_where_an_earlier_stage_makes_what_is_missing(folder, capsys):
    (folder / "a.yaml").touch()
    system = Dependent(**vars(load_configs({"inference": ["a.yaml"]})))
    stages = stages_of(Dependent)
    print_plan(system, select_stages(["1", "6"], stages))
    assert capsys.readouterr().out.splitlines()[-1] == (
        "  more is known after create_dataset; now: data/ is not there.\\nRun create_dataset."
    )
    with pytest.raises(ConfigError):
        print_plan(system, select_stages(["6"], stages))


@pytest.mark.parametrize(
    ("code", "expected"),
    [("raise SystemExit('no')", 1), ("raise SystemExit(7)", 7), ("raise SystemExit", 0), ("", 0)],
)
def test_espnet3_run_returns_what_the_script_returns(folder, monkeypatch, code, expected, capsys):
    monkeypatch.setattr(sys, "argv", sys.argv)
    (folder / "run.py").write_text(f"import sys\nprint(sys.argv[1:], __name__)\n{code}\n")
    assert main(["run", "--stage", "6"]) == expected
    shown = capsys.readouterr()
    assert shown.out == "['--stage', '6'] __main__\n"
    assert shown.err == ("no\n" if expected == 1 else "")

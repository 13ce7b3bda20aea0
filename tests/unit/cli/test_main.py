import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3 import __version__
from espnet3.cli import status
from espnet3.cli.main import VERBS, main

ESPNET3 = Path(sys.executable).with_name("espnet3")
OF_RUN_FOLDERS = ["status", "failed", "merge", "explain"]
OF_DETACHED_RUNS = ["logs", "cancel", "resume", "wait"]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("argv", [["--help"], ["-h"], []])
def test_help_names_every_command(argv, capsys):
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown and text in shown for verb, text in VERBS.items())


def test_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"espnet3 {__version__}\n"


def test_a_misspelt_command_gets_a_suggestion_and_exit_code_2(capsys):
    assert main(["stauts", "."]) == 2
    captured = capsys.readouterr()
    assert captured.err.endswith("Write: espnet3 status .\n")
    assert "run, transcribe, plan, doctor, status, explain, logs, failed" in captured.err
    assert not captured.out


@pytest.mark.parametrize("argv", [["--stat"], ["failed"], ["failed", ".", "--lim", "2"]])
def test_a_wrong_call_exits_with_2_and_shows_the_usage(argv, capsys):
    assert main(argv) == 2
    assert "usage: espnet3" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_has_help(verb, capsys):
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"usage: espnet3 {verb}" in shown
    assert ("--json" in shown) == (verb in [*OF_RUN_FOLDERS, "doctor", "tidy"])


@pytest.mark.parametrize("verb", [*OF_RUN_FOLDERS, *OF_DETACHED_RUNS])
def test_an_error_is_one_message_without_a_traceback(verb, tmp_path, capsys):
    assert main([verb, str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"espnet3: {tmp_path} holds no run: ")
    assert captured.err.count("\n") == 1
    assert not captured.out


@pytest.mark.parametrize("verb", [*OF_RUN_FOLDERS, *OF_DETACHED_RUNS])
def test_a_folder_that_does_not_exist_gets_a_suggestion(verb, tmp_path, capsys):
    (tmp_path / "decode").mkdir()
    assert main([verb, str(tmp_path / "deocde")]) == 1
    assert capsys.readouterr().err == (
        f"espnet3: {tmp_path}/deocde does not exist. Did you mean '{tmp_path}/decode'?\n"
    )


def test_a_file_in_place_of_a_folder_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["status", str(tmp_path / "file")]) == 1
    assert f"{tmp_path}/file is not a folder." in capsys.readouterr().err


def test_ctrl_c_exits_with_130_and_says_nothing(monkeypatch, capsys):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "status", interrupt)
    assert main(["status", "."]) == 130
    assert capsys.readouterr() == ("", "")


def test_an_error_of_the_operating_system_is_one_message(monkeypatch, capsys):
    def fail(args):
        raise PermissionError(13, "Permission denied", "exp")

    monkeypatch.setattr(status, "status", fail)
    assert main(["status", "."]) == 1
    assert capsys.readouterr().err == "espnet3: [Errno 13] Permission denied: 'exp'\n"


def test_help_imports_nothing_heavy():
    heavy = "torch dask distributed lightning pydantic omegaconf rich numpy"
    done = run_python(
        "import sys; from espnet3.cli.main import main; main(['--help']); "
        f"print('heavy:', *[name for name in '{heavy}'.split() if name in sys.modules])"
    )
    assert done.stdout.splitlines()[-1] == "heavy:", done.stderr


@pytest.mark.parametrize("verb", OF_RUN_FOLDERS)
def test_no_command_imports_torch_dask_or_lightning(verb, complete):
    done = run_python(
        f"import sys; from espnet3.cli.main import main; main({[verb, str(complete)]}); "
        "print('heavy:', *[name for name in 'torch dask distributed lightning numpy'.split() "
        "if name in sys.modules])"
    )
    assert done.stdout.splitlines()[-1] == "heavy:", done.stderr


@pytest.mark.parametrize("command", [[ESPNET3], [sys.executable, "-m", "espnet3.cli"]])
def test_the_installed_command_reads_a_run(command, stopped):
    done = subprocess.run(
        [*command, "status", stopped], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "14 of 16 done" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["status"], ["status", "--json"], ["failed"]])
def test_a_reader_that_closes_the_pipe_is_met_with_silence(arguments, complete):
    folder = [] if arguments == ["--help"] else [str(complete)]
    # Buffered, as in a user's shell: else argparse itself hides the broken pipe.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [ESPNET3, *arguments, *folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=buffered,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 1


def test_a_terminal_without_unicode_still_gets_the_table(tmp_path, complete):
    folder = tmp_path / "test_é"
    complete.rename(folder)
    shutil.copytree(folder, tmp_path / "dev")
    done = subprocess.run(
        [ESPNET3, "status", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert "test_\\xe9" in done.stdout


def test_a_name_that_is_not_utf8_can_be_shown(tmp_path, complete, capsys):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    complete.rename(folder)
    assert main(["status", str(folder)]) == 0
    assert "caf\\udce9 (Square)" in capsys.readouterr().out

"""README.md: its script runs as printed, its commands exist, its table is that of the runner."""

import inspect
import re
import subprocess
import sys

from espnet3.cli.main import VERBS, main
from espnet3.parallel import BaseRunner
from tests.helpers.pages import ROOT, blocks, code_in, named_files, table

PAGE = ROOT / "README.md"


def test_the_script_runs_as_printed_and_its_commands_read_the_folder(tmp_path, monkeypatch, capsys):
    (tmp_path / "decode.py").write_text(named_files(PAGE)["decode.py"])
    for _ in range(2):  # the second call finds the run complete
        done = subprocess.run(
            [sys.executable, "decode.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "exp/decode/results.jsonl\n"
    lines = (tmp_path / "exp/decode/results.jsonl").read_text().splitlines()
    assert len(lines) == 1000
    assert '"utt999"' in lines[-1]
    monkeypatch.chdir(tmp_path)
    assert main(["status", "exp/decode"]) == 0
    assert "complete" in capsys.readouterr().out
    assert main(["failed", "exp/decode"]) == 0


def test_every_command_exists_with_its_options(capsys):
    shown = [words for block in blocks(PAGE, "sh") for words in block.commands]
    commands = [words[1:] for words in shown if words[0] == "espnet3"]
    assert {words[0] for words in commands} == {
        "init", "launch", "status", "failed", "merge", "doctor", "plan", "scaling"
    }  # fmt: skip
    for verb, *rest in commands:
        assert verb in VERBS
        main([verb, "--help"])
        known = capsys.readouterr().out
        for option in (word for word in rest if word.startswith("-")):
            assert re.search(rf"(^|[\s,\[]){re.escape(option)}\b", known), f"{verb} has no {option}"


def test_the_settings_are_arguments_of_the_runner_or_of_its_call():
    known = {
        *inspect.signature(BaseRunner.__init__).parameters,
        *inspect.signature(BaseRunner.__call__).parameters,
    }
    for row in table(PAGE, "## One function over many items"):
        for name in code_in(row[0]):
            bare = re.match(r"\w+", name)[0]
            assert bare in known or hasattr(BaseRunner, bare), name

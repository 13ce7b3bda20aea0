"""README.md and the first runner of docs/parallel.md: scripts run, commands exist, tables hold."""

import inspect
import re
import subprocess
import sys

from espnet3.cli.main import VERBS, main
from espnet3.parallel import BaseRunner
from tests.helpers.pages import ROOT, blocks, code_in, named_files, table

PAGE = ROOT / "README.md"
RUNNER = ROOT / "docs" / "parallel.md"


def test_the_script_runs_as_printed_and_its_commands_read_the_folder(tmp_path, monkeypatch, capsys):
    (tmp_path / "decode.py").write_text(named_files(RUNNER)["decode.py"])
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
    pages = (PAGE, RUNNER)
    shown = [words for page in pages for block in blocks(page, "sh") for words in block.commands]
    commands = [words[1:] for words in shown if words[0] == "espnet3"]
    assert {words[0] for words in commands} == {
        "launch", "status", "failed", "merge", "tidy", "doctor", "plan", "scaling"
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
    for row in table(RUNNER, "## A first runner"):
        for name in code_in(row[0]):
            bare = re.match(r"\w+", name)[0]
            assert bare in known or hasattr(BaseRunner, bare), name


def test_it_is_read_in_a_minute_and_shows_two_pictures():
    text = PAGE.read_text()
    assert text.count("\n") <= 120
    assert text.index("make demo") < text.index("make test") < 700
    pictures = re.findall(r"!\[[^]]*\]\((\S+?)\)", text)
    assert len(pictures) == 2
    assert all((ROOT / picture).stat().st_size < 100_000 for picture in pictures)


def test_each_line_on_another_toolkit_links_to_where_it_is_shown():
    rows = [
        line for line in PAGE.read_text().splitlines() if re.match(r"\| (ESPnet2|NeMo|S|i|H)", line)
    ]
    assert len(rows) == 5
    assert all("](docs/" in row for row in rows)

"""docs/detached.md: its Python runs as printed, its commands and its block are real."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from espnet3.cli.main import VERBS, main
from espnet3.cli.recipe_options import is_override
from espnet3.parallel.detached.handle import DetachedRun
from espnet3.parallel.parallel import as_parallel_config

PATH = Path(__file__).parents[2] / "docs" / "detached.md"
PAGE = PATH.read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def commands() -> list[list[str]]:
    """Return the words of each `espnet3 ...` of the page, without comments."""
    shell = [line.partition("#")[0] for block in blocks("sh") for line in block.splitlines()]
    found = re.findall(r"espnet3 [^`|&;\n]+", "\n".join(shell))
    found += re.findall(r"`(espnet3 [^`]+)`", PAGE)
    return [shlex.split(text)[1:] for text in found]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_of_the_page_exists_with_its_options(words, capsys):
    verb, *rest = words
    assert verb in VERBS
    main([verb, "--help"])
    known = capsys.readouterr().out
    for word in rest:
        if word.startswith("-"):
            assert re.search(rf"(^|[\s,\[]){re.escape(word)}\b", known), f"{verb} has no {word}"
        elif "=" in word:
            assert is_override(word)


def test_the_block_of_the_page_is_right():
    (text,) = blocks("yaml")
    config = as_parallel_config(OmegaConf.create(text).parallel)
    assert (config.env, config.mode) == ("slurm", "async")


def test_the_python_of_the_page_runs_as_printed(tmp_path):
    (source,) = blocks("python")
    (tmp_path / "double.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "double.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    state, path, counts, findings, result = done.stdout.splitlines()
    assert state in ("queued", "starting", "running", "complete")
    assert Path(path) == tmp_path / result
    assert counts == "100 items, 2 workers"
    assert "it is complete" in findings
    lines = (tmp_path / "exp/double/results.jsonl").read_text().splitlines()
    assert [int(line) for line in lines] == [2 * number for number in range(100)]


def test_every_verb_of_the_handle_is_told_of():
    verbs = [name for name in vars(DetachedRun) if not name.startswith("_")]
    assert all(f"run.{verb}(" in PAGE for verb in verbs)


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+\.md)[^)]*\)", PAGE):
        assert (PATH.parent / link).exists(), link

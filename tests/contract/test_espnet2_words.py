"""What docs/espnet2.md says to write for a word of ESPnet2 is what the command line says."""

import re
from pathlib import Path

import pytest
import yaml

from espnet3.cli.console import UsageError
from espnet3.cli.main import main
from espnet3.cli.recipe_options import select_stages
from espnet3.config.advice import advise
from espnet3.migration import asr_options
from espnet3.systems.base.stages import STAGES
from tests.helpers.espnet2_recipe import RUN, write_recipe
from tests.helpers.pages import DOCS, code_in, table

PAGE = DOCS / "espnet2.md"
_OPTION = re.compile(r'--(\w+)(?: ("[^"]*"|\S+))?')
# What one would give to those that the page names without a value.
VALUES = {
    "nj": "8", "inference_nj": "32", "ngpu": "4", "num_nodes": "2", "nbpe": "60", "fs": "16k",
    "max_wav_duration": "30", "min_wav_duration": "0.1", "asr_tag": "wide", "hf_repo": "user/name",
    "expdir": "exp/mine", "asr_exp": "exp/mine", "pretrained_model": "exp/training/last.ckpt",
    "bpe_char_cover": "0.9995", "asr_config": "conf/training_hybrid.yaml",
    "lm_config": "conf/training_lm.yaml", "inference_config": "conf/inference_beam.yaml",
}  # fmt: skip


def options() -> list[tuple[str, str, list[str]]]:
    """Return name and value of each option in the table, with the cells of its row."""
    found = []
    for row in table(PAGE, "## Options of `asr.sh`"):
        for code in code_in(row[0]):
            name, value = _OPTION.match(code).groups() if _OPTION.match(code) else ("", "")
            if name:
                found.append((name, (value or VALUES.get(name, "some")).strip('"'), row))
    return found


@pytest.mark.parametrize(("name", "value", "row"), options(), ids=lambda value: str(value)[:30])
def test_the_page_and_the_command_line_say_the_same_of_an_option(name, value, row):
    stage = row[2] or "train"
    advice = advise((name,), yaml.safe_load(value), [stage], has=lambda key: False)
    if advice is None:  # then it is refused as any word that nothing reads
        assert row[1].startswith("not ")
        return
    told = " ".join(row)
    for key in advice.settings:
        assert key in told, f"{advice.override()} is not on the page"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_page_shows_what_migrate_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = RUN.replace("--use_lm false", "--use_lm true")
    run = run.replace("--nj 4", "--use_streaming true \\\n    --nj 4")
    write_recipe(Path("egs2/an4/asr1"), run=run, sets=("train", "dev"), has_tokens=True)
    assert main(["migrate", "egs2/an4/asr1", "an4/asr"]) == 3
    shown, table = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert capsys.readouterr().out == shown
    report = Path("an4/asr/MIGRATION.md").read_text().splitlines()
    rows = [_cells(line) for line in report if line.startswith("| ")]
    for line in table.splitlines():
        *cells, note = _cells(line)
        assert any(row[:4] == cells and row[4].startswith(note.rstrip(".; ")) for row in rows), line


def test_migrate_knows_the_options_of_the_page():
    noted = {**asr_options.UNNEEDED, **asr_options.LEFT_OUT, **asr_options.CHANGES}
    known = {*noted, *asr_options.SWITCHES, *asr_options.READ}
    missing = {name for name, _, _ in options()} - known
    assert not missing


def test_migrate_and_the_page_have_the_same_stages():
    rows = {int(row[0]): row[2] for row in table(PAGE, "## Stages of `asr.sh`")}
    for number, name in asr_options.STAGES.items():
        assert code_in(rows[number])[0] == name


@pytest.mark.parametrize("number", [str(number) for number in range(11, 16)])
def test_a_number_that_only_asr_sh_has_is_answered_with_the_stage_of_the_page(number):
    rows = {row[0]: row for row in table(PAGE, "## Stages of `asr.sh`")}
    ours = code_in(rows[number][2])[0]
    with pytest.raises(UsageError, match=f"--stages {ours}"):
        select_stages([number], STAGES)

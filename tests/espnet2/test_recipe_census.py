"""A sample of the census: recipes in the style of the public ones migrate, and run dry.

All of them: python -m tests.helpers.census
"""

import pytest
import yaml

from espnet3.cli.main import main
from tests.helpers.census import Result, check, kinds_of, report
from tests.helpers.census_oracle import Oracle
from tests.helpers.census_recipe import write_census_recipe, write_word_pieces
from tests.helpers.census_settings import make_settings


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_word_pieces(tmp_path_factory.mktemp("words"))


@pytest.mark.parametrize("number", range(0, 140, 24))
def test_nothing_is_wrong_in_silence_and_the_dry_run_misses_only_data(number, tmp_path, words):
    for model in ("espnet2", "native"):
        result = check(number, model, tmp_path, words)
        assert result.is_good, (result.faults, result.complaints, result.crash)


def test_a_setting_that_arrives_wrong_is_found(tmp_path, words):
    settings = make_settings(3)
    write_census_recipe(tmp_path / "egs2" / "x" / "asr1", settings, words)
    new = tmp_path / "new"
    code = main(["migrate", str(tmp_path / "egs2" / "x" / "asr1"), str(new)])
    assert not Oracle(settings, new, "espnet2").faults(code)
    assert Oracle(settings, new, "espnet2").faults(3 - code)
    path = new / "conf" / "training.yaml"
    values = yaml.safe_load(path.read_text())
    values["trainer"]["max_epochs"] += 1
    values["dataset"]["valid"][0]["data_src_args"]["path"] += "_2"
    path.write_text(yaml.safe_dump(values))
    faults = Oracle(settings, new, "espnet2").faults(code)
    assert [fault.split(":")[0] for fault in faults] == ["--valid_set", "max_epoch"]


def test_complaints_are_sorted_and_a_crash_is_counted():
    assert kinds_of(["there is no /x/data/train.", "encoder is wrong"]) == {
        "data are missing", "other",
    }  # fmt: skip
    bad = Result(1, "espnet2", 0, complaints=["encoder is wrong"])
    table = report([Result(0, "espnet2", 0), bad, Result(2, "espnet2", crash="Traceback")])
    assert "| traceback, refused | 1 |" in table
    assert "| good | 1 |" in table

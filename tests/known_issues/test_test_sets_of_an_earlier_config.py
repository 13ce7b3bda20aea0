"""Results of test sets that the config no longer lists stayed in the tables and in the report."""

import json
import logging

import pytest
import yaml

from espnet3.config.load import load_config
from espnet3.errors import IncompleteRunError
from espnet3.systems.base.system import BaseSystem

METRICS = {"metrics": [{"metric": {"_target_": "espnet3.systems.asr.metrics.wer.WER"}}]}


@pytest.fixture
def folder(tmp_path):
    """Results of three test sets."""
    for name in ("clean", "noisy", "renamed"):
        (tmp_path / "inference" / name).mkdir(parents=True)
        for field in ("hyp", "ref"):
            (tmp_path / "inference" / name / f"{field}.scp").write_text("utt1 one two\n")
    return tmp_path


def system(folder, listed=None, metrics=None, **inference):
    where = {"inference_dir": str(folder / "inference"), "exp_dir": str(folder / "exp")}
    configs = {"metrics": {**METRICS, **where, "recipe_dir": str(folder), **(metrics or {})}}
    if listed is not None:
        entries = [{"name": name, "data_src": "kaldi"} for name in listed]
        configs["inference"] = {**where, "dataset": {"test": entries}, **inference}
    loaded = {}
    for kind, values in configs.items():
        (folder / f"{kind}.yaml").write_text(yaml.safe_dump(values))
        loaded[kind] = load_config(folder / f"{kind}.yaml")
    return BaseSystem(**loaded)


def measured(folder):
    return list(json.loads((folder / "inference/metrics.json").read_text())["WER"])


def test_measure_shows_what_the_inference_config_lists_and_names_the_rest(folder, caplog):
    with caplog.at_level(logging.INFO):
        system(folder, ["noisy", "clean", "not decoded yet"]).measure()
    assert measured(folder) == ["noisy", "clean"]
    assert "renamed" not in (folder / "inference/RESULTS.md").read_text()
    assert caplog.text.count("also found, not in the config: renamed") == 1


def test_the_report_shows_what_the_configs_list_and_names_the_rest(folder, caplog):
    system(folder).measure()  # of all three
    with caplog.at_level(logging.INFO):
        page = system(folder, ["clean"]).report()
    assert caplog.text.count("also found, not in the config: noisy, renamed") == 1
    results = caplog.text.partition("Results\n\n")[2]
    assert "clean" in results
    assert "renamed" not in results.partition("Report:")[0]
    assert page.read_text().count("renamed") == 1


def test_without_a_list_all_folders_count(folder, caplog):
    with caplog.at_level(logging.INFO):
        system(folder).measure()
        system(folder).report()
    assert measured(folder) == ["clean", "noisy", "renamed"]
    assert "also found" not in caplog.text


def test_a_list_for_results_elsewhere_says_nothing_about_these(folder):
    system(folder, ["other"], inference_dir=str(folder / "elsewhere")).measure()
    assert measured(folder) == ["clean", "noisy", "renamed"]


def test_a_test_set_that_is_asked_for_by_name_is_measured(folder, caplog):
    with caplog.at_level(logging.INFO):
        system(folder, ["clean"], {"test_set": "renamed"}).measure()
    assert measured(folder) == ["renamed"]


def test_nothing_but_old_results_is_an_error_that_names_them(folder):
    with pytest.raises(IncompleteRunError, match=r"not in the config: clean, noisy, renamed\)"):
        system(folder, ["new"]).measure()


def test_a_dry_run_says_what_is_left_out(folder):
    said = "\n".join(system(folder, ["clean"]).describe_measure())
    assert "also found, not in the config: noisy, renamed" in said
    assert "WER of noisy" not in said

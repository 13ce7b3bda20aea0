"""The report stage, on results that the other stages wrote."""

import json
import logging
import re
import shutil
import time

import numpy as np
import pytest

from espnet3.components.metrics.error_rate import ErrorRate
from espnet3.errors import ConfigError, IncompleteRunError
from espnet3.io.scp import write_scp
from espnet3.systems.asr.metrics.wer import WER
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.report import check_report, describe_report, report
from espnet3.systems.base.report_data import Score
from espnet3.systems.base.results_table import identify
from espnet3.systems.base.system import BaseSystem
from tests.helpers.exhaustive import few
from tests.helpers.report_page_parts import SCRIPT, run, write_history, write_recipe


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A recipe after infer, measure and report."""
    folder = write_recipe(tmp_path_factory.mktemp('it\'s "one"') / "digits")
    write_history(folder / "exp/inference")
    assert run(folder, "infer", "measure", "report") == 0
    return folder


@pytest.fixture
def recipe(finished, tmp_path, monkeypatch):
    """A copy of it that a test may spoil."""
    folder = tmp_path / "digits"
    shutil.copytree(finished, folder)
    monkeypatch.chdir(folder)
    return folder


def system_of(folder, *overrides, kinds=("inference", "metrics")):
    files = {kind: [folder / f"conf/{kind}.yaml"] for kind in kinds}
    return BaseSystem(**vars(load_configs(files, overrides, recipe_dir=folder)))


def page_of(folder):
    return (folder / "exp/inference/report.html").read_text(encoding="utf-8")


def sections(page):
    return re.findall(r'<section id="(\w+)"', page)


def test_page_has_all_parts_in_order(finished):
    wanted = ["results", "errors", "worst", "training", "workers", "failed", "time", "setup"]
    assert sections(page_of(finished)) == wanted


def test_headline_numbers_are_those_of_metrics_json(finished):
    page = page_of(finished)
    results = json.loads((finished / "exp/inference/metrics.json").read_text())
    for test_set in ("seen", "held_out"):
        for metric in ("WER", "CER"):
            assert f"{results[metric][test_set]['rate']:.2f}" in page
            low, high = results[metric][test_set]["interval"]
            assert f"{low:.2f}\u2013{high:.2f}" in page
    assert "Real-time factor" in page


def test_test_sets_come_in_the_order_of_the_config(finished):
    page = page_of(finished)
    assert page.index("<h3>seen</h3>") < page.index("<h3>held_out</h3>")


def test_texts_of_results_and_configs_stay_text(finished):
    page = page_of(finished)
    assert "<script>document" not in page
    assert "&lt;script&gt;document.title=&#39;hacked&#39;&lt;/script&gt;" in page
    assert "is &lt;b&gt;too&lt;/b&gt; hard" in page, "of failed.jsonl"
    assert "<i>acc</i>" not in page, "the name of a metric, in charts"
    assert page.count("<script>") == 1


def test_page_refers_to_nothing_outside_of_it(finished):
    page = page_of(finished)
    assert not re.findall(r"""\s(?:src|href)=["'](?!data:|#).{,50}""", page)
    assert "url(" not in page
    assert "default-src &#39;none&#39;" in page


def test_each_worst_utterance_has_audio(finished):
    page = page_of(finished)
    n_shown = page.count('<div class="utterance-head">')
    assert n_shown == page.count("<audio ") > 4
    assert page.count("data:audio/wav;base64,") == n_shown


def test_same_results_give_the_same_page(recipe):
    pages = []
    for _ in range(2):
        report(system_of(recipe))
        pages.append(re.sub(r"written \S+ \S+", "", page_of(recipe)))
    assert pages[0] == pages[1]


def test_summary_in_the_log_has_scores_speed_minutes_and_the_path(recipe, caplog):
    with caplog.at_level(logging.INFO):
        path = report(system_of(recipe))
    text = caplog.text
    results = json.loads((recipe / "exp/inference/metrics.json").read_text())
    numbers = results["WER"]["seen"]
    low, high = numbers["interval"]
    assert f"{numbers['rate']:.2f} [{low:.2f}, {high:.2f}]" in text
    assert all(title in text for title in ("WER %", "CER %", "RTF"))
    assert re.search(r"Training: 5\d\d audio seconds per second, 600 steps", text)
    assert re.search(r"infer +[\d<.]+\n", text)
    assert f"Report: {path} (open it in a browser: file:///" in text
    tables = text.partition("Test set")[2].partition("Report:")[0]
    assert max(map(len, tables.splitlines())) <= 100


def test_without_measure_the_page_says_what_would_bring_the_scores(recipe):
    (recipe / "exp/inference/metrics.json").unlink()
    report(system_of(recipe))
    page = page_of(recipe)
    assert "no scores yet" in page
    assert "No scores: exp/inference/metrics.json is not there. Run: python run.py " in page
    assert "worst" not in sections(page)
    assert "workers" in sections(page)


def test_without_training_the_page_says_which_option_brings_it(recipe):
    (recipe / "exp/inference/history.jsonl").unlink()
    report(system_of(recipe))
    assert "--training_config conf/training.yaml" in page_of(recipe)
    assert "training" not in sections(page_of(recipe))


def test_without_an_inference_config_there_is_no_audio_but_a_reason(recipe):
    overrides = ["exp_dir=exp/inference", "inference_dir=exp/inference"]
    report(system_of(recipe, *overrides, kinds=("metrics",)))
    page = page_of(recipe)
    assert "<audio" not in page
    assert "No audio: give --inference_config conf/inference.yaml" in page


def test_audio_that_cannot_be_read_is_told_at_the_utterance(recipe):
    report(system_of(recipe, "report.audio_key=sound"))
    assert "No audio: the sample has no field &#39;sound&#39;" in page_of(recipe)


def test_data_that_changed_since_is_not_played(recipe):
    report(system_of(recipe, "dataset.test.0.data_src_args.n=1"))
    page = page_of(recipe)
    assert "it is not in the dataset; did the data change since the infer stage?" in page
    assert "<audio" in page, "of the other test set"


def test_audio_stops_at_its_limit(recipe):
    report(system_of(recipe, "report.audio_megabytes=0.02"))
    page = page_of(recipe)
    assert 0 < page.count("<audio") < page.count('<div class="utterance-head">')
    assert "the page holds at most 0.02 MB of audio" in page


def test_stale_scores_are_told(recipe, caplog):
    file = recipe / "exp/inference/seen/hyp.scp"
    file.write_text(file.read_text().replace("uh", "oh"))
    with caplog.at_level(logging.INFO):
        report(system_of(recipe))
    assert "seen/hyp.scp has other content" in page_of(recipe)
    assert "The scores are out of date" in caplog.text


def test_nothing_to_report_is_an_error_with_the_command(tmp_path, monkeypatch):
    folder = write_recipe(tmp_path / "new")
    monkeypatch.chdir(folder)
    with pytest.raises(IncompleteRunError, match="--stages infer measure report"):
        report(system_of(folder))
    assert not (folder / "exp").exists()


def test_damaged_metrics_are_an_error_with_the_command(recipe):
    (recipe / "exp/inference/metrics.json").write_text("[1")
    with pytest.raises(IncompleteRunError, match=r"python run\.py --stages measure"):
        report(system_of(recipe))


def test_metrics_that_are_no_error_rates_are_shown(recipe):
    (recipe / "conf/metrics.yaml").write_text(
        "metrics:\n  - {name: Length, inputs: [hyp], on_missing: skip, metric: {_target_: "
        "tests.helpers.report_page_parts.mean_length, _partial_: true}}\n"
    )
    assert run(recipe, "measure", "report") == 0
    page = page_of(recipe)
    assert "words_per_utterance" in page
    assert "errors" not in sections(page)


def test_intervals_of_other_metrics_are_shown_beside_their_numbers():
    numbers = {"bleu": 31.5, "bleu_interval": [30.0, 33.0], "n": 3, "confidence": 0.95}
    score = Score("BLEU", "test", numbers)
    assert score.scalars == {"bleu": 31.5, "n": 3}
    assert score.interval_of("bleu") == (30.0, 33.0)
    assert score.interval_of("n") is None
    without = Score("BLEU", "test", {**numbers, "bleu_interval": None})
    assert without.scalars == {"bleu": 31.5, "n": 3, "confidence": 0.95}


def test_results_of_a_runner_alone_give_a_page(recipe):
    """A recipe without texts has neither metrics nor history."""
    (recipe / "exp/inference/metrics.json").unlink()
    (recipe / "exp/inference/history.jsonl").unlink()
    report(system_of(recipe))
    assert sections(page_of(recipe)) == ["results", "workers", "failed", "time", "setup"]


def test_a_wrong_setting_is_told_before_anything_runs(recipe):
    with pytest.raises(ConfigError, match="n_worst"):
        check_report(system_of(recipe, "report.n_wurst=3"))
    check_report(system_of(recipe, "report.n_worst=3"))


def test_dry_run_tells_what_is_there(recipe):
    lines = "\n".join(describe_report(system_of(recipe)))
    assert "metrics.json (exists)" in lines
    assert "report.html (there already, and replaced)" in lines
    (recipe / "exp/inference/metrics.json").unlink()
    lines = "\n".join(describe_report(system_of(recipe)))
    assert "metrics.json (missing: stage 7, measure, writes it)" in lines


@pytest.mark.parametrize("n", few([10_000, 100_000], 1))
def test_many_utterances_give_a_small_page_in_seconds(recipe, n):
    folder = recipe / "exp/inference/seen"
    random = np.random.default_rng(0)
    words = np.array(["zero", "one", "two", "three", "four", "five", "six"])
    texts = [" ".join(row) for row in words[random.integers(0, 7, (n, 8))]]
    hyps = [t if i % 8 else t.replace("two", "too") for i, t in enumerate(texts)]
    ids = [f"speaker{i % 5000:04d}-{i:06d}" for i in range(n)]
    write_scp(folder / "ref.scp", zip(ids, texts, strict=True))
    write_scp(folder / "hyp.scp", zip(ids, hyps, strict=True))
    metric: ErrorRate = WER(by="speaker", n_bootstrap=0)
    data = {"utt_id": ids, "ref": texts, "hyp": hyps, "speaker": [i[:11] for i in ids]}
    numbers = metric(data, "seen", folder.parent)
    inputs = {key: identify(folder / f"{key}.scp", folder.parent) for key in ("ref", "hyp")}
    numbers["measured_from"] = {"inputs": inputs, "settings": metric.settings}
    (folder.parent / "metrics.json").write_text(json.dumps({"WER": {"seen": numbers}}))
    begin = time.process_time()  # of this process: the machine may be busy
    path = report(system_of(recipe, f"dataset.test.0.data_src_args.n={n}"))
    assert time.process_time() - begin < 20
    assert path.stat().st_size < 10e6
    assert "and 4,900 more with a lower rate" in page_of(recipe)
    assert SCRIPT not in page_of(recipe)

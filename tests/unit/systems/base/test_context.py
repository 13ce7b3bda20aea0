import logging

import pytest

from espnet3.errors import ConfigError
from espnet3.systems.base.context import check_inference_dir, context_value, load_configs


def values(loaded, *keys):
    return [context_value(loaded, key) for key in keys]


@pytest.fixture
def training(write):
    return write("conf/tuning/large.yaml", "exp_tag: large_v2\nseed: 7\ndata_dir: /corpora\n")


@pytest.fixture
def inference(write):
    return write("conf/beam8.yaml", "input_key: speech\n")


@pytest.fixture
def metrics(write):
    return write("conf/metrics.yaml", "metrics: []\n")


def test_one_config_alone_gets_folders_named_after_it(inference):
    loaded = load_configs({"inference": [inference]}).inference
    keys = ("recipe_dir", "data_dir", "exp_tag", "exp_dir", "stats_dir", "inference_dir")
    assert values(loaded, *keys) == [
        ".", "./data", "beam8", "./exp/beam8", "./exp/stats", "./exp/beam8/beam8",
    ]  # fmt: skip
    assert values(loaded, "num_device", "num_nodes", "seed", "dataset_dir") == [1, 1, None, None]


def test_the_context_of_training_reaches_the_other_configs(training, inference, metrics):
    files = {"training": [training], "inference": [inference], "metrics": [metrics]}
    configs = load_configs(files)
    for loaded in (configs.inference, configs.metrics):
        assert values(loaded, "exp_tag", "exp_dir", "seed", "data_dir") == [
            "large_v2", "./exp/large_v2", 7, "/corpora",
        ]  # fmt: skip
        assert context_value(loaded, "inference_dir") == "./exp/large_v2/beam8"
        assert loaded.source_of("exp_tag") == "conf/tuning/large.yaml:1"
    assert configs.publication is None


def test_training_wins_over_the_files_and_says_so(training, write, caplog):
    inference = write("conf/beam8.yaml", "exp_tag: other\nseed: 7\n")
    with caplog.at_level(logging.INFO):
        loaded = load_configs({"training": [training], "inference": [inference]}).inference
    assert context_value(loaded, "exp_dir") == "./exp/large_v2"
    assert [record.getMessage() for record in caplog.records] == [
        "exp_tag is 'large_v2', from conf/tuning/large.yaml:1, and not 'other' as "
        "conf/beam8.yaml:1 says"
    ]


def test_a_mere_default_of_training_gives_way_to_a_file(write):
    training = write("conf/train.yaml", "seed: 1\n")
    inference = write("conf/beam8.yaml", "data_dir: /corpora\nexp_tag: other\n")
    loaded = load_configs({"training": [training], "inference": [inference]}).inference
    assert values(loaded, "data_dir", "exp_tag", "seed") == ["/corpora", "train", 1]


def test_an_override_wins_over_training(training, inference, caplog):
    files = {"training": [training], "inference": [inference]}
    with caplog.at_level(logging.INFO):
        configs = load_configs(files, ["exp_tag=mine", "inference_dir=out"])
    assert values(configs.inference, "exp_dir", "inference_dir") == ["./exp/mine", "out"]
    assert context_value(configs.training, "exp_dir") == "./exp/mine"
    assert not caplog.records


def test_metrics_find_the_results_of_inference_without_training(write, metrics):
    inference = write("conf/beam8.yaml", "inference_dir: ${exp_dir}/decode")
    loaded = load_configs({"inference": [inference], "metrics": [metrics]}).metrics
    assert values(loaded, "inference_dir", "exp_dir") == ["./exp/beam8/decode", "./exp/beam8"]


def test_a_dollar_in_a_shared_path_stays_text(write, inference):
    training = write("conf/train.yaml", "data_dir: '\\${HOME}/data'\n")
    loaded = load_configs({"training": [training], "inference": [inference]}).inference
    assert context_value(loaded, "data_dir") == "${HOME}/data"


def test_a_shared_key_that_refers_to_nothing_is_an_error_with_its_place(write, inference):
    training = write("conf/train.yaml", "exp_dir: ${work}/exp\n")
    with pytest.raises(ConfigError, match=r"exp_dir.*conf/train.yaml:1.*Set the key"):
        load_configs({"training": [training], "inference": [inference]})


def test_metrics_alone_must_say_which_results_they_are_about(metrics):
    with pytest.raises(ConfigError) as caught:
        check_inference_dir(load_configs({"metrics": [metrics]}))
    assert str(caught.value) == (
        "conf/metrics.yaml does not say which results to score: inference_dir would be "
        "./exp/metrics/metrics, which does not exist. Decode and score: python run.py "
        "--stages infer measure --inference_config conf/inference.yaml --metrics_config "
        "conf/metrics.yaml ; or write in conf/metrics.yaml: inference_dir: FOLDER"
    )


def test_training_does_not_tell_metrics_which_results_they_are_about(training, metrics):
    configs = load_configs({"training": [training], "metrics": [metrics]})
    with pytest.raises(ConfigError, match=r"inference_dir would be \./exp/large_v2/metrics"):
        check_inference_dir(configs)


@pytest.mark.parametrize("override", ["inference_dir=out", "exp_tag=beam8", "exp_dir=exp/beam8"])
def test_metrics_may_say_it_themselves(metrics, training, override):
    check_inference_dir(load_configs({"metrics": [metrics]}, [override]))
    check_inference_dir(load_configs({"metrics": [metrics], "training": [training]}, [override]))


def test_metrics_need_not_say_it_if_the_results_are_there(recipe, metrics):
    (recipe / "exp" / "metrics" / "metrics").mkdir(parents=True)
    check_inference_dir(load_configs({"metrics": [metrics]}))


def test_a_value_that_must_still_be_given_is_not_shared(write, inference):
    training = write("conf/train.yaml", "dataset_dir: ???\n")
    files = {"training": [training], "inference": [inference]}
    assert context_value(load_configs(files).inference, "dataset_dir") is None
    given = load_configs(files, ["dataset_dir=/corpora"]).inference
    assert context_value(given, "dataset_dir") == "/corpora"


def test_an_override_is_for_the_configs_that_have_its_key(write):
    files = {
        "training": [write("conf/a.yaml", "model: {encoder: {n_layers: 2}}\ntrainer: {}\n")],
        "inference": [write("conf/b.yaml", "model: {decoder: {beam_size: 4}}\nparallel: {}\n")],
        "metrics": [write("conf/c.yaml", "metrics: []\n")],
    }
    overrides = [
        "model.encoder.n_layers=4", "model.decoder.n_best=3", "model.new=1", "trainer.devices=2",
        "parallel.n_workers=2", "exp_tag=x", "new=1",
    ]  # fmt: skip
    configs = load_configs(files, overrides)
    assert configs.training.config.model == {"encoder": {"n_layers": 4}, "new": 1}
    assert configs.inference.config.model == {"decoder": {"beam_size": 4, "n_best": 3}, "new": 1}
    having = {
        key: [kind for kind in files if key in getattr(configs, kind).config]
        for key in ("trainer", "model", "parallel", "new")
    }
    assert having == {
        "trainer": ["training"],
        "model": ["training", "inference"],
        "parallel": list(files),
        "new": list(files),
    }

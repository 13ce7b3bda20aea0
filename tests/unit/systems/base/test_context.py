import logging

import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.systems.base.context import (
    check_inference_dir,
    complete_all,
    context_value,
    load_configs,
)


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
        ".", "./data", "beam8", "./exp/beam8", "./exp/stats", "./exp/beam8",
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
        "./exp/metrics, which does not exist. Decode and score: python run.py "
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
    (recipe / "exp" / "metrics").mkdir(parents=True)
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


OLD = "exp/beam8/beam8"


def inference_dir_of(configs, kind="inference"):
    return context_value(getattr(configs, kind), "inference_dir")


def results(recipe, folder):
    place = recipe / folder / "test_clean"
    place.mkdir(parents=True)
    (place / "hyp.scp").write_text("a one\n")


@pytest.mark.parametrize(
    ("override", "folder"),
    [
        ("exp_tag=beam8", f"./{OLD}"),
        ("exp_dir=exp/beam8", OLD),
        ("exp_dir=exp/other", "exp/other/beam8"),
        ("inference_dir=exp/beam8/beam8", OLD),
        ("inference_dir=${exp_dir}/${self_name:}", f"./{OLD}"),
    ],
)
def test_a_folder_that_is_set_may_have_a_doubled_name(inference, override, folder):
    assert inference_dir_of(load_configs({"inference": [inference]}, [override])) == folder


def test_the_default_folder_of_results_is_what_other_keys_refer_to(write, metrics):
    file = write("conf/beam8.yaml", "vars: {cache: '${inference_dir}/cache'}\n")
    configs = load_configs({"inference": [file], "metrics": [metrics]})
    assert configs.inference.config.vars.cache == "./exp/beam8/cache"
    assert inference_dir_of(configs, "metrics") == "./exp/beam8"


def test_a_training_of_the_same_name_holds_the_results(write, inference):
    training = write("conf/train/beam8.yaml", "seed: 1\n")
    configs = load_configs({"training": [training], "inference": [inference]})
    assert inference_dir_of(configs) == inference_dir_of(configs, "training") == "./exp/beam8"
    # That of a training which is named otherwise is below it, as is what metrics alone would read.
    metrics = write("conf/score/beam8.yaml", "metrics: []\n")
    other = write("conf/decode.yaml", "input_key: speech\n")
    files = {"training": [training], "inference": [other], "metrics": [metrics]}
    assert inference_dir_of(load_configs(files), "metrics") == "./exp/beam8/decode"


@pytest.mark.parametrize(
    "what", ["test_clean/hyp.scp", "test_clean/manifest.json", "sweep/a/b", "metrics.json"]
)
def test_results_in_the_default_folder_of_before_are_found(
    recipe, inference, metrics, caplog, what
):
    caplog.set_level(logging.INFO)
    (recipe / OLD / what).parent.mkdir(parents=True)
    (recipe / OLD / what).touch()
    for _ in range(2):
        configs = load_configs({"inference": [inference], "metrics": [metrics]})
        assert inference_dir_of(configs) == inference_dir_of(configs, "metrics") == f"./{OLD}"
    (line,) = caplog.messages
    assert line == (
        f"inference_dir is {OLD}, which has results of an earlier version; without them it is "
        "exp/beam8"
    )


def test_where_both_default_folders_have_results_the_other_one_is_named(recipe, inference, caplog):
    results(recipe, OLD)
    results(recipe, "exp/beam8")
    assert inference_dir_of(load_configs({"inference": [inference]})) == "./exp/beam8"
    assert caplog.messages[-1].endswith(f"For those: inference_dir={OLD}")


def test_a_test_set_called_like_the_config_is_no_folder_of_results(recipe, inference):
    results(recipe, "exp")  # not ours
    (recipe / "exp/beam8/beam8/split.0.part-x").mkdir(parents=True)
    (recipe / "exp/beam8/beam8/split.0.part-x/hyp.scp").touch()
    (recipe / "exp/beam8/beam8/manifest.json").touch()
    assert inference_dir_of(load_configs({"inference": [inference]})) == "./exp/beam8"


@pytest.mark.parametrize("kind", ["inference", "training"])
def test_a_config_given_in_python_has_no_doubled_folder_either(kind):
    found = complete_all({kind: load_config({"seed": 1})})[kind]
    assert context_value(found, "inference_dir") == f"./exp/{kind}"


def test_a_name_set_in_python_holds_for_the_later_configs():
    given = {"training": load_config({"exp_tag": "inference"}), "inference": load_config({})}
    found = complete_all(given)["inference"]
    assert context_value(found, "inference_dir") == "./exp/inference/inference"

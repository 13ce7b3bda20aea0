from pathlib import Path
from typing import Any

import pytest

from espnet3.config.advice import check_block, check_top_level_keys
from espnet3.config.load import LoadedConfig, load_config
from espnet3.errors import ConfigError

KNOWN = (
    "dataset",
    "model",
    "parallel",
    "trainer",
    "input_key",
    "output_keys",
    "batch_size",
    "exp_dir",
)
HOMES = {
    "n_workers": "parallel",
    "env": "parallel",
    "devices": "trainer",
    "on_error": "runner",
    "model_registry": "trainer",
    "num_workers": "dataloader.train",
}


@pytest.fixture
def conf(tmp_path):
    path = tmp_path / 'it\'s a "conf".yaml'

    def load(text: str, *overrides: str, **more: Any) -> tuple[LoadedConfig, Path]:
        path.write_text(text)
        return load_config(path, overrides, **more), path

    return load


def problem(loaded: LoadedConfig, block: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        check_block(loaded, block, HOMES) if block else check_top_level_keys(
            loaded, KNOWN, homes=HOMES
        )
    return str(caught.value)


# What is accepted


@pytest.mark.parametrize(
    "text",
    [
        "model: {}\nparallel: {n_workers: 4}\n",
        "lm_path: lm.pt\nbeam: 3\n3: x\n",
        "dataset_name: x\nmodel_path: y\n",
        "",
    ],
)
def test_known_keys_and_those_of_the_user_are_allowed(conf, text):
    check_top_level_keys(conf(text)[0], KNOWN, homes=HOMES)


@pytest.mark.parametrize(
    "reference",
    [
        "${models}",
        "a/${models.0}",
        "${models[0]}",
        "${.models}",
        "${oc.select:models}",
        "${ models }",
    ],
)
def test_a_close_key_that_something_refers_to_is_the_users_own(conf, reference):
    loaded, _ = conf(f"models: [a]\nx: [{{y: '{reference}'}}]\n")
    check_top_level_keys(loaded, KNOWN, homes=HOMES)


def test_a_key_of_a_block_may_be_a_variable_that_the_block_refers_to(conf):
    loaded, _ = conf("n_workers: 4\nparallel: {n_workers: '${n_workers}'}\n")
    check_top_level_keys(loaded, KNOWN, homes=HOMES)


# Misspelt keys


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("datasett: {test: [a]}", "dataset: ..."),
        ("modle: x", "model: x"),
        ("parallels: {n_workers: 4}", "parallel: {n_workers: 4}"),
        ("input_keys: speech", "input_key: speech"),
        ("output_key: [hyp]", "output_keys: [hyp]"),
        ("batchsize: 4", "batch_size: 4"),
        ("exp_dri: ${model}/x", "exp_dir: ${model}/x"),
    ],
)
def test_a_misspelt_key_names_its_line_and_the_line_to_write(conf, line, right):
    loaded, path = conf(f"\n{line}\n")
    wrong, name = line.partition(":")[0], right.partition(":")[0]
    assert problem(loaded) == (
        f"{wrong} in {path}:2 is not a known key. Did you mean {name!r}? Write: {right}"
    )


def test_a_misspelt_override_is_named_as_it_was_typed(conf):
    loaded, _ = conf("", "batch_sise=4")
    assert problem(loaded).startswith("batch_sise in command line: batch_sise=4 is not a known key")


def test_a_long_or_nested_value_is_left_out(conf):
    assert problem(conf(f"modle: {'x' * 200}\n")[0]).endswith("Write: model: ...")
    assert problem(conf("modle: {a: {b: {c: [1, {d: 2}]}}}\n")[0]).endswith("Write: model: ...")


# Keys of another block


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("n_workers: 4", "parallel: {n_workers: 4}"),
        ("env: local_gpu", "parallel: {env: local_gpu}"),
        ("devices: [0, 1]", "trainer: {devices: [0, 1], accelerator: gpu}"),
        ("on_error: skip", "runner: {on_error: skip}"),
        ("num_workers: 2", "dataloader: {train: {num_workers: 2}}"),
        (f"model_registry: {'x' * 200}", "trainer: {model_registry: ...}"),
    ],
)
def test_a_key_of_a_block_at_the_top_says_where_it_belongs(conf, line, right):
    loaded, path = conf(f"a: 1\n\n{line}\n")
    key = line.partition(":")[0]
    assert problem(loaded) == f"{key} in {path}:3 belongs under {HOMES[key]}. Write: {right}"


@pytest.mark.parametrize(
    ("text", "block", "right"),
    [
        ("trainer:\n  n_workers: 4\n", "trainer", "parallel: {n_workers: 4}"),
        ("parallel:\n  devices: 2\n", "parallel", "trainer: {devices: 2}"),
    ],
)
def test_a_key_in_the_wrong_block_says_where_it_belongs(conf, text, block, right):
    loaded, path = conf(text)
    key, home = f"{block}.{text.split()[1][:-1]}", right.partition(":")[0]
    assert problem(loaded, block) == f"{key} in {path}:2 belongs under {home}. Write: {right}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "parallel: null\n",
        "parallel: 3\n",
        "parallel: {n_workers: 4, x: 1}\n",
        "parallel: ${no}\n",
    ],
)
def test_a_block_with_its_own_keys_is_allowed(conf, text):
    check_block(conf(text)[0], "parallel", HOMES)


def test_a_block_that_is_taken_from_elsewhere_is_checked(conf):
    loaded, path = conf("cluster: {devices: 2}\nparallel: ${cluster}\n")
    assert problem(loaded, "parallel").startswith(f"parallel.devices in {path}:2 belongs under")


def test_a_secret_is_not_shown(conf):
    assert "hf_1" not in problem(conf("modle: {token: hf_1}\n")[0])


def test_several_problems_are_listed_one_line_each(conf):
    message = problem(conf("modle: x\nn_workers: 2\n")[0])
    assert message.startswith("2 problems:\n- modle in ")
    assert message.endswith("Write: parallel: {n_workers: 2}")

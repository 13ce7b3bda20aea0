"""The snippets of the guides run on what `load_config` returns."""

import copy
import pickle

import pytest

from espnet3.config.load import load_config
from espnet3.parallel import BaseRunner, get_parallel_config, set_parallel, use_parallel
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.runner.inference_provider import InferenceProvider

CONFIG = """
parallel: {env: local, n_workers: 3}
parallel_gpu: {env: local, n_workers: 2}
dataset: {words: [speech, is, silver]}
model: {device: cpu, tag: "${tag}"}
tag: big
files: a key of the user's own
"""


@pytest.fixture
def cfg(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    return load_config(tmp_path / "config.yaml")


@pytest.fixture(autouse=True)
def _default_parallel():
    yield
    set_parallel(None)


class DecodeProvider(InferenceProvider):
    @staticmethod
    def build_dataset(cfg):
        return list(cfg.dataset.words)

    @staticmethod
    def build_model(cfg):
        return f"{cfg.model.tag} on {cfg.model.device}"


class DecodeRunner(BaseRunner):
    @staticmethod
    def forward(idx, *, dataset, model, beam_size=5):
        return f"{dataset[idx]} {model} {beam_size}"


@pytest.mark.parametrize("block", ["parallel", "config.parallel", "['parallel']", "whole"])
def test_set_parallel_takes_all_that_one_would_write(cfg, block):
    blocks = {
        "parallel": lambda: cfg.parallel,
        "config.parallel": lambda: cfg.config.parallel,
        "['parallel']": lambda: cfg["parallel"],
        "whole": lambda: cfg,
    }
    set_parallel(blocks[block]())
    assert get_parallel_config().n_workers == 3
    set_parallel(cfg.parallel_gpu)
    assert get_parallel_config().n_workers == 2


def test_the_runner_of_the_guide_runs(cfg):
    provider = DecodeProvider(cfg, params={"beam_size": 8})
    with use_parallel(cfg.parallel_gpu):
        results = DecodeRunner(provider)(range(3))
    assert results == [f"{word} big on cpu 8" for word in ("speech", "is", "silver")]


def test_a_provider_holds_values_only(cfg):
    class Words(EnvironmentProvider):
        def build_env_local(self):
            return dict(self.config.dataset)

        def build_worker_setup_fn(self):
            return self.build_env_local

    assert Words(cfg).build_env_local()["words"][0] == "speech"
    assert not hasattr(Words(cfg).config, "sources")


def test_attributes_of_its_own_are_not_shadowed(cfg):
    assert cfg.files[0].endswith("config.yaml")
    assert cfg["files"] == "a key of the user's own"
    assert cfg.model.tag == "big"
    assert "parallel" in cfg
    assert "trainer" not in cfg
    assert set(cfg) == set(cfg.keys()) == set(cfg.config)
    assert cfg.get("trainer") is None


def test_a_key_that_is_not_there_is_named_with_the_closest(cfg):
    with pytest.raises(
        AttributeError, match=r"no key 'parallel_gpus'. Did you mean 'parallel_gpu'\?"
    ):
        _ = cfg.parallel_gpus
    assert not hasattr(cfg, "trainer")


def test_it_can_still_be_copied_and_sent(cfg):
    assert pickle.loads(pickle.dumps(cfg)).parallel.n_workers == 3
    assert copy.deepcopy(cfg).parallel.n_workers == 3

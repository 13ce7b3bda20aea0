"""Providers as "Inference at scale" prints them, through stage 6 of the shipped recipes."""

import re

import pytest

from espnet3.errors import ProviderError
from espnet3.systems.base.inference_provider import InferenceProvider
from tests.helpers.exhaustive import few
from tests.helpers.recognizer_parts import WEIGHTS, make_experiment
from tests.helpers.shipped_recipes import DECODING, HERE, INFER, ShippedRecipe
from tests.helpers.snippets import FILTERED, SNIPPETS, read_snippet

TARGET = (SNIPPETS / "provider.yaml.txt").read_text()
ENVIRONMENT = """
from espnet3.parallel.env_provider import EnvironmentProvider
from src.guide import Model


class Provider(EnvironmentProvider):
    def build_env_local(self):
        rows = [{"utt_id": f"u{i}", "speech": (0.0,) * (i + 1), "text": "a"} for i in range(3)]
        return {"dataset": rows, "model": Model("cpu")}

    def build_worker_setup_fn(self):
        return self.build_env_local


class WithParams(Provider):
    def __init__(self, config, params=None):
        super().__init__(config)
        self.params = params

    def build_env_local(self):
        return {**super().build_env_local(), **self.params}


class ByKeyword(Provider):
    def __init__(self, *, inference_config):
        super().__init__(inference_config)


class NoSetup(EnvironmentProvider):
    def build_env_local(self):
        return {}


class NoModel(Provider):
    def build_env_local(self):
        return {"dataset": super().build_env_local()["dataset"]}


class NoDataset(Provider):
    def build_env_local(self):
        return {"model": super().build_env_local()["model"]}


class NoDict(Provider):
    def build_env_local(self):
        return list(super().build_env_local().values())


class NoConfig:
    def build_env_local(self): ...

    def build_worker_setup_fn(self): ...
"""
OWN = """
from espnet3.systems.base.inference_provider import InferenceProvider


class ByName(InferenceProvider):
    def __init__(self, inference_config, params=None):
        super().__init__(inference_config=inference_config, params=params)

    @staticmethod
    def build_dataset(config):
        entry = config.dataset.test[0]
        text = entry.get("folder", config.test_set)
        return [{"utt_id": f"{text}1", "speech": (0.0,), "text": "a"}]
"""


@pytest.fixture
def template(tmp_path):
    return ShippedRecipe("TEMPLATE/asr", tmp_path / "my asr")


@pytest.mark.parametrize("name", few(DECODING, 3))
def test_the_printed_dataset_provider_runs_in_every_recipe(name, tmp_path, caplog):
    recipe = ShippedRecipe(name, tmp_path / "my asr")
    recipe.add("src/inference.py", read_snippet("custom_dataset_provider") + FILTERED)
    recipe.add("conf/inference.yaml", f"\n{TARGET}" if "moonshine" not in name else "")
    target = "provider._target_=src.inference.MyInferenceProvider"
    recipe.infer(*([target] if "moonshine" in name else []))
    assert list(recipe.hyps()) == ["1-2-1"]  # the other one is too short
    # What the printed class leaves open: FilteredDataset tells no durations.
    has_batch_seconds = "batch_seconds" in (recipe.folder / "conf/inference.yaml").read_text()
    assert ("does not know its durations" in caplog.text) == (
        has_batch_seconds or "librispeech" in name
    )


@pytest.mark.parametrize("name", few(DECODING, 3))
def test_the_printed_model_provider_runs_in_every_recipe(name, tmp_path):
    recipe = ShippedRecipe(name, tmp_path / "my asr")
    imports = "".join(read_snippet("custom_dataset_provider").splitlines(keepends=True)[:2])
    recipe.add("src/inference.py", f"{imports}\n\n{read_snippet('custom_model_provider')}")
    recipe.add("lm.txt", "!")
    recipe.add("conf/inference.yaml", "\nlm_path: lm.txt\n")
    recipe.infer("provider._target_=src.inference.MyInferenceProvider")
    assert {text[-9:] for text in recipe.hyps().values()} == {" samples!"}


LANGUAGE_MODEL = {
    "_target_": "espnet3.systems.asr.language_model.LanguageModel",
    "tokenizer": "./data/tokenizer",
    "kind": "lstm",
    "hidden": 8,
}


def test_the_printed_model_provider_runs_with_our_recogniser(tmp_path, capfd):
    recipe = ShippedRecipe("digits/asr", tmp_path / "my asr")
    make_experiment(recipe.folder)
    lm = make_experiment(recipe.folder, LANGUAGE_MODEL, "lm") / WEIGHTS
    imports = "".join(read_snippet("custom_dataset_provider").splitlines(keepends=True)[:2])
    recipe.add("src/inference.py", f"{imports}\n\n{read_snippet('custom_model_provider')}")
    recipe.add("conf/inference.yaml", f"\n{TARGET}\nlm_path: {lm.relative_to(recipe.folder)}\n")
    words = (*INFER, HERE[0], "exp_tag=training")
    recipe.run_here(recipe.system, *words, code=1)
    line = re.search(r"Write: '(model\.decoder=.*)'", capfd.readouterr().err)[1]
    recipe.run_here(recipe.system, *words, line)
    assert len(recipe.hyps(tag="training")) == 2


def test_what_is_filled_in_for_providers_is_no_part_of_the_fingerprint(template):
    """So runs that were planned before it was filled in go on."""
    template.infer()
    manifest = template.folder / "exp/inference/clean/manifest.json"
    before = manifest.read_text()
    assert '"config.dataset.test.0.name"' in before
    assert "config.dataset._target_" not in before
    assert "config.dataset.recipe_dir" not in before
    template.infer()
    assert manifest.read_text() == before


@pytest.mark.parametrize("provider", ["Provider", "ByKeyword"])
def test_an_environment_provider_serves(template, provider):
    template.add("src/own.py", ENVIRONMENT)
    template.infer(f"provider._target_=src.own.{provider}", "batch_seconds=null")
    assert template.hyps() == {f"u{i}": f"{i + 1} samples" for i in range(3)}


def test_an_environment_provider_may_take_params(template):
    template.add("src/own.py", ENVIRONMENT)
    own = "provider={_target_: src.own.WithParams, params: {beam_size: 8}}"
    template.infer(own, "batch_seconds=null")
    assert len(template.hyps()) == 3


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ("{_target_: src.own.NoSetup}", "def build_worker_setup_fn(self): return self.build_env"),
        ("{_target_: src.own.NoModel}", "'model'"),
        ("{_target_: src.own.NoDataset}", '{"dataset": dataset, "model": model}'),
        ("{_target_: src.own.NoDict}", "must return a dict"),
        ("{_target_: src.own.NoConfig}", "def __init__(self, config)"),
        ("{_target_: src.own.Nothing}", "has no 'Nothing'"),
        ("{_target_: src.own.Provider, params: {a: 1}}", "def __init__(self, config, params=None)"),
        ("{_target_: src.own.ByKeyword, inference_config: 3}", "params: {beam_size: 8}"),
        ("{_target_: src.guide.Model}", "def build_env_local(self): return"),
    ],
)
def test_what_a_provider_lacks_is_told_before_anything_starts(template, capfd, provider, message):
    template.add("src/own.py", ENVIRONMENT)
    template.infer(f"provider={provider}", "batch_seconds=null", code=1)
    assert message in capfd.readouterr().err
    assert not list(template.folder.glob("exp/**/manifest.json"))


NAMES = "dataset.test=[{name: a}, {name: b}]"


def test_names_alone_are_enough_for_a_provider_of_ones_own(template):
    template.add("src/own.py", OWN)
    template.infer("provider._target_=src.own.ByName", "batch_seconds=null", NAMES)
    assert template.hyps("a") == {"a1": "1 samples"}
    assert template.hyps("b") == {"b1": "1 samples"}


def test_keys_of_an_entry_are_read_by_a_provider_of_ones_own(template):
    template.add("src/own.py", OWN)
    own = "dataset.test=[{name: a, folder: x}]"
    template.infer("provider._target_=src.own.ByName", "batch_seconds=null", own)
    assert template.hyps("a") == {"x1": "1 samples"}


def test_names_alone_are_enough_for_an_environment_provider(template):
    template.add("src/own.py", ENVIRONMENT)
    template.infer("provider._target_=src.own.Provider", "batch_seconds=null", NAMES)
    assert len(template.hyps("b")) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([NAMES], "dataset.test.0.data_src_args does not fit"),
        (
            ["provider._target_=src.own.ByName", "dataset.test=[{name: a, data_scr: kaldi}]"],
            "data_src",
        ),
        (["provider._target_=src.own.ByName", "dataset.test=[{name: a}, {name: a}]"], "name"),
        (["provider._target_=src.own.ByName", "dataset.test=[{folder: a}]"], "name"),
        (
            ["provider._target_=src.own.ByName", "dataset.test=[{name: a, data_src: kaldy}]"],
            "'kaldi'",
        ),
    ],
)
def test_entries_that_are_wrong_are_still_refused(template, capfd, words, message):
    template.add("src/own.py", OWN)
    template.infer(*words, code=1)
    assert message in capfd.readouterr().err
    assert not list(template.folder.glob("exp/**/manifest.json"))


def test_the_config_has_the_name_that_others_know_as_well():
    config = {"test_set": "a"}
    assert InferenceProvider(inference_config=config, params={"beam": 1}).config is config
    assert InferenceProvider(config=config).config is config
    assert InferenceProvider(config, {"beam": 1}).params == {"beam": 1}
    with pytest.raises(ProviderError, match="both config and inference_config"):
        InferenceProvider(config, inference_config=config)
    with pytest.raises(ProviderError, match=r"Write: InferenceProvider\(config"):
        InferenceProvider()

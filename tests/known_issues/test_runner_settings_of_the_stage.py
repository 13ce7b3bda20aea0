"""`runner: {batch_size: 8}` passed the checks and was overwritten; so were its relatives.

What stands in the block `runner` is used, or refused with the line to write: in a shipped recipe,
and with runners of one's own that pass on less than they get.
"""

import json
import logging

import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.io.scp import load_scp
from espnet3.parallel.base_runner import BaseRunner
from espnet3.shards.manifest import load_manifest
from espnet3.systems.base.inference import infer, plan_inference
from espnet3.systems.base.inference_runner import InferenceRunner
from espnet3.systems.base.system import BaseSystem
from tests.helpers.recipe_copy import RecipeCopy

HERE = __name__
PARTS = "tests.helpers.inference_parts"
BASE = f"""
dataset:
  test:
    - {{name: digits, data_src: {PARTS}, data_src_args: {{n: 6}}}}
model: {{_target_: {PARTS}.Speller}}
"""


class Short(InferenceRunner):
    """Takes nothing but its provider."""

    def __init__(self, provider):
        super().__init__(provider)


class Swallows(InferenceRunner):
    """Takes all, and passes nothing on."""

    def __init__(self, provider, **settings):
        super().__init__(provider)


class Fixed(InferenceRunner):
    """Decides on a setting itself."""

    def __init__(self, provider, **settings):
        super().__init__(provider, output_keys=["hyp"], **settings)


class FixedAlone(InferenceRunner):
    def __init__(self, provider):
        super().__init__(provider, output_keys=["hyp"])


class Beam(InferenceRunner):
    def __init__(self, provider, beam, **settings):
        super().__init__(provider, **settings)


class Halves(InferenceRunner):
    """Makes something else of a setting on purpose."""

    def __init__(self, provider, batch_size=None, **settings):
        super().__init__(provider, batch_size=batch_size // 2, **settings)


class Plain(BaseRunner):
    @staticmethod
    def forward(idx, dataset):
        return dataset[idx]["text"]


class AsksForKeys(Plain):
    def __init__(self, provider, output_keys=None, **settings):
        super().__init__(provider, **settings)
        self.keys = output_keys


@pytest.fixture
def load(tmp_path):
    """Return a function that loads a small inference config with overrides."""
    file = tmp_path / "inference.yaml"

    def make(*overrides, more=""):
        file.write_text(BASE + more)
        return load_config(file, overrides, below={"inference_dir": str(tmp_path / "out")})

    return make


def runner_of(loaded):
    return plan_inference(loaded)[0].runner


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    recipe = RecipeCopy("TEMPLATE/asr", tmp_path_factory.mktemp("runner") / "egs3" / "a b" / "asr")
    small = ("--inference_config", "conf/inference.yaml", "create_dataset.n_utterances=4")
    recipe.run_here(BaseSystem, "--stages", "create_dataset", *small)
    return recipe


def test_batch_size_of_the_runner_is_used_in_a_shipped_recipe(template):
    words = ("--stage", "6", "--config", "conf/inference.yaml", "test_set=clean", "exp_tag=batches")
    template.run_here(BaseSystem, *words, "batch_seconds=null", "runner.batch_size=3")
    folder = template.folder / "exp" / "batches" / "inference" / "clean"
    assert load_manifest(folder).batch_size == 3
    assert len(load_scp(folder / "hyp.scp")) == 4


def test_two_values_are_refused_with_both_places_in_a_shipped_recipe(template, capsys):
    words = ("--stage", "6", "--config", "conf/inference.yaml", "test_set=clean", "exp_tag=twice")
    template.run_here(BaseSystem, *words, "runner.batch_seconds=3", code=1)
    told = capsys.readouterr().err
    assert "runner.batch_seconds is 3 (set in command line: runner.batch_seconds=3)" in told
    assert "batch_seconds is 10 (set in conf/inference.yaml:" in told
    assert told.rstrip().endswith("Write: batch_seconds=3")
    assert not (template.folder / "exp" / "twice").exists()


@pytest.mark.parametrize("name", ["InferenceRunner", "Plain", "Short", "Swallows"])
def test_batches_of_the_block_reach_any_runner(load, name):
    target = (
        f"{HERE}.{name}"
        if name != "InferenceRunner"
        else ("espnet3.systems.base.inference_runner.InferenceRunner")
    )
    block = f"runner: {{_target_: {target}, batch_size: 2, batch_seconds: 4}}\n"
    runner = runner_of(load(more=block))
    assert (runner.batch_size, runner.batch_seconds) == (2, 4)


def test_equal_values_in_both_places_are_no_problem(load):
    loaded = load(
        more="runner: {batch_size: 2, output_keys: hyp}\nbatch_size: 2\noutput_keys: [hyp]\n"
    )
    runner = runner_of(loaded)
    assert runner.batch_size == 2
    assert runner.outputs.output_keys == ("hyp",)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("batch_size: 0", r"runner\.batch_size is 0 .*\(set in .*inference\.yaml:6\)"),
        ("output_dir: my", r"runner\.output_dir is 'my' .*Write at the top: inference_dir: my"),
        ("provider: {a: 1}", r"runner\.provider is .*block of its own: provider:"),
        ("foo: 1", r"runner\.foo .*is no argument(?!.*output_dir).*It takes: .*on_error"),
        ("resume: 'no'", r"runner\.resume is 'no' .*Write: resume: true, or resume: false"),
        ("output_keys: 'hyp, ref'", r"Write: output_keys: \[hyp, ref\]"),
        ("hyp_key: x, ref_key: x", r"ref_key and hyp_key are both 'x'.*Write: ref_key: ref"),
        ("output_keys: []", r"output_keys is \[\].*Write: output_keys: \[hyp\]"),
        (f"_target_: {HERE}.Short, resume: true", r"runner\.resume .*\(provider, \*\*settings\)"),
        (f"_target_: {HERE}.Short, foo: true", r"runner\.foo .*is no argument"),
        (f"_target_: {HERE}.Beam", r"missing .*'beam'.*Write in the block runner: beam: VALUE"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(load, block, message):
    with pytest.raises(ConfigError, match=message):
        plan_inference(load(more=f"runner: {{{block}}}\n"))


@pytest.mark.parametrize("name", ["Short", "Swallows"])
def test_settings_that_a_subclass_does_not_pass_on_are_used_all_the_same(load, name, tmp_path):
    loaded = load(
        more=f"runner: {{_target_: {HERE}.{name}}}\noutput_keys: [hyp, speaker]\nresults: jsonl\n"
    )
    files = infer(loaded)["digits"]
    assert sorted(files) == ["hyp", "results", "speaker"]
    assert files["hyp"].parent == tmp_path / "out" / "digits"


def test_a_setting_of_the_block_that_is_swallowed_is_used(load):
    runner = runner_of(
        load(more=f"runner: {{_target_: {HERE}.Swallows, on_error: skip, accept_changes: code}}\n")
    )
    assert runner.on_error == "skip"
    assert runner.accept_changes == ("code",)


@pytest.mark.parametrize("name", ["Fixed", "FixedAlone"])
def test_what_a_subclass_sets_itself_stays_or_is_refused(load, name):
    block = f"runner: {{_target_: {HERE}.{name}}}\n"
    assert runner_of(load(more=block)).outputs.output_keys == ("hyp",)
    with pytest.raises(ConfigError, match=r"output_keys.*(Delete output_keys)"):
        plan_inference(load(more=f"{block}output_keys: [ref]\n"))


def test_what_a_subclass_makes_of_a_setting_stays(load):
    assert (
        runner_of(load(more=f"runner: {{_target_: {HERE}.Halves, batch_size: 8}}\n")).batch_size
        == 4
    )


def test_keys_for_fields_mean_nothing_to_a_runner_that_writes_none(load, caplog):
    block = f"runner: {{_target_: {HERE}.Plain}}\n"
    with caplog.at_level(logging.WARNING):
        plan_inference(load(more=f"{block}output_keys: [hyp]\n"))
    assert "inference.yaml:7) has no effect: Plain is no InferenceRunner" in caplog.text
    with pytest.raises(ConfigError, match=r"hyp_key \(set in command line.* has no effect"):
        plan_inference(load("hyp_key=text", more=block))


def test_params_that_no_hook_takes_are_told(load, caplog):
    block = f"runner: {{_target_: {HERE}.Plain}}\n"
    with caplog.at_level(logging.WARNING):
        plan_inference(load(more=f"{block}provider: {{params: {{beam: 3}}}}\n"))
    assert "provider.params.beam (set in" in caplog.text
    assert "Write: def forward(idx, dataset, beam=None)" in caplog.text
    with pytest.raises(ConfigError, match=r"params\.datasets .*Did you mean 'dataset'\?"):
        plan_inference(load("provider.params={datasets: 3}", more=block))


def test_a_runner_of_ones_own_gets_the_keys_that_it_asks_for(load, caplog):
    loaded = load(more=f"runner: {{_target_: {HERE}.AsksForKeys}}\noutput_keys: [hyp]\n")
    assert runner_of(loaded).keys == ["hyp"]
    assert "no effect" not in caplog.text


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("speech: 1", r"provider\.params\.speech .*is an input of the model"),
        ("idx: 1", r"provider\.params\.idx .*runner itself gives to forward"),
        ("outputs: 1", r"provider\.params\.outputs .*runner itself"),
    ],
)
def test_params_that_something_else_has_already_are_refused(load, params, message):
    with pytest.raises(ConfigError, match=message):
        plan_inference(load(more=f"provider: {{params: {{{params}}}}}\n"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("type: npy, sample_rate: 8000", r"sample_rate, which only type: wav uses.*: type: npy"),
        ("type: json, suffix: .js", r"suffix, which only a writer uses.*Write: type: json"),
    ],
)  # fmt: skip
def test_options_of_artifacts_that_nothing_reads_are_refused(load, options, message):
    with pytest.raises(ConfigError, match=message):
        plan_inference(load(more=f"output_artifacts: {{hyp: {{{options}}}}}\n"))


def test_the_type_of_an_artifact_may_stand_alone(load, tmp_path):
    files = infer(load(more="output_artifacts: {hyp: text}\n"))["digits"]
    path = load_scp(files["hyp"])["utt1"]
    assert (tmp_path / "out" / "digits" / path).read_text() == "one"


@pytest.mark.parametrize("test_set", ["[]", "''"])
def test_a_choice_of_no_test_set_is_refused(load, test_set):
    with pytest.raises(ConfigError, match=r"test_set is .*Delete it to take all of them"):
        plan_inference(load(more=f"test_set: {test_set}\n"))


def test_the_results_of_the_version_before_are_still_taken(load, tmp_path, caplog):
    """Neither spelling changes what the fingerprint says of the settings."""
    infer(load(more="batch_size: 2\noutput_keys: [hyp]\n"))
    manifest = json.loads((tmp_path / "out" / "digits" / "manifest.json").read_text())
    outputs = [key for key in manifest["fingerprint"] if key.startswith("outputs.")]
    assert not [key for key in outputs if "needs" in key]
    with caplog.at_level(logging.INFO):
        infer(load(more="runner: {batch_size: 2, output_keys: hyp}\n"))
    assert "is complete already" in caplog.text

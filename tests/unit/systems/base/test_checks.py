import sys

import pytest

from espnet3.errors import ConfigError
from espnet3.systems.base.checks import check_stages, check_targets
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.stages import find_stage, stage, stages_of
from espnet3.systems.base.system import BaseSystem


class Plain(BaseSystem):
    """Its stages have no checks of their own."""

    def train(self): ...

    def infer(self): ...

    @stage(config="inference", after="infer")
    def rescore(self): ...


def check(write, text, *names, system=Plain):
    config = write("conf/it's.yaml", text)
    configs = load_configs({"training": [config], "inference": [config]})
    stages = [find_stage(stages_of(system), name) for name in names or ["infer"]]
    check_stages(system(**vars(configs)), stages)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n_workers: 4", "n_workers in conf/it's.yaml:1 belongs under parallel. Write: parallel: "),
        ("on_error: skip", "on_error in conf/it's.yaml:1 belongs under runner. Write: runner: {o"),
        (
            "devices: 2",
            "devices in conf/it's.yaml:1 belongs under parallel, where it is called n_workers. "
            "Write: parallel: {n_workers: 2, env: local_gpu}",
        ),
        (
            "trainer:\n  n_workers: 4",
            "trainer.n_workers in conf/it's.yaml:2 belongs under parallel. Write: parallel: {n_wo",
        ),
        (
            "parallel:\n  devices: 2",
            "parallel.devices in conf/it's.yaml:2 is called n_workers. Write: parallel: "
            "{n_workers: 2, env: local_gpu}",
        ),
        (
            "runner:\n  env: slurm",
            "runner.env in conf/it's.yaml:2 belongs under parallel. Write: parallel: {env: slurm",
        ),
        (
            "parallle: {}",
            "parallle in conf/it's.yaml:1 is not a known key. Did you mean 'parallel'?",
        ),
        ("batch_sise: 2", "batch_sise in conf/it's.yaml:1 is not a known key. Did you mean 'batch"),
        (
            "parallel:\n  n_workers: four",
            "parallel.n_workers is 'four' (set in conf/it's.yaml:2), but must be a valid integer",
        ),
        ("a:\n  b: ${c.d}", "a.b (set in conf/it's.yaml:2) cannot be resolved: Interpolation key"),
        (
            "model: {_target_: fractions.Fracton}",
            "model._target_ is 'fractions.Fracton' (set in conf/it's.yaml:1), but 'fractions' has "
            "no 'Fracton'. Did you mean 'Fraction'?",
        ),
        (
            "dataset: {test: [{x: {_target_: no_such.Thing}}]}",
            "dataset.test.0.x._target_ is 'no_such.Thing' (set in conf/it's.yaml:1), but there is "
            "no module 'no_such'.",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_what_to_write(write, text, message):
    with pytest.raises(ConfigError) as caught:
        check(write, text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_keys_of_the_recipe_itself_are_allowed(write):
    check(write, "lm_path: lm.pt\nbeam: 4\nname: ${beam}\nbatch_size: 3\nseed: 1\n")
    with pytest.raises(ConfigError, match="batch_sise"):
        check(write, "lm_path: lm.pt\nbatch_sise: 3\n")


def test_targets_of_other_stages_are_left_alone(write):
    text = "tokenizer: {_target_: no_such.Tokenizer}\n"
    check(write, text, "infer")
    with pytest.raises(ConfigError, match="no_such"):
        check(write, text, "train")
    with pytest.raises(ConfigError, match="no_such"):
        check(write, text, "rescore")


def test_a_module_that_fails_to_import_is_named_with_its_error(recipe, write, monkeypatch):
    write("broken_module_of_a_test.py", "import nothing_of_this_name\n")
    monkeypatch.syspath_prepend(recipe)
    config = write("conf/a.yaml", "model: {_target_: broken_module_of_a_test.Model}\n")
    loaded = load_configs({"inference": [config]}).inference
    with pytest.raises(ConfigError) as caught:
        check_targets(loaded, None)
    assert str(caught.value) == (
        "model._target_ is 'broken_module_of_a_test.Model' (set in conf/a.yaml:1), but its module "
        "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_this_name'. Mend it, "
        "then see: python -c 'import broken_module_of_a_test'"
    )
    assert "broken_module_of_a_test" not in sys.modules


def test_a_stage_s_own_check_is_asked_before_the_first_stage(write):
    class Checked(Plain):
        def check_rescore(self):
            raise ConfigError(f"lm is {self.inference.config.get('lm')}")

    with pytest.raises(ConfigError, match="lm is x"):
        check(write, "lm: x", "infer", "rescore", system=Checked)
    check(write, "lm: x", "infer", system=Checked)


def test_inference_and_metrics_are_checked_by_those_who_read_them(write):
    with pytest.raises(ConfigError, match=r"model is not set.*Write model:"):
        check(write, "input_key: speech", "infer", system=BaseSystem)
    with pytest.raises(ConfigError, match=r"needs a _target_\. Write: metric:"):
        check(write, "metrics: [{metric: {}}]", "measure", system=BaseSystem)


class Standard(BaseSystem):
    """Has the stages of ESPnet3, with their checks."""


_TRAINING = """
    dataset: {train: [{data_src: jsonl, data_src_args: {path: train.jsonl}}]}
    dataloader: {train: {batch_size: 2}}
    model: {_target_: not_imported.Net, width: 2, part: {_target_: not_imported.Part, depth: 1}}
    optimizer: {_target_: torch.optim.AdamW, lr: 0.1}
    scheduler: {_target_: torch.optim.lr_scheduler.OneCycleLR, max_lr: 0.1}
    trainer: {max_epochs: 1}
"""
_MODULE = """
    class Net:
        def __init__(self, width, part): ...

    class Part:
        def __init__(self, depth): ...

    raise RuntimeError("it was imported")
"""


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (" lr: 0.1}", " lrr: 0.1}", r"optimizer\.lrr.*is no argument of torch\.optim\.AdamW.*'lr'"),
        ("max_lr: 0", "maxlr: 0", r"scheduler\.maxlr.*is no argument of .*OneCycleLR.*'max_lr'"),
        ("depth: 1", "depthh: 1", r"model\.part\.depthh.*is no argument of not_imported\.Part"),
        ("width: 2", "widthh: 2", r"model\.widthh.*is no argument of not_imported\.Net.*'width'"),
        ("max_epochs", "max_epoch", r"trainer\.max_epoch .*is no argument of the trainer"),
    ],
)
def test_a_misspelt_argument_is_told_before_the_model_is_imported(
    write, monkeypatch, right, wrong, message
):
    write("not_imported.py", _MODULE)
    monkeypatch.syspath_prepend(".")
    assert _TRAINING.count(right) == 1

    with pytest.raises(ConfigError, match=message):
        check(write, _TRAINING.replace(right, wrong), "train", system=Standard)
    with pytest.raises(ConfigError, match="it was imported"):  # once all is spelt right
        check(write, _TRAINING, "train", system=Standard)


def test_a_block_that_a_provider_of_ones_own_reads_may_have_other_arguments(write, monkeypatch):
    write("not_imported.py", _MODULE)
    monkeypatch.syspath_prepend(".")
    text = "model: {_target_: not_imported.Net, widthh: 2}"

    with pytest.raises(ConfigError, match="is no argument of not_imported"):
        check(write, text, "infer", system=Standard)
    with pytest.raises(ConfigError, match="it was imported"):
        check(
            write, f"provider: {{_target_: fractions.Fraction}}\n{text}", "infer", system=Standard
        )

import pytest

from espnet3.errors import ConfigError
from espnet3.systems.base.stages import STAGES, find_stage, has_own, stage, stages_of
from espnet3.systems.base.system import BaseSystem


def names(system):
    return [known.name for known in stages_of(system)]


def test_the_base_system_has_the_stages_of_the_design_in_order():
    numbered = {known.number: known.name for known in stages_of(BaseSystem) if known.number}
    assert numbered == {
        1: "create_dataset", 2: "train_tokenizer", 3: "collect_stats", 4: "train", 5: "average",
        6: "infer", 7: "measure", 8: "report", 9: "pack_model", 10: "upload_model",
    }  # fmt: skip
    assert names(BaseSystem)[-2:] == ["pack_demo", "upload_demo"]


def test_the_base_system_itself_defines_what_every_task_has():
    defined = [known.name for known in stages_of(BaseSystem) if known.is_defined]
    assert defined == [
        "create_dataset",
        "collect_stats",
        "train",
        "average",
        "infer",
        "measure",
        "report",
    ]


def test_a_stage_that_a_recipe_wrote_itself_may_read_other_keys_than_ours():
    class Mine(BaseSystem):
        def train(self): ...

    assert find_stage(stages_of(BaseSystem), "train").needs_any
    assert not find_stage(stages_of(Mine), "train").needs_any


def test_a_method_with_the_name_of_a_stage_defines_it_and_keeps_number_and_config():
    class Mine(BaseSystem):
        def train(self): ...

    train = find_stage(stages_of(Mine), "train")
    assert (train.number, train.configs, train.is_defined) == (4, ("training",), True)


def test_added_stages_stand_after_or_before_another_in_the_order_of_writing():
    class Mine(BaseSystem):
        @stage(config="inference", after="infer")
        def rescore(self):
            """Rescore with a language model.

            And more.
            """

        @stage(config="inference", after="infer", help="Join n-best lists")
        def combine(self): ...

        @stage(config="training", before="train")
        def prune(self): ...

        @stage(config="inference", after="rescore")
        def look(self): ...

    assert names(Mine)[3:11] == [
        "prune", "train", "average", "infer", "rescore", "look", "combine", "measure",
    ]  # fmt: skip
    rescore = find_stage(stages_of(Mine), "rescore")
    assert rescore.help == "Rescore with a language model"
    assert rescore.configs == ("inference",)
    assert rescore.is_defined
    assert str(rescore) == "rescore"


def test_an_added_stage_may_be_overridden_by_a_plain_method():
    class Mine(BaseSystem):
        @stage(config="inference", after="infer")
        def rescore(self):
            return "mine"

    class Yours(Mine):
        def rescore(self):
            return "yours"

    assert names(Yours) == names(Mine)
    assert Yours().rescore() == "yours"


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ({"config": "inference"}, 'after="infer"'),
        ({"config": "inference", "after": "infer", "before": "measure"}, "either"),
        ({"config": "inference", "after": "inferr"}, "Did you mean 'infer'?"),
        ({"config": "infrence", "after": "infer"}, "Did you mean 'inference'?"),
    ],
)
def test_a_stage_without_a_place_or_config_is_refused_with_what_to_write(arguments, fix):
    class Mine(BaseSystem):
        @stage(**arguments)
        def rescore(self): ...

    with pytest.raises(ConfigError, match="Stage 'rescore' of Mine") as caught:
        stages_of(Mine)
    assert fix in str(caught.value)


def test_a_known_stage_cannot_be_moved():
    class Mine(BaseSystem):
        @stage(config="training", after="measure")
        def infer(self): ...

    with pytest.raises(ConfigError, match=r"Remove @stage\(...\) above def infer"):
        stages_of(Mine)


def test_what_describes_a_stage_does_not_describe_its_replacement():
    class Replaced(BaseSystem):
        def infer(self): ...

    class Described(Replaced):
        def describe_infer(self): ...

    assert has_own(BaseSystem, "infer", "describe_infer")
    assert not has_own(Replaced, "infer", "describe_infer")
    assert has_own(Described, "infer", "describe_infer")
    assert not has_own(BaseSystem, "pack_model", "describe_pack_model")


def test_every_stage_says_what_it_does():
    assert all(known.help and known.configs for known in STAGES)

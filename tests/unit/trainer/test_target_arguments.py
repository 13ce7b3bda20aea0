import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.config import check_call, check_parts


class Base:
    def __init__(self, size: int) -> None:
        self.size = size


class Passing(Base):
    def __init__(self, name: str, **kwargs: int) -> None:
        super().__init__(len(kwargs))


def node(target: type, **arguments):
    return {"_target_": f"{__name__}.{target.__name__}", **arguments}


def test_what_fits_passes():
    check_call(node(Base, size=3), "a")
    check_call({**node(Base, size=3), "_convert_": "all"}, "a")
    check_call(node(Base), "a", added=["size"])


def test_a_class_with_kwargs_takes_any_whatever_its_base_class_takes():
    check_call(node(Passing, name="a", depth=3), "model")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sise": 3}, "model.sise is no argument of .*Base.* Did you mean 'size'?"),
        ({}, "model does not fit .*missing a required argument: 'size'. Write: size: VALUE"),
    ],
)
def test_what_does_not_fit_is_told(arguments, words):
    with pytest.raises(ConfigError, match=words):
        check_call(node(Base, **arguments), "model")


def test_a_target_that_is_not_there_is_told_with_its_place(tmp_path):
    file = tmp_path / "training.yaml"
    file.write_text("model:\n  _target_: torch.nn.Linaer\n")
    loaded = load_config(file)
    with pytest.raises(ConfigError, match=r"model\._target_ .*training\.yaml:2\), but .*Linear"):
        with loaded.naming_places():
            check_call(loaded.resolved()["model"], "model")


def test_parts_are_checked_too_but_may_lack_what_is_added_later():
    part = node(Passing, name="a", depth=3)
    check_parts({"encoder": node(Base), "others": {"first": part}}, "model")
    with pytest.raises(ConfigError, match=r"model\.others\.first\.sise .*Did you mean 'size'"):
        check_parts({"others": {"first": node(Base, sise=3)}}, "model")
    check_parts({"_recursive_": False, "encoder": node(Base, sise=3)}, "model")

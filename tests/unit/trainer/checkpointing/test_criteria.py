import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.config import Criterion, load_criteria


def parse_criteria(value):
    return load_criteria(load_config({"best_model_criterion": value}))


def test_the_form_of_the_seeds():
    criteria = parse_criteria([["valid/loss", 3, "min"], ["valid/acc", 1, "max"]])
    assert criteria == (Criterion("valid/loss", 3, "min"), Criterion("valid/acc", 1, "max"))
    assert criteria[0].stem == "valid.loss.ave_3best"
    assert parse_criteria(None) == parse_criteria([]) == ()


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ("valid/loss", r"Write: best_model_criterion: \[\[valid/loss, 3, min\]\]"),
        (["valid/loss", 3, "min"], r"Write: best_model_criterion: \[\[valid/loss, 3, min\]\]"),
        ([["valid/loss", 3]], "best_model_criterion.0 is .* needs metric, number and min or max"),
        ([["valid/loss", 0, "min"]], r"Write: \[valid/loss, 3, min\]"),
        ([["valid/loss", True, "min"]], "no number of checkpoints"),
        ([["valid/loss", "3", "min"]], "no number of checkpoints"),
        ([["valid/acc", 2, "maximum"]], r"neither min nor max.* Write: \[valid/acc, 2, max\]"),
        ([[3, "valid/loss", "min"]], "starts with no name of a metric"),
        ([["a", 1, "min"], ["a", 2, "min"]], "names a twice. Keep one entry"),
    ],
)
def test_mistakes_are_told_with_the_line_to_write(value, fix):
    with pytest.raises(ConfigError, match=fix):
        parse_criteria(value)


def test_the_place_is_named(tmp_path):
    file = tmp_path / "training.yaml"
    file.write_text("a: 1\nbest_model_criterion:\n- [valid/loss, 3, mean]\n")
    with pytest.raises(ConfigError, match=r"training.yaml:3"):
        load_criteria(load_config([file]))

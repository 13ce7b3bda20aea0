import pytest

from espnet3.cli.console import UsageError
from espnet3.cli.recipe_options import is_override, list_stages, parse_options
from espnet3.systems.base.stages import KINDS, stages_of
from espnet3.systems.base.system import BaseSystem

STAGES = stages_of(BaseSystem)


def parse(*argv):
    return parse_options(argv, STAGES, prog="python run.py")


def test_overrides_may_stand_anywhere():
    options = parse(
        "a=1", "--stage", "6", "b.c=2", "--config", "x.yaml", "d.0.e=[1, 2]", "y.yaml", "--dry-run",
        "f=", "+g=3",
    )  # fmt: skip
    assert options.overrides == ("a=1", "b.c=2", "d.0.e=[1, 2]", "f=", "+g=3")
    assert options.config == ("x.yaml", "y.yaml")
    assert options.dry_run


@pytest.mark.parametrize("word", ["conf/beam=8.yaml", "--config=a.yaml", "a b=1", "=1", "./x=1"])
def test_a_file_or_an_option_with_an_equals_sign_is_no_override(word):
    assert not is_override(word)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("separator", ["_", "-"])
def test_each_kind_of_config_takes_several_files_and_both_spellings(kind, separator):
    options = parse("--stages", "1", f"--{kind}{separator}config", "a.yaml", "it's b.yaml")
    assert options.configs == {kind: ("a.yaml", "it's b.yaml")}


def test_an_option_that_is_given_twice_adds_up():
    options = parse("--stage", "6", "--stages", "7", "8", "--config", "a", "--config=b")
    assert options.stages == ("6", "7", "8")
    assert options.config == ("a", "b")


@pytest.mark.parametrize("spelling", ["--stop_stage", "--stop-stage"])
def test_the_last_stage_is_read(spelling):
    assert parse("--stage", "4", spelling, "7").stop_stage == "7"


@pytest.mark.parametrize("spelling", ["--dry-run", "--dry_run", "--list-stages", "--list_stages"])
def test_switches_have_both_spellings(spelling):
    options = parse(spelling)
    assert (options.dry_run, options.list_stages) == ("dry" in spelling, "list" in spelling)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--confg", "a"], "There is no option --confg. Did you mean '--config'?"),
        (["--trainin_config=a"], "There is no option --trainin_config. Did you mean '--training_c"),
        (["--con", "a"], "There is no option --con."),
        (["measure"], "'measure' stands alone. To run that stage, write: --stages measure"),
        (["6"], "'6' stands alone. To run that stage, write: --stages 6"),
        (["x.yaml"], "'x.yaml' is neither an option nor an override. Write: --stages STAGE, --con"),
    ],
)
def test_a_stray_word_is_refused_with_what_to_write(argv, message):
    with pytest.raises(UsageError) as caught:
        parse(*argv)
    assert str(caught.value).startswith(message)


def test_every_stage_is_listed_with_its_option():
    lines = list_stages(STAGES).splitlines()
    assert len(lines) == len(STAGES)
    assert (
        lines[5] == "   6  infer            Run the model over the test sets (--inference_config)"
    )
    assert lines[1].endswith("Train the tokenizer (--training_config) - not in this system")

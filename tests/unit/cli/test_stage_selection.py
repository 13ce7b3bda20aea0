import pytest

from espnet3.cli.console import UsageError
from espnet3.cli.recipe_options import explain_numbers, select_stages, spell_stages
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.base.stages import stage, stages_of
from espnet3.systems.base.system import BaseSystem


class Mine(BaseSystem):
    collect_stats = average = None

    def train(self): ...

    @stage(config="inference", after="infer")
    def rescore(self): ...

    def pack_demo(self): ...


STAGES = stages_of(Mine)


def select(*words, stop=None):
    return select_stages(words, STAGES, stop=stop, system="Mine")


def names(*words, stop=None):
    """Return the names of what is selected, those that are skipped in brackets."""
    selected = select(*words, stop=stop)
    return " ".join(f"[{s.stage.name}]" if s.skipped else s.stage.name for s in selected)


ALL = (
    "create_dataset [train_tokenizer] [collect_stats] train [average] infer rescore measure "
    "report [pack_model] [upload_model]"
)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("6", "infer"),
        ("infer", "infer"),
        ("create-dataset", "create_dataset"),
        ("infer measure", "infer measure"),
        ("measure infer 6 infer", "infer measure"),
        ("4-7", "train [average] infer rescore measure"),
        ("train-measure", "train [average] infer rescore measure"),
        ("4-measure", "train [average] infer rescore measure"),
        ("infer-rescore", "infer rescore"),
        ("infer-infer", "infer"),
        ("create-dataset-4", "create_dataset [train_tokenizer] [collect_stats] train"),
        ("create-dataset-train-tokenizer", "create_dataset [train_tokenizer]"),
        ("1 infer-measure", "create_dataset infer rescore measure"),
        ("5-6 4-7 1", "create_dataset train [average] infer rescore measure"),
        ("10-pack_demo", "[upload_model] pack_demo"),
        ("all", ALL),
        ("all pack_demo", f"{ALL} pack_demo"),
    ],
)
def test_words_stand_for_stages_in_the_order_of_the_system_each_once(words, expected):
    assert names(*words.split()) == expected


@pytest.mark.parametrize(("first", "stop"), [("4", "7"), ("train", "measure"), ("4", "measure")])
def test_a_stage_and_a_last_stage_are_a_range(first, stop):
    assert names(first, stop=stop) == names("4-7")


def test_what_is_skipped_says_why():
    reasons = {s.stage.name: s.skipped for s in select("train-infer")}
    assert reasons == {"train": "", "average": "Mine has no average()", "infer": ""}


@pytest.mark.parametrize(
    ("words", "stop", "message"),
    [
        ("average", None, "Mine has no stage 'average' of its own: write def average(self) in"),
        ("all average", None, "Mine has no stage 'average' of its own"),
        ("5", None, "Mine has no stage 'average' of its own"),
        ("measrue", None, "There is no stage 'measrue'. Did you mean 'measure'? Stages: 1 create"),
        ("train-measrue", None, "There is no stage 'measrue'. Did you mean 'measure'?"),
        ("trian-measure", None, "There is no stage 'trian'. Did you mean 'train'?"),
        ("16", None, "There is no stage '16'. Stages: 1 create_dataset, 2 train_tokenizer"),
        ("11", None, "There is no stage '11'. For stage 11 of ESPnet2's asr.sh, write: --stages t"),
        ("4-", None, "There is no stage '4-'. Stages: "),
        ("²", None, "There is no stage '²'. Stages: "),
        ("al", None, "There is no stage 'al'. Did you mean 'all'?"),
        ("4", "12", "There is no stage '12'."),
        ("measure-train", None, "--stages measure-train runs backwards. Put the earlier stage fir"),
        ("7", "4", "--stage 7 --stop_stage 4 runs backwards. Put the earlier stage first."),
        ("", "7", "--stop_stage 7 needs one stage to begin with. Write: --stage 4 --stop_stage 7"),
        ("4 5", "7", "--stop_stage 7 needs one stage to begin with."),
        ("all", "7", "--stop_stage 7 needs one stage to begin with."),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_to_write(words, stop, message):
    with pytest.raises(UsageError) as caught:
        select(*words.split(), stop=stop)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "from_stage", "expected"),
    [
        ("all", "infer", "infer-upload_model"),
        ("infer", "infer", "infer"),
        ("train measure", "train", "train measure"),
        ("1 4-5 7", "train", "train measure"),
    ],
)
def test_what_is_left_is_spelled_so_that_it_selects_the_same(words, from_stage, expected):
    selected = [s.stage for s in select(*words.split())]
    left = selected[[stage.name for stage in selected].index(from_stage) :]
    spelled = spell_stages(left, STAGES)
    assert spelled == expected.split()
    again = [s.stage.name for s in select(*spelled) if not s.skipped]
    assert again == [stage.name for stage in left if stage.is_defined]


@pytest.mark.parametrize(
    ("first", "last", "ours", "theirs"),
    [
        ("3", "5", "collect_stats train average", "train_tokenizer"),
        ("1", "4", "create_dataset train_tokenizer collect_stats train", "create_dataset"),
        ("10", "10", "upload_model", "collect_stats"),
        ("6", "9", "infer measure report pack_model", "train"),
    ],
)
def test_two_numbers_say_which_stages_they_are_here_and_in_espnet2(first, last, ours, theirs):
    told = explain_numbers(first, last, select_stages([first], stages_of(ASRSystem), stop=last))
    assert f"means: --stages {ours}." in told
    assert told.endswith(f"write: --stages {theirs}")


@pytest.mark.parametrize(("first", "last"), [("1", "1"), ("train", "measure"), ("4", "measure")])
def test_names_and_numbers_that_mean_the_same_need_no_words(first, last):
    assert (
        explain_numbers(first, last, select_stages([first], stages_of(ASRSystem), stop=last)) == ""
    )

import sys

import pytest
from hydra.utils import instantiate as hydra_instantiate
from omegaconf import OmegaConf

from espnet3.components.data.data_organizer import DataOrganizer, check_datasets
from espnet3.components.data.dataset import CalledWithId, CombinedDataset, TransformedDataset
from espnet3.components.data.errors import DataError
from espnet3.config.instantiate import instantiate
from espnet3.config.load import load_config
from espnet3.errors import ConfigError

TARGET = "espnet3.components.data.data_organizer.DataOrganizer"
RECIPE = """
from pathlib import Path

class Dataset:
    def __init__(self, split, n_items=2, recipe_dir=None):
        if split == "broken":
            raise OSError("no such split")
        Path(recipe_dir, "built").open("a").write(split + "\\n")
        self.split, self.n_items, self.recipe_dir = split, n_items, recipe_dir

    def __len__(self):
        return self.n_items

    def __getitem__(self, index):
        return {"utt_id": f"{self.split}-{index}"}

    def durations(self):
        return [1.0] * self.n_items

class Upper:
    def __init__(self, key="utt_id"):
        self.key = key

    def __call__(self, sample):
        return {**sample, self.key: sample[self.key].upper()}

def mark(sample):
    return {**sample, "marked": True}
"""


@pytest.fixture
def recipe(write_recipe, monkeypatch):
    folder = write_recipe(RECIPE, "it's a recipe")
    (folder / "steps.py").write_text(RECIPE)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("steps", None)


def entry(split, **more):
    return {"data_src_args": {"split": split}, **more}


def built(recipe):
    file = recipe / "built"
    return file.read_text().split() if file.exists() else []


def problem(function, *args, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


# What is built, and when


def test_train_and_valid_are_combined_when_asked_for(recipe):
    organizer = DataOrganizer(recipe, train=[entry("a"), entry("b")], valid=[entry("c")])
    assert built(recipe) == []
    assert isinstance(organizer.train, CombinedDataset)
    assert [s["utt_id"] for s in map(organizer.train.__getitem__, range(4))] == [
        "a-0", "a-1", "b-0", "b-1",
    ]  # fmt: skip
    assert organizer.train.durations().tolist() == [1.0] * 4
    assert organizer.train is organizer.train
    assert built(recipe) == ["a", "b"]
    assert len(organizer.valid) == 2


def test_datasets_to_train_on_may_have_weights(recipe, tmp_path):
    organizer = DataOrganizer(recipe, train=[entry("a", weight=2), entry("b")])
    assert organizer.train.weights == (2.0, 1.0)
    assert organizer.train.place_of(2) == "item 0 of dataset.train.1"
    message = problem(DataOrganizer, recipe, valid=[entry("a", weight=0.5)])
    assert "dataset.valid.0.weight is 0.5, but only datasets to train on have weights" in message
    assert "Remove the line" in message
    message = problem(DataOrganizer, recipe, train=[entry("a", weight=0)])
    assert "dataset.train.0.weight is 0" in message


def test_what_is_not_given_is_none_or_empty(recipe):
    organizer = DataOrganizer()
    assert organizer.train is organizer.valid is None
    assert dict(organizer.test) == {}
    assert DataOrganizer(train=[]).train is None


def test_test_sets_are_built_one_by_one(recipe):
    tests = [entry("a", name="clean"), entry("b", name="other")]
    organizer = DataOrganizer(recipe, test=tests)
    assert list(organizer.test) == ["clean", "other"]
    assert len(organizer.test) == 2
    assert "other" in organizer.test
    assert "another" not in organizer.test
    assert repr(organizer.test) == "<test sets: clean, other>"
    assert built(recipe) == []
    assert organizer.test["other"][1] == {"utt_id": "b-1"}
    assert organizer.test["other"] is organizer.test["other"]
    assert built(recipe) == ["b"]
    with pytest.raises(KeyError):
        organizer.test["another"]


def test_the_dataset_gets_the_recipe_dir_that_it_asks_for(recipe, tmp_path):
    organizer = DataOrganizer(recipe, test=[entry("a", name="x")])
    assert organizer.test["x"].recipe_dir == recipe
    own = {"split": "a", "recipe_dir": str(tmp_path)}
    organizer = DataOrganizer(recipe, test=[{"name": "x", "data_src_args": own}])
    assert organizer.test["x"].recipe_dir == str(tmp_path)


def test_a_source_of_ours_is_a_few_lines(recipe, write_wav, monkeypatch):
    write_wav(recipe / "data/test/a.wav", 0.5)
    (recipe / "data/test/wav.scp").write_text("a data/test/a.wav\n")
    config = f"""
    _target_: {TARGET}
    recipe_dir: "{recipe}"
    test:
      - name: clean
        data_src: kaldi
        data_src_args: {{path: data/test}}
    """
    organizer = hydra_instantiate(OmegaConf.create(config))
    assert list(organizer.test["clean"].durations()) == [0.5]


# Transforms


def test_transforms_and_preprocessor_arrive_as_objects_from_hydra(recipe):
    config = OmegaConf.create(
        {
            "name": "a",
            "dataset": {
                "_target_": TARGET,
                "recipe_dir": str(recipe),
                "train": [
                    entry("${name}", transform={"_target_": "steps.Upper"}),
                    entry("b"),
                ],
                "preprocessor": {"_target_": "steps.mark", "_partial_": True},
            },
        }
    )
    OmegaConf.set_readonly(config, True)
    for build in (hydra_instantiate, instantiate):
        train = build(config.dataset).train
        assert train[0] == {"utt_id": "A-0", "marked": True}
        assert train[2] == {"utt_id": "b-0", "marked": True}


@pytest.mark.parametrize("transform", ["steps.Upper", {"_target_": "steps.Upper"}])
def test_a_transform_may_be_a_path_or_not_built_yet(recipe, transform):
    organizer = DataOrganizer(recipe, test=[entry("a", name="x", transform=transform)])
    assert organizer.test["x"][0] == {"utt_id": "A-0"}
    assert isinstance(organizer.test["x"], TransformedDataset)


def test_the_preprocessor_may_be_a_path(recipe):
    organizer = DataOrganizer(recipe, valid=[entry("a")], preprocessor="steps.mark")
    assert organizer.valid[0] == {"utt_id": "a-0", "marked": True}


def test_a_dataset_without_steps_is_the_users_own_object(recipe):
    organizer = DataOrganizer(recipe, test=[entry("a", name="x")])
    assert type(organizer.test["x"]).__name__ == "Dataset"


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("steps.Uppr", "preprocessor is 'steps.Uppr', but 'steps' has no 'Uppr'. Did you mean "
         "'Upper'? Write: preprocessor: steps.Upper"),
        (3, "preprocessor is 3, of type int, which cannot be called. Write the "
         "dotted path of a function"),
        ({"_target_": "steps.Uppr"}, "preprocessor._target_ is 'steps.Uppr'"),
    ],
)  # fmt: skip
def test_a_step_that_cannot_be_used_is_named(recipe, step, expected):
    assert f"dataset.{expected}" in problem(DataOrganizer, recipe, preprocessor=step)


# Mistakes, each with its key


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ([{"name": "a", "data_scr": "x"}], "dataset.test.0.data_scr is not a known key. Did you "
         "mean 'data_src'? Write: data_src: x"),
        ([{"name": "a"}, {"data_src": "x"}], "dataset.test.1.name is not set. A test set needs a "
         "name, which is also the folder of its results. Write: name: test_clean"),
        ([{"name": "a"}, {"name": "b"}, {"name": "a"}], "dataset.test.2.name is 'a', which is the "
         "name of dataset.test.0 as well. Write another one: name: a_2"),
        ([{"name": "libri/clean"}], "dataset.test.0.name is 'libri/clean', which cannot be the "
         "name of one folder. Write: name: libri_clean"),
        ([{"name": ".."}], "Write: name: test"),
        ([{"name": 17}], 'Quote it: name: "17"'),
        ({"clean": {"data_src": "x"}}, "dataset.test is a dict, but must be a list of datasets. "
         "Write: test: [{name: NAME"),
        (["clean"], "dataset.test.0 is 'clean', but must be a mapping"),
        ([{"name": "a", "data_src_args": ["x"]}], "dataset.test.0.data_src_args is ['x'], but "
         "must be a mapping"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_refused_at_once_with_its_key(test, expected):
    assert expected in problem(DataOrganizer, test=test)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"data_src": "kaldy"}, "dataset.test.0.data_src is 'kaldy', but there is no module "
         "'kaldy'. Did you mean 'kaldi'?"),
        ({"data_src_args": {"splt": "a"}}, "dataset.test.0.data_src_args does not fit Dataset of "),
        ({"data_src_args": {"splt": "a"}}, "it takes no argument 'splt'. Did you mean 'split'?"),
        ({"data_src_args": {}}, "missing a required argument: 'split'. Write: split: VALUE"),
        ({"data_src_args": {"split": "a", "n_items": 0}}, "dataset.test.0.data_src_args: the "
         "Dataset of "),
        ({"data_src_args": {"split": "a", "n_items": 0}}, "has no items. Check these arguments; if "
         "its files are not made yet: python run.py --stages create_dataset"),
        ({"data_src": "kaldi", "data_src_args": {"path": "data/no"}}, "dataset.test.0.data_src_args"
         ": path is 'data/no', but there is no "),
    ],
)  # fmt: skip
def test_a_dataset_that_cannot_be_built_names_the_key(recipe, wrong, expected):
    test = [{"name": "x", **wrong}]
    message = problem(DataOrganizer(recipe, test=test).test.__getitem__, "x")
    assert expected in message
    assert "\n" not in message
    organizer = DataOrganizer(recipe, train=[entry("a"), wrong])
    assert expected.replace("test.0", "train.1") in problem(getattr, organizer, "train")


def test_a_dataset_without_a_length_is_refused(write_recipe):
    recipe = write_recipe("class Dataset:\n    def __getitem__(self, index): return {}\n", "no len")
    message = problem(getattr, DataOrganizer(recipe, train=[{}]), "train")
    assert "has no __len__. Write it: def __len__(self): ..." in message


def test_a_file_that_is_not_made_yet_is_told_with_the_stage_that_makes_it(write_recipe):
    code = "class Dataset:\n    def __init__(self): open('data/train/manifest.jsonl')\n"
    recipe = write_recipe(code, "no data")
    with pytest.raises(DataError) as caught:
        DataOrganizer(recipe, train=[{}]).train  # noqa: B018
    message = str(caught.value)
    assert message.startswith("dataset.train.0 (")
    assert "reads 'data/train/manifest.jsonl', which does not exist." in message
    assert "python run.py --stages create_dataset" in caught.value.fix
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_an_error_of_the_dataset_itself_keeps_its_type_and_gets_a_note(recipe):
    organizer = DataOrganizer(recipe, train=[entry("a"), entry("broken")])
    with pytest.raises(OSError, match="no such split") as caught:
        organizer.train  # noqa: B018
    assert caught.value.__notes__[0].startswith("Raised while building dataset.train.1 (")
    assert "--stages create_dataset" in caught.value.__notes__[0]


def test_a_broken_set_does_not_stop_the_others(recipe):
    tests = [entry("broken", name="a"), entry("b", name="b")]
    organizer = DataOrganizer(recipe, train=[{"data_src": "kaldy"}], test=tests)
    assert len(organizer.test["b"]) == 2


# Checked before anything is built, with file and line


def check(recipe, text, **kwargs):
    path = recipe / "inference.yaml"
    path.write_text(f'recipe_dir: "{recipe}"\ndataset:\n  _target_: {TARGET}\n{text}')
    check_datasets(load_config(path), **kwargs)


def test_checking_builds_nothing(recipe):
    check(recipe, "  test:\n  - {name: a, data_src_args: {split: broken}}\n")
    assert built(recipe) == []


@pytest.mark.parametrize(
    ("entry", "line", "expected"),
    [
        ("name: a\n    data_src: kaldy", 6, "dataset.test.0.data_src is 'kaldy' "),
        ("name: a\n    data_scr: kaldi", 6, "dataset.test.0.data_scr is not a known key "),
        ("data_src_args: {}\n    name: a/b", 6, "dataset.test.0.name is 'a/b' "),
        (
            "name: a\n    data_src_args:\n      split: a\n      n_itms: 3",
            8,
            "it takes no argument 'n_itms' ",
        ),
        ("name: a\n    data_src: ${nowhere}", 6, "dataset.test.0.data_src "),
    ],
)
def test_a_checked_mistake_names_file_and_line(recipe, entry, line, expected):
    message = problem(check, recipe, f"  test:\n  - {entry}\n")
    assert expected in message
    assert f"(set in {recipe}/inference.yaml:{line})" in message


def test_only_the_splits_that_are_asked_for_are_checked(recipe):
    text = "  train:\n  - data_src: kaldy\n  test:\n  - {name: a, data_src_args: {split: a}}\n"
    check(recipe, text, splits=("test",))
    assert "dataset.train.0.data_src" in problem(check, recipe, text)


def test_a_config_without_our_organizer_is_left_alone(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("dataset: {_target_: my.Organizer, test: {a: 1}}\n")
    check_datasets(load_config(path))
    path.write_text("model: {}\n")
    check_datasets(load_config(path))


class Common:
    """In the form of ESPnet2's preprocessors."""

    def __call__(self, uid: str, data: dict[str, object]) -> dict[str, object]:
        assert "utt_id" not in data
        assert "sample_rate" not in data
        return {"text": [uid, len(str(data["text"]))]}


def with_defaults(uid, data=None):
    return uid


def test_a_preprocessor_in_the_form_of_espnet2_gets_id_and_data():
    sample = {"utt_id": "a", "text": "hello", "sample_rate": 8000}
    changed = CalledWithId.around(Common())
    assert changed(sample) == {"utt_id": "a", "text": ["a", 5], "sample_rate": 8000}
    for ours in (len, with_defaults, lambda sample: sample, lambda sample, rng: sample):
        assert CalledWithId.around(ours) is ours


def test_an_organizer_calls_such_a_preprocessor(tmp_path):
    (tmp_path / "text").write_text("a hello\n")
    organizer = DataOrganizer(
        test=[{"name": "t", "data_src": "text", "data_src_args": {"path": str(tmp_path / "text")}}],
        preprocessor=Common(),
    )
    assert organizer.test["t"][0]["text"][1] == 5

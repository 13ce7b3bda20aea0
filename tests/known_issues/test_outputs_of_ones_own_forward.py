"""A `forward` of one's own in an `InferenceRunner`, and values that no text are.

`output_keys` was ignored, an integer id failed, a dict of lists was refused, a list of numbers was
taken for an n-best list, and results without any field ended well without a file or a word.
"""

import json
import logging

import numpy as np
import pytest
import torch

from espnet3.errors import ConfigError, EspnetError, IncompleteRunError, ProviderError, RecordError
from espnet3.io.scp import load_scp
from espnet3.parallel import BaseRunner, use_parallel
from espnet3.systems.base.inference_output import OutputSettings, id_text, to_texts
from espnet3.systems.base.inference_runner import InferenceRunner
from espnet3.systems.base.system import BaseSystem
from tests.helpers.providers import Provider
from tests.helpers.recipe_copy import RecipeCopy

SAMPLES = [
    {"utt_id": f"utt{i}", "speech": str(i), "text": f"text {i}", "speaker": f"spk{i % 2}"}
    for i in range(6)
]


class Calls(InferenceRunner):
    """Returns what the model does of a sample, or of a list of samples."""

    @staticmethod
    def forward(idx, dataset, model, **env):
        return model([dataset[i] for i in idx] if isinstance(idx, list) else dataset[idx])


class Alone(InferenceRunner):
    """As the seed prints it: a list of one where there are no batches."""

    @staticmethod
    def forward(idx, dataset, model, **env):
        indices = [idx] if isinstance(idx, int) else idx
        return model([dataset[i] for i in indices])


class Adds(InferenceRunner):
    """Adds a field to what ours returns."""

    @staticmethod
    def forward(idx, dataset, model, outputs, **env):
        records = InferenceRunner.forward(idx, dataset, model, outputs, **env)
        if isinstance(records, list):
            return [{**record, "length": len(record["hyp"])} for record in records]
        return {**records, "length": len(records["hyp"])}


class OwnWriter(InferenceRunner):
    @staticmethod
    def forward(idx, dataset, model, **env):
        return idx, "as it is"

    @staticmethod
    def write_record(writers, result):
        writers.write({"utt_id": f"utt{result[0]}", "hyp": result[1]})


def run(model, folder, runner=Calls, samples=SAMPLES, **settings):
    with use_parallel({"env": "local", "n_workers": 1}):
        return runner(Provider(dataset=samples, model=model), output_dir=folder, **settings)(
            range(len(samples))
        )


def loaded(files):
    return {name: load_scp(path) for name, path in files.items()}


def nothing(sample):
    return {}


# What forward may return


def test_output_keys_choose_among_what_forward_returned(tmp_path):
    def model(sample):
        return {"utt_id": sample["utt_id"], "hyp": "a", "score": 1.5, "frames": np.zeros(4)}

    files = loaded(run(model, tmp_path / "out", output_keys=["hyp", "speaker"]))
    assert sorted(files) == ["hyp", "speaker"]
    assert files["speaker"]["utt3"] == "spk1"  # from the sample, as with any model


def test_output_keys_that_nobody_has_are_told_at_the_first_item(tmp_path):
    with pytest.raises(ConfigError, match=r"output_keys has 'scores'.*Did you mean 'score'\?"):
        run(lambda sample: {"score": 1}, tmp_path / "out", output_keys=["scores"])


@pytest.mark.parametrize("batch_size", [None, 4])
def test_output_keys_may_name_what_forward_adds_to_ours(tmp_path, batch_size):
    files = run(
        lambda speech: speech, tmp_path / "out", runner=Adds, batch_size=batch_size,
        output_keys=["hyp", "length", "speaker"],
    )  # fmt: skip
    assert sorted(files) == ["hyp", "length", "speaker"]
    assert loaded(files)["length"]["utt3"] == "1"


def test_a_forward_that_yields_is_told(tmp_path):
    def model(sample):
        yield "a"

    with pytest.raises(ConfigError, match="Write return in place of yield"):
        run(model, tmp_path / "out")


def test_one_output_key_may_be_a_text(tmp_path):
    files = run(lambda sample: {"hyp": "a", "x": "b"}, tmp_path / "out", output_keys="hyp")
    assert list(files) == ["hyp"]


@pytest.mark.parametrize("id", [7, np.int64(7), torch.tensor(7), b"7", "7"], ids=repr)
def test_an_id_that_is_no_text_becomes_one(tmp_path, id):
    files = run(lambda sample: {"utt_id": id, "hyp": "a"}, tmp_path / "out", samples=SAMPLES[:1])
    assert loaded(files)["hyp"] == {"7": "a"}


@pytest.mark.parametrize("id", [None, [1], {"a": 1}, np.zeros(2), b"\xff"], ids=repr)
def test_an_id_that_cannot_be_one_is_told(id):
    with pytest.raises(RecordError, match=r"utt_id of item 3 is .*idx_key: NAME"):
        id_text(id, 3, OutputSettings())


def test_what_forward_leaves_out_comes_from_the_sample(tmp_path):
    files = loaded(run(lambda sample: {"hyp": "a"}, tmp_path / "out"))
    assert list(files["hyp"]) == [sample["utt_id"] for sample in SAMPLES]
    texts = loaded(run(lambda sample: sample["speech"], tmp_path / "texts"))
    assert texts["hyp"]["utt4"] == "4"
    assert texts["ref"]["utt4"] == "text 4"


@pytest.mark.parametrize("batch_size", [None, 4])
def test_the_printed_forward_may_return_texts_or_records(tmp_path, batch_size):
    texts = run(
        lambda samples: [s["speech"] for s in samples],
        tmp_path / "texts", runner=Alone, batch_size=batch_size,
    )  # fmt: skip
    assert loaded(texts)["hyp"]["utt5"] == "5"
    assert not list((tmp_path / "texts").glob("*.nbest.jsonl"))
    records = run(
        lambda samples: [{"utt_id": s["utt_id"], "hyp": s["speech"]} for s in samples],
        tmp_path / "records", runner=Alone, batch_size=batch_size,
    )  # fmt: skip
    assert loaded(records)["hyp"] == loaded(texts)["hyp"]


@pytest.mark.parametrize("runner", [Calls, InferenceRunner])
@pytest.mark.parametrize("as_list", [list, tuple, np.array, torch.tensor])
def test_a_dict_of_lists_is_split_by_item(tmp_path, runner, as_list):
    def own(samples):
        return {"hyp": ["x"] * len(samples), "n": as_list([len(s["speech"]) for s in samples])}

    def plain(speech):
        return {"hyp": ["x"] * len(speech), "n": as_list([len(s) for s in speech])}

    model = own if runner is Calls else plain
    files = loaded(run(model, tmp_path / "out", runner=runner, batch_size=4))
    assert files["n"] == {f"utt{i}": "1" for i in range(6)}
    assert len(files["hyp"]) == 6


@pytest.mark.parametrize("runner", [Calls, InferenceRunner])
@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"hyp": ["a", "b"], "lang": "en"}, r"a dict, of which 'lang' is str\..*dict of lists"),
        ({"hyp": ["a"]}, r"a dict, of which 'hyp' is 1 outputs"),
        ({}, r"returned dict"),
        ((["a", "b"], [0.1, 0.2]), r"a tuple of 2 with 2 values each.*dict of lists: \{\"hyp\""),
        ("ab", r"returned str"),
        (["a"], r"returned 1 outputs.*leave batch_size"),
        (None, r"returned NoneType"),
    ],
)
def test_a_batch_that_is_not_clear_is_told(tmp_path, runner, output, message):
    def own(samples):
        return output

    def plain(speech):
        return output

    model = own if runner is Calls else plain
    with pytest.raises((ConfigError, ProviderError), match=message):
        run(model, tmp_path / "out", runner=runner, samples=SAMPLES[:2], batch_size=2)


def test_a_tensor_with_a_row_for_each_item_is_split(tmp_path):
    files = run(lambda speech: torch.ones(len(speech), 2).int(), tmp_path / "out",
                runner=InferenceRunner, batch_size=3)  # fmt: skip
    assert set(loaded(files)["hyp"].values()) == {"1 1"}


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (("utt1", "a b"), r"an id and its text or two hypotheses.*Return a dict: \{\"utt_id\""),
        ([{"hyp": "a"}, {"hyp": "b"}], r"returned 2 records for item 0"),
    ],
)
def test_an_item_that_is_not_clear_is_told(tmp_path, output, message):
    with pytest.raises(ConfigError, match=message):
        run(lambda sample: output, tmp_path / "out")


def test_what_writers_of_ones_own_get_is_left_as_it_is(tmp_path):
    files = run(None, tmp_path / "out", runner=OwnWriter)
    assert loaded(files)["hyp"]["utt2"] == "as it is"


def test_results_in_memory_are_left_as_they_are():
    with use_parallel({"n_workers": 1}):
        assert Calls(Provider(dataset=SAMPLES, model=lambda sample: 3))([0]) == [3]


def test_a_record_without_id_is_told(tmp_path):
    class Forgets(InferenceRunner):
        @staticmethod
        def forward(idx, dataset, model, **env):
            return idx

        @staticmethod
        def write_record(writers, result):
            writers.write({"hyp": "a"})

    with pytest.raises(ConfigError, match=r"'hyp', but no 'utt_id'.*Return it"):
        run(None, tmp_path / "out", runner=Forgets)


# Results without any field


@pytest.mark.parametrize(
    ("output", "n_workers"), [({}, 1), ({"utt_id": "a"}, 1), ({"utt_id": "a"}, 2)]
)
def test_an_output_without_a_field_is_told_at_the_first_item(tmp_path, output, n_workers):
    runner = Calls(
        Provider(dataset=SAMPLES, model=lambda sample: output), output_dir=tmp_path / "out"
    )
    with (
        use_parallel({"n_workers": n_workers}),
        pytest.raises(
            ConfigError, match=r"no field beside the id, 'utt_id'.*Return one, such as: \{\"hyp\""
        ),
    ):
        runner(range(6))


def test_an_output_without_a_field_is_told_also_where_items_may_fail(tmp_path):
    with pytest.raises((ConfigError, IncompleteRunError), match="no field beside the id"):
        run(nothing, tmp_path / "out", on_error="skip")


def test_a_field_whose_name_is_no_text_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"a field called 3, of type int"):
        run(lambda sample: {3: "a"}, tmp_path / "out")


# Values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([3, 1, 4], "3 1 4"),
        ((3, 1, 4), "3 1 4"),
        ([0.5, 2.0], "0.5 2.0"),
        ([np.int64(3), torch.tensor(1)], "3 1"),
        (np.array([3, 1]), "3 1"),
        (torch.tensor([3, 1]), "3 1"),
        (np.array([], dtype=int), ""),
        (torch.tensor(2.5), "2.5"),
        (np.bool_(True), "True"),
        ("naïve".encode(), "naïve"),
    ],
    ids=repr,
)
def test_numbers_are_one_value(value, text):
    assert to_texts(value, "hyp", "utt1") == [text]


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (["a b", -3.2], ["a b"]),  # a text with its score, as JSON has tuples
        (("a b", ["a", "b"], [1, 2], -3.2), ["a b"]),
        (("a b", ["a", "b"]), ["a b"]),
        ([("a", ["x"]), ("b", ["y"])], ["a", "b"]),
        ([("a", -1), "b"], ["a", "b"]),
        ([], []),
    ],
    ids=repr,
)
def test_a_text_may_come_with_its_score_and_tokens(value, texts):
    assert to_texts(value, "hyp", "utt1") == texts


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([[1, 2], [3]], "json"),
        (["a", ["x", "y"]], "json"),
        (["a", "b", 3], "json"),
        ([1, "a"], "json"),
        ([None], "json"),
        ({"a": 1}, "json"),
        (np.zeros(3), "npy"),
        (torch.zeros(2, 2), "npy"),
        (b"\xff", "pickle"),
    ],
    ids=repr,
)
def test_what_is_no_text_says_how_to_keep_it(value, kind):
    with pytest.raises(RecordError, match=rf"output_artifacts: \{{hyp: \{{type: {kind}\}}\}}"):
        to_texts(value, "hyp", "utt1")


def test_token_ids_make_no_nbest_file_even_if_some_are_empty(tmp_path):
    tokens = [[], [1, 2], [], [3], [], []]
    files = run(lambda s: {"tokens": tokens[int(s["speech"])]}, tmp_path / "out")
    assert list(loaded(files)["tokens"].values()) == ["", "1 2", "", "3", "", ""]
    assert not list((tmp_path / "out").glob("*.nbest.jsonl"))


def nbest_lines(folder):
    lines = (folder / "hyp.nbest.jsonl").read_text().splitlines()
    return [json.loads(line)["hyp"] for line in lines]


def test_lists_beside_single_texts_are_all_kept(tmp_path, monkeypatch):
    values = ["a", ["b", "c"], [], ("d", -1.5), "", "f"]
    with use_parallel({"n_workers": 1, "shards_per_worker": 1}):
        runner = Calls(
            Provider(dataset=SAMPLES, model=lambda s: {"hyp": values[int(s["speech"])]}),
            output_dir=tmp_path / "out",
        )
        files = runner(range(6))
    assert list(loaded(files)["hyp"].values()) == ["a", "b", "", "d", "", "f"]
    assert nbest_lines(tmp_path / "out") == [["a"], ["b", "c"], [], [["d", -1.5]], [""], ["f"]]


def test_lists_that_only_some_shards_have_are_told(tmp_path, caplog):
    with use_parallel({"n_workers": 1, "shards_per_worker": 6}), caplog.at_level(logging.WARNING):
        runner = Calls(
            Provider(
                dataset=SAMPLES, model=lambda s: {"hyp": ["a", "b"] if s["speech"] == "5" else "a"}
            ),
            output_dir=tmp_path / "out",
        )
        assert len(loaded(runner(range(6)))["hyp"]) == 6
    assert "hyp.nbest.jsonl is not joined" in caplog.text


def test_a_hypothesis_with_an_object_keeps_its_text_and_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        files = run(lambda s: {"hyp": ("a b", object())}, tmp_path / "out")
    assert loaded(files)["hyp"]["utt0"] == "a b"
    assert "Of hyp only the text is kept" in caplog.text


# Names that were given and could not be used


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hyp_key": "text"}, r"^hyp_key is 'text', but the fields are 'hyp'.*Delete it\."),
        ({"ref_key": "transcript"}, r"^ref_key is 'transcript'.*output_keys: \[hyp, NAME\]"),
    ],
)
def test_a_name_for_the_text_that_a_dict_makes_useless_is_told(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        run(lambda speech: {"hyp": "a"}, tmp_path / "out", runner=InferenceRunner, **settings)


def test_a_runner_without_writers_of_ours_splits_a_dict_of_lists_as_well():
    class Plain(BaseRunner):
        @staticmethod
        def forward(idx):
            return {"square": [i * i for i in idx]}

    with use_parallel({"n_workers": 1}):
        assert Plain(Provider(dataset=[], model=None), batch_size=2)(range(3)) == [
            {"square": 0}, {"square": 1}, {"square": 4},
        ]  # fmt: skip


# In a shipped recipe

RUNNER = """
from espnet3.systems.base.inference_runner import InferenceRunner


class Own(InferenceRunner):
    @staticmethod
    def forward(idx, dataset, model, **env):
        heard = model([dataset[i]["speech"] for i in idx])
        return {
            "utt_id": idx,
            "hyp": [" ".join(one.keys) for one in heard],
            "keys": [[int(k) for k in one.keys if k.isdigit()] for one in heard],
            "unwanted": [one.shares for one in heard],
        }


class Empty(InferenceRunner):
    @staticmethod
    def forward(idx, dataset, model, **env):
        return [{"utt_id": i} for i in idx]
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    recipe = RecipeCopy(
        "TEMPLATE/asr", tmp_path_factory.mktemp("outputs") / "egs3" / "mine" / "asr"
    )
    (recipe.folder / "src" / "own.py").write_text(RUNNER)
    small = ("--inference_config", "conf/inference.yaml", "create_dataset.n_utterances=4")
    recipe.run_here(BaseSystem, "--stages", "create_dataset", *small)
    return recipe


def test_a_runner_of_a_recipe_writes_what_output_keys_says(template):
    words = ("--stage", "6", "--config", "conf/inference.yaml", "test_set=clean", "exp_tag=own")
    keys = ("runner._target_=src.own.Own", "output_keys=[hyp,keys,ref,speaker]")
    # The dataset calls the reference text; output_fn, which names it ref, is not called.
    template.run_here(BaseSystem, *words, *keys, "output_fn=null", code=1)
    keys = ("runner._target_=src.own.Own", "output_keys=[hyp,keys,text,speaker]")
    template.run_here(BaseSystem, *words, *keys, "output_fn=null", "runner.resume=false")
    folder = template.folder / "exp" / "own" / "inference" / "clean"
    assert sorted(path.name for path in folder.glob("*.scp")) == [
        "hyp.scp", "keys.scp", "speaker.scp", "text.scp",
    ]  # fmt: skip
    assert list(load_scp(folder / "hyp.scp")) == ["0", "1", "2", "3"]
    assert load_scp(folder / "keys.scp") == load_scp(folder / "hyp.scp")


def test_a_runner_of_a_recipe_that_returns_only_ids_is_told(template, capsys):
    words = ("--stage", "6", "--config", "conf/inference.yaml", "test_set=clean", "exp_tag=empty")
    template.run_here(BaseSystem, *words, "runner._target_=src.own.Empty", "output_keys=null",
                      "output_fn=null", code=1)  # fmt: skip
    assert "no field beside the id, 'utt_id'" in capsys.readouterr().err


def test_an_output_fn_that_nobody_calls_is_told(template, caplog):
    words = ("--stage", "6", "--config", "conf/inference.yaml", "test_set=clean", "exp_tag=unused")
    with caplog.at_level(logging.WARNING):
        template.run_here(BaseSystem, *words, "runner._target_=src.own.Own", "--dry-run")
    assert "output_fn (set in conf/inference.yaml:" in caplog.text
    assert "has no effect: Own has a forward of its own" in caplog.text


def test_an_error_of_the_users_is_theirs(tmp_path):
    with pytest.raises(EspnetError, match="KeyError: 'speach'"):
        run(lambda sample: sample["speach"], tmp_path / "out")

"""The collect_stats stage on real folders: what is written, and what is refused."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from espnet3.components.data.loader_config import LoaderConfig
from espnet3.components.data.loader_plan import LengthSource
from espnet3.components.data.random_numbers import fixed_random
from espnet3.components.data.stats import load_stats
from espnet3.components.models.normalization import GlobalNormalization
from espnet3.config.load import load_config
from espnet3.errors import ConfigError, EspnetError, IncompleteRunError, StaleRunError
from espnet3.io.scp import load_scp
from espnet3.systems.base.statistics import collect_stats, describe_collect_stats
from espnet3.systems.base.system import BaseSystem
from tests.helpers.statistics_parts import Dataset, files_of, length_of

PARTS = "tests.helpers.statistics_parts"
MODELS = "tests.helpers.statistics_models"
BASE = f"""
dataset:
  _target_: espnet3.components.data.data_organizer.DataOrganizer
  train: [{{data_src: {PARTS}, data_src_args: {{n: 60}}}}]
  valid: [{{data_src: {PARTS}, data_src_args: {{n: 10, offset: 5.0, tag: v}}}}]
"""
MODEL = f"""
dataset: {{train: [{{data_src: {PARTS}, data_src_args: {{n: 40, speech_only: true}}}}]}}
model: {{_target_: {MODELS}.Model}}
dataloader: {{collate_fn: {MODELS}.collate}}
collect_stats: {{batch_size: 8}}
"""


@pytest.fixture
def load(awkward):
    """Return a function that loads a config with overrides, for an awkward folder."""

    def make(*overrides, text=BASE):
        file = awkward / "training.yaml"
        file.write_text(text)
        below = {"recipe_dir": str(awkward), "stats_dir": str(awkward / "stats")}
        return load_config(file, overrides, below=below)

    return make


def quoted(path):
    """Return a path as a value of YAML."""
    return json.dumps(str(path))


def into(folder):
    return f"stats_dir={quoted(folder)}"


def test_without_a_model_the_arrays_of_the_samples_count(load, awkward):
    files = collect_stats(load())
    train = awkward / "stats" / "train"
    assert files["train"]["speech_stats"] == train / "speech_stats.npz"
    shapes = load_scp(train / "speech_shape")
    assert list(shapes.items())[:2] == [("utt0", "20"), ("utt1", "57")]
    assert list(shapes) == [f"utt{i}" for i in range(60)]
    data = np.concatenate([Dataset(60)[i]["speech"].astype(np.float64) for i in range(60)])
    stats = load_stats(train / "speech_stats.npz")
    assert stats.count == len(data)
    np.testing.assert_allclose(stats.mean, data.mean(), rtol=1e-12)
    np.testing.assert_allclose(stats.var, data.var(), rtol=1e-12)
    valid = load_stats(awkward / "stats" / "valid" / "speech_stats.npz")
    assert abs(valid.mean - 5) < 0.5
    assert "vutt3" in load_scp(awkward / "stats" / "valid" / "speech_shape")


def test_integers_have_shapes_but_no_mean_and_may_be_missing_in_some_items(load, awkward):
    collect_stats(load())
    train = awkward / "stats" / "train"
    shapes = load_scp(train / "tokens_shape")
    assert (shapes["utt1"], shapes["utt7"], len(shapes)) == ("1", "0", 30)
    assert set(files_of(train)) == {
        "speech_shape",
        "tokens_shape",
        "speech_stats.npz",
        "stats_keys",
    }
    assert (train / "stats_keys").read_text() == "speech\n"


def test_with_a_model_its_features_count_without_padding(load, awkward):
    collect_stats(load(text=MODEL))
    train = awkward / "stats" / "train"
    assert set(files_of(train)) == {"speech_shape", "feats_shape", "feats_stats.npz", "stats_keys"}
    assert load_scp(train / "speech_shape")["utt1"] == "57"
    assert load_scp(train / "feats_shape")["utt1"] == "14,4"
    assert (train / "stats_keys").read_text() == "feats\n"
    stats = load_stats(train / "feats_stats.npz")
    assert stats.count == sum(length_of(i) // 4 for i in range(40))
    dataset = Dataset(40)
    speech = [dataset[i]["speech"][: length_of(i) // 4 * 4].reshape(-1, 4) for i in range(40)]
    ratio = stats.var / np.concatenate(speech).var(axis=0)
    with fixed_random() as seed:
        seed(0)
        weight = torch.randn(4).numpy()  # as in each worker; with dropout it would not fit
    np.testing.assert_allclose(ratio, weight.astype(np.float64) ** 2, rtol=1e-6)


@pytest.mark.parametrize("text", [BASE, MODEL])
def test_neither_shards_nor_halved_batches_change_the_last_digit(load, awkward, text, caplog):
    collect_stats(load(text=text))
    expected = files_of(awkward / "stats" / "train")
    ways = ["parallel.shards_per_worker=2", "parallel.shards_per_worker=99"]
    ways += ["model.most=3"] if text == MODEL else []
    for i, way in enumerate(ways):
        folder = awkward / f"other{i}"
        collect_stats(load(into(folder), way, text=text))
        assert files_of(folder / "train") == expected, way
    assert ("trying its halves" in caplog.text) == (text == MODEL)


def test_our_own_collate_function_is_the_default(load, awkward):
    collect_stats(load(text=MODEL))
    expected = files_of(awkward / "stats" / "train")
    collect_stats(load("dataloader=null", into(awkward / "other"), text=MODEL))
    assert files_of(awkward / "other" / "train") == expected


def test_a_model_without_features_is_not_built(load, awkward):
    collect_stats(load(f"model={{_target_: {MODELS}.NoFeatures}}"))
    assert (awkward / "stats" / "train" / "speech_stats.npz").exists()


@pytest.mark.parametrize(("has_features", "name"), [(True, "feats"), (False, "speech")])
def test_what_a_function_builds_tells_whether_it_has_features(load, awkward, has_features, name):
    model = f"model={{_target_: {MODELS}.make_model, has_features: {has_features}}}"
    collect_stats(load(model, text=MODEL))
    assert (awkward / "stats" / "train" / "stats_keys").read_text() == f"{name}\n"


def test_the_model_that_needs_the_statistics_can_be_the_one_that_makes_them(load, awkward, caplog):
    caplog.set_level(logging.INFO)
    model = (f"model.stats_file={quoted(awkward / 'stats' / 'train' / 'feats_stats.npz')}",)
    files = collect_stats(load(*model, text=MODEL))
    normalize = GlobalNormalization(files["train"]["feats_stats"])
    assert normalize.mean.shape == (4,)
    collect_stats(load(*model, text=MODEL))
    assert "complete already" in caplog.text
    # The file is an output, so neither its appearance nor a change makes the results stale.
    collect_stats(load(*model, "collect_stats.resume=false", text=MODEL))
    Path(files["train"]["feats_stats"]).unlink()
    collect_stats(load(*model, text=MODEL))
    assert Path(files["train"]["feats_stats"]).exists()


def test_randomness_is_that_of_the_item_and_the_callers_is_left_alone(load, awkward):
    np.random.seed(5)
    torch.manual_seed(5)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    n_threads = torch.get_num_threads()
    noise = "dataset.train.0.data_src_args.noise=0.1"
    collect_stats(load(noise, text=MODEL))
    np.random.seed(6)
    collect_stats(load(noise, into(awkward / "other"), text=MODEL))
    np.random.set_state(("MT19937", np.array(before[0], dtype=np.uint32), 624))
    assert files_of(awkward / "other" / "train") == files_of(awkward / "stats" / "train")
    assert torch.get_rng_state().tolist() == before[1]
    assert torch.get_num_threads() == n_threads


def test_stale_statistics_are_refused_with_the_ways_on(load):
    collect_stats(load(text=MODEL))
    for change, key in [
        ("dataset.train.0.data_src_args.n=41", "dataset.content"),
        ("model.n_layers=3", "config.model.n_layers"),
        ("dataloader.collate_fn=null", "config.collate_fn"),
        ("collect_stats.batch_size=4", "batch_size"),
    ]:
        with pytest.raises(StaleRunError) as error:
            collect_stats(load(change, text=MODEL))
        told = str(error.value)
        assert f"\n  {key}: " in told
        assert "write the new ones elsewhere:\n  " in told
        assert f"stats_dir={load().config.stats_dir!s}_2".split("/")[-1] in told
        assert "collect_stats.resume=false" in told
        accept = told.partition("'collect_stats.accept_changes=[")[2].partition("]")[0]
        assert key in accept.split(",")
        assert ("model_keys" in told) == ("model" in key)
        collect_stats(load(change, f"collect_stats.accept_changes=[{accept}]", text=MODEL))


def test_what_statistics_do_not_depend_on_may_change(load, caplog):
    collect_stats(load())
    caplog.set_level(logging.INFO)
    for change in [
        "dataset.valid=null", "seed=3", "exp_tag=other", "parallel.n_workers=2",
        "trainer={max_epochs: 3}", "optimizer={lr: 1.0}", "dataloader={collate_fn: other}",
        f"model={{_target_: {MODELS}.NoFeatures}}", "dataset.train.0.weight=2",
    ]:  # fmt: skip
        caplog.clear()
        collect_stats(load(change))
        assert caplog.text.count("complete already") == (1 if "valid" in change else 2), change


def test_parts_of_the_model_may_change_that_features_do_not_depend_on(load, caplog):
    caplog.set_level(logging.INFO)
    keys = "collect_stats.model_keys=[scale]"
    collect_stats(load(keys, "model.scale=2.0", text=MODEL))
    collect_stats(load(keys, "model.scale=2.0", "model.n_layers=9", text=MODEL))
    assert "complete already" in caplog.text
    with pytest.raises(StaleRunError, match=r"config.model.scale: 2.0 -> 3.0[\s\S]*model_keys"):
        collect_stats(load(keys, "model.scale=3.0", text=MODEL))


def test_a_bad_item_can_be_skipped_and_tried_again(load, awkward):
    bad = "dataset.train.0.data_src_args.bad=[0, 17]"
    with pytest.raises(
        EspnetError, match=r"item 17 of dataset.train.0: .*\n.*collect_stats.on_error=skip"
    ):
        collect_stats(load(bad))
    collect_stats(load(bad, "collect_stats.on_error=skip"))
    train = awkward / "stats" / "train"
    shapes = load_scp(train / "speech_shape")
    # A line per item of the dataset, so that the loader finds lengths by position.
    assert list(shapes) == [f"item{i}" if i in (0, 17) else f"utt{i}" for i in range(60)]
    assert shapes["item17"] == "0"
    assert load_stats(train / "speech_stats.npz").count == sum(
        length_of(i) for i in range(60) if i not in (0, 17)
    )
    mended = "dataset.train.0.data_src_args.bad=[17]"
    accept = "collect_stats.accept_changes=[config.dataset]"
    retry = ("collect_stats.on_error=skip", "collect_stats.retry_failed=true")
    collect_stats(load(mended, accept, *retry))
    assert list(load_scp(train / "speech_shape"))[:1] == ["utt0"]
    limit = ("collect_stats.on_error=skip", "collect_stats.max_errors=1")
    with pytest.raises(EspnetError, match="max_errors"):
        collect_stats(load(bad, *limit, into(awkward / "other")))


def test_if_all_items_fail_the_first_error_is_told(load):
    bad = f"dataset.train.0.data_src_args.bad={list(range(60))}"
    with pytest.raises(
        IncompleteRunError, match=r"All items [\s\S]* failed, so .*Item 0 is broken"
    ):
        collect_stats(load(bad, "collect_stats.on_error=skip"))


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("[speech]", 'returned list. Return {"feats": tensor'),
        ("{}", "returned dict"),
        ("{'feats': speech[:1]}", "a batch of 8 items, and 'feats' of what it returned is of the"),
        ("{'feats': 'text'}", "is no array"),
        ("{'feats': speech, 'feats_lengths': speech_lengths * 9}", "without padding"),
        ("{'feats': speech * float('nan'), 'feats_lengths': speech_lengths}", "on_error=skip"),
        ("{'feats': speech.view(len(speech), 1, -1)}", "cannot have one mean"),
        ("{'feats': speech, 'feats_lengths': speech_lengths * 0}", "has no frames in any item"),
    ],
)
def test_features_of_another_form_are_refused(load, output, told):
    model = f'model={{_target_: {MODELS}.Misbehaved, output: "{output}"}}'
    with pytest.raises(EspnetError) as error:
        collect_stats(load(model, text=MODEL))
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("collect_stats.batchsize=3", "batch_size"),
        ("collect_stats.on_error=ignore", "skip"),
        ("collect_stats.model_keys=[scle]", "Did you mean 'scale'"),
        ("model.n_layer=3", "n_layers"),
        ("dataset.train=[]", "dataset: {train: [{data_src"),
        ("dataset=null", "dataset: {train: [{data_src"),
        ("dataset.train.0.data_src_args.m=3", "dataset.train.0"),
        ("dataset.train.0.data_src_args.n=0", "training.yaml:2"),
        ("parallel.env=localgpu", "local_gpu"),
        ("stats_dir=null", "Write: stats_dir: ${recipe_dir}/exp/stats"),
    ],
)
def test_mistakes_are_found_before_anything_starts(load, awkward, change, told):
    with pytest.raises(ConfigError) as error:
        collect_stats(load(change, text=MODEL.replace("Model}", "Model, scale: 1.0}")))
    assert told in str(error.value)
    assert not (awkward / "stats").exists()


def test_a_dry_run_tells_what_would_be_done_and_writes_nothing(load, awkward):
    lines = "\n".join(describe_collect_stats(load()))
    assert "split train: 60 items" in lines
    assert "no model has collect_feats" in lines
    assert not (awkward / "stats").exists()
    collect_stats(load())
    assert "4 of 4 shards are done" in "\n".join(describe_collect_stats(load()))
    changed = describe_collect_stats(load("dataset.train.0.data_src_args.n=61"))
    assert "would be refused" in "\n".join(changed)
    anew = describe_collect_stats(load("collect_stats.resume=false"))
    assert "would be removed" in "\n".join(anew)


def test_the_system_has_the_stage(load, awkward):
    system = BaseSystem(training=load())
    system.check_collect_stats()
    assert system.describe_collect_stats()
    assert set(system.collect_stats()) == {"train", "valid"}


def test_the_loader_finds_the_lengths_of_all_items_skipped_ones_included(load):
    bad = "dataset.train.0.data_src_args.bad=[2]"
    files = collect_stats(load(bad, "collect_stats.on_error=skip"))["train"]
    config = LoaderConfig(batch_bins=1000, shape_file=str(files["speech_shape"]))
    lengths = LengthSource(Dataset(60, bad=[2]), config, "dataloader.train").bins()
    assert lengths.tolist() == [0 if i == 2 else length_of(i) for i in range(60)]


def test_an_audio_file_that_cannot_be_read_is_told_or_skipped(load, awkward):
    data = awkward / "data"
    data.mkdir()
    for name in "abc":
        soundfile.write(data / f"{name}.wav", np.full(1600, 0.5, np.float32), 16000)
    (data / "b.wav").write_bytes(b"no audio")
    lines = [{"utt_id": name, "audio": f"{name}.wav"} for name in "abc"]
    (data / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    entry = f"{{data_src: jsonl, data_src_args: {{path: {quoted(data / 'train.jsonl')}}}}}"
    text = f"dataset: {{train: [{entry}]}}"
    with pytest.raises(EspnetError, match=r"item 1 of dataset.train.0: [\s\S]*b.wav"):
        collect_stats(load(text=text))
    files = collect_stats(load("collect_stats.on_error=skip", text=text))
    shapes = files["train"]["speech_shape"].read_text()
    assert shapes == "a 1600\nitem1 0\nc 1600\n"

"""The infer stage on real folders: what is written, in which order, and what is refused."""

import json
import logging
import re

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from espnet3.config.load import load_config
from espnet3.errors import ConfigError, EspnetError, ItemError, RecordError, StaleRunError
from espnet3.io.artifacts import read_artifact
from espnet3.io.scp import load_scp
from espnet3.systems.base.inference import infer
from espnet3.systems.base.inference_output import OutputSettings, to_record, to_texts
from espnet3.systems.base.run_description import describe_inference
from tests.helpers.inference_parts import spell

PARTS = "tests.helpers.inference_parts"
BASE = f"""
parallel: {{env: local, n_workers: 1}}
input_key: speech
dataset:
  _target_: espnet3.components.data.data_organizer.DataOrganizer
  test:
    - {{name: digits, data_src: {PARTS}, data_src_args: {{n: 40}}}}
model: {{_target_: {PARTS}.Speller}}
provider: {{_target_: espnet3.systems.base.inference_provider.InferenceProvider}}
runner: {{_target_: espnet3.systems.base.inference_runner.InferenceRunner}}
"""


@pytest.fixture
def load(awkward):
    """Return a function that loads the base config with overrides, into an awkward folder."""
    file = awkward / "inference.yaml"
    file.write_text(BASE)

    def make(*overrides, text=BASE):
        file.write_text(text)
        below = {"recipe_dir": str(awkward), "inference_dir": str(awkward / "out")}
        return load_config(file, overrides, below=below)

    return make


def read(awkward, name, test_set="digits"):
    return load_scp(awkward / "out" / test_set / name)


def test_the_minimal_config_writes_hypotheses_and_references_in_dataset_order(load, awkward):
    files = infer(load())
    assert files["digits"]["hyp"] == awkward / "out" / "digits" / "hyp.scp"
    hyps = read(awkward, "hyp.scp")
    assert list(hyps) == [f"utt{i}" for i in range(40)]
    assert hyps == read(awkward, "ref.scp")
    assert hyps["utt17"] == "one seven"


@pytest.mark.parametrize("batching", [["batch_size=7"], ["batch_seconds=20"]])
def test_batches_and_workers_change_nothing(load, awkward, batching):
    infer(load())
    alone = (awkward / "out" / "digits" / "hyp.scp").read_bytes()
    infer(load(*batching, "parallel.n_workers=2", f"inference_dir='{tmp(awkward)}'"))
    assert (tmp(awkward) / "digits" / "hyp.scp").read_bytes() == alone


def tmp(awkward):
    return awkward.parent / "other"


def test_several_test_sets_have_a_folder_each(load, awkward):
    other = f"{{name: more, data_src: {PARTS}, data_src_args: {{n: 3, offset: 100}}}}"
    infer(load(text=BASE.replace("\nmodel:", f"\n    - {other}\nmodel:")))
    assert list(read(awkward, "hyp.scp", "more").values()) == [spell(i) for i in (100, 101, 102)]
    assert len(read(awkward, "hyp.scp")) == 40


def test_adding_a_test_set_leaves_the_results_of_others_alone(load, awkward, caplog):
    infer(load())
    other = f"{{name: more, data_src: {PARTS}, data_src_args: {{n: 3}}}}"
    with caplog.at_level(logging.INFO):
        infer(load("metrics=[]", text=BASE.replace("\nmodel:", f"\n    - {other}\nmodel:")))
    assert "digits is complete already" in caplog.text


def test_test_set_chooses_one(load, awkward):
    other = f"{{name: more, data_src: {PARTS}, data_src_args: {{n: 3}}}}"
    infer(load("test_set=more", text=BASE.replace("\nmodel:", f"\n    - {other}\nmodel:")))
    assert not (awkward / "out" / "digits").exists()


def test_several_inputs_go_to_the_model_by_name(load, awkward):
    infer(load("input_key=[speech,text]", f"model._target_={PARTS}.WithText"))
    assert read(awkward, "hyp.scp")["utt3"] == "three / three"


def test_params_of_the_provider_go_to_the_model(load, awkward):
    infer(load("provider.params.beam_size=3"))
    with pytest.raises(ItemError, match="unexpected keyword argument 'beam_szie'"):
        infer(load("provider.params.beam_szie=3", "runner.resume=false"))


@pytest.mark.parametrize("batching", ["batch_size=null", "batch_size=8"])
def test_output_fn_decides_on_the_fields(load, awkward, batching):
    infer(load(f"output_fn={PARTS}.output_fn", batching))
    assert sorted(p.name for p in (awkward / "out" / "digits").glob("*.scp")) == [
        "index.scp", "words.scp",
    ]  # fmt: skip
    assert read(awkward, "words.scp")["utt12"] == "2"


def test_output_keys_take_from_the_sample_what_the_output_lacks(load, awkward):
    infer(load("output_keys=[hyp,speaker]"))
    assert read(awkward, "speaker.scp")["utt4"] == "spk1"
    assert not (awkward / "out" / "digits" / "ref.scp").exists()


def test_artifacts_are_files_whose_paths_are_relative_to_the_folder(load, awkward):
    artifacts = (
        "output_artifacts={wav: {type: wav, sample_rate: 8000}, "
        f"hyp: {{writer: {{_target_: {PARTS}.write_upper}}, suffix: .up}}}}"
    )
    infer(load(f"model._target_={PARTS}.Dict", artifacts, "parallel.n_workers=2"))
    folder = awkward / "out" / "digits"
    path = folder / read(awkward, "wav.scp")["utt9"]
    assert path.parent.parent.parent == folder
    wav, rate = read_artifact(path)
    assert rate == 8000
    assert np.allclose(wav, 0.09, atol=1e-4)
    assert (folder / read(awkward, "hyp.scp")["utt9"]).read_text() == "NINE"
    assert read(awkward, "n_samples.scp")["utt1"] == "137"


def test_an_array_without_a_place_to_go_says_what_to_write(load):
    with pytest.raises(EspnetError, match=r"output_artifacts: \{wav: \{type: npy\}\}"):
        infer(load(f"model._target_={PARTS}.Dict"))


def test_an_nbest_list_keeps_the_best_and_the_rest(load, awkward):
    infer(load(f"model._target_={PARTS}.NBest", "batch_seconds=null"))
    assert read(awkward, "hyp.scp")["utt8"] == "eight"
    lines = (awkward / "out" / "digits" / "hyp.nbest.jsonl").read_text().splitlines()
    assert json.loads(lines[8]) == {"utt_id": "utt8", "hyp": ["eight", "eight two", "eight three"]}


def test_results_as_one_file(load, awkward):
    files = infer(load("results=jsonl"))
    lines = files["digits"]["results"].read_text().splitlines()
    assert json.loads(lines[11]) == {"utt_id": "utt11", "hyp": "one one", "ref": "one one"}


def test_results_as_parquet(load, awkward):
    parquet = pytest.importorskip("pyarrow.parquet")
    files = infer(load("results=parquet", "batch_seconds=30"))
    table = parquet.read_table(files["digits"]["results"])
    assert table.column("utt_id").to_pylist() == [f"utt{i}" for i in range(40)]


def test_a_custom_runner_needs_no_id_and_gets_the_params(load, awkward):
    infer(load(f"runner._target_={PARTS}.OddRunner", "provider.params={beam_size: 2}"))
    lines = (awkward / "out" / "digits" / "results.jsonl").read_text().splitlines()
    assert json.loads(lines[5]) == [5, "five", ["beam_size"]]


def test_a_custom_provider_may_change_the_dataset(load, awkward):
    infer(load(f"provider._target_={PARTS}.Every2nd"))
    assert list(read(awkward, "hyp.scp")) == [f"utt{i}" for i in range(0, 40, 2)]


def test_a_provider_that_builds_its_dataset_itself_needs_no_names(load, awkward):
    text = BASE[: BASE.index("dataset:")] + BASE[BASE.index("model:") :]
    infer(load(f"provider._target_={PARTS}.NoNames", text=text))
    assert len(read(awkward, "hyp.scp", "test")) == 5


def test_skipped_items_are_listed_and_have_no_line(load, awkward):
    settings = ["runner.on_error=skip", f"model._target_={PARTS}.Picky"]
    infer(load(*settings, "runner.max_errors=3"))
    assert "utt7" not in read(awkward, "hyp.scp")
    assert len(read(awkward, "hyp.scp")) == 39
    failed = json.loads((awkward / "out" / "digits" / "failed.jsonl").read_text())
    assert "seven again" in failed["error"]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("model.beam_size=8", r"config\.model\.beam_size: .*8"),
        ("provider.params.beam_size=8", r"params\.beam_size: .*8"),
        ("dataset.test.0.data_src_args.n=41", r"data_src_args\.n: 40 -> 41"),
        ("batch_size=4", r"batch_size: null -> 4|batch_size: None -> 4"),
        ("output_keys=[hyp]", r"outputs\.output_keys"),
    ],
)
def test_resume_refuses_what_changed_and_names_it(load, override, key):
    infer(load())
    with pytest.raises(StaleRunError, match=key):
        infer(load(override))


def test_resume_refuses_another_content_of_the_checkpoint_file(load, awkward):
    checkpoint = awkward / "model.pt"
    checkpoint.write_bytes(b"one")
    setting = f"Speller, checkpoint: {json.dumps(str(checkpoint))}}}"
    loaded = load(text=BASE.replace("Speller}", setting))
    infer(loaded)
    checkpoint.write_bytes(b"two!")
    with pytest.raises(StaleRunError, match=r"(?s)config\.model\.checkpoint: the .* has other"):
        infer(loaded)


def test_resume_refuses_an_edited_dataset(load, awkward):
    (awkward / "dataset").mkdir()
    own = awkward / "dataset" / "__init__.py"
    source = (
        "from tests.helpers.inference_parts import Dataset as Base\n\n\n"
        "class Dataset(Base):\n    pass\n"
    )
    own.write_text(source)
    text = BASE.replace(f"data_src: {PARTS}, ", "")
    infer(load(text=text))
    own.write_text(source.replace("    pass", "    gain = 2"))
    with pytest.raises(StaleRunError, match=r"code\.dataset\.Dataset\.gain: \(not set\) -> 2"):
        infer(load(text=text))


@pytest.mark.parametrize(
    "override", ["idx_key=utt_id", "input_key=speech", "batch_size=null", "results=null"]
)
def test_spelling_out_a_default_changes_nothing(load, override, caplog):
    text = BASE.replace("input_key: speech\n", "")
    infer(load(text=text))
    with caplog.at_level(logging.INFO):
        infer(load(override, text=text))
    assert "is complete already" in caplog.text


def test_a_mistake_that_stopped_the_run_at_once_may_be_mended(load, awkward):
    with pytest.raises(EspnetError, match="input_key is 'speach'"):
        infer(load("input_key=speach"))
    infer(load())
    assert len(read(awkward, "hyp.scp")) == 40


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_wrong_setting_that_shows_at_the_first_item_is_an_error_of_the_config(load, n_workers):
    workers = f"parallel.n_workers={n_workers}"
    with pytest.raises(ConfigError, match=r"^input_key is 'speach'.*NAME$"):
        infer(load("input_key=speach", workers))
    with pytest.raises(ConfigError, match=r"^'wav' of output_artifacts is no field"):
        infer(load("output_artifacts={wav: {type: npy}}", workers))


def test_secrets_are_not_written_and_another_one_is_told(load, awkward, monkeypatch, caplog):
    monkeypatch.setenv("HF_TOKEN", "hf_from_the_environment")
    text = BASE + "mine: ${oc.env:HF_TOKEN}\nhub: {password: one two three}\n"
    settings = ["provider.params.api_key=null", f"model._target_={PARTS}.Keyed"]
    infer(load(*settings, text=text))
    for path in (awkward / "out").rglob("*"):
        if path.is_file():
            assert b"hf_from" not in path.read_bytes()
            assert b"one two three" not in path.read_bytes()
    monkeypatch.setenv("HF_TOKEN", "hf_another_of_them")
    other = text.replace("one two three", "four")
    with pytest.raises(StaleRunError, match=r"config\.hub\.password: 'secret:.* -> ") as caught:
        infer(load(*settings, text=other))
    assert "four" not in str(caught.value)
    assert "hf_another" not in str(caught.value)
    accepted = "runner.accept_changes=[config.hub.password,config.mine]"
    with caplog.at_level(logging.INFO):
        infer(load(*settings, accepted, text=other))
    assert "is complete already" in caplog.text


def test_a_refusal_tells_the_overrides_to_go_on_with(load):
    infer(load())
    with pytest.raises(StaleRunError, match=r"start over:\n  runner\.resume=false\n"):
        infer(load("model.beam_size=8"))
    infer(load("model.beam_size=8", "runner.accept_changes=[config.model.beam_size]"))


def test_an_edited_output_fn_is_noticed(tmp_path, monkeypatch):
    import importlib
    import sys

    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "my_outputs.py"
    code = "def output_fn(data, model_output, idx):\n    return {'hyp': model_output}\n"
    module.write_text(code)
    file = tmp_path / "inference.yaml"
    file.write_text(BASE + f"output_fn: my_outputs.output_fn\ninference_dir: {tmp_path}/out\n")
    infer(load_config(file))
    module.write_text(code.replace("model_output}", "model_output.upper()}"))
    sys.modules.pop("my_outputs")
    importlib.invalidate_caches()
    with pytest.raises(StaleRunError, match=r"code\.my_outputs\.output_fn: the code changed"):
        infer(load_config(file))
    sys.modules.pop("my_outputs")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("input_key=speach", r"input_key is 'speach'.*Did you mean 'speech'\?"),
        (f"output_fn={PARTS}.output", r"output_fn is .*Write: output_fn: .*output_fn"),
        ("output_keys=[hpy]", r"output_keys has 'hpy'.*Did you mean 'hyp'\?"),
        ("test_set=digit", r"test_set is 'digit'.*Write: test_set=digits"),
        ("model=null", r"model is not set.*Write model: \{_target_:"),
        ("dataset=null", r"dataset is not set.*Write dataset: \{test: \[\{name: dev"),
        ("idx_key=id", r"idx_key is 'id'.*Write: idx_key: utt_id"),
        (
            "output_artifacts={wav: {type: npy}}",
            r"'wav' of output_artifacts is no field of the output",
        ),
        (
            "{output_keys: [hyp], output_artifacts: {wav: {type: npy}}}",
            r"output_keys leaves out\. Write: output_keys: \[hyp, wav\]",
        ),
        ("runner.on_error=skp", r"runner\.on_error is 'skp'.*Write: on_error: skip"),
        ("device=cuda", r"device is 'cuda', but this worker sees 0 GPU"),
        (
            "runner={_target_: tests.helpers.inference_parts.Speller, device: cpu}",
            r"runner\._target_ is .*no BaseRunner.*InferenceRunner",
        ),
        (
            "parallel={env: slurm, options: {cores: 1, memory: 1GB, wall_time: '1:00'}}",
            r"parallel\.options\.wall_time is no option .*Did you mean 'walltime'\?",
        ),
        ("dataset.test.0.name=a/b", r"dataset\.test\.0\.name is 'a/b'.*Write: name: a_b"),
        ("batch_seconds=-1", r"batch_seconds is -1"),
        ("output_artifacts={hyp: {type: waw}}", r"output_artifacts\.hyp\.type is 'waw'"),
        ("output_artifacts={hyp: {type: wav}}", r"Write: sample_rate: 16000"),
        ("runner.resum=true", r"runner\.resum .*Did you mean 'resume'\?"),
        ("provider.param={}", r"provider\.param .*Did you mean 'params'\?"),
        ("parallel.n_wokers=2", r"parallel\.n_wokers.*Did you mean 'n_workers'\?"),
        ("results=json", r"results is 'json'"),
    ],
)
def test_a_mistake_gets_a_clear_error(load, awkward, override, message):
    values = yaml.safe_load(override) if override.startswith("{") else {}
    overrides = [f"{key}={json.dumps(value)}" for key, value in values.items()] or [override]
    with pytest.raises(EspnetError, match=message):
        infer(load(*overrides))
    assert not (awkward / "out" / "digits" / "hyp.scp").exists()


def test_batch_seconds_without_durations_says_what_to_write(load):
    with pytest.raises(ConfigError, match=r"Write durations\(self\) in its Dataset"):
        infer(load("batch_seconds=60", "dataset.test.0.data_src_args.knows_durations=false"))


def test_a_model_that_cannot_do_batches_is_told_from_one_that_can(load):
    with pytest.raises(EspnetError, match=r"batch of 8 items.*leave batch_size .*unset"):
        infer(load("batch_size=8", f"output_fn={PARTS}.not_enough"))


def test_an_empty_test_set_is_refused(load):
    with pytest.raises(ConfigError, match=r"(?s)test\.0.*no items.*--stages create_dataset"):
        infer(load("dataset.test.0.data_src_args.n=0"))


def test_the_dry_run_tells_batches_padding_shards_and_job_script(load, awkward):
    slurm = [
        "parallel.env=slurm", "parallel.n_workers=3",
        "parallel.options={queue: gpu, cores: 4, memory: 8GB, walltime: '04:00:00'}",
    ]  # fmt: skip
    text = "\n".join(describe_inference(load("batch_seconds=20", *slurm)))
    assert "workers: 3 on env: slurm" in text
    assert "test set digits: 40 items" in text
    assert "sorted by length" in text
    assert "% padding (batch_size: 16 in dataset order: " in text
    assert "#SBATCH -p gpu" in text
    assert re.search(r"files: 3 workers: about [\d,]+ operations in all; .*espnet3 plan", text)
    assert not (awkward / "out").exists()


def test_the_dry_run_tells_what_is_done_already(load):
    infer(load())
    assert "shards are done" in "\n".join(describe_inference(load()))
    changed = "\n".join(describe_inference(load("model.beam_size=8")))
    # At the rate of the run that is there.
    assert re.search(r"files: 1 workers: about [\d,.]+ operations a second", changed)
    assert "would be refused" in changed
    assert "config.model.beam_size" in changed


def test_batches_of_speech_like_lengths_are_hardly_padded(load, awkward, caplog):
    """With 2,000 utterances at most 8 % is padding, told by the dry run and by the run itself."""
    data = ["dataset.test.0.data_src_args.n=2000", "dataset.test.0.data_src_args.speech_like=true"]
    plan = "\n".join(describe_inference(load(*data, "batch_seconds=240")))
    ours, in_order = map(float, re.search(r"; (.*)% padding .*order: (.*)%\)", plan).groups())
    assert ours <= 8
    assert in_order > 40
    fixed = "\n".join(describe_inference(load(*data, "batch_size=16")))
    assert f"{in_order}% padding" in fixed
    with caplog.at_level(logging.INFO):
        infer(load(*data, "batch_seconds=240"))
    assert f"Padding: {ours:.1f}% of the batches" in caplog.text
    assert list(read(awkward, "hyp.scp")) == [f"utt{i}" for i in range(2000)]


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        (("a", -3.5), ["a"]),
        ([("a", -3.5), ("b", -4.0)], ["a", "b"]),
        (np.float32(1.5), ["1.5"]),
        (True, ["True"]),
    ],
)
def test_what_counts_as_text_and_what_as_an_nbest_list(value, texts):
    assert to_texts(value, "hyp", "utt1") == texts


def test_a_sample_whose_id_is_none_is_refused():
    with pytest.raises(RecordError, match=r"utt_id of item 3 is None\..*idx_key: NAME"):
        to_record("hello", {"utt_id": None}, 3, OutputSettings())


def test_one_run_resolves_its_config_once(load, monkeypatch):
    to_container, loaded, resolved = OmegaConf.to_container, load(), []

    def count(config, *, resolve=False, **options):
        if resolve and config._get_root() is loaded.config:
            resolved.append(config)
        return to_container(config, resolve=resolve, **options)

    monkeypatch.setattr(OmegaConf, "to_container", count)
    infer(loaded)
    assert len(resolved) == 1

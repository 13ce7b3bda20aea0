"""A model folder was not looked into, and of a file only size, time and 16 places were compared.

So a run that was interrupted went on with other weights, and one that was finished answered with
the results of the old ones.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from espnet3.config.fingerprint import file_identity, same_file
from espnet3.config.load import load_config
from espnet3.errors import ConfigError, ItemError, StaleRunError
from espnet3.parallel import BaseRunner, EnvironmentProvider
from espnet3.systems.base.inference import infer, plan_inference

N_ITEMS = 6


class OwnProvider(EnvironmentProvider):
    """Reads whatever its attribute names."""

    def __init__(self, model, stop_at=None, **config):
        super().__init__(config)
        self.model = model
        self.params = {"stop_at": stop_at}

    fingerprint_ignore = ("params.stop_at",)

    def build_env_local(self):
        return {"model": "built", **self.params}

    def build_worker_setup_fn(self):
        return self.build_env_local


class Decode(BaseRunner):
    @staticmethod
    def forward(idx, model, stop_at):
        if idx == stop_at:
            raise RuntimeError("stopped")
        return f"{model} {idx}"

    def merge(self, shard_dirs):
        return len(shard_dirs)


class OwnModel:
    """A model of a recipe, built with `device`."""

    def __init__(self, path, device="cpu", **settings):
        self.path = path

    def __call__(self, speech):
        return "text"


@pytest.fixture
def model(tmp_path):
    """Return a folder as `save_pretrained` makes it."""
    folder = tmp_path / 'it\'s a "model"'
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(1000))
    (folder / "tokenizer" / "vocab.json").write_text('["a"]')
    return folder


def run(model, output_dir, stop_at=None, **settings):
    runner = Decode(OwnProvider(model, stop_at), output_dir=output_dir, **settings)
    return runner(range(N_ITEMS))


def change_byte(path, at=500, keep_times=True):
    """Write another byte; size and mtime stay, as with `cp -p` of another version."""
    found = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    if keep_times:
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def interrupt(model, output_dir):
    with pytest.raises((ItemError, RuntimeError)):
        run(model, output_dir, stop_at=N_ITEMS - 1)


@pytest.mark.parametrize("begin", [run, interrupt], ids=["finished", "interrupted"])
@pytest.mark.parametrize("as_type", [str, Path])
def test_one_byte_inside_a_folder_is_noticed(model, tmp_path, begin, as_type):
    begin(as_type(model), tmp_path / "out")
    change_byte(model / "model.safetensors")
    with pytest.raises(StaleRunError, match=r"model: .*model\.safetensors changed"):
        run(as_type(model), tmp_path / "out")


@pytest.mark.parametrize("begin", [run, interrupt], ids=["finished", "interrupted"])
def test_an_unchanged_folder_goes_on(model, tmp_path, begin):
    begin(str(model), tmp_path / "out")
    copy = tmp_path / "copy"
    shutil.copytree(model, copy, copy_function=shutil.copyfile)  # other times, other inodes
    shutil.rmtree(model)
    copy.rename(model)
    (model / "__pycache__").mkdir()
    (model / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert run(str(model), tmp_path / "out") > 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda f: (f / "new.json").write_text("{}"), "new.json is new"),
        (lambda f: (f / "config.json").unlink(), "config.json is gone"),
        (lambda f: (f / "tokenizer/vocab.json").write_text('["b"]'), "vocab.json changed"),
        (lambda f: (f / "config.json").rename(f / "config2.json"), "config.json is gone"),
        (lambda f: shutil.rmtree(f), "the folder .* is gone"),
        (lambda f: (shutil.rmtree(f), f.write_bytes(b"x")), "was a folder and is a file"),
    ],
)
def test_each_change_of_a_folder_is_named(model, tmp_path, change, told):
    run(str(model), tmp_path / "out")
    change(model)
    with pytest.raises(StaleRunError, match=f"model: .*{told}"):
        run(str(model), tmp_path / "out")


def test_what_was_not_there_at_first_is_noticed(model, tmp_path):
    later = tmp_path / "later.pt"
    run(str(later), tmp_path / "out")
    later.write_bytes(b"x")
    with pytest.raises(StaleRunError, match=r"model: the file .*later\.pt was not there"):
        run(str(later), tmp_path / "out")


def test_a_file_that_the_run_may_have_made_itself_is_told_and_goes_on(tmp_path, caplog):
    log = tmp_path / "calls.txt"
    run(str(log), tmp_path / "out")
    log.write_text("one")
    run(str(log), tmp_path / "out")
    assert f"Not there when the run was planned: model ({log})" in caplog.text


def test_what_the_run_writes_is_no_change(tmp_path):
    made = tmp_path / "out" / "made.txt"
    run(str(made), tmp_path / "out")
    made.write_text("by merge")
    run(str(made), tmp_path / "out")


def test_an_accepted_change_goes_on(model, tmp_path):
    run(str(model), tmp_path / "out")
    change_byte(model / "model.safetensors")
    assert run(str(model), tmp_path / "out", accept_changes=["model"]) > 0


def hub_layout(tmp_path, content=b"weights"):
    repo = tmp_path / "hub" / "models--org--name"
    snapshot = repo / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc123")
    (repo / "blobs" / "0f").write_bytes(content)
    (snapshot / "model.safetensors").symlink_to("../../blobs/0f")
    return snapshot


def test_a_changed_blob_behind_the_links_of_the_hubs_cache_is_noticed(tmp_path):
    snapshot = hub_layout(tmp_path)
    link = tmp_path / "model"
    link.symlink_to(snapshot)
    run(str(link), tmp_path / "out")
    change_byte(tmp_path / "hub/models--org--name/blobs/0f", at=2)
    with pytest.raises(StaleRunError, match=r"model\.safetensors changed"):
        run(str(link), tmp_path / "out")


@pytest.mark.parametrize("name", ["org/name", "name"])
def test_a_name_on_the_hub_is_what_its_cache_has(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = hub_layout(tmp_path)
    repo = snapshot.parent.parent
    repo.rename(repo.with_name(f"models--{name.replace('/', '--')}"))
    repo = repo.with_name(f"models--{name.replace('/', '--')}")
    run(name, tmp_path / "out")
    (repo / "snapshots/abc123/more.json").write_text("{}")  # fetched when it was needed
    run(name, tmp_path / "out")
    change_byte(repo / "blobs/0f", at=2)
    with pytest.raises(StaleRunError, match=r"model: .*model\.safetensors changed"):
        run(name, tmp_path / "out")
    change_byte(repo / "blobs/0f", at=2)
    (repo / "snapshots" / "def456").mkdir()
    (repo / "refs" / "main").write_text("def456")
    with pytest.raises(StaleRunError, match="abc123 then, def456 now"):
        run(name, tmp_path / "out")


def test_a_link_that_points_elsewhere_is_noticed(tmp_path):
    (tmp_path / "v1").write_bytes(b"1")
    (tmp_path / "v2").write_bytes(b"2")
    link = tmp_path / "model.pt"
    link.symlink_to("v1")
    run(str(link), tmp_path / "out")
    link.unlink()
    link.symlink_to("v2")
    with pytest.raises(StaleRunError, match="other content"):
        run(str(link), tmp_path / "out")


@pytest.mark.parametrize("mtime", [0, 10**18])
def test_equal_size_and_time_are_not_taken_for_equal_content(tmp_path, mtime):
    model = tmp_path / "model.pt"
    model.write_bytes(b"old weights")
    os.utime(model, ns=(mtime, mtime))
    run(str(model), tmp_path / "out")
    other = tmp_path / "other.pt"
    other.write_bytes(b"new weights")
    os.utime(other, ns=(mtime, mtime))
    other.replace(model)
    with pytest.raises(StaleRunError, match="of the same size"):
        run(str(model), tmp_path / "out")


@pytest.mark.parametrize("at", [2**20 + 7, 33 * 2**20, 70 * 2**20 - 2])
def test_one_byte_anywhere_in_a_large_file_is_noticed(tmp_path, at):
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(70 * 2**20)
    identity = json.loads(json.dumps(file_identity(path)))
    assert same_file(identity, path)
    change_byte(path, at=at)
    assert not same_file(identity, path)


def test_a_file_that_an_earlier_version_noted_is_compared_as_it_was_then(tmp_path):
    path = tmp_path / "large.bin"
    size = 70 * 2**20
    with path.open("wb") as file:
        file.truncate(size)
    sampled = hashlib.sha256(f"{size}:".encode() + bytes(16 * 2**20)).hexdigest()
    old = {"size": size, "mtime_ns": os.stat(path).st_mtime_ns, "sha256": sampled}
    assert same_file(old, path)
    change_byte(path, at=5)
    assert not same_file(old, path)


# As a recipe has it

CONFIG = """
dataset:
  test: [{{name: digits, data_src: tests.helpers.inference_parts, data_src_args: {{n: 3}}}}]
model: {{_target_: {target}, {arguments}}}
"""


def load(tmp_path, target, arguments):
    file = tmp_path / "inference.yaml"
    file.write_text(CONFIG.format(target=target, arguments=arguments))
    below = {"recipe_dir": str(tmp_path), "inference_dir": str(tmp_path / "out")}
    return load_config(file, below=below)


@pytest.mark.parametrize("key", ["path", "exp_dir", "data_dir"])
def test_a_model_folder_in_a_config_is_compared(model, tmp_path, key):
    target = f"{__name__}.OwnModel"
    arguments = f"{key}: {json.dumps(str(model))}" + ("" if key == "path" else ", path: null")
    infer(load(tmp_path, target, arguments))
    infer(load(tmp_path, target, arguments))
    change_byte(model / "model.safetensors")
    with pytest.raises(StaleRunError, match=rf"config\.model\.{key}: .*model\.safetensors changed"):
        infer(load(tmp_path, target, arguments))


def test_a_folder_of_our_hugging_face_model_is_compared(model, tmp_path):
    from espnet3.parallel.folder_run import RunRequest, open_run
    from espnet3.parallel.identity import changes, describe_run

    target = "espnet3.systems.asr.huggingface_inference.HuggingFaceSpeech2Text"
    (planned,) = plan_inference(load(tmp_path, target, f"model: {json.dumps(str(model))}"))
    described = describe_run(planned.runner, range(3))
    request = RunRequest(tmp_path / "out", tmp_path / "out", "run", range(3), None, described, None)
    manifest = open_run(request, lambda: 1)
    assert changes(manifest, described) == []
    change_byte(model / "model.safetensors")
    (line,) = changes(manifest, described)
    assert line.startswith("config.model.model: ")


def test_weights_in_the_folder_that_results_go_to_are_compared(tmp_path):
    exp = tmp_path / "exp"
    exp.mkdir()
    (exp / "model.pt").write_bytes(b"1")
    run(str(exp), exp / "out")
    (exp / "run.log").write_text("changes by running")
    run(str(exp), exp / "out")
    change_byte(exp / "model.pt", at=0)
    with pytest.raises(StaleRunError, match=r"model\.pt changed"):
        run(str(exp), exp / "out")


TRAINED = """model:
  _target_: espnet3.systems.asr.model.ASRModel
  tokenizer: {folder}/tokenizer
  encoder:
    n_layers: 1
optimizer:
  lr: 0.1
"""


@pytest.mark.parametrize(
    ("file", "text"),
    [("config.yaml", TRAINED.replace("n_layers: 1", "n_layers: 2")), ("tokenizer/bpe.model", "b")],
)
def test_what_lies_beside_the_weights_of_a_training_is_compared(tmp_path, file, text):
    exp = tmp_path / "exp"
    (exp / "tokenizer").mkdir(parents=True)
    (exp / "config.yaml").write_text(TRAINED.format(folder=exp))
    (exp / "tokenizer" / "bpe.model").write_text("a")
    (exp / "ave.safetensors").write_bytes(b"1")
    run(str(exp / "ave.safetensors"), tmp_path / "out")
    run(str(exp / "ave.safetensors"), tmp_path / "out")
    (exp / file).write_text(text.format(folder=exp))
    with pytest.raises(StaleRunError, match=f"model: the .*{file.partition('/')[0]}"):
        run(str(exp / "ave.safetensors"), tmp_path / "out")


def test_what_cannot_be_read_is_an_error(model, tmp_path, monkeypatch):
    run(str(model), tmp_path / "out")
    opened = open

    def refuse(path, *args, **kwargs):
        if str(path).endswith("config.json"):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *args, **kwargs)

    os.utime(model / "config.json")  # so that it must be read again
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ConfigError, match=r"model names .*config\.json cannot be read"):
        run(str(model), tmp_path / "out")

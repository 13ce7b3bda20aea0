"""Packed models that want to run code of others, or read files of others: each is refused.

They are packed by us and changed afterwards, with checksums that fit, as their maker could do it.
"""

import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file

from espnet3.components.decoding.joint_beam import JointBeam
from espnet3.components.decoding.ngram_estimate import train_ngram
from espnet3.config.instantiate import instantiate
from espnet3.config.targets import locate
from espnet3.config.trust import PackedModelError, current_trust
from espnet3.errors import ConfigError
from espnet3.systems.asr.inference import Speech2Text
from espnet3.systems.asr.language_model import load_language_model
from espnet3.systems.asr.publication import pack_model
from espnet3.systems.asr.trained_model import load_trained, sha256
from espnet3.systems.base.context import load_configs
from tests.helpers.recognizer_parts import DECODING, TEXTS, make_experiment, make_recipe, noise

HERE = "tests.known_issues.test_packed_models_run_no_code"
LM = "espnet3.systems.asr.language_model.LanguageModel"
LM_FOLDER = "files/decoder.lm"
INFERENCE, TRAINING, LM_CONFIG = "conf/inference.yaml", "conf/training.yaml", "config.yaml"


class _Runs:
    """Touches the canary when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return Path.touch, (self.canary,)


@pytest.fixture(scope="module")
def packed_once(tmp_path_factory):
    """Pack a tiny recogniser that is decoded with a language model."""
    recipe = make_recipe(tmp_path_factory.mktemp("recipe") / "asr")
    block = {"_target_": LM, "tokenizer": "./data/tokenizer", "hidden": 8, "n_layers": 1}
    make_experiment(recipe, block, name="lm")
    decoder = {"_target_": f"{DECODING}.joint_beam.JointBeam", "beam_size": 2, "ctc_weight": 1.0,
               "lm": "./exp/lm", "lm_weight": 0.5}  # fmt: skip
    return _pack(recipe, decoder)


def _pack(recipe, decoder):
    (recipe / "exp/training/config").mkdir(exist_ok=True)
    inference = {"model": {"_target_": "espnet3.systems.asr.inference.Speech2Text",
                           "weights": "x", "decoder": decoder}}  # fmt: skip
    OmegaConf.save(OmegaConf.create(inference), recipe / "exp/training/config/infer.yaml")
    before = Path.cwd()
    os.chdir(recipe)
    try:
        files = {"training": ["conf/training.yaml"], "publication": ["conf/publication.yaml"]}
        return recipe / pack_model(load_configs(files, ()).publication)
    finally:
        os.chdir(before)


@pytest.fixture
def packed(packed_once, tmp_path, monkeypatch):
    """Return a copy of it, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(packed_once, tmp_path / "a/b/packed"))


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


@pytest.fixture
def evil(tmp_path, canary, monkeypatch):
    """Return a block that runs code, by what Hydra's blocklist lets through."""
    file = tmp_path / "evil.pkl"
    file.write_bytes(pickle.dumps(_Runs(canary)))
    return {"_target_": "numpy.load", "file": str(file), "allow_pickle": True}


def seal(folder):
    """Write checksums of all that is there, as whoever made it would."""
    meta = OmegaConf.load(folder / "meta.yaml")
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != "meta.yaml"]
    meta.sha256 = {p.relative_to(folder).as_posix(): sha256(p) for p in files}
    OmegaConf.save(meta, folder / "meta.yaml")


def change(file, key, value):
    config = OmegaConf.load(file)
    if value is None:
        config = OmegaConf.create(key)
    else:
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    OmegaConf.save(config, file)


def lm_beside(folder, block):
    """Write a model that seems trained: a config and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(OmegaConf.create({"model": block}), folder / "config.yaml")
    save_file({"a": torch.zeros(1)}, folder / "x.safetensors")
    return folder


def refused(folder, canary, match=None):
    with pytest.raises(PackedModelError, match=match):
        Speech2Text.from_packed(folder)(noise(0.5))
    assert not canary.exists()


def test_the_honest_one_is_loaded_and_recognises(packed, canary):
    model = Speech2Text.from_packed(packed)
    result = model(noise(0.5))
    assert "lm" in result.n_best[0].scores
    assert current_trust() is None
    copy = pickle.loads(pickle.dumps(Speech2Text.from_packed(packed).decoder))
    copy(model.model, torch.zeros(1, 4, 16), torch.tensor([4]))  # its trust went along


@pytest.mark.parametrize("name", ["ctc_greedy.GreedyCTC", "ctc_beam.PrefixBeamCTC"])
def test_the_honest_one_with_other_decoders(tmp_path, monkeypatch, name):
    recipe = make_recipe(tmp_path / "asr")
    monkeypatch.chdir(recipe)
    decoder = {"_target_": f"{DECODING}.{name}"}
    if name.startswith("ctc_beam"):
        train_ngram(TEXTS, 2, "ngram.arpa.gz", tokenizer="data/tokenizer")
        decoder |= {"ngram": "./ngram.arpa.gz", "tokenizer": "./data/tokenizer", "n_best": 2}
    folder = shutil.move(_pack(recipe, decoder), tmp_path / "packed")
    shutil.rmtree(recipe / "data")
    assert Speech2Text.from_packed(folder)(noise(0.5)).text


def test_an_index_that_leads_to_weights_outside(packed, canary, evil):
    lm_beside(packed.parent.parent, evil)  # beside it there is a config
    lm = packed / "files/lm"
    lm.mkdir()
    (lm / "best.json").write_text(
        '{"criteria": [{"monitor": "valid/loss", "k": 1, "checkpoints": '
        '[{"file": "../../../../x.safetensors"}]}]}'
    )
    change(packed / INFERENCE, "model.decoder.lm", "files/lm")
    seal(packed)
    refused(packed, canary, "leads out")


@pytest.mark.parametrize("kind", ["absolute", "parent", "link", "nested link", "file link", "home"])
def test_a_language_model_outside(packed, canary, evil, tmp_path, monkeypatch, kind):
    outside = lm_beside(tmp_path / "outside", evil)
    monkeypatch.setenv("HOME", str(tmp_path))
    named = {"absolute": str(outside), "parent": "files/../../../../outside", "home": "~/outside"}
    if kind == "link":
        (packed / "files/lm").symlink_to(outside)
    elif kind == "nested link":
        (packed / "files/lm").mkdir()
        (packed / "files/lm/inner").symlink_to(outside)
    elif kind == "file link":
        (packed / "files/lm").mkdir()
        for file in ("config.yaml", "x.safetensors"):
            (packed / "files/lm" / file).symlink_to(outside / file)
    place = {"nested link": "files/lm/inner", "file link": "files/lm/x.safetensors"}
    path = named.get(kind) or place.get(kind, "files/lm")
    change(packed / INFERENCE, "model.decoder.lm", path)
    seal(packed)
    refused(packed, canary)


EVIL_TARGETS = [
    "torch.load",
    "numpy.load",
    "torch.hub.load",
    "os.system",
    "builtins.eval",
    "espnet3.config.instantiate.instantiate",
    "espnet3.components.decoding.ctc_beam.np.load",
    "espnet3.components.decoding.ngram.Path",
    "espnet3.components.decoding.ngram.NGram.read",
    "espnet3.systems.asr.language_model.torch.load",
    "espnet3.systems.asr.inference.Speech2Text",
    "espnet3.systems.asr.huggingface_inference.HuggingFaceSpeech2Text",
    "espnet3.config.load.read_values",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.DataParallel",
    "torch.nn.LazyLinear",
    "torch.nn.modules.module.torch.load",
    "torch.nn.Module.load_state_dict",
    "torch.nn..Linear",
    f"{HERE}._Runs",
    ["torch.load"],
    {"_target_": "torch.load"},
    7,
]


@pytest.mark.parametrize("target", EVIL_TARGETS, ids=str)
@pytest.mark.parametrize("where", ["model", "decoder", "language model"])
def test_targets_that_are_no_part(packed, canary, where, target):
    block = {"_target_": target}
    if where == "model":
        change(packed / TRAINING, "model.frontend", block)
    elif where == "decoder":
        change(packed / INFERENCE, "model.decoder", {"_target_": f"{DECODING}.joint_beam.JointBeam",
                                                     "lm": block})  # fmt: skip
    else:
        change(packed / LM_FOLDER / LM_CONFIG, "model.tokenizer", block)
    seal(packed)
    refused(packed, canary, "_target_")


@pytest.mark.parametrize(
    "hide",
    [
        lambda evil: evil,
        lambda evil: {"_target_": "torch.nn.Sequential", "_args_": [evil]},
        lambda evil: {"_target_": "torch.nn.ModuleDict", "modules": {"a": {"b": [[evil]]}}},
        lambda evil: {**evil, "_partial_": True},
        lambda evil: {"_target_": "torch.nn.Identity", "_recursive_": False, "x": evil},
        lambda evil: {"_target_": "torch.nn.Identity", "_convert_": "all", "x": evil},
        lambda evil: {"_target_": "torch.nn.Identity", "_convert_": {"x": evil}},
        lambda evil: {"_target_": "torch.nn.Identity", "_partial_": evil},
        lambda evil: {1: [{2: evil}]},
    ],
)
def test_blocks_that_hide_another(packed, canary, evil, hide):
    change(packed / LM_FOLDER / LM_CONFIG, {"model": hide(evil)}, None)
    seal(packed)
    refused(packed, canary)


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "${model.x}", "${load_line:config.yaml}",
                                  "${oc.decode:'{_target_: os.system}'}"])  # fmt: skip
def test_interpolations(packed, canary, text):
    file = packed / LM_FOLDER / LM_CONFIG
    file.write_text(f'model:\n  _target_: {LM}\n  tokenizer: "{text}"\n')
    seal(packed)
    refused(packed, canary, "an interpolation")


@pytest.mark.parametrize("listed", ["base", "/etc/base", "../../base", {"model": "base"}], ids=str)
def test_a_defaults_list(packed, canary, evil, listed):
    folder = packed / LM_FOLDER
    OmegaConf.save(OmegaConf.create({"model": evil}), folder / "base.txt")
    change(folder / LM_CONFIG, "defaults", [listed])
    seal(packed)
    refused(packed, canary, "defaults")


@pytest.mark.parametrize("name", ["last.ckpt", "weights.pt", "weights.bin"])
def test_weights_that_are_a_pickle(packed, canary, name):
    folder = packed / LM_FOLDER
    (folder / "weights.safetensors").unlink()
    torch.save(_Runs(canary), folder / name)
    change(packed / INFERENCE, "model.decoder.lm", f"{LM_FOLDER}/{name}")
    seal(packed)
    refused(packed, canary)


@pytest.mark.parametrize(
    "path",
    ["../../outside", "/etc", "~", "~root/x", "file:///etc/passwd", "FILE:x", "https://x.org/y",
     "..\\..\\outside", "C:\\outside", "\\\\host\\share", "tokenizer/../../outside", "a\0b",
     "a\nb"],
)  # fmt: skip
@pytest.mark.parametrize("key", ["model.tokenizer", "model.frontend.window"])
def test_paths_that_lead_out(packed, canary, key, path):
    change(packed / TRAINING, key, path)
    seal(packed)
    refused(packed, canary)


def test_a_relative_path_never_counts_from_the_current_folder(packed, canary, tmp_path):
    shutil.copytree(packed / "tokenizer", tmp_path / "other/tokenizer")
    change(packed / TRAINING, "model.tokenizer", "other/tokenizer")
    seal(packed)
    refused(packed, canary)


def test_links_in_a_circle_end(packed):
    (packed / LM_FOLDER / "loop").symlink_to("..")
    (packed / LM_FOLDER / ".DS_Store").write_bytes(b"x")
    change(packed / INFERENCE, "model.decoder.lm", f"{LM_FOLDER}/weights.safetensors")
    seal(packed)
    assert Speech2Text.from_packed(packed)(noise(0.5)).text is not None
    from espnet3.systems.asr.trained_model import open_packed

    _, _, trust = open_packed(packed)
    assert trust.path(packed / LM_FOLDER)


def test_a_tokenizer_that_is_a_link(packed, canary, tmp_path):
    shutil.move(packed / "tokenizer", tmp_path / "tokenizer")
    (packed / "tokenizer").symlink_to(tmp_path / "tokenizer")
    seal(packed)
    refused(packed, canary, "leads out")


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/dev/zero", "files/../../x", "..\\x"])
def test_checksums_of_files_outside(packed, canary, name):
    meta = OmegaConf.load(packed / "meta.yaml")
    meta.sha256[name] = "0" * 64
    OmegaConf.save(meta, packed / "meta.yaml")
    refused(packed, canary, "leads out")


def test_a_pipe_in_the_place_of_a_file(packed, canary):
    os.mkfifo(packed / "files/pipe")
    meta = OmegaConf.load(packed / "meta.yaml")
    meta.sha256["files/pipe"] = "0" * 64
    OmegaConf.save(meta, packed / "meta.yaml")
    refused(packed, canary, "no plain file")


@pytest.mark.parametrize("name", ["tokenizer/tokens.txt", f"{LM_FOLDER}/weights.safetensors",
                                  f"{LM_FOLDER}/config.yaml", INFERENCE])  # fmt: skip
def test_a_file_without_a_checksum_is_not_used(packed, canary, name):
    meta = OmegaConf.load(packed / "meta.yaml")
    del meta.sha256[name]
    OmegaConf.save(meta, packed / "meta.yaml")
    refused(packed, canary, "no checksum")


def test_a_file_that_nobody_names_does_no_harm(packed):
    (packed / ".DS_Store").write_bytes(b"x")
    os.mkfifo(packed / "pipe")
    assert Speech2Text.from_packed(packed)(noise(0.5)).text is not None


def test_the_cache_of_the_hub_has_links_and_is_read(packed, tmp_path):
    cache = tmp_path / "models--me--tiny"
    (cache / "blobs").mkdir(parents=True)
    for number, file in enumerate(p for p in list(packed.rglob("*")) if p.is_file()):
        blob = cache / f"blobs/{number}"
        file.rename(blob)
        file.symlink_to(blob)
    (cache / "snapshots").mkdir()
    snapshot = packed.rename(cache / "snapshots/0123")
    assert Speech2Text.from_packed(snapshot)(noise(0.5)).text is not None


def test_weights_by_their_path_are_checked_as_well(packed, canary, evil):
    change(packed / TRAINING, "model.frontend", evil)
    seal(packed)
    with pytest.raises(PackedModelError, match="_target_"):
        Speech2Text(packed / "weights.safetensors")
    assert not canary.exists()


@pytest.mark.parametrize("load", [load_language_model, load_trained])
def test_parts_of_a_packed_model_are_checked_whoever_names_them(packed, canary, evil, load):
    weights = packed / LM_FOLDER / "weights.safetensors"
    assert load(weights).n_tokens
    change(packed / LM_FOLDER / LM_CONFIG, {"model": evil}, None)
    seal(packed)
    with pytest.raises(PackedModelError, match="_target_"):
        load(weights)
    assert not canary.exists()


@pytest.mark.parametrize("value", ["false", 0, None, "no"])
def test_trust_is_given_by_true_alone(packed, value):
    with pytest.raises(ConfigError, match="trust_remote_code"):
        Speech2Text.from_packed(packed, trust_remote_code=value)


def test_a_module_on_the_path_is_not_even_imported(packed, canary, tmp_path, monkeypatch):
    (tmp_path / "evil_part.py").write_text(f"open({str(canary)!r}, 'w')\nclass Part: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    change(packed / TRAINING, "model.frontend._target_", "evil_part.Part")
    seal(packed)
    refused(packed, canary, "_target_")
    assert "evil_part" not in sys.modules


def test_a_decoder_of_the_user_reads_files_of_the_user(packed, packed_once):
    own = packed_once.parent.parent / "lm"  # exp/lm of the recipe, outside of the packed model
    decoder = JointBeam(beam_size=2, ctc_weight=1.0, lm=own, lm_weight=0.5)
    result = Speech2Text.from_packed(packed, decoder=decoder)(noise(0.5))
    assert "lm" in result.n_best[0].scores


def test_trust_is_asked_wherever_a_config_is_built(packed):
    from espnet3.config.load import load_config
    from espnet3.config.trust import under
    from espnet3.systems.asr.trained_model import open_packed

    _, _, trust = open_packed(packed)
    with under(trust):
        for build in (
            lambda: instantiate({"_target_": "fractions.Fraction"}),
            lambda: instantiate(OmegaConf.create({"x": [{"_target_": "fractions.Fraction"}]})),
            lambda: locate("fractions.Fraction"),
            lambda: load_config("/etc/hostname"),
        ):
            with pytest.raises(PackedModelError):
                build()
    instantiate({"_target_": "fractions.Fraction"})


HUGGINGFACE = "espnet3.systems.asr.huggingface.HuggingFaceCTC"
WAV2VEC2 = {
    "model_type": "wav2vec2", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "conv_dim": [8], "conv_stride": [5], "conv_kernel": [10],
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        {"config": {**WAV2VEC2, "trust_remote_code": True}},
        {"config": {**WAV2VEC2, "attn_implementation": "someone/kernel"}},
        {"config": {**WAV2VEC2, "_attn_implementation": "someone/kernel:x"}},
        {"config": {**WAV2VEC2, "quantization_config": {"quant_method": "x"}}},
        {"config": WAV2VEC2, "feature_extractor": {"auto_map": {"AutoFeatureExtractor": "x.Y"}}},
        {"pretrained": "someone/model"},
        {"pretrained": "files/hub"},
    ],
    ids=str,
)
def test_what_makes_transformers_run_code(packed, canary, more):
    hub = packed / "files/hub"
    hub.mkdir()
    (hub / "config.json").write_text('{"model_type": "x", "auto_map": {"AutoConfig": "c.C"}}')
    (hub / "c.txt").write_text(f"open({str(canary)!r}, 'w')")
    change(packed / TRAINING, "model", {"_target_": HUGGINGFACE, "tokenizer": "tokenizer", **more})
    seal(packed)
    refused(packed, canary)


def test_generate_of_transformers_takes_no_code():
    from espnet3.config.trust import Trust, under
    from espnet3.systems.asr.huggingface import HuggingFaceSeq2Seq
    from espnet3.systems.asr.trained_model import is_allowed

    generate = {"custom_generate": "someone/x", "trust_remote_code": True}
    with (
        under(Trust("/nowhere", frozenset(), is_allowed)),
        pytest.raises(PackedModelError, match="custom_generate"),
    ):
        HuggingFaceSeq2Seq(config=WAV2VEC2, tokenizer="x", generate=generate)

"""Models of Hugging Face, made small and at random: one training step, and recognition."""

import json

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from espnet3.components.data.errors import AudioError
from espnet3.components.decoding.windows import join_texts, split_windows
from espnet3.components.text.tokenizer import CharacterTokenizer
from espnet3.errors import ConfigError, MissingExtraError
from espnet3.systems.asr.huggingface import HuggingFaceCTC, HuggingFaceSeq2Seq
from espnet3.systems.asr.huggingface_inference import HuggingFaceSpeech2Text
from espnet3.systems.asr.inference import Speech2Text

transformers = pytest.importorskip("transformers")
RATE = 16000
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CONVOLUTIONS = {"conv_dim": [8, 8], "conv_kernel": [10, 8], "conv_stride": [20, 16]}
WAV2VEC2 = {
    "model_type": "wav2vec2", "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16,
    "num_attention_heads": 2, "num_feat_extract_layers": 2, **CONVOLUTIONS,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0,
    "feat_extract_norm": "layer", "do_stable_layer_norm": True,
}  # fmt: skip
WHISPER = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_mel_bins": 20,
    "max_source_positions": 50, "max_target_positions": 40,
}  # fmt: skip


def speech(seconds, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, int(seconds * RATE)).astype(np.float32)


def batch(*seconds):
    rows = [torch.from_numpy(speech(one, seed)) for seed, one in enumerate(seconds)]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"speech": padded, "speech_lengths": torch.tensor([len(row) for row in rows])}


@pytest.fixture(scope="module")
def wav2vec2(tmp_path_factory):
    """Return a folder as `save_pretrained` writes it; blank is not the first token."""
    folder = tmp_path_factory.mktemp("wav2vec2")
    tokens = [*LETTERS, "|", "<pad>", "<unk>", "<s>", "</s>"]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(folder / "vocab.json")
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    torch.manual_seed(1)
    values = {k: v for k, v in WAV2VEC2.items() if k != "model_type"}
    config = transformers.Wav2Vec2Config(
        **values, vocab_size=len(tokens), pad_token_id=tokenizer.pad_token_id
    )
    network = transformers.Wav2Vec2ForCTC(config)
    network.lm_head.weight.data *= 30
    for part in (tokenizer, extractor, network):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"]
    tokens = [*LETTERS, "Ġ", *special]
    tokenizer = transformers.WhisperTokenizer(
        vocab={t: i for i, t in enumerate(tokens)}, merges=[], pad_token="<|endoftext|>"
    )
    ids = {name: tokens.index(name) for name in special}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    torch.manual_seed(1)
    config = transformers.WhisperConfig(
        **WHISPER, vocab_size=len(tokens), pad_token_id=end, bos_token_id=end, eos_token_id=end,
        decoder_start_token_id=start, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    network = transformers.WhisperForConditionalGeneration(config)
    network.model.decoder.embed_tokens.weight.data *= 20
    blank = tokens.index("Ġ")
    network.generation_config.update(
        max_length=None,
        max_new_tokens=8,
        min_new_tokens=4,
        suppress_tokens=[blank, start, start + 1],
    )
    extractor = transformers.WhisperFeatureExtractor(feature_size=20, chunk_length=1)
    for part in (tokenizer, extractor, network):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    CharacterTokenizer.from_texts([f"a {LETTERS}"]).save(folder)
    return folder


def test_ctc_of_a_folder_says_what_transformers_says(wav2vec2):
    samples = speech(1.0)
    network = transformers.AutoModelForCTC.from_pretrained(wav2vec2).eval()
    processor = transformers.Wav2Vec2Processor.from_pretrained(wav2vec2)
    inputs = processor(samples, sampling_rate=RATE, return_tensors="pt")
    ids = network(**inputs).logits.argmax(-1)
    expected = processor.batch_decode(ids)[0]
    assert len(set(expected)) > 3
    assert HuggingFaceSpeech2Text(str(wav2vec2))(samples).text == " ".join(expected.split())


def test_ctc_of_a_batch_is_that_of_its_utterances(wav2vec2):
    model = HuggingFaceSpeech2Text(str(wav2vec2))
    utterances = [speech(1.0), speech(0.5, 1)]
    assert [r.text for r in model(utterances)] == [model(one).text for one in utterances]


def test_ctc_takes_our_decoders(wav2vec2):
    from espnet3.components.decoding.ctc_beam import PrefixBeamCTC

    model = HuggingFaceSpeech2Text(str(wav2vec2), decoder=PrefixBeamCTC(beam_size=4), n_best=2)
    assert len(model(speech(0.5)).n_best) == 2
    with pytest.raises(ConfigError, match="generate is set"):
        HuggingFaceSpeech2Text(str(wav2vec2), generate={"num_beams": 2})


def test_seq2seq_generates_for_lists(whisper):
    model = HuggingFaceSpeech2Text(str(whisper), generate={"num_beams": 2})
    utterances = [speech(0.9), speech(0.4, 1)]
    texts = [result.text for result in model(utterances)]
    assert texts == [model(one).text for one in utterances]
    assert all(len(text) == 8 for text in texts)
    with pytest.raises(AudioError, match="this model accepts 1 s"):
        model(speech(1.5))
    with pytest.raises(ConfigError, match="word_times is set"):
        HuggingFaceSpeech2Text(str(whisper), word_times=True)


def test_seq2seq_takes_long_audio_in_windows(whisper):
    model = HuggingFaceSpeech2Text(str(whisper), window_seconds=1.0, overlap_seconds=0.2)
    long = speech(2.5)
    short = speech(0.9)
    texts = [result.text for result in model([long, short], sample_rate=[RATE, RATE])]
    assert texts[1] == HuggingFaceSpeech2Text(str(whisper))(short).text
    pieces = [long[w.start : w.end] for w in split_windows(len(long), 1, RATE, RATE // 5)]
    assert len(pieces) == 3
    assert texts[0] == join_texts([model(piece).text for piece in pieces])
    with pytest.raises(ConfigError, match="window_seconds"):
        HuggingFaceSpeech2Text(str(whisper), window_seconds=1.0, overlap_seconds=0.6)


def test_labels_have_no_second_start_and_leave_padding_out(whisper):
    model = HuggingFaceSeq2Seq(str(whisper))
    labels = model._labels(["ab", "abc"])
    assert (labels == model.network.config.decoder_start_token_id).sum() == 0
    assert labels[0, -1] == -100
    loss, stats, weight = model(**batch(0.5, 0.9), text=["ab", "abc"])
    alone = [model(**batch(0.5), text=["ab"])[0]]
    assert weight == 2
    assert torch.isfinite(loss)
    assert torch.isfinite(alone[0])
    assert stats.keys() == {"loss"}
    _, stats, _ = model.eval()(**batch(0.5, 0.9), text=["ab", "abc"])
    assert stats.keys() == {"loss", "cer", "wer"}


def test_ctc_loss_is_that_of_texts_or_of_tokens(wav2vec2):
    model = HuggingFaceCTC(str(wav2vec2)).eval()
    fields = batch(0.5, 1.0)
    loss, _, weight = model(**fields, text=["ab", "hello"])
    ids = [torch.tensor(model.tokenizer.encode(text)) for text in ("ab", "hello")]
    tokens = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1)
    same, _, _ = model(**fields, tokens=tokens, tokens_lengths=torch.tensor([2, 5]))
    assert loss.item() == pytest.approx(same.item())
    assert weight == 2
    assert [model.tokenizer.decode(row.tolist()) for row in ids] == ["ab", "hello"]
    with pytest.raises(ConfigError, match="neither tokens nor text"):
        model(**fields)


TRAINING = """\
seed: 1
num_threads: 1
dataset:
  train: [{data_src: jsonl, data_src_args: {path: "${data_dir}/train.jsonl"}}]
  valid: [{data_src: jsonl, data_src_args: {path: "${data_dir}/train.jsonl"}}]
dataloader: {train: {batch_size: 2}, valid: {batch_size: 2}}
optimizer: {_target_: torch.optim.SGD, lr: 0.05}
best_model_criterion: [[valid/loss, 1, min]]
trainer: {accelerator: cpu, devices: 1, max_epochs: 1, logger: false, enable_progress_bar: false}
"""


def train(folder, block, monkeypatch):
    """Train one epoch of two batches by stage 4, and return the folder that it leaves."""
    import soundfile

    from espnet3.systems.base.context import load_configs
    from espnet3.systems.base.training import train as train_stage

    (folder / "data").mkdir()
    rows = []
    for i, text in enumerate(("ab", "hello you", "c", "x y")):
        soundfile.write(folder / f"data/{i}.wav", speech(0.5 + 0.1 * i, i), RATE)
        rows.append(json.dumps({"utt_id": f"u{i}", "audio": f"{i}.wav", "text": text}))
    (folder / "data/train.jsonl").write_text("\n".join(rows))
    config = OmegaConf.merge(OmegaConf.create(TRAINING), {"model": block})
    OmegaConf.save(config, folder / "training.yaml")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    train_stage(load_configs({"training": ["training.yaml"]}).training)
    monkeypatch.undo()
    return folder / "exp/training"


def _packed(exp_dir, folder):
    from espnet3.systems.asr.publication import pack_model
    from espnet3.systems.base.context import load_configs

    (folder / "publication.yaml").write_text(f"exp_dir: {exp_dir}\n")
    return pack_model(load_configs({"publication": [folder / "publication.yaml"]}).publication)


def test_ctc_is_fine_tuned_with_our_tokenizer_and_recognises(
    tmp_path, monkeypatch, wav2vec2, tokenizer_dir
):
    block = {
        "_target_": "espnet3.systems.asr.huggingface.HuggingFaceCTC",
        "pretrained": str(wav2vec2),
        "tokenizer": str(tokenizer_dir),
        "freeze_feature_encoder": True,
    }
    exp_dir = train(tmp_path, block, monkeypatch)
    model = Speech2Text.from_experiment(exp_dir)
    assert model.model.n_tokens == len(LETTERS) + 4
    other = HuggingFaceSpeech2Text(weights=exp_dir / "valid.loss.ave_1best.safetensors")
    samples = speech(0.7)
    assert model(samples).text == other(samples).text
    old = transformers.AutoModelForCTC.from_pretrained(wav2vec2).state_dict()
    new = model.model.network.state_dict()
    layers = [name for name in new if "encoder.layers" in name]
    frozen = [name for name in new if "feature_extractor" in name]
    assert any(not torch.equal(new[name], old[name]) for name in layers)
    packed = _packed(exp_dir, tmp_path)
    assert "model.safetensors" not in [path.name for path in packed.rglob("*")]
    assert Speech2Text.from_packed(packed)(samples).text == model(samples).text
    assert frozen
    assert all(torch.equal(new[name], old[name]) for name in frozen)


def test_seq2seq_is_trained_from_a_config_and_recognises(tmp_path, monkeypatch, whisper):
    tokenizer = transformers.AutoTokenizer.from_pretrained(whisper)
    end = tokenizer.eos_token_id
    start = tokenizer.convert_tokens_to_ids("<|startoftranscript|>")
    config = {
        "model_type": "whisper", **WHISPER, "vocab_size": len(tokenizer), "pad_token_id": end,
        "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start,
        "suppress_tokens": None, "begin_suppress_tokens": None,
    }  # fmt: skip
    block = {
        "_target_": "espnet3.systems.asr.huggingface.HuggingFaceSeq2Seq",
        "config": config,
        "tokenizer": str(whisper),
        "feature_extractor": {"chunk_length": 1},
        "generate": {"max_new_tokens": 5},
    }
    exp_dir = train(tmp_path, block, monkeypatch)
    model = HuggingFaceSpeech2Text(weights=exp_dir / "valid.loss.ave_1best.safetensors")
    assert [type(result.text) for result in model([speech(0.5), speech(0.9)])] == [str, str]


def test_mistakes_say_what_to_write(tmp_path, wav2vec2):
    with pytest.raises(ConfigError, match="either a pretrained model or weights"):
        HuggingFaceSpeech2Text()
    with pytest.raises(ConfigError, match="save_pretrained"):
        HuggingFaceSpeech2Text(str(tmp_path))
    with pytest.raises(ConfigError, match="tokenizer: "):
        HuggingFaceCTC(config=WAV2VEC2)
    with pytest.raises(ConfigError, match=r"pretrained: facebook/wav2vec2-base"):
        HuggingFaceSeq2Seq(tokenizer=str(wav2vec2))
    config = transformers.BertConfig()
    config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="is a bert, which is neither"):
        HuggingFaceSpeech2Text(str(tmp_path))


def test_a_missing_package_names_the_extra(monkeypatch, wav2vec2):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "transformers" else found(name)
    )
    with pytest.raises(MissingExtraError, match=r"\.\[transformers\]"):
        HuggingFaceCTC(str(wav2vec2))

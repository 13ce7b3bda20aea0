"""ESPnet2's tasks that `infer` does not take: their models are trained for two steps."""

import pytest
import torch

from espnet3.errors import EspnetError
from espnet3.systems.espnet2.model import ESPnet2Model

N_SAMPLES = 16000
WORDS = ["<blank>", "<unk>", "a", "b", "c", "d", "<sos/eos>"]
MARKED = ["<blank>", "<unk>", "<na>", "<nospeech>", "<eng>", "<asr>", "<notimestamps>", "a", "b",
          "c", "d", "<sop>", "<sos>", "<eos>"]  # fmt: skip
SMALL = {"output_size": 16, "attention_heads": 2, "num_blocks": 1, "linear_units": 16}
TRANSFORMER = {**SMALL, "use_flash_attn": False}
BRANCHES = {**SMALL, "cgmlp_linear_units": 16}
DECODER = {"attention_heads": 2, "num_blocks": 1, "linear_units": 16}
STFT = {"n_fft": 256, "hop_length": 64}
KEYS = {
    "s2t": {
        "token_list": MARKED, "encoder": "e_branchformer", "encoder_conf": BRANCHES,
        "decoder": "transformer", "decoder_conf": DECODER, "model_conf": {"ctc_weight": 0.3},
    },
    "s2t_ctc": {
        "token_list": MARKED, "encoder": "e_branchformer_ctc",
        "encoder_conf": {**BRANCHES, "use_cross_attention": False, "interctc_layer_idx": []},
        "promptencoder": "transformer", "promptencoder_conf": SMALL,
    },
    "diar": {
        "num_spk": 2, "encoder": "transformer", "decoder": "linear",
        "encoder_conf": {**TRANSFORMER, "input_layer": "linear"},
    },
    "enh_s2t": {
        "token_list": WORDS, "enh_encoder_conf": STFT, "enh_decoder_conf": STFT,
        "enh_separator_conf": {"num_spk": 1, "layer": 1, "unit": 16},
        "enh_criterions": [{"name": "si_snr", "conf": {}, "wrapper": "fixed_order",
                            "wrapper_conf": {}}],
        "asr_encoder": "transformer", "asr_encoder_conf": TRANSFORMER,
        "asr_decoder": "transformer", "asr_decoder_conf": DECODER,
        "asr_model_conf": {"ctc_weight": 0.3},
    },
    "enh_tse": {
        "encoder_conf": STFT, "decoder_conf": STFT, "extractor": "td_speakerbeam",
        "extractor_conf": {"layer": 1, "stack": 1, "bottleneck_dim": 16, "hidden_dim": 16,
                           "skip_dim": 16, "i_adapt_layer": 0, "adapt_enroll_dim": 16},
    },
    "hubert": {
        "token_list": WORDS, "num_classes": 10, "model": "torchaudio",
        "encoder": "torchaudio_hubert", "frontend": None, "input_size": 1,
        "encoder_conf": {"encoder_embed_dim": 16, "encoder_num_layers": 1, "encoder_num_heads": 2,
                         "encoder_ff_interm_features": 16, "final_dim": 8},
    },
    "lid": {
        "frontend": "melspec_torch", "frontend_conf": {"n_mels": 40}, "encoder": "ecapa_tdnn",
        "encoder_conf": {"model_scale": 8, "ndim": 32, "output_size": 48},
        "projector_conf": {"output_size": 16}, "lang_num": 2,
        "model_conf": {"extract_feats_in_collect_stats": False},
        "loss_conf": {"margin": 0.3, "scale": 15},
    },
}  # fmt: skip


def sound(name: str) -> dict[str, torch.Tensor]:
    return {name: torch.randn(2, N_SAMPLES), f"{name}_lengths": torch.tensor([N_SAMPLES] * 2)}


def ids(name: str, size: int, first: int = 2, end: int = 6) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([size] * 2)
    return {name: torch.randint(first, end, (2, size)), f"{name}_lengths": lengths}


def batch_of(task: str) -> dict[str, torch.Tensor]:
    """Return what the task reads, by ESPnet2's names."""
    texts = {**ids("text", 3, 7, 11), **ids("text_prev", 3, 7, 11), **ids("text_ctc", 3, 7, 11)}
    return {
        "s2t": {**sound("speech"), **texts},
        "s2t_ctc": {**sound("speech"), **texts, **ids("prefix", 2, 4, 6)},
        "diar": {**sound("speech"), "spk_labels": torch.ones(2, N_SAMPLES, 2),
                 "spk_labels_lengths": torch.tensor([N_SAMPLES] * 2)},
        "enh_s2t": {**sound("speech"), **sound("speech_ref1"), **ids("text_spk1", 3)},
        "enh_tse": {**sound("speech_mix"), **sound("speech_ref1"), **sound("enroll_ref1")},
        "hubert": {**sound("speech"), **ids("text", 49, 0)},
        "lid": {**sound("speech"), "lid_labels": torch.tensor([[0], [1]])},
    }[task]  # fmt: skip


@pytest.mark.parametrize("task", KEYS)
def test_two_steps_change_all_parts_of_the_model(task):
    torch.manual_seed(0)
    model = ESPnet2Model(task, **KEYS[task])
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        loss, stats, weight = model(**batch_of(task))
        assert torch.isfinite(loss)
        assert weight > 0
        assert stats
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    changed = sum(not torch.equal(value, before[n]) for n, value in model.named_parameters())
    assert changed > 0.5 * len(before)


@pytest.mark.parametrize("task", ["gan_tts", "gan_svs", "gan_codec", "uasr"])
def test_tasks_of_two_losses_are_refused_in_words(task):
    with pytest.raises(EspnetError, match="two losses in turn"):
        ESPnet2Model(task)

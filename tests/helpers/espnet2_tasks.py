"""Write small recipes of ESPnet2's other tasks, as its users have them."""

import shutil
from pathlib import Path

import yaml

from tests.helpers.espnet2_models import MARKED, MARKS, TOKENS, task_keys, write_task_data

LOOP = {
    "batch_type": "unsorted", "batch_size": 2, "max_epoch": 1, "num_workers": 0, "optim": "adam",
    "optim_conf": {"lr": 0.002}, "keep_nbest_models": 1,
}  # fmt: skip
BEST = {"best_model_criterion": [["valid", "loss", "min"]]}
HEAD = """#!/usr/bin/env bash
set -e
set -u
set -o pipefail

fs=16k
train_set=tr
valid_set="dev"
test_sets="test "
"""
OPTIONS = {
    "st": """./st.sh --local_data_opts "--x 1" \\
    --src_lang en --tgt_lang de --src_case lc --tgt_case "tc" \\
    --src_token_type char --tgt_token_type char --use_lm false \\
    --st_config conf/train_st.yaml --inference_config conf/decode_st.yaml \\
    --inference_st_model valid.loss.ave_1best.pth --feats_normalize utterance_mvn \\
    --speed_perturb_factors "0.9 1.0 1.1" \\
""",
    "mt": """./mt.sh --src_lang en --tgt_lang de --src_case lc --tgt_case tc \\
    --src_token_type char --tgt_token_type char --use_lm false \\
    --mt_config conf/train_mt.yaml --inference_config conf/decode_mt.yaml \\
    --inference_mt_model valid.loss.best.pth \\
""",
    "slu": """./slu.sh --lang en --token_type char --use_lm false --feats_normalize utterance_mvn \\
    --slu_config conf/train_slu.yaml --inference_config conf/decode_slu.yaml \\
    --inference_slu_model valid.loss.best.pth \\
""",
    "tts": """./tts.sh --lang en --feats_type raw --n_fft 512 --n_shift 256 --win_length null \\
    --token_type char --cleaner none --g2p none --train_config conf/train_tts.yaml \\
    --inference_config conf/decode_tts.yaml --srctexts "data/${train_set}/text" \\
    --inference_model valid.loss.best.pth \\
""",
    "enh": """./enh.sh --spk_num 1 --ref_channel 0 --enh_config conf/train_enh.yaml \\
    --inference_model valid.loss.best.pth --use_noise_ref false --use_dereverb_ref false \\
""",
    "spk": """./spk.sh --feats_type raw --spk_config conf/train_spk.yaml \\
    --inference_model valid.loss.best.pth --cohort_set test \\
""",
    "asr2": """kmeans_feature="wavlm_large/21"
src_lang=$(echo "${kmeans_feature}_km20" | tr "/" "_")
./asr2.sh --kmeans_feature "${kmeans_feature}" --nclusters 20 --kmeans_opts "--nj 4" \\
    --src_lang "${src_lang}" --tgt_lang en --src_case rm --tgt_case ts \\
    --src_token_type char --tgt_token_type char --use_lm false --feats_type raw \\
    --asr_config conf/train_asr2.yaml --inference_config conf/decode_asr2.yaml \\
    --inference_asr_model valid.loss.best.pth --speed_perturb_factors "0.9 1.0 1.1" \\
""",
    "s2t": """./s2t.sh --s2t_config conf/train_s2t.yaml --inference_config conf/decode_s2t.yaml \\
    --token_type char --nlsyms_txt data/nlsyms.txt --use_lm false --feats_type raw \\
    --feats_normalize utterance_mvn --inference_s2t_model valid.loss.best.pth \\
""",
    "lid": """./lid.sh --feats_type raw --lid_config conf/train_lid.yaml \\
    --inference_model valid.loss.best.pth \\
""",
}
DECODE = {
    "st": {"beam_size": 3, "penalty": 0.0, "maxlenratio": 0.0, "batch_size": 1},
    "mt": {"beam_size": 3, "maxlenratio": 0.5},
    "slu": {"beam_size": 2, "ctc_weight": 0.3},
    "asr2": {"beam_size": 2, "ctc_weight": 0.3, "maxlenratio": 0.5},
    "s2t": {"beam_size": 2},
    "tts": {"maxlenratio": 1.0, "minlenratio": 0.0, "threshold": 0.5},
}
_END = """    --fs "${fs}" --ngpu 0 --nj 2 --inference_nj 2 \\
    --train_set "${train_set}" \\
    --valid_set "${valid_set}" \\
    --test_sets "${test_sets}" "$@"
"""


def run_sh(task: str) -> str:
    """Return the run.sh of a task."""
    return f"{HEAD}\n{OPTIONS[task]}{_END}"


def write_task_recipe(folder: Path, task: str, *, has_data: bool = True) -> Path:
    """Write the recipe, with its data and token lists where it has run already."""
    (folder / "conf").mkdir(parents=True)
    (folder / "run.sh").write_text(run_sh(task))
    (folder / "cmd.sh").write_text('export train_cmd="run.pl"\nexport cuda_cmd="run.pl"\n'
                                   'export decode_cmd="run.pl"\n')  # fmt: skip
    keys = task_keys(task)
    # run.sh sets these.
    for key in ("token_type", "src_token_type", "feats_extract", "spk_num", "lang_num"):
        keys.pop(key, None)
    if task == "tts":
        features = keys.pop("feats_extract_conf")
        keys["feats_extract_conf"] = {name: features[name] for name in ("n_mels", "fmin", "fmax")}
    for name, values in (("train", {**keys, **LOOP, **BEST}), ("decode", DECODE.get(task, {}))):
        (folder / f"conf/{name}_{task}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    if has_data:
        in_dump = task in ("asr2", "s2t")
        for name in ("tr_sp" if task == "asr2" else "tr", "dev", "test"):
            _write_set(folder / ("dump/raw" if in_dump else "data") / name)
        two = {"asr2": ("tgt_char_ts_en", "src_char_rm_wavlm_large_21_km20")}
        two |= dict.fromkeys(("st", "mt"), ("tgt_char_tc_de", "src_char_lc_en"))
        for name in two.get(task, ("char",)):
            place = folder / "data" / "token_list" / name
            place.mkdir(parents=True)
            tokens = MARKED if task == "s2t" else TOKENS
            (place / "tokens.txt").write_text("\n".join(tokens) + "\n")
        (folder / "data" / "nlsyms.txt").write_text("".join(f"{one}\n" for one in MARKS))
    return folder


def _write_set(folder: Path) -> None:
    write_task_data(folder)
    shutil.copy(folder / "text", folder / "text.tc.de")
    shutil.copy(folder / "src_text", folder / "text.lc.en")
    shutil.copy(folder / "text", folder / "text.ts.en")
    shutil.copy(folder / "src_text", folder / "text.rm.wavlm_large_21_km20")
    (folder / "utt2lang").write_text("".join(f"utt{i} {'ab'[i % 2]}\n" for i in range(4)))
    _write_marked(folder)
    (folder / "utt2spk").write_text("".join(f"utt{i} {'ba'[i % 2]}\n" for i in range(4)))
    trials = [f"utt{a}*utt{b} {int(a % 2 == b % 2)}\n" for a in range(4) for b in range(a)]
    (folder / "trial_label").write_text("".join(trials))


def _write_marked(folder: Path) -> None:
    """Write the texts that s2t reads; its `text` has marks, which others read as letters."""
    lines = [line.split(" ", 1) for line in (folder / "text").read_text().splitlines()]
    if "dump" in folder.parts:
        marked = "".join(f"{id} <en><asr><0.00> {words}<0.20>\n" for id, words in lines)
        (folder / "text").write_text(marked)
    (folder / "text.prev").write_text("".join(f"{id} abc\n" for id, _ in lines))
    (folder / "text.ctc").write_text("".join(f"{id} {words}\n" for id, words in lines))

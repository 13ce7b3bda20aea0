"""A recipe in ESPnet2's layout, written for tests: run.sh, cmd.sh, conf, and a little data."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import soundfile
import yaml

RUN = """#!/usr/bin/env bash
# Set bash to 'debug' mode, it will exit on :
set -e
set -u
set -o pipefail

train_set="train"
valid_set="dev"
test_sets="test"

asr_config=conf/train_asr.yaml
inference_config=conf/decode_asr.yaml

./asr.sh \\
    --lang en \\
    --ngpu 1 \\
    --nj 4 \\
    --inference_nj 8 \\
    --token_type char \\
    --use_lm false \\
    --fs 8k \\
    --feats_normalize utterance_mvn \\
    --speed_perturb_factors "0.9 1.0 1.1" \\
    --asr_config "${asr_config}" \\
    --inference_config "${inference_config}" \\
    --train_set "${train_set}" \\
    --valid_set "${valid_set}" \\
    --test_sets "${test_sets}" \\
    "$@"
"""
CMD = """# ====== About run.pl, queue.pl, slurm.pl, and ssh.pl ======
cmd_backend='slurm'

if [ "${cmd_backend}" = local ]; then
    export train_cmd="run.pl"
    export cuda_cmd="run.pl"
    export decode_cmd="run.pl"
elif [ "${cmd_backend}" = slurm ]; then
    export train_cmd="slurm.pl --mem 4G"
    export cuda_cmd="slurm.pl --mem 16G --time 24:00:00 --num_threads 4"
    export decode_cmd="slurm.pl --mem 8G --max-jobs-run 6"
elif [ "${cmd_backend}" = sge ]; then
    export train_cmd="queue.pl"
    export cuda_cmd="queue.pl"
    export decode_cmd="queue.pl"
else
    echo "$0: Error: Unknown cmd_backend=${cmd_backend}" 1>&2
    return 1
fi
"""
SLURM = """# Default configuration
command sbatch --export=PATH
option name=* --job-name $0
option time=* --time $0
option mem=* --mem-per-cpu $0
option mem=0
option num_threads=* --cpus-per-task $0
option num_threads=1 --cpus-per-task 1
option num_nodes=* --nodes $0
default gpu=0
option gpu=0 -p cpu
option gpu=* -p gpu --gres=gpu:$0 -c $0
# note: the --max-jobs-run option is supported as a special case
"""
TRAIN = {
    "batch_type": "numel", "batch_bins": 1600000, "accum_grad": 1, "max_epoch": 2, "patience": None,
    "init": "xavier_uniform", "num_workers": 0, "keep_nbest_models": 2, "grad_clip": 3.0,
    "best_model_criterion": [["valid", "acc", "max"]], "frontend_conf": {"n_mels": 20},
    "encoder": "conformer",
    "encoder_conf": {
        "output_size": 16, "attention_heads": 2, "linear_units": 16, "num_blocks": 1,
        "cnn_module_kernel": 7, "input_layer": "conv2d", "dropout_rate": 0.1,
    },
    "decoder": "transformer",
    "decoder_conf": {"attention_heads": 2, "linear_units": 16, "num_blocks": 1},
    "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1},
    "optim": "adam", "optim_conf": {"lr": 0.002}, "scheduler": "warmuplr",
    "scheduler_conf": {"warmup_steps": 100},
}  # fmt: skip
DECODE = {"beam-size": 2, "ctc-weight": 0.3, "maxlenratio": 0.0, "minlenratio": 0.0, "penalty": 0.0}
WORDS = ("one", "two", "three", "stop")
N_UTTERANCES = {"train": 8, "dev": 2, "test": 4}


def write_recipe(
    folder: Path,
    *,
    run: str = RUN,
    train: Mapping[str, object] | None = None,
    decode: Mapping[str, object] | None = None,
    sets: Sequence[str] = ("train", "dev", "test"),
    has_tokens: bool = False,
) -> Path:
    """Write the recipe, with data directories of these sets."""
    (folder / "conf").mkdir(parents=True)
    (folder / "local").mkdir()
    (folder / "run.sh").write_text(run)
    (folder / "cmd.sh").write_text(CMD)
    (folder / "path.sh").write_text("MAIN_ROOT=$PWD/../../..\nexport PATH=$PWD/utils/:$PATH\n")
    (folder / "local" / "data.sh").write_text("#!/usr/bin/env bash\nexit 0\n")
    (folder / "conf" / "slurm.conf").write_text(SLURM)
    configs = {"train_asr": {**TRAIN, **(train or {})}, "decode_asr": {**DECODE, **(decode or {})}}
    for name, values in configs.items():
        (folder / "conf" / f"{name}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    if has_tokens:
        tokens = ["<blank>", "<unk>", "<space>", *sorted({*"".join(WORDS)}), "<sos/eos>"]
        (folder / "data" / "token_list" / "char").mkdir(parents=True)
        file = folder / "data" / "token_list" / "char" / "tokens.txt"
        file.write_text("".join(f"{token}\n" for token in tokens))
    for name in sets:
        write_set(folder / "data" / name, name, N_UTTERANCES.get(name, 2))
    return folder


def write_set(folder: Path, name: str, n_utterances: int) -> None:
    """Write a data directory of Kaldi, with audio of noise."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(len(name))
    lines: dict[str, list[str]] = {"wav.scp": [], "text": [], "utt2spk": []}
    for number in range(n_utterances):
        id = f"{folder.name}-{number:03d}"
        path = folder / f"{id}.wav"
        seconds = 0.8 + 0.1 * (number % 3)
        soundfile.write(path, random.normal(0, 0.1, int(8000 * seconds)), 8000)
        lines["wav.scp"].append(f"{id} {path}")
        lines["text"].append(f"{id} {' '.join(WORDS[(number + k) % 4] for k in range(2))}")
        lines["utt2spk"].append(f"{id} spk{number % 2}")
    for file, rows in lines.items():
        (folder / file).write_text("".join(f"{row}\n" for row in rows))

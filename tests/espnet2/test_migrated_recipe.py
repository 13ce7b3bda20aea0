"""A recipe of ESPnet2's layout goes over: it is trained here, and what ESPnet2 trained is decoded.

Recordings of AudioMNIST, `run.sh` with options, `cmd.sh` for Slurm, configs, a token list and data
directories as `local/data.sh` leaves them; then ESPnet2's own training and decoding beside ours.
"""

import multiprocessing
import os
from pathlib import Path

import pytest
import soundfile
import yaml

from espnet3.cli.main import main
from espnet3.io.scp import read_scp
from espnet3.systems.asr.system import ASRSystem
from tests.helpers.espnet2_recipe import RUN, write_recipe
from tests.helpers.recipe_copy import DATA, run_recipe_here

SPEECH = DATA / "audiomnist_16k" / "data"
pytestmark = [
    pytest.mark.skipif(not SPEECH.is_dir(), reason="needs the recordings of AudioMNIST"),
    pytest.mark.timeout(600),
]
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPEAKERS = {"train": ("01", "02"), "dev": ("03",), "test": ("04",)}
TRAIN = {
    "batch_type": "unsorted", "batch_size": 5, "max_epoch": 15, "encoder": "e_branchformer",
    "encoder_conf": {
        "output_size": 32, "attention_heads": 2, "num_blocks": 1, "linear_units": 32,
        "cgmlp_linear_units": 32, "cgmlp_conv_kernel": 7, "merge_conv_kernel": 7,
        "input_layer": "conv2d",
    },
    "frontend_conf": {"n_mels": 40}, "optim_conf": {"lr": 0.01},
}  # fmt: skip
DECODE = {"beam_size": 3, "ctc_weight": 0.3, "maxlenratio": 0.0, "minlenratio": 0.2}
CONFIGS = (
    "--training_config", "conf/training.yaml", "--inference_config", "conf/inference.yaml",
    "conf/parallel_local.yaml", "--metrics_config", "conf/metrics.yaml",
)  # fmt: skip


@pytest.fixture(scope="module")
def old(tmp_path_factory, _imported_once):
    """The recipe, with what ESPnet2 itself trained and decoded in it."""
    folder = tmp_path_factory.mktemp("espnet2") / "egs2" / "digits" / "asr1"
    run = RUN.replace("--fs 8k", "--fs 16k").replace("--speed_perturb_factors", "--asr_tag")
    run = run.replace('"0.9 1.0 1.1"', "tiny")
    write_recipe(folder, run=run, train=TRAIN, sets=())
    # ESPnet2 itself takes no dashes there.
    (folder / "conf" / "decode_asr.yaml").write_text(yaml.safe_dump(DECODE))
    for name, speakers in SPEAKERS.items():
        write_set(folder / "data" / name, speakers)
    letters = sorted({*"".join(WORDS)})
    tokens = ["<blank>", "<unk>", "<space>", *letters, "<sos/eos>"]
    (folder / "data/en_token_list/char").mkdir(parents=True)
    (folder / "data/en_token_list/char/tokens.txt").write_text("\n".join(tokens) + "\n")
    in_a_child(train_by_espnet2, folder)
    in_a_child(decode_by_espnet2, folder)
    return folder


def write_set(folder: Path, speakers: tuple[str, ...]) -> None:
    folder.mkdir(parents=True)
    tables: dict[str, list[str]] = {"wav.scp": [], "text": [], "utt2spk": [], "speech_shape": []}
    for speaker in speakers:
        for digit, word in enumerate(WORDS):
            id, path = f"{speaker}-{digit}", SPEECH / speaker / f"{digit}_{speaker}_0.flac"
            tables["wav.scp"].append(f"{id} {path}")
            tables["text"].append(f"{id} {word}")
            tables["utt2spk"].append(f"{id} {speaker}")
            tables["speech_shape"].append(f"{id} {soundfile.info(path).frames}")
    for name, lines in tables.items():
        (folder / name).write_text("".join(f"{line}\n" for line in sorted(lines)))


def in_a_child(function, folder: Path) -> None:
    """Run in a fork, which has imported ESPnet2 already and takes its settings with it."""
    child = multiprocessing.get_context("fork").Process(target=function, args=(folder,))
    child.start()
    child.join(timeout=300)
    assert child.exitcode == 0


def train_by_espnet2(folder: Path) -> None:
    from espnet2.bin.asr_train import main as train

    os.chdir(folder)
    words = "--config conf/train_asr.yaml --ngpu 0 --output_dir exp/asr_tiny --token_type char "
    words += (
        "--token_list data/en_token_list/char/tokens.txt --num_workers 0 --frontend_conf fs=16k"
    )
    words += " --num_att_plot 0 --use_tensorboard false --use_matplotlib false"
    for split, name in (("train", "train"), ("valid", "dev")):
        words += f" --{split}_shape_file data/{name}/speech_shape"
        for file, kind, of in (("wav.scp", "sound", "speech"), ("text", "text", "text")):
            words += f" --{split}_data_path_and_name_and_type data/{name}/{file},{of},{kind}"
    train(words.split())


def decode_by_espnet2(folder: Path) -> None:
    from espnet2.bin.asr_inference import main as decode

    os.chdir(folder)
    words = "--config conf/decode_asr.yaml --ngpu 0 --num_workers 0 --output_dir exp/decoded"
    words += " --data_path_and_name_and_type data/test/wav.scp,speech,sound"
    words += " --asr_train_config exp/asr_tiny/config.yaml"
    words += " --asr_model_file exp/asr_tiny/valid.acc.ave.pth"
    decode(words.split())


@pytest.fixture(scope="module")
def new(old):
    target = old.parents[2] / "new" / "asr"
    assert main(["migrate", str(old), str(target)]) == 0
    return target


def test_it_is_trained_decoded_on_two_workers_scored_and_reported(new):
    run_recipe_here(ASRSystem, new, "--stages", "train-report", *CONFIGS)
    results = new / "exp" / "training" / "inference"
    assert len(dict(read_scp(results / "test" / "hyp.scp"))) == len(WORDS)
    assert "WER" in (results / "RESULTS.md").read_text()
    assert (results / "report.html").is_file()


def test_what_espnet2_trained_is_decoded_with_the_texts_of_its_own_decoding(old, new):
    inference = ("--inference_config", "conf/inference_espnet2.yaml", "parallel.n_workers=1")
    run_recipe_here(ASRSystem, new, "--stages", "infer", *inference)
    (path,) = (new / "exp").glob("**/inference_espnet2/test/hyp.scp")
    lines = (old / "exp/decoded/1best_recog/text").read_text().splitlines()
    theirs = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert len(theirs) == len(WORDS)
    assert len({*theirs.values()}) > 1, theirs
    assert {id: " ".join(text.split()) for id, text in read_scp(path)} == theirs

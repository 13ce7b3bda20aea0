"""What `espnet3 init` writes runs as it is, and after the changes that its README names."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from espnet3.io.scp import load_scp
from tests.helpers import fork_server

# Patient: a small network is trained, which takes its time on a machine with much else to do.
pytestmark = pytest.mark.timeout(360)
BIN = Path(sys.executable).parent
PROGRAMS = {"python": sys.executable, "espnet3": str(BIN / "espnet3")}
N_UTTERANCES = 20
ASR = ("--config", "conf/inference.yaml", "conf/metrics.yaml")


def call(*words, cwd: Path, code: int = 0) -> str:
    """Run a command, or the lines of a script if it is one word, and return what they told."""
    lines = [[*map(str, words)]] if len(words) > 1 else lines_of(words[0])
    told = ""
    for line in lines:
        if line[0] == "cd":
            cwd = cwd / line[1]
            continue
        path = os.pathsep.join([str(BIN), os.environ["PATH"]])
        done = subprocess.run(
            [PROGRAMS.get(line[0], line[0]), *line[1:]],
            cwd=cwd, env={**os.environ, "PATH": path, "COLUMNS": "200"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
        )  # fmt: skip
        told += done.stdout
        assert done.returncode == code, told
    return told


def lines_of(script: str) -> list[list[str]]:
    """Return the commands of a script, to start each by itself: a shell's would not be forked."""
    if os.environ.get(fork_server.COLD):
        return [["sh", "-c", f"set -e\n{script}"]]
    assert not set("$|&;<>`") & set(script), "needs a shell"
    lines = script.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def init(folder: Path, template: str) -> str:
    """Write a recipe, and return the lines that it is said to run with."""
    folder.parent.mkdir(parents=True)
    told = call("espnet3", "init", folder.name, "--template", template, cwd=folder.parent)
    lines = [line.strip() for line in told.partition("It runs as it is:\n")[2].splitlines()]
    return "\n".join(lines[: lines.index("")])


@pytest.fixture(scope="module")
def asr(tmp_path_factory) -> Path:
    """Return a recipe of the template, which ran with one worker."""
    folder = tmp_path_factory.mktemp("clone") / "egs3" / "my corpus" / "it's asr"
    told = call(init(folder, "own-model"), cwd=folder.parent)
    assert "WER  clean  20 utterances" in told
    assert "WER  noisy  20 utterances" in told
    return folder


def results(folder: Path, test_set: str, tag: str = "inference") -> Path:
    return inference_dir(folder, tag) / test_set


def inference_dir(folder: Path, tag: str) -> Path:
    """Return where results are: a config that names no experiment has them in its own."""
    return Path(folder, "exp", *dict.fromkeys([tag, "inference"]))


def error_rates(folder: Path, tag: str = "inference") -> dict[str, float]:
    file = inference_dir(folder, tag) / "metrics.json"
    measured = json.loads(file.read_text())["WER"]
    return {name: values["rate"] for name, values in measured.items()}


def test_all_utterances_are_decoded_and_noise_costs(asr):
    for test_set in ("clean", "noisy"):
        manifest = (asr / "data" / test_set / "manifest.jsonl").read_text().splitlines()
        texts = {row["utt_id"]: row["text"] for row in map(json.loads, manifest)}
        assert len(texts) == N_UTTERANCES
        assert load_scp(results(asr, test_set) / "ref.scp") == texts
        assert load_scp(results(asr, test_set) / "hyp.scp").keys() == texts.keys()
    rates = error_rates(asr)
    assert rates["clean"] == 0
    assert 5 < rates["noisy"] < 50
    by_speaker = (results(asr, "noisy") / "WER.by_speaker.tsv").read_text()
    assert [line.split("\t")[0] for line in by_speaker.splitlines()[1:]] == [
        f"speaker{number}" for number in range(4)
    ]


def test_the_field_of_its_own_output_fn_is_kept(asr):
    confidence = {
        test_set: [float(v) for v in load_scp(results(asr, test_set) / "confidence.scp").values()]
        for test_set in ("clean", "noisy")
    }
    assert min(confidence["clean"]) > 0.8 > max(confidence["noisy"]) > 0


def test_two_workers_started_from_elsewhere_give_the_same(asr, tmp_path):
    call(
        "espnet3", "run", asr, "--stages", "all", *ASR, "conf/parallel_local.yaml", "exp_tag=two",
        "test_set=noisy", cwd=tmp_path,
    )  # fmt: skip
    for file in ("hyp.scp", "ref.scp", "confidence.scp"):
        expected = (results(asr, "noisy") / file).read_bytes()
        assert (results(asr, "noisy", "two") / file).read_bytes() == expected
    assert error_rates(asr, "two") == {"noisy": error_rates(asr)["noisy"]}
    assert len(list(results(asr, "noisy", "two").glob("logs/worker-*.log"))) == 2
    assert not list(tmp_path.iterdir())


def test_the_second_run_has_nothing_to_do(asr):
    configs = ("--inference_config", ASR[1], "--metrics_config", ASR[2])
    told = call("python", "run.py", "--stages", "1", "infer-measure", *configs, cwd=asr)
    assert "all is there already" in told
    assert told.count("is complete already: 20 items") == 2


def test_the_artifacts_that_the_config_suggests_are_written(asr):
    text = (asr / "conf" / "inference.yaml").read_text()
    text = text.replace("# output_artifacts", "output_artifacts").replace("#   shares", "  shares")
    text = text.replace("confidence]", "confidence, shares]")
    (asr / "conf" / "artifacts.yaml").write_text(text)
    words = ("--stages", "infer", "--config", "conf/artifacts.yaml", "test_set=clean")
    call("python", "run.py", *words, cwd=asr)
    folder = asr / "exp" / "artifacts" / "clean"
    paths = load_scp(folder / "shares.scp")
    assert len(paths) == N_UTTERANCES
    for path in paths.values():
        shares = np.load(folder / path)
        assert shares.ndim == 2
        assert 0 <= shares.min() < shares.max() <= 1.01


def sh_block(folder: Path, title: str, number: int = 0) -> str:
    """Return the lines for the shell below a title of the README."""
    section = (folder / "README.md").read_text().partition(f"\n## {title}\n")[2]
    return section.split("```sh\n")[1 + number].partition("```")[0]


@pytest.fixture(scope="module")
def trained(asr, tmp_path_factory) -> Path:
    """Return a copy of the recipe in which the network was trained, and its output."""
    folder = tmp_path_factory.mktemp("trained") / "it's trained"
    shutil.copytree(asr, folder, ignore=shutil.ignore_patterns("exp", "__pycache__"))
    told = call(sh_block(folder, "Train"), cwd=folder)
    for line in ("First step after", "8/8", "Learning curves", "WER  noisy  20 utterances"):
        assert line in told
    return folder


def test_the_network_is_trained_and_hears_better_than_the_rules(asr, trained):
    exp = trained / "exp" / "training"
    averaged = json.loads((exp / "valid.loss.ave_3best.json").read_text())
    assert len(averaged["averaged"]) == 3
    for name in ("last.ckpt", "curves.png", "history.jsonl", "config.yaml", "tensorboard"):
        assert (exp / name).exists()
    rates = json.loads((exp / "inference_trained" / "metrics.json").read_text())["WER"]
    assert rates["clean"]["rate"] < 5
    assert rates["noisy"]["rate"] < error_rates(asr)["noisy"]


def test_a_trained_recipe_has_nothing_to_do(trained):
    told = call(sh_block(trained, "Train"), cwd=trained)
    assert "it is trained to the end already" in told
    assert told.count("is complete already: 20 items") == 2
    assert told.count("exp/stats/") >= 2


def test_results_of_other_weights_are_not_mixed_with_the_old_ones(trained):
    exp = trained / "exp" / "training"
    averaged = exp / "valid.loss.ave_3best.safetensors"
    kept = averaged.read_bytes()
    averaged.write_bytes(kept[:-4] + b"\0\0\0\0")
    try:
        words = ("--stages", "infer", "--inference_config", "conf/inference_trained.yaml")
        told = call("python", "run.py", *words, "exp_tag=training", cwd=trained, code=1)
    finally:
        averaged.write_bytes(kept)
    assert "model.weights" in told


def test_the_job_script_of_the_template_is_shown(asr):
    line = sh_block(asr, "Train", 1).splitlines()[-1]
    script = call(f"{line} --no-check", cwd=asr)
    for option in ("--partition=gpu", "--nodes=1", "--ntasks-per-node=1", "--time=04:00:00"):
        assert f"#SBATCH {option}" in script
    assert not (asr / "exp" / "training").exists()


MODEL = """\
class Loud:
    def __init__(self, device):
        self.device = device

    def __call__(self, speech):
        return f"{len(speech)} samples on {self.device}"
"""

CONFIG = """\
dataset:
  test:
    - name: test
      data_src: jsonl
      data_src_args: {path: corpus/manifest.jsonl}
model: {_target_: src.model.Loud}
device: cpu
"""

METRICS = "metrics: [{metric: {_target_: espnet3.systems.asr.metrics.wer.WER}}]\n"


def test_it_can_be_replaced_file_by_file(asr, tmp_path):
    mine = tmp_path / "mine"
    ignored = shutil.ignore_patterns("exp", "data", "dataset", "inference.*", "__pycache__")
    shutil.copytree(asr, mine, ignore=ignored)
    shutil.copytree(asr / "data" / "noisy", mine / "corpus")
    (mine / "src" / "model.py").write_text(MODEL)
    (mine / "conf" / "inference.yaml").write_text(CONFIG)
    (mine / "conf" / "metrics.yaml").write_text(METRICS)
    call("python", "run.py", "--stages", "all", *ASR, cwd=mine)
    heard = load_scp(results(mine, "test") / "hyp.scp")
    assert len(heard) == N_UTTERANCES
    assert all(text.endswith("samples on cpu") for text in heard.values())
    assert error_rates(mine)["test"] > 50


def test_the_classifier_is_trained_and_scored(tmp_path):
    folder = tmp_path / "my work" / "sounds"
    told = call(init(folder, "classifier"), cwd=folder.parent)
    assert "n_clips 60" in told
    results = folder / "exp" / "training" / "inference"
    scores = json.loads((results / "metrics.json").read_text())["accuracy"]["test"]
    assert scores["accuracy"] > 70
    names = load_scp(results / "test" / "name.scp")
    found = load_scp(results / "test" / "found.scp")
    n_right = sum(names[id] == found[id] for id in names)
    assert scores["accuracy"] == pytest.approx(100 * n_right / 60)


@pytest.fixture(scope="module")
def loudness(tmp_path_factory) -> Path:
    """Return a recipe of the template `runner`, which ran with two workers."""
    folder = tmp_path_factory.mktemp("jobs") / "my work" / "loudness"
    told = call(init(folder, "runner"), cwd=folder.parent)
    assert "exp/loudness/results/loudness.scp: 24 files, -2" in told
    return folder


def test_each_file_is_measured(loudness):
    levels = load_scp(loudness / "exp" / "loudness" / "results" / "loudness.scp")
    assert list(levels) == [f"burst_{number:02}.wav" for number in range(24)]
    # Each file is made 1 dB louder than the last.
    assert np.allclose(np.diff([float(level) for level in levels.values()]), 1, atol=0.5)
    told = call(
        "python", "run.py", "--stages", "all", "--config", "conf/loudness.yaml", cwd=loudness
    )
    assert "is complete already: 24 items" in told


def test_audio_of_the_user_is_measured_with_one_worker(loudness, tmp_path):
    (tmp_path / "my audio").mkdir()
    for name in ("burst_03.wav", "burst_17.wav"):
        shutil.copy(loudness / "data" / "example" / name, tmp_path / "my audio" / f"a {name}")
    (tmp_path / "my audio" / "broken.wav").write_text("no audio")
    time = np.arange(16000) / 16000
    stereo = np.stack([np.sin(2 * np.pi * 440 * time)] * 2, axis=1) / 10
    soundfile.write(tmp_path / "my audio" / "tone.flac", stereo, 16000)
    call(
        "espnet3", "run", loudness, "--stages", "loudness", "--config", "conf/loudness.yaml",
        f"audio_dir={tmp_path / 'my audio'}", "exp_tag=mine", "parallel.n_workers=1",
        cwd=tmp_path,
    )  # fmt: skip
    expected = load_scp(loudness / "exp" / "loudness" / "results" / "loudness.scp")
    folder = loudness / "exp" / "mine" / "results"
    levels = load_scp(folder / "loudness.scp")
    assert levels.pop("tone.flac") == "-23.01"  # a sine of amplitude 0.1
    assert levels == {f"a%20{name}": expected[name] for name in ("burst_03.wav", "burst_17.wav")}
    assert load_scp(folder / "peak.scp")["tone.flac"] == "-20.00"
    assert load_scp(folder / "activity.scp")["tone.flac"] == "1.00"
    assert "broken.wav cannot be read as audio" in call("espnet3", "failed", folder, cwd=tmp_path)


def test_a_folder_without_audio_is_refused_with_two_ways_on(loudness, tmp_path):
    words = ("--stages", "loudness", "--config", "conf/loudness.yaml", f"audio_dir={tmp_path}")
    told = call("python", "run.py", *words, "exp_tag=none", cwd=loudness, code=1)
    assert (
        "which holds no .wav, .flac, .ogg, .mp3. Name a folder that does: audio_dir=FOLDER" in told
    )
    assert "or make an example: --stages create_dataset" in told

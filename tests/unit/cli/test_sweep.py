import json
import re
import shlex

import pytest

from espnet3.systems.base.inference import infer
from espnet3.systems.base.system import BaseSystem
from tests.helpers.tones_recipe import call, write_set
from tests.helpers.training_recipe import RUN

WORDS = ("--stages", "infer", "measure", "--inference_config", "conf/inference.yaml",
         "--metrics_config", "conf/metrics.yaml")  # fmt: skip
WRONG = None
SWEPT = "model.decoder.weight=[0.3,0.6,1.0]"
INFERENCE = """\
dataset:
  test:
    - {name: dev, data_src: jsonl, data_src_args: {path: "${data_dir}/dev.jsonl"}}
    - {name: clean, data_src: jsonl, data_src_args: {path: "${data_dir}/clean.jsonl"}}
    - {name: other, data_src: jsonl, data_src_args: {path: "${data_dir}/other.jsonl"}}
model: {_target_: src.guess.Guess, decoder: {_target_: src.guess.Decoder, weight: 0.1}}
input_key: speech
"""
GUESS = """\
from pathlib import Path


class Decoder:
    def __init__(self, weight=0.0, beam=1):
        self.weight, self.beam = weight, beam


class Guess:
    def __init__(self, decoder, device="cpu"):
        self.decoder = decoder
        with open("loads.txt", "a") as file:
            file.write(f"{decoder.weight}\\n")

    def __call__(self, speech):
        if Path("stop").exists():
            raise ValueError("stopped")
        with open("calls.txt", "a") as file:
            file.write(f"{self.decoder.weight}\\n")
        # All wrong at 0.3, half at 1.0, and none of the first tone at 0.6.
        words = {0.3: "no no", 0.6: "tone 0", 1.0: "tone"}
        return words.get(self.decoder.weight, "") if self.decoder.beam == 1 else "tone"


def length(data, test_name, inference_dir):
    return {"characters": sum(map(len, data["hyp"]))}
"""
METRICS = """\
metrics:
  - metric: {_target_: espnet3.systems.asr.metrics.wer.WER}
  - metric: {_target_: src.guess.length}
    inputs: [hyp]
"""


@pytest.fixture
def recipe(tmp_path):
    folder = tmp_path / "a 'recipe'"
    files = {
        "run.py": RUN,
        "src/__init__.py": "",
        "src/guess.py": GUESS,
        "conf/inference.yaml": INFERENCE,
        "conf/metrics.yaml": METRICS,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for seed, name in enumerate(("dev", "clean", "other")):
        write_set(folder / "data", name, 4, seed=seed)
    return folder


@pytest.fixture
def run(recipe, capsys):
    def start(*words, code=0, system=BaseSystem):
        assert call(recipe, *WORDS, *words, system=system) in codes(code), capsys.readouterr().err
        captured = capsys.readouterr()
        return captured.out + captured.err

    return start


def codes(code):
    return (1, 2) if code is WRONG else (code,)


def sweep_of(recipe):
    return recipe / "exp" / "inference" / "sweep"


def calls(recipe):
    path = recipe / "calls.txt"
    return path.read_text().split() if path.exists() else []


def test_the_best_value_decodes_the_test_sets(recipe, run):
    told = run(SWEPT, "--best", "dev/wer")

    record = json.loads((sweep_of(recipe) / "sweep.json").read_text())
    assert record["best"] == {"model.decoder.weight": 0.6}
    assert [point["values"]["model.decoder.weight"] for point in record["points"]] == [0.3, 0.6, 1]
    assert [point["value"] for point in record["points"]] == [100.0, 37.5, 50.0]
    table = (sweep_of(recipe) / "sweep.md").read_text()
    assert re.search(r"\| 0\.6 \| 37\.50 \[.*\] \| best \|", table)
    assert "Best of 3 choices by dev/WER: model.decoder.weight=0.6" in told
    best = sweep_of(recipe) / "model.decoder.weight=0.6"
    scores = json.loads((best / "metrics.json").read_text())["WER"]
    assert list(scores) == ["dev", "clean", "other"]
    # Of the others, only the set that decides.
    assert {
        d.name for d in (sweep_of(recipe) / "model.decoder.weight=0.3").iterdir() if d.is_dir()
    } == {"dev"}
    assert calls(recipe).count("0.3") == 4
    assert calls(recipe).count("0.6") == 12


def test_sweep_resumes_and_grows_without_decoding_again(recipe, run):
    run(SWEPT, "--best", "dev/wer")
    before = len(calls(recipe))

    run(SWEPT, "--best", "dev/wer")
    assert len(calls(recipe)) == before
    told = run("model.decoder.weight=[0.6,0.9]", "--best", "dev/WER")
    assert calls(recipe)[before:] == ["0.9"] * 4
    assert "Best of 2 choices" in told


def test_failed_sweep_says_the_line_that_resumes_it(recipe, run):
    (recipe / "stop").touch()
    told = run(SWEPT, "--best", "dev/wer", "test_set=clean", code=1)

    line = next(line for line in told.splitlines() if line.startswith("To continue: "))
    assert "'model.decoder.weight=[0.3,0.6,1.0]' --best dev/wer test_set=clean" in line
    (recipe / "stop").unlink()
    run(SWEPT, "--best", "dev/wer", "test_set=clean")
    scores = json.loads(
        (sweep_of(recipe) / "model.decoder.weight=0.6" / "metrics.json").read_text()
    )
    assert list(scores["WER"]) == ["dev", "clean"]


def test_several_keys_are_a_grid(recipe, run):
    told = run(SWEPT, "model.decoder.beam=[1,2]", "--best", "dev/wer")

    points = json.loads((sweep_of(recipe) / "sweep.json").read_text())["points"]
    assert len(points) == 6
    assert points[1]["folder"] == "model.decoder.weight=0.3,model.decoder.beam=2"
    assert "Best of 6 choices by dev/WER: model.decoder.weight=0.6 model.decoder.beam=1" in told


def test_numbers_of_other_metrics_need_min_or_max(recipe, run):
    told = run(SWEPT, "--best", "dev/length.characters", code=1)
    assert "Write: --best dev/length.characters max" in told
    assert not (recipe / "exp").exists()

    run(SWEPT, "--best", "dev/length", "max")
    assert json.loads((sweep_of(recipe) / "sweep.json").read_text())["goal"] == "max"


def test_validation_set_of_the_training_is_known(recipe, run):
    training = recipe / "conf" / "training.yaml"
    training.write_text(
        "model: {_target_: src.guess.Guess}\n"
        "optimizer: {_target_: torch.optim.AdamW, lr: 0.1}\n"
        "dataset:\n  valid:\n"
        '    - {data_src: jsonl, data_src_args: {path: "${data_dir}/dev.jsonl"}}\n'
    )
    config = recipe / "conf" / "inference.yaml"
    config.write_text(
        "".join(line for line in INFERENCE.splitlines(True) if "name: dev" not in line)
    )

    told = run(SWEPT, "--best", "valid/wer", "--training_config", "conf/training.yaml")
    swept = recipe / "exp/training/inference/sweep/model.decoder.weight=0.6"
    scores = json.loads((swept / "metrics.json").read_text())
    assert list(scores["WER"]) == ["valid", "clean", "other"]
    assert "by valid/WER: model.decoder.weight=0.6" in told


def test_dry_run_lists_the_choices_and_writes_nothing(recipe, run):
    told = run(SWEPT, "--best", "dev/wer", "--dry-run")

    assert "Sweep: 3 choices, by the lowest dev/WER; then clean and other with the best" in told
    assert "model.decoder.weight=0.3 into " in told
    assert not (recipe / "exp").exists()


def test_local_workers_serve_all_choices(recipe, run, monkeypatch):
    run(SWEPT, "--best", "dev/wer", "parallel.env=local", "parallel.n_workers=2")
    assert sorted(set(calls(recipe))) == ["0.3", "0.6", "1.0"]
    assert json.loads((sweep_of(recipe) / "sweep.json").read_text())["best"] == {
        "model.decoder.weight": 0.6
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--best", "dev/wer"), "'model.decoder.lm_weight=[0.3,0.6,1.0]'"),
        (("--best", "dev/wer", "model.decoder.weight=0.3"), "'model.decoder.weight=[0.3,0.6,1.0]'"),
        (("--best", "dev/wer", "model.decoder.weight=0.3,0.6"), "'model.decoder.weight=[0.3,0.6]'"),
        ((SWEPT, "--best", "dev/wre"), "Did you mean 'wer'?"),
        ((SWEPT, "--best", "wer"), "--best valid/wer"),
        ((SWEPT, "--best", "dve/wer"), "--best dev/wer"),
        ((SWEPT, "--best", "valid/wer"), "lists dev, clean and other"),
        ((SWEPT, "--best", "dev/wer", "most"), "Write: --best dev/wer"),
        (("model.decoder.weight=[]", "--best", "dev/wer"), "no values to try"),
        (("model.decoder.waight=[1,2]", "--best", "dev/wer"), "weight"),
        ((SWEPT, "--best", "dev/wer", "--stages", "train"), "--stages infer measure --best"),
    ],
)
def test_mistakes_are_told_before_anything_starts(recipe, run, words, told):
    assert told in run(*words, code=WRONG)
    assert not (recipe / "exp").exists()


def test_stale_choice_is_refused_before_any_other_is_decoded(recipe, run):
    run("model.decoder.weight=[1.0]", "--best", "dev/wer", "test_set=dev")
    before = len(calls(recipe))
    told = run(SWEPT, "--best", "dev/wer", "model.decoder.beam=2", code=1)

    assert "inference_dir=exp/inference_2" in told
    assert len(calls(recipe)) == before


def test_list_without_best_is_told_of_it(recipe, run):
    beam = "espnet3.components.decoding.ctc_beam.PrefixBeamCTC"
    config = recipe / "conf" / "inference.yaml"
    config.write_text(INFERENCE.replace("src.guess.Decoder, weight: 0.1", beam))
    typed = "model.decoder.beam_size=[1,4]"
    told = run(typed, code=1)
    line = next(line for line in told.splitlines() if "is one number" in line)
    assert line.endswith(
        f"write: {shlex.join(['python', 'run.py', *WORDS, typed])} --best valid/wer"
    )
    assert call(recipe, "--stages", "infer", *WORDS[3:], typed) == 1


def test_own_infer_is_refused(recipe, run):
    class Own(BaseSystem):
        def infer(self):
            return infer(self.inference)

    told = run(SWEPT, "--best", "dev/wer", code=2, system=Own)
    assert "Own has a stage infer of its own" in told

"""Thirty mistakes of beginners: each message, how soon it comes, and its command, pasted as it is.

`python -m tests.integration.test_thirty_mistakes` prints the table.
"""
# ruff: noqa: E501

import os
import re
import shlex
import sys
import time
from dataclasses import dataclass

import pytest

from espnet3.cli.recipe import run_recipe
from espnet3.systems.base.system import BaseSystem

PARTS = "tests.helpers.inference_parts"
DECODING = f"""\
dataset:
  test:
    - {{name: digits, data_src: {PARTS}, data_src_args: {{n: 12}}}}
model: {{_target_: {PARTS}.Speller, beam_size: 5}}
input_key: speech
"""
SCORING = "metrics:\n  - metric: {_target_: espnet3.systems.asr.metrics.wer.WER}\n"
TRAINING = "dataset: {train: [], valid: []}\nmodel: {_target_: torch.nn.Linear}\noptimizer: {_target_: torch.optim.SGD, lr: 0.1}\n"
INFER = "--stages infer --inference_config conf/decode.yaml exp_tag=mine"
MEASURE = "--stages measure --inference_config conf/decode.yaml --metrics_config conf/score.yaml exp_tag=mine"
BOTH = MEASURE.replace("measure", "infer measure", 1)


@dataclass(frozen=True)
class Mistake:
    """What is typed, what the message must say, and what was done before."""

    typed: str
    said: str
    before: tuple[str, ...] = ()
    code: int = 1
    works: bool = True
    """Whether the suggested command ends well on this machine, which has no cluster."""


MISTAKES = {
    # The command line.
    "a misspelt stage": Mistake(INFER.replace("infer ", "infr "), r"no stage 'infr'\. Did you mean 'infer'", code=2),
    "a stage without --stages": Mistake(INFER.replace("--stages ", ""), "'infer' stands alone", code=2),
    "no config": Mistake("--stages infer exp_tag=mine", r"needs a config: add --inference_config conf/inference\.yaml", code=2),
    "a misspelt config": Mistake(INFER.replace("decode.yaml", "decod.yaml"), r"conf/decod\.yaml does not exist\. Did you mean 'conf/decode\.yaml'"),
    "a config of another kind": Mistake(INFER.replace("decode", "score"), r"is a metrics config", code=2),
    "one list for two kinds": Mistake("--stages infer --config conf/training.yaml conf/decode.yaml exp_tag=mine", "would be merged into one config", code=2),
    "an option of Kaldi": Mistake(f"{INFER} --nj 2", r"no option --nj\. .*Write: ", code=2),
    "an override with dashes": Mistake(f"{INFER} --model.beam_size 7", "An override has no dashes", code=2),
    "a misspelt option": Mistake(INFER.replace("--inference_config", "--inference_confg"), "Did you mean '--inference_config'", code=2),
    "a backwards range": Mistake("--stages measure-infer --inference_config conf/decode.yaml", "runs backwards", code=2, works=False),
    "a number of asr.sh": Mistake(INFER.replace("infer ", "12 "), "For stage 12 of ESPnet2's asr.sh", code=2),
    # Settings.
    "a setting of shell recipes": Mistake(f"{INFER} nj=2", "Nothing reads nj"),
    "a misspelt backend": Mistake(f"{INFER} env=locl", "Nothing reads env"),
    "a setting of another stage": Mistake(f"{MEASURE} parallel.n_workers=2", r"measure does not read parallel\.n_workers", before=(INFER,)),
    "a value of one's own": Mistake(f"{INFER} my_note=5", r"vars\.my_note"),
    "the learning rate for infer": Mistake(f"{INFER} lr=0.1", "Nothing reads lr"),
    "a misspelt argument of the model": Mistake(f"{INFER} model.beam_szie=7", r"model\.beam_szie.*beam_size"),
    # Results that are there.
    "other decoding settings": Mistake(f"{INFER} model.beam_size=9", r"another run:\n  config\.model\.beam_size", before=(INFER,)),
    "another test set of the same name": Mistake(f"{INFER} dataset.test.0.data_src_args.n=9", "another run", before=(INFER,)),
    "other outputs": Mistake(f"{INFER} 'output_keys=[hyp,ref]'", "another run", before=(INFER,)),
    # Stages in the wrong order.
    "measure before infer": Mistake(MEASURE, "Run the infer stage first"),
    "measure without an inference config": Mistake("--stages measure --metrics_config conf/score.yaml", "does not say which results to score"),
    "report before all": Mistake(MEASURE.replace("measure", "report", 1), "There is nothing to report"),
    "a field that was not written": Mistake(f"{MEASURE} 'metrics.0.inputs={{ref: ref, hyp: speaker}}'", "which decodes again", before=(INFER,)),
    "metrics of a test set that was not decoded": Mistake(f"{MEASURE} test_set=digits", "Run the infer stage first"),
    # Data and models.
    "an item that fails": Mistake(f"{INFER} model._target_={PARTS}.Picky", r"Item 7 \(utt7, position \d+\)"),
    "a batch that fails": Mistake(f"{INFER} model._target_={PARTS}.PickyInBatches batch_size=12", r"The batch of 12 items \(utt"),
    "failed items that are measured": Mistake(f"{BOTH} model._target_={PARTS}.Picky runner.on_error=skip", "1 of 12 items failed in inference"),
    "a limit of errors": Mistake(f"{INFER} model._target_={PARTS}.Picky runner.on_error=skip runner.max_errors=0", "more than max_errors=0", works=False),
    "results that are not whole": Mistake(MEASURE, "is not complete", before=(INFER, "rm")),
}  # fmt: skip


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
    """Return a function that runs a recipe with the words of a command line."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return lambda line: run(make_recipe(tmp_path), line, lambda: "".join(capfd.readouterr()))


def make_recipe(folder):
    recipe = folder / "recipe"
    (recipe / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("decode", "inference"):
        (recipe / f"conf/{name}.yaml").write_text(DECODING)
    for name in ("score", "metrics"):
        (recipe / f"conf/{name}.yaml").write_text(SCORING)
    (recipe / "conf/training.yaml").write_text(TRAINING)
    return recipe


def run(recipe, line, read):
    if line == "rm":  # as a kill before the merge would leave it
        next(recipe.glob("exp/mine/*/*/_SUCCESS.json")).unlink()
        return 0, "", 0.0
    begin = time.monotonic()
    code = run_recipe(BaseSystem, shlex.split(line), recipe_dir=recipe)
    os.chdir(recipe.parent)
    return code, read(), time.monotonic() - begin


def commands_in(text):
    return re.findall(r"python run\.py (--.*?)(?: ; |\n|$)", text)


def test_there_are_thirty():
    assert len(MISTAKES) == 30


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_a_command_that_works(call, name):
    mistake = MISTAKES[name]
    for line in mistake.before:
        assert call(line)[0] == 0
    code, said, _ = call(mistake.typed)
    assert code == mistake.code, said
    assert re.search(mistake.said, said), said
    commands = commands_in(said)
    assert commands or not mistake.works, said
    if mistake.works:
        code, said, _ = call(commands[0])
        assert code == 0, f"{commands[0]}\n{said}"


def _print_table():
    """Print what is in the note: the mistake, the message, and the seconds until it came."""
    import contextlib
    import io
    import tempfile
    from pathlib import Path

    for name, mistake in MISTAKES.items():
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            recipe, text = make_recipe(Path(folder)), io.StringIO()
            with contextlib.redirect_stderr(text), contextlib.redirect_stdout(text):
                for line in mistake.before:
                    run(recipe, line, str)
                text.truncate(0)
                seconds = run(recipe, mistake.typed, str)[2]
            said = next((s for s in text.getvalue().splitlines() if "espnet3:" in s), "")
            print(f"| {name} | {said.strip().replace('|', '/')} | {seconds:.2f} |")


if __name__ == "__main__":
    _print_table()

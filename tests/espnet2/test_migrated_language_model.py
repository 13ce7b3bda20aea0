"""A recogniser with a language model goes over: both are trained by the lines of MIGRATION.md."""

import re

import pytest
import yaml

from espnet3.cli.main import main
from espnet3.io.scp import read_scp
from espnet3.systems.asr.system import ASRSystem
from tests.helpers.espnet2_recipe import RUN, write_recipe
from tests.helpers.recipe_copy import run_recipe_here

LM = {
    "lm": "transformer", "max_epoch": 1, "batch_type": "folded", "batch_size": 4, "num_workers": 0,
    "lm_conf": {"pos_enc": "sinusoidal", "embed_unit": 8, "att_unit": 16, "head": 2, "unit": 16,
                "layer": 1},
}  # fmt: skip


@pytest.mark.parametrize("has_tokens", [True, False])
def test_the_lines_to_type_train_both_and_decode(has_tokens, tmp_path):
    run = RUN.replace("--use_lm false", "--use_lm true --lm_config conf/train_lm.yaml")
    old = write_recipe(
        tmp_path / "egs2" / "an4" / "asr1", run=run, decode={"lm_weight": 0.3},
        train={"max_epoch": 1, "keep_nbest_models": 1}, has_tokens=has_tokens,
    )  # fmt: skip
    (old / "conf" / "train_lm.yaml").write_text(yaml.safe_dump(LM))
    new = tmp_path / "new"
    assert main(["migrate", str(old), str(new)]) == 0
    lines = re.findall(r"^python run\.py (.*?)  #", (new / "MIGRATION.md").read_text(), re.M)
    assert [("training_lm" in line) for line in lines[:-1]] == [
        *([] if has_tokens else [False]), True, False,
    ]  # fmt: skip
    for line in lines[:-1]:  # the last one is of a cluster
        one_worker = ["parallel.n_workers=1"] if "inference" in line else []
        run_recipe_here(ASRSystem, new, *line.split(), *one_worker)
    results = new / "exp" / "training" / "inference"
    assert len(dict(read_scp(results / "test" / "hyp.scp"))) == 4
    model = yaml.safe_load((new / "conf" / "inference.yaml").read_text())["model"]
    assert (model["lm_weight"], "lm_file" in model) == (0.3, True)
    assert list((new / "exp" / "training_lm").glob("valid.loss.ave_*.safetensors"))

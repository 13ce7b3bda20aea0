"""`measure` missed `speaker.scp` after hours of decoding, and the dry run had promised the file.

What the metrics read is compared with what `infer` will write: before it starts where the config
tells, at its first item otherwise.
"""

import re
import shlex

import pytest

from espnet3.io.scp import load_scp
from espnet3.systems.base.system import BaseSystem
from tests.helpers.recipe_copy import RecipeCopy

INFERENCE = ("--inference_config", "conf/inference.yaml")
METRICS = ("--metrics_config", "conf/metrics.yaml")
BOTH = ("--stages", "infer", "measure", *INFERENCE, *METRICS, "test_set=clean")
WITHOUT_SPEAKER = "output_keys=[hyp,ref]"

PARTS = """
from espnet3.parallel.base_runner import BaseRunner
from espnet3.systems.base.inference_runner import InferenceRunner


class Text:
    def __init__(self, device, threshold, path=None):
        self.path = path

    def __call__(self, speech):
        if self.path:
            with open(self.path, "a") as file:
                file.write("called ")
        return "1 2 3"


class Plain(BaseRunner):
    @staticmethod
    def forward(idx, dataset, model):
        return "a"


class Merges(Plain):
    def merge(self, shard_dirs):
        for name in ("hyp", "ref", "speaker"):
            (self.output_dir / f"{name}.scp").write_text("a 1\\n")
        return {}


def counts(data, test_name, inference_dir):
    return {"n": len(data["hyp"]), "per_item": [1, 2]}
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    recipe = RecipeCopy("TEMPLATE/asr", tmp_path_factory.mktemp("needs") / "egs3" / "mine" / "asr")
    (recipe.folder / "src" / "parts.py").write_text(PARTS)
    small = (*INFERENCE, "create_dataset.n_utterances=3")
    recipe.run_here(BaseSystem, "--stages", "create_dataset", *small)
    return recipe


@pytest.fixture
def run(template, capsys, request):
    """Return a function that runs the recipe with a tag of its own and returns what it told."""
    tag = f"exp_tag={re.sub(r'[^a-z]+', '_', request.node.name)[:60]}"

    def call(*words, code=0):
        capsys.readouterr()
        template.run_here(BaseSystem, *words, tag, code=code)
        captured = capsys.readouterr()
        return captured.out + captured.err

    call.folder = template.folder / "exp" / tag.removeprefix("exp_tag=")
    call.tag = tag
    return call


def config(template, name, text):
    (template.folder / "conf" / name).write_text(text)


def test_a_field_that_output_keys_leave_out_is_told_before_decoding(run):
    told = run(*BOTH, WITHOUT_SPEAKER, code=1)
    assert "metrics.0 (WER) of the metrics config needs the field 'speaker'" in told
    assert "will not write: output_keys is [hyp, ref] (set in command line" in told
    assert "output_keys: [hyp, ref, speaker]" in told
    assert not run.folder.exists()


def test_the_line_to_write_works(run):
    run(*BOTH, "output_keys=[hyp, ref, speaker]")
    assert (run.folder / "inference" / "metrics.json").is_file()


def test_the_other_line_to_write_works(run, template):
    run("--stage", "6", *INFERENCE, "test_set=clean", WITHOUT_SPEAKER)
    ids = load_scp(run.folder / "inference" / "clean" / "hyp.scp")
    (template.folder / "speakers").mkdir()
    (template.folder / "speakers" / "clean").write_text("".join(f"{id} somebody\n" for id in ids))
    run(*BOTH, WITHOUT_SPEAKER, 'metrics.0.inputs={speaker: "speakers/{test_set}"}')


def test_the_dry_run_refuses_it_as_well(run):
    assert "needs the field 'speaker'" in run(*BOTH, WITHOUT_SPEAKER, "--dry-run", code=1)


def test_a_field_that_the_model_does_not_return_is_told_at_the_first_item(run, template):
    calls = template.folder / "calls"
    model = f"model={{_target_: src.parts.Text, path: {str(calls)!r}}}"
    plain = ("output_fn=null", "output_keys=null", "batch_seconds=null")
    told = run(*BOTH, *plain, model, code=1)
    assert "metrics.0 (WER) of the metrics config needs the field 'speaker'" in told
    assert "but the output has 'hyp', 'ref'" in told
    assert "output_keys: [hyp, ref, speaker]" in told
    assert calls.read_text().split() == ["called"]
    text_model = ("model={_target_: src.parts.Text}", "output_keys=[hyp, ref, speaker]")
    run(*BOTH, *plain, *text_model)


def test_what_infer_alone_leaves_out_is_nobodys_business(run):
    run("--stages", "infer", *INFERENCE, *METRICS, "test_set=clean", WITHOUT_SPEAKER)


def test_the_dry_run_says_what_is_known_and_what_is_not(run):
    dry = ("--dry-run",)
    told = run(*BOTH, *dry)
    assert "fields to write: hyp, ref, speaker, confidence (output_keys is" in told
    assert "speaker.scp (missing: stage 6 writes it)" in told
    told = run(*BOTH, *dry, "output_keys=null")
    assert "speaker.scp (missing: whether stage 6 writes it shows at its first item" in told
    assert "output_fn src.inference.output_fn decides" in told
    assert "fields to write: known at the first item, output_fn src.inference.output_fn" in told
    told = run(*BOTH, *dry, "output_keys=null", "output_fn=null", "metrics.0.metric.by=null")
    assert "hyp.scp (missing: stage 6 writes it for a model that returns a text" in told
    alone = run("--stages", "measure", *METRICS, *INFERENCE, *dry, WITHOUT_SPEAKER)
    assert "speaker.scp of each: stage 6 does not write it: output_keys is [hyp, ref]" in alone


def test_measure_alone_says_which_command_to_run_again(run):
    run("--stages", "infer", *INFERENCE, "test_set=clean", WITHOUT_SPEAKER)
    told = run("--stages", "measure", *INFERENCE, *METRICS, "test_set=clean", code=1)
    command = re.search(r"python run\.py --stages infer .*runner\.resume=false", told)[0]
    words = shlex.split(command)[2:]
    assert "output_keys=[hyp,ref,speaker]" in words
    assert run.tag in words
    run(*words)
    run("--stages", "measure", *INFERENCE, *METRICS, "test_set=clean")


@pytest.mark.parametrize("role", ["hyp", "ref"])
def test_names_that_differ_are_told_before(run, role):
    plain = ("output_fn=null", "output_keys=null", "batch_seconds=null", "metrics.0.metric.by=null",
             "model={_target_: src.parts.Text}")  # fmt: skip
    told = run(*BOTH, *plain, f"{role}_key=mine", code=1)
    assert f"needs the field '{role}', but {role}_key of the inference config is 'mine'" in told
    assert f"Write in the metric: {role}_key: mine" in told
    assert not run.folder.exists()
    run(*BOTH, *plain, f"{role}_key=mine", f"metrics.0.metric.{role}_key=mine")
    assert load_scp(run.folder / "inference" / "clean" / "mine.scp")


def test_a_runner_that_writes_no_field_is_told_before(run):
    told = run(*BOTH, "runner._target_=src.parts.Plain", "batch_seconds=null", code=1)
    assert "will not write: Plain writes results.jsonl. Derive it from InferenceRunner" in told


def test_a_runner_that_merges_itself_may_write_anything(run):
    words = ("runner._target_=src.parts.Merges", "batch_seconds=null")
    run(*BOTH, *words)
    assert "whether stage 6 writes it shows at its first item: Merges decides" in run(
        *BOTH, *words, "--dry-run", "exp_dir=exp/elsewhere"
    )


def test_a_test_set_that_nobody_decodes_is_told_before(run, template):
    config(template, "other_metrics.yaml", "defaults: [metrics]\ntest_set: [clean, cleam]\n")
    told = run("--stages", "infer", "measure", *INFERENCE, "--metrics_config",
               "conf/other_metrics.yaml", code=1)  # fmt: skip
    assert "test_set of the metrics config (set in conf/other_metrics.yaml:2) has 'cleam'" in told
    assert "Did you mean 'clean'?" in told


def test_results_elsewhere_are_not_compared(run, template):
    """Metrics that read the results of another config need nothing of this one."""
    run("--stages", "infer", *INFERENCE, "test_set=clean", WITHOUT_SPEAKER)
    text = "defaults: [metrics]\ninference_dir: exp/nowhere\n"
    config(template, "elsewhere.yaml", text)
    run("--stages", "measure", "--metrics_config", "conf/elsewhere.yaml", "--dry-run")


@pytest.mark.parametrize(
    "metrics", ["{metric: {_target_: WER}}", "{_target_: WER}", "[{_target_: WER}]"]
)
def test_metrics_that_are_nearly_a_list_are_told_with_the_list(run, metrics):
    wer = "espnet3.systems.asr.metrics.wer.WER"
    told = run(*BOTH, f"metrics={metrics}".replace("WER", wer), code=1)
    line = f'metrics: [{{"metric": {{"_target_": "{wer}"}}}}]'
    assert line in told
    run(*BOTH, line.replace(": ", "=", 1))


def test_one_input_may_be_a_text_and_lists_are_named_in_the_table(run, template):
    run("--stages", "infer", *INFERENCE, "test_set=clean", "output_keys=hyp")
    text = "metrics: [{metric: {_target_: src.parts.counts}, inputs: hyp}]\n"
    config(template, "counts.yaml", text)
    run("--stages", "measure", *INFERENCE, "--metrics_config", "conf/counts.yaml")
    table = (run.folder / "inference" / "RESULTS.md").read_text()
    assert "| n |" in table
    assert "In metrics.json only: per_item." in table

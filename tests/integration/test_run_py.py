"""Real recipes, run as `python run.py ...` and as `espnet3 run ...`."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.waiting import wait_until
from tests.helpers.words_recipe import CONFIG, INFERENCE, RUN, SYSTEM, Recipe

ESPNET3 = Path(sys.executable).with_name("espnet3")


@pytest.fixture
def recipe(tmp_path) -> Recipe:
    return Recipe(tmp_path / "egs3" / "my corpus's" / "asr")


def states(out):
    """Return the states of the summary by stage."""
    table = re.findall(r"^(\w+)(?: \(\d+\))? +(done|skipped|failed|interrupted)\b", out, re.M)
    return dict(table)


INFER = ("--inference_config", "conf/inference.yaml")
ALL = ("--training_config", "conf/training.yaml", *INFER, "--metrics_config", "conf/metrics.yaml")


def test_a_script_of_a_recipe_is_short():
    assert len(RUN.splitlines()) < 15


@pytest.mark.parametrize(
    "stages",
    [("--stage", "6"), ("--stage", "infer"), ("--stages", "infer-6"), ("--stages", "6", "infer")],
)
def test_a_stage_runs_by_number_and_by_name(recipe, stages):
    done = recipe.run(*stages, "--config", "conf/inference.yaml")
    assert done.stdout.count("decoded 4 ./exp/inference") == 1
    assert states(done.stdout) == {"infer": "done"}
    assert "Stage infer (6): Run the model over the test sets" in done.stderr


def test_files_merge_left_to_right_and_overrides_win(recipe):
    configs = ("--config", "conf/wide.yaml", "conf/inference.yaml")
    assert "decoded 4 ./exp/wide" in recipe.run("--stage", "6", *configs).stdout
    line = ("beam_size=9", "--stage", "6", "--config", "conf/wide.yaml", "exp_tag=a b", *INFER[1:])
    assert "decoded 9 ./exp/a b" in recipe.run(*line).stdout


def test_all_runs_the_stages_in_order_and_skips_what_there_is_not(recipe):
    without_error = SYSTEM.replace('raise ConfigError("lm', 'str("lm')
    (recipe.folder / "src/system.py").write_text(without_error)
    done = recipe.run("--stages", "all", *ALL)
    assert states(done.stdout) == {
        "create_dataset": "done", "train_tokenizer": "skipped", "collect_stats": "skipped",
        "train": "done", "average": "skipped", "infer": "done", "rescore": "done",
        "measure": "done", "report": "skipped", "pack_model": "skipped", "upload_model": "skipped",
    }  # fmt: skip
    assert "Words has no train_tokenizer()" in done.stdout
    assert recipe.record("create_dataset", "words v1")["state"] == "done"
    again = recipe.run("--stage", "1", *ALL)
    assert states(again.stdout) == {"create_dataset": "skipped"}
    assert "data/ is there already" in again.stdout


def test_the_context_of_training_reaches_all_stages(recipe):
    done = recipe.run("--stages", "infer", "measure", *ALL)
    assert "decoded 4 ./exp/words v1" in done.stdout
    assert "exp_tag: words v1 ./exp/words v1/inference" in done.stdout
    assert (recipe.folder / "exp/words v1/measure.log").is_file()


def test_the_log_of_a_stage_has_what_was_logged(recipe):
    recipe.run("--stage", "4", "--training-config", "conf/training.yaml")
    recipe.run("--stage", "4", "--training-config", "conf/training.yaml")
    log = (recipe.folder / "exp/words v1/train.log").read_text()
    assert log.count("INFO src.system: training with seed 7") == 2
    assert log.count("UserWarning: a warning of Python") == 2
    assert re.search(r"^\d{4}-\d\d-\d\d .* INFO .*: Stage train \(4\): Train the model", log, re.M)
    assert re.search(r"Stage train \(4\) done after 0\.\d+ s", log)


def test_a_failure_is_one_message_with_its_place_and_the_line_to_go_on(recipe):
    wide = ("beam_size=400", "model.note=it's")
    done = recipe.run("--stages", "infer-rescore", "measure", *ALL, *wide, code=1)
    log = "exp/words v1/infer.log"
    assert (
        "espnet3: Stage infer (6) failed: ValueError: beam is too wide (src/decode.py:3). "
        f"Traceback: {log}\n"
    ) in done.stderr
    assert "Traceback (most recent call last)" not in done.stderr
    assert "ValueError: beam is too wide" in (recipe.folder / log).read_text()
    assert states(done.stdout) == {"infer": "failed", "rescore": "skipped", "measure": "skipped"}
    assert done.stdout.count("infer did not end well") == 2
    assert recipe.record("infer", "words v1")["state"] == "failed"
    line = done.stderr.splitlines()[-1].removeprefix("To continue: ")
    assert line == (
        "python run.py --stages infer-measure --training_config conf/training.yaml "
        "--inference_config conf/inference.yaml --metrics_config conf/metrics.yaml beam_size=400 "
        """'model.note=it'"'"'s'"""
    )


def test_an_error_of_ours_says_all_itself(recipe):
    done = recipe.run("--stages", "infer", "rescore", *INFER, code=1)
    assert "espnet3: Stage rescore failed: lm is not set. Write: lm: FILE\n" in done.stderr
    assert "When that is changed: python run.py --stages rescore --inference_config" in done.stderr
    assert "ConfigError: lm is not set" in (recipe.folder / "exp/inference/rescore.log").read_text()


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(recipe):
    (recipe.folder / "exp").touch()
    done = recipe.run("--stages", "infer", *INFER, code=1)
    (line,) = done.stderr.splitlines()
    assert line.startswith("espnet3: exp_dir is './exp/inference'")
    assert "exp is a file, no folder" in line
    assert line.endswith(": mv 'exp' 'exp.old'")
    assert "decoded" not in done.stdout
    elsewhere = ("exp_dir=other", "stats_dir=other/stats")
    assert "decoded 4 other" in recipe.run("--stages", "infer", *INFER, *elsewhere).stdout


def test_a_line_to_go_on_can_be_pasted(recipe):
    wide = recipe.run("--stages", "infer", "measure", *ALL, "beam_size=400", code=1)
    line = wide.stderr.splitlines()[-1].removeprefix("To continue: ")
    python = line.replace("python", sys.executable, 1).replace("beam_size=400", "beam_size=4")
    words = shlex.split(python)  # as a shell does, whose children would not be forked
    done = subprocess.run(words, cwd=recipe.folder, capture_output=True, text=True)
    assert states(done.stdout) == {"infer": "done", "measure": "done"}, done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_stage_ends_with_its_code_and_the_way_on(recipe, number, code):
    process = recipe.start("--stages", "train-measure", *ALL, "wait=true")
    wait_until((recipe.folder / "waiting").exists)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert states(out)["train"] == "interrupted"
    assert states(out)["infer"] == "skipped"
    assert err.splitlines()[-1].startswith("To continue: python run.py --stages train-measure ")
    assert recipe.record("train", "words v1")["state"] == "interrupted"


def test_a_record_that_cannot_be_written_does_not_hide_how_the_stage_ended(recipe):
    process = recipe.start("--stages", "train", *ALL, "wait=true")
    wait_until((recipe.folder / "waiting").exists)
    records = recipe.folder / "exp/words v1/config"
    shutil.rmtree(records)
    records.touch()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert states(out) == {"train": "interrupted"}
    assert "espnet3: " not in err


def test_what_was_run_is_kept_without_secrets(recipe):
    recipe.run("--stage", "infer", *INFER, "hub.token=hf_secret", "beam_size=5")
    record = recipe.record("infer")
    assert record["command"] == (
        "python run.py --stage infer --inference_config conf/inference.yaml "
        "'hub.token=<redacted>' beam_size=5"
    )
    assert (record["state"], record["working_dir"], record["git"]) == ("done", ".", None)
    assert record["sources"]["beam_size"] == "command line: beam_size=5"
    assert record["sources"]["model._target_"] == "conf/inference.yaml:2"
    written = [p for p in (recipe.folder / "exp").rglob("*") if p.is_file()]
    assert len(written) == 3
    assert not [p for p in written if "hf_secret" in p.read_text()]


def test_a_dry_run_tells_what_would_be_done_and_writes_nothing(recipe):
    before = recipe.files()
    done = recipe.run("--stages", "all", *ALL, "--dry-run")
    assert recipe.files() == before
    assert "Stage infer (6): Run the model over the test sets\n" in done.stdout
    assert "  config: conf/inference.yaml\n" in done.stdout
    assert "  decodes with beam 4\n" in done.stdout
    assert "  runs Words.measure()\n" in done.stdout
    assert "Stage train_tokenizer (2): Train the tokenizer\n  skipped: Words has no" in done.stdout
    assert "decoded" not in done.stdout


def test_the_stages_are_listed(recipe):
    done = recipe.run("--list_stages")
    assert "   6  infer            Run the model over the test sets (--inference_config)\n" in (
        done.stdout
    )
    assert "      rescore          Rescore the hypotheses (--inference_config)\n" in done.stdout
    assert "Train the tokenizer (--training_config) - not in this" in done.stdout
    assert "rescore" in recipe.run("--help").stdout
    assert "rescore" in recipe.run().stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stage", "infr"], "There is no stage 'infr'. Did you mean 'infer'? Stages: 1 create_"),
        (["--stages", "7-6"], "--stages 7-6 runs backwards. Put the earlier stage first."),
        (["--stage", "pack_model"], "Words has no stage 'pack_model' of its own: write def pack_"),
        (["--stage", "6"], "Stage infer (6) needs a config: add --inference_config conf/inf"),
        (["--stage", "measure", *INFER], "Stage measure (7) needs a config: add --metrics_config"),
        (["--stage", "6", "--inferenc_config", "x"], "There is no option --inferenc_config. Did"),
        (["infer"], "'infer' stands alone. To run that stage, write: python run.py --stages infer"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(recipe, arguments, message):
    before = recipe.files()
    done = recipe.run(*arguments, code=2)
    assert done.stderr.startswith(f"espnet3: {message}")
    assert done.stderr.count("\n") == 1
    assert recipe.files() == before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("n_workers=4", "n_workers in command line: n_workers=4 belongs under parallel. Write:"),
        ("resume=false", "resume in command line: resume=false belongs under runner. Write:"),
        ("trainer.n_workers=4", "trainer.n_workers in command line: trainer.n_workers=4 belongs"),
        ("parallel.devices=4", "parallel.devices in command line: parallel.devices=4 is called n"),
        ("parallel.n_wokers=4", "parallel.n_wokers is not a known key (set in command line: para"),
        ("modle.x=4", "modle in command line: modle.x=4 is not a known key. Did you mean 'model'?"),
        ("model._target_=src.decode.Modle", "model._target_ is 'src.decode.Modle' (set in command"),
        ("x.y=${nowhere}", "x.y (set in command line: x.y=${nowhere}) cannot be resolved"),
    ],
)
def test_a_wrong_config_is_refused_before_the_first_stage(recipe, override, message):
    before = recipe.files()
    done = recipe.run("--stages", "create_dataset", "infer", *INFER, override, code=1)
    assert done.stderr.startswith(f"espnet3: {message}")
    assert done.stderr.count("\n") == 1
    assert recipe.files() == before


def test_a_stage_is_checked_before_an_earlier_one_runs(recipe):
    configs = ("--training_config", "conf/wide.yaml")
    done = recipe.run("--stages", "create_dataset", "train", *configs, code=1)
    assert done.stderr == "espnet3: seed is not set. Write: seed: 1\n"
    assert not (recipe.folder / "data").exists()


@pytest.mark.parametrize("folder", ["", "egs3/my corpus's/asr/"])
def test_espnet3_run_does_the_same_from_anywhere(recipe, tmp_path, folder):
    command = (ESPNET3, "run", "egs3/my corpus's/asr")
    done = recipe.run(
        "--stages", "infer", "--config", f"{folder}conf/inference.yaml",
        program=command, cwd=tmp_path,
    )  # fmt: skip
    assert "decoded 4 ./exp/inference" in done.stdout
    record = recipe.record("infer")
    assert record["files"] == ["conf/inference.yaml"]
    assert record["working_dir"] == "../../.."
    assert record["command"].startswith("""espnet3 run 'egs3/my corpus'"'"'s/asr' --stages infer""")


def test_espnet3_run_takes_the_current_folder(recipe):
    done = recipe.run("--stage", "6", *INFER, "beam_size=400", program=(ESPNET3, "run"), code=1)
    assert "To continue: espnet3 run --stages infer --inference_config" in done.stderr


def test_espnet3_run_needs_a_recipe(recipe, tmp_path):
    done = recipe.run("--stage", "6", program=(ESPNET3, "run"), cwd=tmp_path, code=2)
    assert done.stderr == (
        "espnet3: . holds no run.py. Name the folder of a recipe: espnet3 run "
        """'egs3/my corpus'"'"'s/asr' --stage 6\n"""
    )
    helped = recipe.run("--help", program=(ESPNET3, "run"), cwd=tmp_path)
    assert "espnet3 run [RECIPE_DIR] --stages" in helped.stdout


def test_a_file_of_the_current_folder_comes_before_the_recipe_s(recipe, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/inference.yaml").write_text("beam_size: 77\n")
    command = (sys.executable, recipe.folder / "run.py")
    done = recipe.run("--stage", "6", *INFER, program=command, cwd=tmp_path)
    assert "decoded 77" in done.stdout


@pytest.fixture
def decoding(recipe) -> Recipe:
    """A recipe with a provider and a model of its own, and no stage of its own."""
    script = RUN.replace("src.system import Words", "espnet3.systems.base.system import BaseSystem")
    (recipe.folder / "run.py").write_text(script.replace("Words", "BaseSystem"))
    (recipe.folder / "src/inference.py").write_text(INFERENCE)
    (recipe.folder / "conf/decode.yaml").write_text(CONFIG)
    return recipe


def test_two_workers_find_the_modules_of_the_recipe_and_give_the_same(decoding, tmp_path):
    stages = ("--stages", "infer", "measure", "--config", "conf/decode.yaml")
    command = (ESPNET3, "run", decoding.folder)
    decoding.run(*stages, "exp_tag=one", program=command, cwd=tmp_path)
    told = decoding.run(
        *stages, "exp_tag=two", "parallel.n_workers=2", program=command, cwd=tmp_path
    )
    one, two = (decoding.folder / "exp" / tag / "decode" for tag in ("one", "two"))
    hypotheses = (one / "proverbs" / "hyp.scp").read_text()
    assert hypotheses.splitlines()[1].endswith(" is gold")
    assert (two / "proverbs" / "hyp.scp").read_text() == hypotheses
    assert (two / "metrics.json").is_file()
    assert len(list((two / "proverbs" / "logs").glob("worker-*.log"))) == 2
    assert states(told.stdout) == {"infer": "done", "measure": "done"}


def test_inference_that_was_interrupted_goes_on_with_the_line_that_it_printed(decoding):
    arguments = ("--stages", "6-7", "--config", "conf/decode.yaml", "parallel.n_workers=2")
    (decoding.folder / "hold").touch()
    process = decoding.start(*arguments)
    wait_until((decoding.folder / "held").exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert states(out) == {"infer": "interrupted", "measure": "skipped"}
    assert decoding.record("infer", "decode")["state"] == "interrupted"
    (decoding.folder / "hold").unlink()
    line = err.splitlines()[-1].removeprefix("To continue: ")
    done = decoding.run(*shlex.split(line)[2:])
    assert states(done.stdout) == {"infer": "done", "measure": "done"}
    lines = (decoding.folder / "exp/decode/proverbs/hyp.scp").read_text().splitlines()
    assert [line.split()[0] for line in lines] == [f"utt_{i}" for i in range(8)]


def test_a_dry_run_of_inference_and_measurement_builds_no_model_and_writes_nothing(decoding):
    before = decoding.files()
    config = ("--config", "conf/decode.yaml", "parallel.n_workers=2")
    done = decoding.run("--stages", "6-7", *config, "--dry_run")
    assert "  workers: 2 on env: local\n" in done.stdout
    assert "test set proverbs: 8 items" in done.stdout
    assert "writes exp/decode/metrics.json" in done.stdout
    assert decoding.files() == before

import json

from espnet3.systems.base.context import load_configs
from espnet3.systems.base.report_data import read_stage_times
from espnet3.systems.base.stages import STAGES, Invocation, StageRecord, find_stage, read_record


def times(exp_dir):
    return {stage.name: stage.seconds for stage in read_stage_times(exp_dir, STAGES)}


def write(exp_dir, stage, **values):
    folder = exp_dir / "config"
    folder.mkdir(exist_ok=True)
    (folder / f"{stage}.json").write_text(json.dumps({"start": "2026-01-01T00:00", **values}))


def test_stages_come_in_order_and_without_the_report(tmp_path):
    for stage in ("measure", "train", "report", "infer"):
        write(tmp_path, stage, state="done", seconds=2.0)
    assert list(times(tmp_path)) == ["train", "infer", "measure"]


def test_a_repetition_that_found_all_done_does_not_hide_the_work(tmp_path):
    write(
        tmp_path, "train", state="skipped", seconds=0.1,
        earlier=[{"state": "done", "seconds": 300.0}, {"state": "skipped", "seconds": 0.2}],
    )  # fmt: skip
    assert times(tmp_path) == {"train": 300.0}


def test_interrupted_runs_count_with_the_one_that_finished_their_work(tmp_path):
    earlier = [
        {"state": "interrupted", "seconds": 100.0},
        {"state": "running", "seconds": None},
        {"state": "failed", "seconds": 20.0},
    ]
    write(tmp_path, "train", state="done", seconds=30.0, earlier=earlier)
    assert times(tmp_path) == {"train": 150.0}


def test_records_of_older_versions_and_damaged_ones_do_no_harm(tmp_path):
    write(tmp_path, "infer", state="done", seconds=4.0)
    write(tmp_path, "train", state="failed", seconds=4.0)
    write(tmp_path, "average", state="done", seconds=1.0, earlier="odd")
    (tmp_path / "config/measure.json").write_text("{")
    assert times(tmp_path) == {"average": 1.0, "infer": 4.0}


def test_a_record_keeps_the_times_of_the_runs_before(tmp_path):
    config = tmp_path / "inference.yaml"
    config.write_text("a: 1\n")
    loaded = load_configs({"inference": [config]}, recipe_dir=tmp_path).inference
    for state in ("interrupted", "done", "done"):
        invocation = Invocation(["run.py"], ".", tmp_path)
        record = StageRecord(tmp_path, find_stage(STAGES, "infer"), loaded, invocation)
        record.begin()
        record.finish(state)
    values = read_record(tmp_path / "infer.json")
    assert [run["state"] for run in values["earlier"]] == ["interrupted", "done"]
    assert all(run["seconds"] >= 0 and run["start"] for run in values["earlier"])
    assert values["state"] == "done"

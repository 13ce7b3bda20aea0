import json
import os
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from espnet3.cli.main import main
from espnet3.cli.run_view import percent
from espnet3.shards.commit import Done, Position, begin_attempt
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import load_manifest
from espnet3.shards.status import RunStatus, read_status
from tests.helpers.phrases import says_to_rerun

KEYS = {
    "run_dir", "name", "state", "n_items", "n_done", "n_failed", "n_shards", "n_shards_done",
    "running", "items_per_second", "eta_seconds", "seconds", "stop", "is_detached",
    "building", "workers", "jobs", "avoided_nodes", "accounting",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def status_text(capsys, *folders) -> str:
    assert main(["status", *map(str, folders)]) == 0
    return capsys.readouterr().out


def status_json(capsys, *folders) -> list[dict]:
    assert main(["status", "--json", *map(str, folders)]) == 0
    return json.loads(capsys.readouterr().out)["runs"]


def facts(text: str) -> dict[str, str]:
    names = ("State", "Shards", "Items", "Speed", "Elapsed")
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    return {line[0]: line[1].strip() for line in lines if line and line[0] in names}


def change_json(path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture
def running(stopped):
    """A run with a living driver, in which one of two missing shards is half done."""
    manifest = load_manifest(stopped)
    layout = manifest.layout(stopped)
    with ExitStack() as stack:
        lease = stack.enter_context(Lease(stopped))
        assert lease.claim(layout.shard_name(2))
        position = Position(begin_attempt(layout, 2))
        stack.callback(position.close)
        position.cells[0] = manifest.bounds[2] + 1
        yield stopped


def test_a_complete_run_shows_counts_and_how_to_see_failures(complete, capsys):
    text = status_text(capsys, complete)
    shown = facts(text)
    assert shown["State"] == "complete"
    assert shown["Shards"] == "16 of 16 done"
    assert shown["Items"] == "20 of 20 done (100.0 %), 2 failed"
    assert shown["Speed"].endswith("items/s")
    assert f"2 items failed: espnet3 failed {complete}" in text
    assert "resume" not in text


def test_a_stopped_run_says_how_to_resume(stopped, capsys):
    text = status_text(capsys, stopped)
    assert facts(text)["State"] == "stopped"
    assert facts(text)["Shards"] == "14 of 16 done"
    assert f"{stopped} is stopped: " in text
    assert says_to_rerun(text, then=" to resume it.")


def test_a_run_stopped_by_an_error_points_to_it(failed, capsys):
    assert f"See what stopped it: espnet3 failed {failed}" in status_text(capsys, failed)


def test_a_stopped_run_does_not_age(stopped):
    week = 7 * 86400
    change_json(stopped / "manifest.json", created=time.time() - 2 * week)
    for path in stopped.glob("split.*/done"):
        change_json(path, finished=time.time() - week)
    assert read_status(stopped).seconds == pytest.approx(week, abs=60)


def test_an_unmerged_run_shows_the_command_to_paste(unmerged, capsys):
    text = status_text(capsys, unmerged)
    assert facts(text)["State"] == "not merged"
    assert ": espnet3 merge '/" in text
    assert "\nfolder" not in text  # the name has a newline, the line to paste has none


def test_a_running_shard_shows_owner_and_position(running, capsys):
    text = status_text(capsys, running)
    owner = f"{os.uname().nodename}:{os.getpid()}"
    assert facts(text)["State"] == "running"
    assert facts(text)["Shards"] == "14 of 16 done, 1 running"
    assert "left" in facts(text)["Speed"]
    (line,) = [line for line in text.splitlines() if line.endswith(owner)]
    assert line.split()[:4] == ["2", "1", "of", "2"]
    assert "resume" not in text


def test_items_of_running_shards_count_as_done(running, capsys):
    (status,) = status_json(capsys, running)
    assert facts(status_text(capsys, running))["Items"].startswith(f"{status['n_done'] + 1} of 20")


def test_a_driver_with_all_shards_done_is_merging(unmerged, capsys):
    with Lease(unmerged):
        assert "they are being merged" in status_text(capsys, unmerged)


def test_a_merged_run_whose_shards_were_removed_stays_complete(complete, capsys):
    for folder in complete.glob("split.*"):
        shutil.rmtree(folder)
    shown = facts(status_text(capsys, complete))
    assert shown["State"] == "complete"
    assert shown["Shards"] == "16 of 16 done"
    assert shown["Items"] == "20 of 20 done (100.0 %), 2 failed"


def test_json_has_stable_keys(complete, running, capsys):
    runs = status_json(capsys, complete, running)
    assert [set(run) for run in runs] == [KEYS, KEYS]
    assert [run["state"] for run in runs] == ["complete", "running"]
    assert set(runs[1]["running"][0]) == {
        "shard", "owner", "n_done", "n_items", "owner_id", "seconds", "is_twin",
    }  # fmt: skip
    assert runs[0]["run_dir"] == str(complete)
    assert runs[0]["eta_seconds"] is None


def test_json_of_an_awkward_folder_round_trips(unmerged, capsys):
    (run,) = status_json(capsys, unmerged)
    assert Path(run["run_dir"]) == unmerged


def test_a_parent_folder_shows_all_runs_below(tmp_path, complete, stopped, capsys):
    (tmp_path / "empty").mkdir()
    deep = tmp_path / "deep"
    deep.mkdir()
    shutil.copytree(complete, deep / "shards")
    text = status_text(capsys, tmp_path)
    table = text.split("\n\n")[0].splitlines()
    assert [line.split()[:2] for line in table[-3:]] == [
        ["complete", "complete"], ["deep/shards", "complete"], ["stopped", "stopped"]
    ]  # fmt: skip
    assert max(map(len, table)) <= 80
    assert [run["run_dir"] for run in status_json(capsys, tmp_path)] == [
        str(complete), str(deep / "shards"), str(stopped)
    ]  # fmt: skip


def test_long_names_fold_and_large_numbers_fit_80_columns(tmp_path, complete, capsys):
    for number in range(2):
        folder = tmp_path / f"a_very_long_name_of_a_test_set_with_{number}_and_more_words"
        shutil.copytree(complete, folder)
        bounds = [*range(16), 123_456_789]
        change_json(folder / "manifest.json", n_items=bounds[-1], bounds=bounds)
        change_json(folder / "_SUCCESS.json", n_failed=99_999)
    lines = status_text(capsys, *sorted(tmp_path.glob("a_*"))).split("\n\n")[0].splitlines()
    assert max(map(len, lines[1:])) <= 80
    assert "123,456,789" in "".join(lines)
    assert "99,999" in "".join(lines)


def test_brackets_in_a_name_are_no_markup(tmp_path, complete, capsys):
    folder = tmp_path / "[bold]x[red] :smile:"
    complete.rename(folder)
    assert "[bold]x[red] :smile: (Square)" in status_text(capsys, folder)


def test_a_damaged_run_does_not_hide_the_others(tmp_path, complete, stopped, capsys):
    (stopped / "manifest.json").write_text("{")
    assert main(["status", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "16 of 16 done" in captured.out
    assert f"{stopped}/manifest.json is damaged" in captured.err


def test_percent_is_rounded_down():
    status = RunStatus("x", "", "running", 100_000, 99_999, 0, 2, 1, [], None, None, None)
    assert percent(status) == "99.9 %"


def test_a_terminal_gets_colours(complete, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[32mcomplete" in status_text(capsys, complete)


def test_done_of_a_foreign_run_does_not_count(stopped, capsys):
    layout = load_manifest(stopped).layout(stopped)
    layout.shard(2).mkdir()
    foreign = Done("another run", 2, 4, 6)
    (layout.shard(2) / "done").write_text(json.dumps(foreign.__dict__))
    assert facts(status_text(capsys, stopped))["Shards"] == "14 of 16 done"

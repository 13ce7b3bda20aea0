import json
import os
import shutil

import pytest

from espnet3.cli.main import main
from espnet3.shards.lease import Lease
from tests.helpers.phrases import says_to_rerun

KEYS = {
    "run_dir", "output_dir", "already_merged", "by_runner", "n_items", "n_failed", "files", "left",
}  # fmt: skip


def merge_text(capsys, folder) -> str:
    assert main(["merge", str(folder)]) == 0
    return capsys.readouterr().out


def merge_json(capsys, folder) -> dict:
    assert main(["merge", "--json", str(folder)]) == 0
    return json.loads(capsys.readouterr().out)


def merge_error(capsys, folder) -> str:
    assert main(["merge", str(folder)]) == 1
    captured = capsys.readouterr()
    assert not captured.out
    return captured.err


def snapshot(folder) -> dict[str, int]:
    return {path: os.stat(path).st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_merge_joins_results_in_order_and_proves_it(unmerged, capsys):
    text = merge_text(capsys, unmerged)
    assert "(20 items)." in text
    assert "results.jsonl      18" in text
    assert "2 items failed and left no line: espnet3 failed" in text
    results = [json.loads(line) for line in (unmerged / "results.jsonl").open()]
    assert [result["id"] for result in results] == [i for i in range(20) if i not in (3, 11)]
    assert (unmerged / "failed.jsonl").read_text().count("\n") == 2
    success = json.loads((unmerged / "_SUCCESS.json").read_text())
    assert (success["n_items"], success["n_failed"]) == (20, 2)
    assert list(success["outputs"]) == ["results.jsonl"]


def test_merge_writes_what_the_runner_would(complete, capsys, square):
    expected = (complete / "results.jsonl").read_bytes()
    (complete / "_SUCCESS.json").unlink()
    (complete / "results.jsonl").unlink()
    merge_text(capsys, complete)
    assert (complete / "results.jsonl").read_bytes() == expected
    assert square(complete) == complete / "results.jsonl"


def test_after_merge_the_runner_still_gives_its_own_answer(unmerged_sound, capsys, resound):
    merge_text(capsys, unmerged_sound)
    assert "result" not in json.loads((unmerged_sound / "_SUCCESS.json").read_text())
    assert resound(unmerged_sound) == "merged 16 shards myself"


def test_after_merge_the_status_is_complete(unmerged, capsys):
    merge_text(capsys, unmerged)
    assert main(["status", "--json", str(unmerged)]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["state"] == "complete"


def test_only_files_with_a_line_per_result_are_joined(unmerged_sound, capsys):
    merged = merge_json(capsys, unmerged_sound)
    assert merged["files"] == {"wav.scp": 20}
    assert merged["left"] == {
        "table.csv": "it has not one line per result: split.00 has 3 lines for 2 results",
        "wav/": "it is a folder",
        "x.npy": "it is not UTF-8 text in split.00",
    }
    lines = (unmerged_sound / "wav.scp").read_text().splitlines()
    assert [line.split()[0] for line in lines] == [str(i) for i in range(20)]
    assert not (unmerged_sound / "x.npy").exists()


def test_what_is_left_is_listed_with_the_reason(unmerged_sound, capsys):
    text = merge_text(capsys, unmerged_sound)
    assert "Left in the shards   Why" in text
    assert "wav/                 it is a folder" in text
    assert "A merge() of your own was not run" in text


def test_a_run_with_nothing_to_join_is_left_to_its_runner(unmerged_sound, capsys):
    for done in unmerged_sound.glob("split.*/done"):
        values = json.loads(done.read_text())
        del values["files"]["wav.scp"]
        done.write_text(json.dumps(values))
    error = merge_error(capsys, unmerged_sound)
    assert "wav/: it is a folder" in error
    assert "Run the same command as before again: its merge() joins them" in error
    assert not (unmerged_sound / "_SUCCESS.json").exists()


def test_json_has_stable_keys(unmerged, capsys):
    merged = merge_json(capsys, unmerged)
    assert set(merged) == KEYS
    assert merged == {
        "run_dir": str(unmerged), "output_dir": str(unmerged), "already_merged": False,
        "by_runner": False, "n_items": 20, "n_failed": 2, "files": {"results.jsonl": 18},
        "left": {},
    }  # fmt: skip


def test_an_incomplete_run_is_refused_and_nothing_is_written(stopped, capsys):
    before = snapshot(stopped)
    error = merge_error(capsys, stopped)
    assert "of 20 items in" in error
    assert "shard 2: items 4 to 5, shard 15: items 19 to 19" in error
    assert says_to_rerun(error, then=" to finish them.")
    assert snapshot(stopped) == before


def test_a_shard_that_was_edited_is_refused(unmerged, capsys):
    with (unmerged / "split.07" / "results.jsonl").open("a") as file:
        file.write("{}\n")
    error = merge_error(capsys, unmerged)
    assert "split.07/results.jsonl was committed with" in error
    assert not (unmerged / "_SUCCESS.json").exists()


def test_a_run_that_is_merged_already_is_left_alone(complete, capsys):
    before = snapshot(complete)
    assert f"{complete} is merged already (20 items); nothing was done." in merge_text(
        capsys, complete
    )
    merged = merge_json(capsys, complete)
    assert set(merged) == KEYS
    assert merged["already_merged"] is True
    assert merged["files"] == {"results.jsonl": None}
    assert snapshot(complete) == before


def test_a_merged_file_that_was_removed_is_made_again(complete, capsys):
    (complete / "results.jsonl").unlink()
    assert merge_json(capsys, complete)["files"] == {"results.jsonl": 18}
    assert (complete / "results.jsonl").exists()


def test_a_folder_in_which_a_driver_works_is_left_to_it(unmerged, capsys):
    with Lease(unmerged) as lease:
        error = merge_error(capsys, unmerged)
        assert f"{lease.owner} is working in" in error
    assert "will merge by itself. See how far it is: espnet3 status" in error
    assert not (unmerged / "_SUCCESS.json").exists()


def test_merge_leaves_no_lease_behind(unmerged, capsys):
    merge_text(capsys, unmerged)
    assert list((unmerged / "leases").iterdir()) == []


def test_files_go_beside_the_shard_subdir(tmp_path, capsys, square):
    folder = tmp_path / "out"
    square(folder, shard_subdir="shards")
    for path in (folder / "results.jsonl", folder / "shards" / "_SUCCESS.json"):
        path.unlink()
    merged = merge_json(capsys, folder)
    assert (merged["run_dir"], merged["output_dir"]) == (str(folder / "shards"), str(folder))
    assert (folder / "results.jsonl").exists()
    assert (folder / "shards" / "failed.jsonl").exists()


def test_a_relative_path_works_from_inside(unmerged, capsys, monkeypatch):
    monkeypatch.chdir(unmerged)
    merged = merge_json(capsys, ".")
    assert (merged["run_dir"], merged["output_dir"]) == (".", ".")
    assert list(json.loads((unmerged / "_SUCCESS.json").read_text())["outputs"]) == [
        "results.jsonl"
    ]


@pytest.mark.parametrize("elsewhere", ["/tmp/elsewhere", "../sibling", "below"])
def test_a_manifest_cannot_choose_a_place_to_write_to(unmerged, capsys, elsewhere):
    values = json.loads((unmerged / "manifest.json").read_text())
    (unmerged / "manifest.json").write_text(json.dumps({**values, "output_dir": elsewhere}))
    error = merge_error(capsys, unmerged)
    assert "which is not above it. Run the same command as before again" in error


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("manifest.json", "a file of the run itself has that name"),
        (".bashrc", "it is a hidden file"),
    ],
)
def test_a_shard_cannot_replace_files_of_the_run(unmerged, capsys, name, reason):
    before = (unmerged / "manifest.json").read_bytes()
    for shard in unmerged.glob("split.*"):
        shutil.copy(shard / "results.jsonl", shard / name)
        values = json.loads((shard / "done").read_text())
        values["files"][name] = values["files"]["results.jsonl"]
        (shard / "done").write_text(json.dumps(values))
    assert merge_json(capsys, unmerged)["left"] == {name: reason}
    assert (unmerged / "manifest.json").read_bytes() == before

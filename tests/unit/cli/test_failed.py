import json
import os

import pytest

from espnet3.cli.main import main

KEYS = {"position", "index", "shard", "error", "traceback", "host", "pid", "log", "ids"}


def failed_text(capsys, *argv) -> str:
    assert main(["failed", *map(str, argv)]) == 0
    return capsys.readouterr().out


def failed_json(capsys, *argv) -> dict:
    return json.loads(failed_text(capsys, "--json", *argv))


def test_each_failure_shows_item_shard_host_error_and_traceback(complete, capsys):
    text = failed_text(capsys, complete)
    assert text.startswith(f"2 items failed in {complete}\n")
    assert f"Item 3 (position 3, shard 1) on {os.uname().nodename}:{os.getpid()}\n" in text
    assert "\nValueError: utterance 11 is " in text
    assert "in forward\n" in text
    assert 'raise ValueError(f"utterance {idx}' in text
    assert "execute.py" not in text  # our own frames are of no interest


def test_escape_sequences_of_an_error_do_not_reach_the_terminal(complete, capsys):
    text = failed_text(capsys, complete)
    assert "\x1b" not in text
    assert "is \\x1b[31mbroken" in text


def test_the_error_that_stopped_a_run_is_shown(failed, capsys):
    assert failed_text(capsys, failed).startswith(f"1 item failed in {failed}\n")


def test_an_error_of_an_earlier_try_is_forgotten_once_its_shard_is_done(stopped, capsys):
    old = {"position": 0, "index": 0, "shard": 0, "error": "OSError: once", "traceback": ""}
    new = {"position": 19, "index": 19, "shard": 15, "error": "OSError: now", "traceback": ""}
    (stopped / "failed.jsonl").write_text(f"{json.dumps(old)}\n{json.dumps(new)}\n")
    text = failed_text(capsys, stopped)
    assert "OSError: now" in text
    assert "OSError: once" not in text


def test_nothing_failed_is_said_and_no_error(tmp_path, complete, capsys):
    for path in complete.rglob("failed.jsonl"):
        path.unlink()
    assert failed_text(capsys, complete) == f"No item failed in {complete}.\n"
    assert failed_json(capsys, complete) == {
        "run_dir": str(complete), "n_failed": 0, "failures": []
    }  # fmt: skip


def test_a_stopped_run_without_failures_points_to_its_logs(stopped, capsys):
    for path in stopped.rglob("failed.jsonl"):
        path.unlink()
    (stopped / "logs" / "worker-0.log").touch()
    assert f"The logs of its workers are in {stopped}/logs." in failed_text(capsys, stopped)


def test_the_log_of_a_worker_is_named(failed, capsys):
    path = failed / "failed.jsonl"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "log": "/logs/worker-1.log"}) + "\n")
    assert "\nLog: /logs/worker-1.log\n" in failed_text(capsys, failed)


def test_limit_shows_the_first_and_says_how_to_see_all(complete, capsys):
    text = failed_text(capsys, complete, "--limit", "1")
    assert "Item 3 " in text
    assert "Item 11 " not in text
    assert f"1 of 2 are shown; for all: espnet3 failed {complete} --limit 2" in text


def test_equal_errors_are_counted(complete, capsys):
    record = {"shard": 1, "error": "KeyError: 'x'"}
    (complete / "split.01" / "failed.jsonl").write_text(
        "".join(json.dumps({**record, "position": p, "index": p}) + "\n" for p in range(11))
    )
    text = failed_text(capsys, complete)
    assert "   11   KeyError: 'x'" in text
    assert f"10 of 12 are shown; for all: espnet3 failed {complete} --limit 12" in text


@pytest.mark.parametrize(("limit", "n_shown"), [([], 2), (["--limit", "1"], 1)])
def test_json_has_stable_keys_and_all_failures_unless_limited(complete, capsys, limit, n_shown):
    shown = failed_json(capsys, complete, *limit)
    assert set(shown) == {"run_dir", "n_failed", "failures"}
    assert shown["n_failed"] == 2
    assert [failure["index"] for failure in shown["failures"]] == [3, 11][:n_shown]
    assert all(set(failure) == KEYS for failure in shown["failures"])


@pytest.mark.parametrize("limit", ["-1", "many"])
def test_a_limit_that_is_no_number_is_refused(complete, capsys, limit):
    assert main(["failed", str(complete), "--limit", limit]) == 2
    assert f"'{limit}' is not a number from 0 on" in capsys.readouterr().err


def test_a_folder_with_one_run_below_stands_for_it(tmp_path, complete, capsys):
    assert failed_text(capsys, tmp_path).startswith(f"2 items failed in {complete}\n")


def test_a_folder_with_several_runs_asks_which(tmp_path, complete, failed, capsys):
    assert main(["logs", str(tmp_path), "--shard", "1"]) == 1
    error = capsys.readouterr().err
    assert f"{tmp_path} holds 2 runs; name one:\n  {complete}\n  {failed}\n" in error


def test_a_folder_of_runs_lists_the_failures_of_each(complete, templates, capsys):
    shown = failed_text(capsys, templates)
    assert f"2 items failed in {templates / 'square'}" in shown
    assert f"No item failed in {templates / 'sound'}." in shown
    runs = failed_json(capsys, templates)["runs"]
    assert {run["run_dir"]: run["n_failed"] for run in runs}[str(templates / "square")] == 2

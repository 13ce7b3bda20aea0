"""`espnet3 status` on experiments: trainings that run, died, failed and are done."""

import json
import os
import socket
import time

import pytest

from espnet3.cli.main import main
from espnet3.shards.lease import start_time

COMMAND = "python run.py --stages train --training_config conf/training.yaml"


@pytest.fixture
def training(tmp_path):
    """Return a function that writes the files of a training into a folder."""

    def write(name="one", **record):
        folder = tmp_path / "exp" / name
        (folder / "config").mkdir(parents=True)
        now = time.time()
        values = {"state": "running", "command": COMMAND, "host": socket.gethostname()}
        values |= {"pid": os.getpid(), "started": start_time(os.getpid())}
        start = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(now - 200))
        (folder / "config/train.json").write_text(json.dumps({**values, "start": start, **record}))
        (folder / "config.yaml").write_text("trainer: {max_epochs: 4}\n")
        lines = [
            {"step": 50, "epoch": 1, "time": now - 100, "values": {"train/loss": 2.0}},
            {"step": 100, "epoch": 1, "time": now - 50, "values": {"valid/loss": 1.5}},
            {"step": 150, "epoch": 2, "time": now, "values": {"train/loss": 1.0}},
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "history.jsonl").write_text(text + '{"step": 160, "ep')
        saved = {"file": "epoch1_step100.ckpt", "value": 1.5, "epoch": 1, "step": 100}
        criterion = {"monitor": "valid/loss", "k": 1, "mode": "min", "checkpoints": [saved]}
        (folder / "best.json").write_text(json.dumps({"criteria": [criterion]}))
        (folder / "last.ckpt").touch()
        return folder

    return write


def shown(capsys, *argv):
    assert main(["status", *map(str, argv)]) == 0
    return capsys.readouterr().out


def test_a_training_that_runs_tells_epoch_step_best_checkpoint_and_time_left(training, capsys):
    text = shown(capsys, training())
    assert f"running on {socket.gethostname()}" in text
    assert "epoch 2 of 4, step 150" in text
    assert "train/loss 1, valid/loss 1.5" in text
    assert "valid/loss 1.5 at epoch 1 (epoch1_step100.ckpt)" in text
    assert "last.ckpt, 0." in text
    (read,) = json.loads(shown(capsys, training("two"), "--json"))["trainings"]
    assert read["seconds_left"] == pytest.approx(250, abs=20)  # a step a second, 250 to go


def test_a_training_that_died_is_told_with_the_line_that_resumes_it(training, capsys):
    text = shown(capsys, training(started=1))
    assert "dead" in text
    assert f"is dead. To resume it: {COMMAND}" in text


def test_a_training_elsewhere_is_dead_once_it_is_silent(training, capsys):
    folder = training(host="another")
    assert "running on another" in shown(capsys, folder)
    old = time.time() - 3600
    os.utime(folder / "history.jsonl", (old, old))
    assert "dead on another" in shown(capsys, folder)


def test_a_folder_of_experiments_is_a_table_with_their_runs(
    training, complete, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "400")  # names in full
    training("base", state="done")
    folder = training("large", state="failed")
    os.rename(complete, folder / "inference")
    text = shown(capsys, folder.parent)
    assert "base" in text
    assert "complete" in text
    assert "2/4" in text
    assert "failed. To resume it" in text
    assert "Items" in text


def test_watching_a_training_ends_with_it(training, capsys):
    assert main(["status", "--watch", str(training(state="done"))]) == 0
    assert "complete" in capsys.readouterr().out
    assert main(["status", "--watch", str(training("two", state="failed"))]) == 1


def test_a_narrow_terminal_shortens_names_and_keeps_numbers(training, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    training("a_name_that_is_rather_long_for_such_a_terminal", state="done")
    training("b", state="done")
    text = shown(capsys, training("c", state="done").parent)
    rows = [line for line in text.splitlines() if "2/4" in line]
    assert len(rows) == 3
    assert "\u2026" in rows[0]
    assert all("complete" in row and "150" in row for row in rows)

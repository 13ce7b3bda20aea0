"""`espnet3 scaling` as it is typed, on processes of this machine."""

import re
import sys

import pytest

from espnet3.cli.main import main

SMALL = ("--items", "6", "--seconds", "0.01")
ROW = re.compile(
    r"^\| (\S[^|]*) \| (\S+) \| 6 \| (\d+\.\d+) \| \d+\.\d \| \d+\.\d \| (\d+)% \|$", re.M
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "local.yaml").write_text("parallel: {env: local, n_workers: 8}\n")
    (tmp_path / "nothing.yaml").write_text("model: {size: 3}\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_table_has_a_row_for_each_number_of_workers_and_nothing_is_left(folder, capsys):
    assert main(["scaling", "local.yaml", "--workers", "1", "2", *SMALL]) == 0
    out = capsys.readouterr().out
    rows = ROW.findall(out)
    assert [(row[0], row[1]) for row in rows] == [("local", "1"), ("local", "2")]
    assert rows[0][3] == "100"
    assert "6 items of 0.01 s of sleep; 20" in out
    assert sorted(path.name for path in folder.iterdir()) == ["local.yaml", "nothing.yaml"]


def test_items_that_compute_take_about_as_long_as_was_said(folder, capsys):
    words = ("--workers", "1", "--items", "6", "--seconds", "0.02", "--compute")
    assert main(["scaling", "local.yaml", *words]) == 0
    out = capsys.readouterr().out
    assert float(ROW.findall(out)[0][2]) > 0
    assert "of computing" in out


def test_detached_workers_are_waited_for(folder, capsys):
    assert main(["scaling", "local.yaml", "parallel.mode=async", "--workers", "1", *SMALL]) == 0
    assert [row[:2] for row in ROW.findall(capsys.readouterr().out)] == [("local / async", "1")]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["local.yaml", "parallel.n_workers=4"], 2, "--workers 4"),
        (["local.yaml", "model.size=4"], 2, "only the parallel block is read"),
        (["local.yaml", "--workers", "0"], 2, "'0' is not a number from 1 on"),
        (["nothing.yaml"], 1, "Write: parallel: {env: slurm"),
        (["local.yaml", "parallel.env=slrum"], 1, "slurm"),
        (["nowhere.yaml"], 1, "nowhere.yaml"),
    ],
)
def test_a_mistake_is_told_before_a_worker_starts(folder, capsys, words, code, told):
    assert main(["scaling", *words, *SMALL]) == code
    captured = capsys.readouterr()
    assert told in captured.err
    assert not captured.out


def test_more_workers_than_gpus_are_refused_before_the_first_row(folder, capsys, monkeypatch):
    monkeypatch.setattr("espnet3.parallel.clusters.gpus.visible_gpus", lambda _: ["0"])
    words = ("parallel.env=local_gpu", "--workers", "1", "2", *SMALL)
    assert main(["scaling", "local.yaml", *words]) == 1
    captured = capsys.readouterr()
    assert "parallel.n_workers is 2 but 1 GPU" in captured.err
    assert not captured.out


def test_who_is_interrupted_takes_the_detached_workers_along(folder, capsys, monkeypatch):
    def interrupt(run, timeout=None):
        raise KeyboardInterrupt

    monkeypatch.setattr("espnet3.parallel.detached.handle.DetachedRun.wait", interrupt)
    words = ("--workers", "2", "--items", "400", "--seconds", "0.5")
    assert main(["scaling", "local.yaml", "parallel.mode=async", *words]) == 130
    assert list(folder.glob("scaling-*")) == []  # and no process is left, as a fixture checks

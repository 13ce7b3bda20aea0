"""Statistics by several processes: the same bytes for any number, also after a kill."""

import os
import signal
import subprocess
import sys

import pytest

from espnet3.config.load import load_config
from espnet3.systems.base.statistics import collect_stats
from tests.helpers.statistics_parts import files_of

PARTS = "tests.helpers.statistics_parts"
SCRIPT = """
import sys
from espnet3.config.load import load_config
from espnet3.systems.base.statistics import collect_stats

if __name__ == "__main__":
    collect_stats(load_config(sys.argv[1], sys.argv[2:]))
"""


def config_of(folder, n, n_workers, **arguments):
    file = folder / "training.yaml"
    args = {"n": n, "offset": 1e4, **arguments}
    file.write_text(
        f"recipe_dir: {folder}\nstats_dir: {folder}/stats\n"
        f"dataset: {{train: [{{data_src: {PARTS}, data_src_args: {args}}}]}}\n"
        f"parallel: {{env: local, n_workers: {n_workers}}}\n"
    )
    return file


def test_a_thousand_items_give_the_same_bytes_on_any_number_of_workers(tmp_path):
    found = {}
    for n_workers in (1, 2, 3):
        folder = tmp_path / str(n_workers)
        folder.mkdir()
        collect_stats(load_config(config_of(folder, 1000, n_workers, noise=0.1)))
        found[n_workers] = files_of(folder / "stats" / "train")
    assert found[1].keys() == {"speech_shape", "tokens_shape", "speech_stats.npz", "stats_keys"}
    assert found[1] == found[2] == found[3]


def test_a_model_with_a_random_front_end_gives_the_same_bytes_in_two_processes(tmp_path):
    model = "model={_target_: tests.helpers.statistics_models.Model}"
    found = []
    for n_workers in (1, 2):
        folder = tmp_path / str(n_workers)
        folder.mkdir()
        file = config_of(folder, 100, n_workers, speech_only=True)
        collect_stats(load_config(file, [model, "collect_stats.batch_size=8"]))
        found.append(files_of(folder / "stats" / "train"))
    assert "feats_stats.npz" in found[0]
    assert found[0] == found[1]


@pytest.mark.parametrize("victim", ["driver", "worker"])
def test_sigkill_then_the_same_command_gives_the_same_bytes(tmp_path, victim):
    whole = tmp_path / "whole"
    whole.mkdir()
    collect_stats(load_config(config_of(whole, 300, 1)))
    folder = tmp_path / "killed"
    folder.mkdir()
    kill = {"mark": f"{folder}/mark", "at": 150, "victim": victim}
    file = config_of(folder, 300, 2, kill=kill)
    first = run(file)
    stats = folder / "stats" / "train"
    assert (folder / "mark").exists()
    if victim == "driver":
        assert first.returncode == -signal.SIGKILL
        assert not (stats / "_SUCCESS.json").exists()
        assert not files_of(stats)
        before = commits_in(stats)
        again = run(file)
        assert again.returncode == 0, again.stderr
        assert before
        assert before.items() <= commits_in(stats).items()
    else:
        assert first.returncode == 0, first.stderr
        assert "SIGKILL" in first.stderr
    assert files_of(stats) == files_of(whole / "stats" / "train")


def commits_in(folder):
    """Return when each shard was committed."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("split.??/done")}


def run(file):
    script = file.parent / "script.py"
    script.write_text(SCRIPT)
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.run(
        [sys.executable, script, file], env=environ, capture_output=True, text=True, timeout=120
    )

"""Batches by duration through a runner: outputs in dataset order, whatever happens."""

import json
import logging
import re

import numpy as np
import pytest

from espnet3.cli.main import main
from espnet3.errors import ConfigError, StaleRunError
from espnet3.parallel import BaseRunner, use_parallel
from espnet3.shards.manifest import load_manifest
from tests.helpers.providers import Provider

LENGTHS = np.random.default_rng(3).uniform(1, 20, 200)


class Batch(BaseRunner):
    @staticmethod
    def forward(idx, lengths=None, bad=()):
        if set(idx) & set(bad):
            raise ValueError("a bad item")
        return [{"i": i, "n": len(idx)} for i in idx]


def run(folder, *, n_workers=1, provider=None, **settings):
    with use_parallel({"env": "local", "n_workers": n_workers}):
        runner = Batch(provider or Provider(), output_dir=folder, batch_seconds=60, **settings)
        path = runner(range(len(LENGTHS)), durations=LENGTHS)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_results_in_memory_come_in_dataset_order():
    results = Batch(Provider(), batch_seconds=60)(range(len(LENGTHS)), durations=LENGTHS)
    assert [r["i"] for r in results] == list(range(len(LENGTHS)))
    assert max(r["n"] for r in results) > 8
    assert results[int(LENGTHS.argmax())]["n"] <= 3


def test_files_come_in_dataset_order_with_any_number_of_workers(tmp_path):
    one = run(tmp_path / "one")
    two = run(tmp_path / "two", n_workers=2)
    assert [r["i"] for r in one] == list(range(len(LENGTHS)))
    assert one == two  # the same batches, too


def test_skipped_items_leave_no_hole(tmp_path):
    bad = [3, 77, int(LENGTHS.argmin())]
    records = run(tmp_path, provider=Provider(bad=bad), on_error="skip")
    assert [r["i"] for r in records] == [i for i in range(len(LENGTHS)) if i not in bad]


def test_the_merge_command_restores_the_order_too(tmp_path, capsys):
    expected = run(tmp_path)
    (tmp_path / "_SUCCESS.json").unlink()
    (tmp_path / "results.jsonl").unlink()
    assert main(["merge", str(tmp_path)]) == 0
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == expected


def test_batch_size_bounds_the_batches(tmp_path):
    assert max(r["n"] for r in run(tmp_path, batch_size=4)) == 4


def test_padding_and_speed_are_told(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        run(tmp_path)
    success = json.loads((tmp_path / "_SUCCESS.json").read_text())
    assert success["audio_seconds"] == pytest.approx(LENGTHS.sum())
    assert 0 < success["padded_share"] < 0.05
    assert "real-time factor" in caplog.text
    assert re.search(r"Padding: \d\.\d% of the batches", caplog.text)


def test_resume_refuses_other_batches(tmp_path):
    run(tmp_path)
    runner = Batch(Provider(), output_dir=tmp_path, batch_seconds=30)
    with pytest.raises(StaleRunError, match=r"batch_seconds: 60 -> 30"):
        runner(range(len(LENGTHS)), durations=LENGTHS)


def test_without_durations_it_says_how_to_give_them():
    with pytest.raises(ConfigError, match=r"runner\(indices, durations=\[\.\.\.\]\)"):
        Batch(Provider(), batch_seconds=60)(range(3))


@pytest.mark.parametrize("value", [0, -1, True, "60", float("inf")])
def test_an_impossible_limit_is_refused(value):
    with pytest.raises(ConfigError, match="write batch_seconds=60"):
        Batch(Provider(), batch_seconds=value)


def test_the_manifest_stays_small(tmp_path):
    with use_parallel({"env": "local", "n_workers": 1}):
        lengths = np.random.default_rng(0).uniform(1, 20, 50_000)
        Batch(Provider(), output_dir=tmp_path, batch_seconds=600)(range(50_000), durations=lengths)
    assert (tmp_path / "manifest.json").stat().st_size < 20_000
    assert load_manifest(tmp_path).n_items == 50_000


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


class Greedy(BaseRunner):
    @staticmethod
    def forward(idx, limit=3):
        if len(idx) > limit:
            raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {len(idx)} GiB")
        return [{"i": i, "n": len(idx)} for i in idx]


def test_a_batch_too_large_for_the_memory_is_halved_and_told(tmp_path, caplog):
    runner = Greedy(Provider(), batch_size=8, output_dir=tmp_path)
    records = [json.loads(line) for line in runner(range(20)).read_text().splitlines()]
    assert [r["i"] for r in records] == list(range(20))
    assert max(r["n"] for r in records) <= 3
    assert "does not fit into memory" in caplog.text
    assert "set a smaller batch_seconds or batch_size" in caplog.text
    assert json.loads((tmp_path / "_SUCCESS.json").read_text())["n_halved"] > 2


def test_an_item_too_large_for_the_memory_is_an_error_of_that_item():
    from espnet3.errors import ItemError

    with pytest.raises(ItemError, match="CUDA out of memory"):
        Greedy(Provider(limit=0), batch_size=8)(range(4))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("the word memory, out of memory"), False),
    ],
)
def test_which_errors_are_about_memory(error, expected):
    from espnet3.memory import is_out_of_memory

    assert is_out_of_memory(error) is expected


def test_a_real_torch_allocation_failure_is_recognised():
    torch = pytest.importorskip("torch")
    from espnet3.memory import free_memory, is_out_of_memory

    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert is_out_of_memory(caught.value)
    free_memory()

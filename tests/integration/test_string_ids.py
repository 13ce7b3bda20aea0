"""A detached run over string ids: each worker reads the ids of its shards, and no others."""

import json

import cloudpickle
import pytest

from benchmarks.many_workers import Nap, Sleeper
from espnet3.parallel import use_parallel
from espnet3.parallel.detached.control import SharedWorkers
from espnet3.parallel.detached.worker import DetachedWorker
from espnet3.parallel.open_pool import InlinePool
from espnet3.parallel.signals import EndSignals
from espnet3.shards import manifest as manifest_module
from espnet3.shards.layout import manifest_path
from espnet3.shards.records import Identity

IDS = [f"speaker-{number * 7 % 6007}" for number in range(6000)]


def plan(root):
    with use_parallel({"env": "local", "mode": "async", "shards_per_worker": 12}) as config:
        Sleeper(Nap(0.0), output_dir=root)(IDS, client=SharedWorkers(config))


def work(root):
    DetachedWorker(
        root, Identity(), EndSignals(), open_pool=lambda code: InlinePool(cloudpickle.loads(code))
    ).work()


def forget_index(root):
    """Make the folder one of the version before."""
    for path in root.glob("*.index"):
        path.unlink()
    manifest = json.loads(manifest_path(root).read_text())
    del manifest["items"]["index"]
    manifest_path(root).write_text(json.dumps(manifest))


@pytest.mark.parametrize("is_of_before", [False, True])
def test_detached_run_over_string_ids_is_complete_and_in_order(awkward, monkeypatch, is_of_before):
    plan(awkward)
    if is_of_before:
        forget_index(awkward)
    real, sizes = manifest_module._parse, []

    def parse(kind, data, file):
        sizes.append(len(data))
        return real(kind, data, file)

    monkeypatch.setattr(manifest_module, "_parse", parse)
    work(awkward)
    assert (awkward / "text").read_text() == "".join(f"utt{name} slept\n" for name in IDS)
    whole = len(json.dumps(IDS, separators=(",", ":")))
    assert (max(sizes) == whole) == is_of_before
    assert len(sizes) == (1 if is_of_before else 12)


def test_second_start_goes_on_and_does_not_plan_again(awkward):
    plan(awkward)
    before = manifest_path(awkward).read_bytes()
    plan(awkward)
    assert manifest_path(awkward).read_bytes() == before
    work(awkward)
    assert len((awkward / "text").read_text().splitlines()) == len(IDS)

"""The `parallel` blocks of seeds 001 and 003, as they are written there, on real schedulers.

Only what every cluster names in its own way is another: queue, prologue, and for Grid Engine how
a job asks for a GPU. Seed 003 has 8 workers, here 4.
"""

import itertools
import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.cluster import where
from tests.cluster.clients import wait_for
from tests.helpers.snippets import SLURM_001 as SEED_001

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
_PATIENCE = 120.0  # seconds; other programs share the machine
N_JOBS = 4

SEED_003 = """
parallel:
  env: slurm
  n_workers: 4
  options:
    queue: long
    account: my-lab
    cores: 4
    processes: 1
    memory: 32GB
    walltime: "04:00:00"
    interface: ib0
    log_directory: logs/dask
    job_script_prologue:
      - "export SEED_WORD=prologue"
    job_extra_directives:
      - "--gres=gpu:1"
"""


def for_grid_engine(text):
    """Say it in the words of Grid Engine, which has projects instead of accounts."""
    config = yaml.safe_load(text)
    (block,) = config.values()
    block["env"] = "sge"
    block["options"] |= {"queue": "long.q", "job_extra_directives": ["-l gpu=1"]}
    block["options"].pop("account", None)
    return yaml.safe_dump(config)


@pytest.mark.parametrize(
    ("seed", "how"), [(SEED_001, "map"), (SEED_003, "runner")], ids=["001", "003"]
)
@pytest.mark.parametrize("scheduler", ["slurm_net", "sge"])
def test_four_jobs_have_a_gpu_each_and_share_the_items(scheduler, seed, how, request, tmp_path):
    clients = request.getfixturevalue(scheduler)
    is_slurm = scheduler == "slurm_net"
    folder = tmp_path / "it's my recipe"
    folder.mkdir()
    (folder / "block.yaml").write_text(seed if is_slurm else for_grid_engine(seed))
    for node in (2, 3, 4):
        clients.cluster.node("drain", node)
    try:
        command = (sys.executable, where.__file__, "block.yaml", how)
        env = {**clients.env, "SEED_WORD": "a driver's"}
        driver = clients.start(*command, cwd=folder, env=env)
        wait_for(driver, lambda: count_jobs(folder) == 2 and len(clients.active()) == N_JOBS)
    finally:
        for node in (2, 3, 4):
            clients.cluster.node("resume", node)
    told, errors = driver.communicate(timeout=_PATIENCE)
    assert driver.returncode == 0, told + errors

    notes = read_notes(folder)
    assert len(notes) == N_JOBS
    done = [each["idx"] for lines in notes.values() for each in lines]
    assert sorted(done) == list(range(where.N_ITEMS))
    assert_one_gpu_each(notes)
    assert_one_item_at_a_time(notes)
    assert_items_are_spread_evenly(notes)
    word = "prologue" if "prologue" in seed else "a driver's"
    assert {each["word"] for lines in notes.values() for each in lines} == {word}
    if "log_directory" in seed:
        assert list((folder / "logs/dask").iterdir())
    assert clients.left_behind() == {}


def count_jobs(folder):
    return len(list((folder / "trace").glob("*")))


def read_notes(folder: Path) -> dict[str, list[dict]]:
    return {
        file.name: [json.loads(line) for line in file.read_text().splitlines()]
        for file in (folder / "trace").iterdir()
    }


def assert_one_gpu_each(notes):
    used = [{tuple(each["place"]) for each in lines} for lines in notes.values()]
    assert [len(places) for places in used] == [1] * N_JOBS
    gpus = set().union(*used)
    assert len(gpus) == N_JOBS, gpus
    assert {device for _, device in gpus} == {"0", "1"}


def assert_one_item_at_a_time(notes):
    for lines in notes.values():
        assert len({each["pid"] for each in lines}) == 1
        spans = sorted((each["begin"], each["end"]) for each in lines)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def assert_items_are_spread_evenly(notes):
    """From when the last job came, each has its share, though two have done more before."""
    all_there = max(min(each["begin"] for each in lines) for lines in notes.values())
    counts = [sum(each["end"] > all_there for each in lines) for lines in notes.values()]
    fair = sum(counts) / N_JOBS
    assert fair > where.N_ITEMS / N_JOBS / 2
    assert all(fair / 2 < count < fair * 2 for count in counts), counts

"""Workers, and what they built, stay for the next run of a stage, and of a block of a script."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from espnet3.config.load import load_config
from espnet3.errors import EspnetError, ItemError, RunInterrupted
from espnet3.parallel import get_client, parallel_map, set_parallel, use_parallel
from espnet3.shards.manifest import require_manifest
from espnet3.shards.merge import read_accounting
from espnet3.shards.records import RecordPaths, StopMark, write_stop
from espnet3.systems.base.inference import PlannedRun, infer, run_all
from espnet3.systems.base.statistics_provider import StatisticsProvider
from tests.helpers.kept_parts import Add, NarrowProvider, NotingProvider, read_notes
from tests.helpers.waiting import is_alive, wait_for_end, wait_until

INPUTS = "tests.helpers.inference_parts"
PARTS = "tests.helpers.kept_parts"
LOCAL = {"env": "local", "n_workers": 2}
SETS = {"one": 0, "two": 100, "three": 200}


@pytest.fixture
def notes(tmp_path):
    """Return the file in which models, providers and items are noted."""
    return tmp_path / "notes.jsonl"


def loader(folder, notes):
    """Return a function that loads a config with three test sets of 12 items."""

    def make(*overrides, sets=tuple(SETS), out="out", n=None):
        tests = [
            {
                "name": name,
                "data_src": INPUTS,
                "data_src_args": {"n": (n or {}).get(name, 12), "offset": SETS[name]},
            }
            for name in sets
        ]
        config = {
            "parallel": LOCAL,
            "input_key": "speech",
            "dataset": {"test": tests},
            "model": {"_target_": f"{PARTS}.NotingModel", "log_file": str(notes), "pause": 0.02},
        }
        file = folder / f"{out}.yaml"
        file.write_text(json.dumps(config))
        below = {"recipe_dir": str(folder), "inference_dir": str(folder / out)}
        return load_config(file, overrides, below=below)

    return make


@pytest.fixture
def load(awkward, notes):
    return loader(awkward, notes)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the results of the test sets when each was decoded alone, in this process."""
    folder = tmp_path_factory.mktemp("alone")
    for name in SETS:
        infer(loader(folder, folder / "notes")("parallel.n_workers=1", sets=[name]))
    return outputs(folder / "out")


def pids(notes, what):
    return {entry["pid"] for entry in read_notes(notes, what)}


def n_models(notes):
    return len(read_notes(notes, "model"))


def outputs(folder):
    names = [f"{name}/{file}" for name in SETS for file in ("hyp.scp", "ref.scp")]
    return {name: (folder / name).read_bytes() for name in names}


def test_three_test_sets_on_two_workers_are_two_processes_and_two_models(
    load, notes, awkward, alone
):
    infer(load("model.meet=2"))
    assert len(pids(notes, "item")) == n_models(notes) == 2
    assert outputs(awkward / "out") == alone


def test_in_this_process_the_model_is_built_once(load, notes):
    infer(load("parallel.n_workers=1"))
    assert n_models(notes) == 1


def test_a_model_that_depends_on_the_test_set_is_built_for_each(load, notes, awkward):
    infer(load(f"provider._target_={PARTS}.PerTestSet"))
    assert n_models(notes) == 6
    assert len(pids(notes, "model")) == 2
    for name in SETS:
        lines = (awkward / "out" / name / "hyp.scp").read_text().splitlines()
        assert all(line.endswith(f" of {name}") for line in lines)


def test_a_test_set_that_needs_more_workers_gets_them(load, notes):
    infer(load("model.pause=0.2", sets=("one", "two"), n={"one": 1}))
    assert len(pids(notes, "item")) == n_models(notes) == 2


def test_each_test_set_has_its_logs_and_only_the_first_has_waited_for_the_model(
    load, notes, awkward
):
    infer(load("model.seconds=1", sets=("one", "two")))
    loads = {}
    for name in ("one", "two"):
        folder = awkward / "out" / name
        said = "".join(log.read_text() for log in folder.glob("logs/worker-*.log"))
        numbers = {f"number {SETS[name] + i}" for i in range(12)}
        assert {line for line in said.splitlines() if line.startswith("number")} == numbers
        loads[name] = read_accounting(folder, require_manifest(folder)).total.load_seconds
    assert loads["one"] >= 2
    assert loads["two"] < 0.5


def test_a_worker_that_dies_in_the_second_test_set_is_replaced(load, notes, awkward, alone):
    infer(load("model.kill=105", "model.meet=2", "model.pause=0.05"))
    assert len(pids(notes, "item")) == n_models(notes) == 3
    assert outputs(awkward / "out") == alone


@dataclass(frozen=True)
class Signalled(PlannedRun):
    """A run before which the program is asked to end."""

    def __call__(self, client):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("not interrupted")


def test_a_signal_between_two_runs_leaves_no_worker(notes, tmp_path):
    runner = Add(NotingProvider(notes), output_dir=tmp_path / "first")
    runs = [PlannedRun("first", runner, 8, None), Signalled("second", runner, 8, None)]
    with use_parallel(LOCAL) as config, pytest.raises(RunInterrupted):
        run_all(runs, config)
    workers = pids(notes, "built")
    assert len(workers) == 2
    wait_for_end(workers)


def test_a_second_run_that_was_cancelled_is_refused_and_leaves_no_worker(notes, tmp_path):
    runners = {n: Add(NotingProvider(notes), output_dir=tmp_path / n) for n in ("first", "second")}
    runners["second"](range(8))
    (tmp_path / "second" / "_SUCCESS.json").unlink()
    write_stop(RecordPaths(tmp_path / "second"), StopMark("cancelled", "as asked", "somebody"))
    runs = [PlannedRun(name, runner, 8, None) for name, runner in runners.items()]
    with use_parallel(LOCAL) as config, pytest.raises(EspnetError, match="cancel"):
        run_all(runs, config)
    assert (tmp_path / "first" / "_SUCCESS.json").exists()
    wait_for_end(pids(notes, "built") - {os.getpid()})


PROGRAM = """
import sys
import time
from espnet3.config.load import load_config
from espnet3.systems.base.inference import infer

below = {"recipe_dir": sys.argv[2], "inference_dir": sys.argv[3]}
infer(load_config(sys.argv[1], sys.argv[4:], below=below))
"""


def start(awkward, *overrides):
    """Start a program that decodes the test sets of the config in the folder."""
    arguments = [str(awkward / "out.yaml"), str(awkward), str(awkward / "out"), *overrides]
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2])


def test_ctrl_c_in_the_second_test_set_keeps_what_is_done(load, notes, awkward, alone):
    load()
    program = start(awkward, "model.pause=0.3")
    wait_until(lambda: any(e["number"] >= 104 for e in read_notes(notes, "item")), 60)
    program.send_signal(signal.SIGINT)
    assert program.wait(60) == 130
    workers = pids(notes, "item")
    wait_for_end(workers)
    assert (awkward / "out" / "one" / "_SUCCESS.json").exists()
    assert not (awkward / "out" / "two" / "_SUCCESS.json").exists()
    n_before = len(read_notes(notes, "item"))
    infer(load("model.pause=0.3"))
    again = read_notes(notes, "item")[n_before:]
    assert not [entry for entry in again if entry["number"] < 100]
    assert len({entry["pid"] for entry in again}) == 2
    assert outputs(awkward / "out") == alone


def test_detached_workers_have_one_process_and_one_model_for_all_test_sets(
    load, notes, awkward, alone
):
    detached = infer(load(), detach=True)
    done = [folder / "_SUCCESS.json" for folder in detached.run_dirs]
    wait_until(lambda: all(path.exists() for path in done), 120)
    assert len(pids(notes, "item")) == n_models(notes) <= 2
    wait_for_end(pids(notes, "item"))
    for name in SETS:
        said = "".join(p.read_text() for p in (awkward / "out" / name).glob("logs/detached-*"))
        assert f"number {SETS[name] + 3}" in said
        assert f"number {SETS[name] - 97}" not in said
    assert outputs(awkward / "out") == alone


def test_dask_workers_build_the_model_once(load, notes, dask_address):
    block = f"{{env: dask, n_workers: 2, options: {{address: '{dask_address}'}}}}"
    infer(load(f"parallel={block}", "model.pause=0.1"))
    assert len(pids(notes, "item")) == n_models(notes) == 2


@pytest.mark.exhaustive  # a start of Ray takes seconds of both cores
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_actors_of_ray_stay_for_all_test_sets(load, notes, awkward):
    load()
    program = start(awkward, "parallel={env: ray, n_workers: 2}", "model.pause=0.1")
    assert program.wait(120) == 0
    assert len(pids(notes, "item")) == n_models(notes) == 2


def test_statistics_of_two_splits_share_the_model_of_a_worker(notes):
    def keys(split, **model):
        block = {"_target_": f"{PARTS}.NotingModel", "log_file": str(notes), **model}
        config = {"split": split, "dataset": {"name": split}, "model": block}
        return StatisticsProvider(config).build_worker_setup_fn().part_keys()

    assert keys("train") == keys("valid") != keys("valid", suffix="!")
    assert keys("train")["model"]


def add(provider, n=12, **settings):
    """Run, and return the sums and the workers."""
    results = Add(provider, **settings)(range(n))
    return [value for value, _ in results], {pid for _, pid in results}


def test_a_block_keeps_workers_and_what_an_equal_provider_built(notes):
    with use_parallel(LOCAL):
        first, workers = add(NotingProvider(notes, 5, meet=2))
        second, others = add(NotingProvider(notes, 5, meet=2))
        assert first == second == [i + 5 for i in range(12)]
        assert workers == others
        assert len(read_notes(notes, "built")) == 2
        third, same = add(NotingProvider(notes, 7))
        assert third == [i + 7 for i in range(12)]
        assert same == workers
        assert len(read_notes(notes, "built")) == 4
        assert {pid for _, pid in parallel_map(whereabouts, range(12))} == workers
    wait_for_end(workers)


def whereabouts(idx):
    return Add.forward(idx, 0)


def test_without_a_block_nothing_stays(notes):
    set_parallel(LOCAL)
    _, first = add(NotingProvider(notes, 5))
    assert not any(is_alive(pid) for pid in first)
    _, second = add(NotingProvider(notes, 5))
    assert not first & second
    assert len(read_notes(notes, "built")) == 4


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_file_that_has_changed_is_read_again(notes, tmp_path, n_workers):
    (tmp_path / "weights").write_text("10")
    with use_parallel({"env": "local", "n_workers": n_workers}):
        assert add(NotingProvider(notes, file=tmp_path / "weights"), 3)[0] == [10, 11, 12]
        (tmp_path / "weights").write_text("20")
        assert add(NotingProvider(notes, file=tmp_path / "weights"), 3)[0] == [20, 21, 22]


def test_a_variable_that_has_changed_reaches_the_workers(notes, monkeypatch):
    with use_parallel(LOCAL):
        assert set(parallel_map(variable, range(4))) == {None}
        monkeypatch.setenv("ESPNET3_TEST_VARIABLE", "set")
        assert set(parallel_map(variable, range(4))) == {"set"}


def variable(idx):
    return os.environ.get("ESPNET3_TEST_VARIABLE")


def test_a_worker_that_died_between_two_runs_is_no_fault_of_the_second(notes, tmp_path, caplog):
    with use_parallel({**LOCAL, "retries": 0}):
        _, workers = add(NotingProvider(notes, 5))
        victim = min(workers)
        os.kill(victim, signal.SIGKILL)
        wait_for_end([victim])
        merged = Add(NotingProvider(notes, 5), output_dir=tmp_path / "out")(range(12))
        sums = [json.loads(line) for line in merged.read_text().splitlines()]
    assert [value for value, _ in sums] == [i + 5 for i in range(12)]
    assert "died" not in caplog.text
    assert not list((tmp_path / "out").rglob("deaths/*"))


def test_threads_of_a_block_do_not_share_workers(notes):
    with use_parallel(LOCAL):
        _, workers = add(NotingProvider(notes, 5))
        with ThreadPoolExecutor(2) as threads:
            runs = [
                threads.submit(copy_context().run, add, NotingProvider(notes, n)) for n in (1, 2)
            ]
        for number, run in zip((1, 2), runs, strict=True):
            sums, others = run.result()
            assert sums == [i + number for i in range(12)]
            assert not workers & others
        assert add(NotingProvider(notes, 5))[1] == workers


def test_after_a_failure_the_next_call_has_new_workers(notes):
    with use_parallel(LOCAL):
        _, workers = add(NotingProvider(notes, 5))
        with pytest.raises(ItemError, match="as asked"):
            Add(NotingProvider(notes, 5))([*range(6), "fail"])
        wait_for_end(workers)
        sums, others = add(NotingProvider(notes, 5))
    assert sums == [i + 5 for i in range(12)]
    assert not workers & others


def test_workers_that_waited_for_long_still_answer(notes):
    """Heartbeats that nobody reads fill the pipe, and are no sign of a frozen worker."""
    with use_parallel({**LOCAL, "worker_timeout": 2}):
        _, workers = add(NarrowProvider(notes, 5, meet=2))
        later = time.monotonic() + 4
        wait_until(lambda: time.monotonic() > later)
        assert add(NarrowProvider(notes, 5, ballast=500_000, meet=2))[1] == workers


def test_a_client_keeps_what_an_equal_provider_built(notes, dask_address):
    with get_client(dask_address):
        for _ in range(3):
            assert add(NotingProvider(notes, 5), 20)[0] == [i + 5 for i in range(20)]
    built = read_notes(notes, "built")
    assert len(built) == len({entry["pid"] for entry in built})


def test_an_other_working_directory_is_that_of_the_workers(notes, tmp_path, monkeypatch):
    with use_parallel(LOCAL):
        parallel_map(folder, range(4))
        monkeypatch.chdir(tmp_path)
        assert set(parallel_map(folder, range(4))) == {str(tmp_path)}


def folder(idx):
    return os.getcwd()

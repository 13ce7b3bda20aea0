"""The training module on two ranks, in two real processes that talk over gloo."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("module_ranks_job.py")


def load_job():
    spec = importlib.util.spec_from_file_location("module_ranks_job", JOB)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


job = load_job()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Run all jobs of `module_ranks_job.py` once; return the results and the log of each rank."""
    folder = tmp_path_factory.mktemp("ranks")
    shared = {
        **os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RUN_ID": "test", "PYTHONPATH": str(JOB.parents[2]),
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, str(JOB), str(folder)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=(folder / f"out.{rank}").open("wb"),
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    try:
        codes = [process.wait(120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    shown = "\n".join((folder / f"out.{rank}").read_text()[-3000:] for rank in range(2))
    assert codes == [0, 0], shown
    results = [json.loads((folder / f"results.{rank}.json").read_text()) for rank in range(2)]
    logs = [(folder / f"log.{rank}").read_text() for rank in range(2)]
    return results, logs


def of(ranks, name):
    """Return the result of a job, which must leave both ranks with the same weights."""
    first, second = (result[name] for result in ranks[0])
    assert first["weights"] == second["weights"]
    return first


def test_two_ranks_train_as_one_that_accumulates_two_batches(ranks):
    found, expected = of(ranks, "accumulation"), job.accumulation_alone()
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-5, abs=1e-6)
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)


def test_the_ranks_train_with_the_buffers_of_rank_0(ranks):
    first, second = (result["accumulation"]["buffers"] for result in ranks[0])
    assert len({str(buffer) for buffer in first}) == job.N_STEPS
    assert first == second


def test_windows_of_several_batches_and_a_short_last_one(ranks):
    found, expected = of(ranks, "long_windows"), job.long_windows_alone()
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-5, abs=1e-6)


def test_a_bad_batch_of_one_rank_is_left_out_on_all(ranks):
    found, expected = of(ranks, "nonfinite"), job.nonfinite_alone()
    assert (found["n_bad"], found["n_steps"]) == (2, 2)
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-5, abs=1e-6)
    assert found["loss"] == found["loss"]  # no NaN in the mean


def test_only_the_rank_with_the_bad_batch_names_it(ranks):
    logs = ranks[1]
    assert "rank 1" in logs[1]
    assert "utt1" in logs[1]
    assert "utt7" in logs[1]
    assert "left out" not in logs[0]


def test_too_many_bad_batches_end_both_ranks(ranks):
    for result in ranks[0]:
        assert "gradient_clip_val: 1.0" in result["always_nonfinite"]["error"]


def test_validation_is_exact_with_unequal_numbers_of_batches(ranks):
    first, second = (result["validation"] for result in ranks[0])
    assert first == second  # metrics and buffers
    import torch

    module = job.make(job.seeded(job.Net))
    job.fit(module, job.batches(4)[0::2], n_ranks=1)
    metrics = first["metrics"]
    # Four batches of the same size, all with the running mean of rank 0.
    assert metrics["valid/mean"] == pytest.approx(sum(first["buffers"]), rel=1e-5)
    assert metrics["valid/extra"] == 1.0  # the mean over the one batch that has it
    assert torch.allclose(torch.tensor(first["buffers"]), module.model.norm.running_mean)


@pytest.mark.parametrize(("name", "lazy"), [("gan", True), ("gan_computed", False)])
def test_two_optimizers_step_with_the_mean_over_the_ranks(ranks, name, lazy):
    found, expected = of(ranks, name), job.gan_by_hand(lazy)
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-5, abs=1e-6)


def test_fsdp_accumulates_clips_and_leaves_out_as_one_process_would(ranks):
    found, expected = of(ranks, "fsdp"), job.fsdp_by_hand()
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-5, abs=1e-6)
    assert found["n_bad"] == 1
    assert found["names"][:2] == ["model.first.weight", "model.first.bias"]


@pytest.mark.parametrize("kind", ["sharded", "full"])
def test_fsdp_goes_on_from_its_checkpoints(ranks, kind):
    for rank in range(2):
        whole, half, resumed = ranks[0][rank]["fsdp_resumed"][kind]
        assert resumed == whole
        assert resumed != half
        assert ranks[0][rank]["fsdp_resumed"]["names"][0] == "model.first.weight"

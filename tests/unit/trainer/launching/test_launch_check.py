import os
import re
import shlex

import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError, ResourceError
from espnet3.text import count
from espnet3.trainer.launching.launch_check import check_launch
from espnet3.trainer.launching.process_rank import LAUNCHED

SEED = {"accelerator": "gpu", "devices": 4, "num_nodes": 2, "strategy": "ddp"}
"""The block of seed 000."""
CPU = {"accelerator": "cpu", "devices": 2}


def of_srun(n_tasks, n_nodes, per_node=None, *, name="train.sh", **more):
    """What a process of srun saw in Slurm 22.05."""
    variables = {
        "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": name, "SLURM_JOB_NUM_NODES": str(n_nodes),
        "SLURM_NNODES": str(n_nodes), "SLURM_NTASKS": str(n_tasks), "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(n_tasks), "SLURM_STEP_NUM_NODES": str(n_nodes), **more,
    }  # fmt: skip
    return variables if per_node is None else {**variables, "SLURM_NTASKS_PER_NODE": str(per_node)}


def of_torchrun(world_size, local):
    numbers = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(local)}
    return {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0", "RANK": "0", **numbers}


def refusal(block, environ=None, n_gpus=0, error=ResourceError):
    with pytest.raises(error) as refused:
        check_launch(block, environ or {}, n_gpus)
    return str(refused.value)


@pytest.mark.parametrize(
    ("block", "environ", "n_gpus"),
    [
        (None, {}, 0),
        ({}, {}, 4),
        (CPU, {}, 0),
        ({"accelerator": "auto", "devices": 2}, {}, 0),
        ({"accelerator": "gpu", "devices": [1, 3]}, {}, 4),
        ({"accelerator": "gpu", "devices": "0,1"}, {}, 2),
        ({"accelerator": "gpu", "devices": -1, "strategy": "fsdp"}, {}, 1),
        ({"accelerator": "gpu", "devices": "auto", "precision": "16-mixed"}, {}, 8),
        ({**CPU, "strategy": "ddp_find_unused_parameters_true", "precision": "bf16-mixed"}, {}, 0),
        ({**CPU, "strategy": "DDP", "precision": 32}, {}, 0),
        ({**CPU, "strategy": {"_target_": "lightning.pytorch.strategies.DDPStrategy"}}, {}, 0),
        ({"accelerator": "tpu", "devices": 8, "num_nodes": 4}, {}, 0),
        (SEED, of_srun(8, 2, 4), 4),
        (SEED, of_torchrun(8, 4), 4),
        # torchrun started by srun, once on each node: its numbers are those that count
        (SEED, {**of_srun(2, 2, 1), **of_torchrun(8, 4)}, 4),
        ({**SEED, "num_nodes": 1}, {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}, 4),
        ({**SEED, "num_nodes": 1}, of_srun(1, 1, name="bash"), 4),
        (SEED, {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "NODE_RANK": "1"}, 4),
        ({**CPU, "num_nodes": 2}, {LAUNCHED: "train", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, 0),
        (CPU, {"LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, 0),
        (CPU, {"OMPI_COMM_WORLD_SIZE": "1", "WORLD_SIZE": "9"}, 0),
        ({"accelerator": "cpu"}, {"LOCAL_RANK": "0"}, 0),
    ],
)
def test_what_fits_is_accepted(block, environ, n_gpus):
    check_launch(block, environ, n_gpus)


@pytest.mark.parametrize(
    ("block", "word"),
    [
        ({"strategy": "dpp"}, "Did you mean 'ddp'?"),
        ({"strategy": "data_parallel_please"}, "Usual ones: auto, ddp, "),
        ({"strategy": {"find_unused_parameters": True}}, "_target_: lightning.pytorch.strategies"),
        ({"precision": "16-mixd"}, "Did you mean '16-mixed'?"),
        ({"precision": 8}, "64-true"),
        ({"accelerator": "gpus"}, "Did you mean 'gpu'?"),
        ({"devices": 0}, "devices: 1"),
        ({"devices": "four"}, "devices: 1"),
        ({"devices": 1.5}, "devices: 1"),
        ({"devices": []}, "devices: 1"),
        ({"accelerator": "cpu", "devices": [0, 1]}, "Write: devices: 2"),
        ({"num_nodes": 0}, "num_nodes: 1"),
        ({"num_nodes": "2"}, "num_nodes: 1"),
    ],
)
def test_a_wrong_word_or_number_is_told_with_what_to_write(block, word):
    assert word in refusal(block, error=ConfigError)


def test_the_place_of_the_mistake_is_named(tmp_path):
    file = tmp_path / "training.yaml"
    file.write_text("trainer:\n  accelerator: gpu\n  devices: 4\n  strategy: dpp\n")
    loaded = load_config(file)
    with pytest.raises(ConfigError) as refused, loaded.naming_places():
        check_launch(loaded.config.trainer, {}, 0)
    text = str(refused.value)
    assert text.startswith(f"trainer.strategy is 'dpp' (set in {file}:4), which Lightning does not")
    loaded = load_config(file, ["trainer.strategy=ddp"])
    with pytest.raises(ResourceError) as refused, loaded.naming_places():
        check_launch(loaded.config.trainer, {}, 1)
    text = str(refused.value)
    assert f"trainer.devices is 4 (set in {file}:3), but this process sees 1 GPU" in text


def test_more_devices_than_gpus_are_refused():
    block = {"accelerator": "gpu", "devices": 4}
    text = refusal(block, {"CUDA_VISIBLE_DEVICES": "0,1"}, 2)
    assert "this process sees 2 GPUs (CUDA_VISIBLE_DEVICES='0,1')" in text
    assert text.endswith("Write devices: 2, or make more GPUs visible.")
    assert "sees 2 GPUs" in refusal({"devices": [0, 2]}, n_gpus=2)


def test_a_gpu_is_asked_for_where_there_is_none():
    text = refusal({"accelerator": "gpu", "devices": 1})
    assert "no GPU is visible" in text
    assert "Write accelerator: cpu, or run it where nvidia-smi lists GPUs" in text
    assert "Write strategy: ddp" in refusal({"accelerator": "cpu", "strategy": "fsdp"})


def test_gpus_hidden_from_each_process_by_slurm_are_explained():
    environ = of_srun(4, 1, 4, SLURM_GPUS_ON_NODE="4", CUDA_VISIBLE_DEVICES="0")
    text = refusal({**SEED, "num_nodes": 1}, environ, 1)
    assert "submit without --gpus-per-task and --gpu-bind, with --gres=gpu:4" in text
    text = refusal({**SEED, "num_nodes": 1}, of_srun(4, 1, 4, SLURM_GPUS_ON_NODE="2"), 2)
    assert text.endswith("Submit with --gres=gpu:4, or write: devices: 2")


def test_the_line_of_seed_000_lacks_ntasks_per_node():
    environ = of_srun(2, 2, SLURM_GPUS_ON_NODE="4", SLURM_CPUS_PER_TASK="8")
    assert refusal(SEED, environ, 4) == (
        "srun started 2 processes on 2 nodes, because the job was submitted without "
        "--ntasks-per-node, but trainer.devices is 4 and trainer.num_nodes is 2, which makes 8 "
        "processes. Submit the job with: sbatch --nodes=2 --ntasks-per-node=4 --gres=gpu:4 "
        "--cpus-per-task=8 train.sh ; or write: trainer: {devices: 1, num_nodes: 2}, submitted "
        "with: sbatch --nodes=2 --ntasks-per-node=1 --gres=gpu:1 --cpus-per-task=8 train.sh"
    )


def test_the_line_of_seed_000_has_more_nodes_than_a_config_with_one_device():
    environ = of_srun(2, 2, SLURM_GPUS_ON_NODE="4", SLURM_CPUS_PER_TASK="8")
    text = refusal({"accelerator": "gpu", "devices": 1}, environ, 4)
    assert "without --ntasks-per-node" not in text  # one process on each node is what it asks for
    assert "on 2 nodes, as the job has 2 nodes (sbatch --nodes=2), but" in text
    all_gpus = "trainer: {devices: 4, num_nodes: 2}, submitted with: sbatch --nodes=2 --ntasks-per"
    assert "--nodes=1 --ntasks-per-node=1 --gres=gpu:1 --cpus-per-task=8 train.sh ; or" in text
    assert all_gpus in text


@pytest.mark.parametrize(
    ("block", "environ"),
    [
        ({"devices": 1}, of_srun(2, 2)),
        ({"devices": 2}, of_srun(4, 4)),
        ({"devices": 4}, of_srun(2, 1, 2)),
        ({"devices": 1}, of_srun(8, 2, 4)),
        ({"devices": 2, "num_nodes": 2}, of_srun(4, 4, 1)),
    ],
)
def test_each_way_out_that_is_printed_is_taken(block, environ):
    text = refusal({"accelerator": "gpu", **block}, {**environ, "SLURM_GPUS_ON_NODE": "4"}, 4)
    asked = re.findall(r"sbatch --nodes=(\d+) --ntasks-per-node=(\d+)", text)
    n_nodes, per_node = map(int, asked[0])
    check_launch({"accelerator": "gpu", **block}, of_srun(n_nodes * per_node, n_nodes, per_node), 4)
    for devices, nodes, rest in re.findall(r"devices: (\d), num_nodes: (\d)}([^;]*)", text):
        submitted = re.search(r"--nodes=(\d+) --ntasks-per-node=(\d+)", rest)
        if submitted:
            n, per = map(int, submitted.groups())
            environ = of_srun(n * per, n, per)
        again = {"accelerator": "gpu", "devices": int(devices), "num_nodes": int(nodes)}
        check_launch(again, environ, 4)


def test_nodes_without_ntasks_per_node_are_not_blamed_on_ntasks():
    text = refusal({**SEED, "devices": 1}, of_srun(2, 2), 4)
    assert "--ntasks=2" not in text
    assert "sbatch --nodes=2 --ntasks-per-node=1 --gres=gpu:1" in text


def test_what_a_job_has_and_a_training_leaves_idle_is_told(caplog):
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train.sh", "SLURM_JOB_NUM_NODES": "2"}
    check_launch({"accelerator": "gpu", "devices": 1}, job, 4)
    assert "has 2 nodes and 4 GPUs on this one" in caplog.text
    assert "write: trainer: {devices: 4, num_nodes: 2}, with srun before python" in caplog.text
    caplog.clear()
    check_launch({"accelerator": "gpu", "devices": 1}, {"PBS_JOBID": "7"}, 2)
    assert "write: trainer: {devices: 2, num_nodes: 1}" in caplog.text
    caplog.clear()
    check_launch({"accelerator": "gpu", "devices": 1}, {}, 4)  # a workstation of many users
    check_launch(SEED, of_srun(8, 2, 4), 4)
    check_launch(CPU, {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}, 0)
    assert not caplog.text


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (of_srun(2, 2, 1), ["(--ntasks-per-node=1)", "--nodes=2 --ntasks-per-node=4"]),
        (of_srun(4, 1, 4), ["on 1 node,", "or write: trainer: {devices: 4, num_nodes: 1}"]),
        (of_srun(12, 3, 4), ["on 3 nodes", "sbatch --nodes=2"]),
        (of_srun(8, 2), ["--ntasks=8, which does not say", "--ntasks-per-node=4"]),
        (of_srun(4, 1, 4, SLURM_JOB_NUM_NODES="2"), ["of the 2 that the job has"]),
        (of_srun(3, 2, name="my training"), ["--gres=gpu:4 SCRIPT"]),
    ],
)
def test_other_numbers_of_srun_are_refused(environ, words):
    text = refusal(SEED, environ, 4)
    assert all(word in text for word in words)


def test_a_job_script_without_srun_is_told_to_use_it():
    environ = {
        "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train.sh", "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "8",
    }  # fmt: skip
    text = refusal(SEED, environ, 4)
    line = "sbatch --nodes=2 --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=8 train.sh"
    assert f"Write srun before python in it, submitted with: {line}." in text
    text = refusal(SEED, {**environ, "SLURM_NTASKS_PER_NODE": "4"}, 4)
    assert "Write srun before python in it. Or let the script be written" in text
    for other in ({"SLURM_NTASKS_PER_NODE": "1"}, {"SLURM_JOB_NUM_NODES": "1"}):
        text = refusal(SEED, {**environ, "SLURM_NTASKS_PER_NODE": "4", **other}, 4)
        assert f"Write srun before python in it, submitted with: {line}." in text


def test_processes_of_srun_in_a_shell_of_salloc_count_like_others():
    check_launch(SEED, of_srun(8, 2, 4, name="interactive"), 4)
    assert "(--ntasks-per-node=1)" in refusal(SEED, of_srun(2, 2, 1, name="interactive"), 4)
    # In a shell without srun, one node can be used, but not two.
    shell = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "interactive", "SLURM_NTASKS": "8"}
    check_launch({**SEED, "num_nodes": 1}, shell, 4)
    assert "srun before python" in refusal(SEED, shell, 4)


@pytest.mark.parametrize(("world_size", "local"), [(4, 2), (8, 8), (16, 4), (4, 4)])
def test_other_numbers_of_torchrun_are_refused(world_size, local):
    text = refusal(SEED, of_torchrun(world_size, local), 8)
    assert f"torchrun started {count(world_size, 'process')}, {local} on this node" in text
    assert "torchrun --nnodes=2 --nproc-per-node=4 ; or write: trainer: {devices: " in text


def test_ranks_set_by_hand_are_checked():
    by_hand = {"MASTER_ADDR": "node1", "NODE_RANK": "0"}
    assert "unset NODE_RANK" in refusal(SEED, {**by_hand, "NODE_RANK": "2"}, 4)
    assert "devices: 5" in refusal(SEED, {**by_hand, "LOCAL_RANK": "4"}, 4)
    assert "Set WORLD_SIZE=8" in refusal(SEED, {**by_hand, "WORLD_SIZE": "2"}, 4)
    assert refusal(CPU, {"LOCAL_RANK": "0"}).endswith("unset LOCAL_RANK")


@pytest.mark.parametrize(
    ("variable", "launcher"),
    [("JSM_NAMESPACE_SIZE", "jsrun"), ("OMPI_COMM_WORLD_SIZE", "mpirun"), ("PMI_SIZE", "mpiexec")],
)
def test_a_launcher_that_is_not_known_would_train_several_models(variable, launcher):
    text = refusal(CPU, {variable: "2", "LSB_JOBID": "7"})
    assert f"{launcher} ... torchrun --nnodes=1 --nproc-per-node=2 run.py" in text


def test_several_nodes_need_a_launcher():
    text = refusal(SEED, n_gpus=4)
    assert "espnet3 launch conf/training.yaml conf/launch_slurm.yaml ; or on each node: " in text
    command = text.partition("on each node: ")[2].partition(" ; ")[0]
    assert shlex.split(command)[:3] == ["torchrun", "--nnodes=2", "--nproc-per-node=4"]


def test_jobs_of_other_schedulers_are_known(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("node1\nnode1\nnode2\nnode3\n")
    slots = tmp_path / "slots"
    slots.write_text("node1 4 all.q UNDEFINED\nnode2 4 all.q UNDEFINED\n")
    jobs = {
        "PBS": {"PBS_JOBID": "7.head", "PBS_NODEFILE": str(hosts)},
        "LSF": {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "node1 8 node2 8"},
        "SGE": {"SGE_ROOT": "/sge", "JOB_ID": "7", "PE_HOSTFILE": str(slots)},
    }
    for (scheduler, environ), n_hosts in zip(jobs.items(), (3, 2, 2), strict=True):
        text = refusal(SEED, environ, 4)
        assert f"of {scheduler}, whose script runs on its first node only" in text
        assert f"The job has {count(n_hosts, 'node')}." in text
        assert f"conf/launch_{scheduler.lower()}.yaml" in text
        check_launch(SEED, {**environ, **of_torchrun(8, 4)}, 4)
    missing = {"PBS_JOBID": "7", "PBS_NODEFILE": str(tmp_path / "gone")}
    assert "The job has" not in refusal(SEED, missing, 4)


def test_the_gpus_are_counted_where_no_number_is_given():
    import torch

    with pytest.raises(ResourceError, match="visible"):
        check_launch({"accelerator": "gpu", "devices": torch.cuda.device_count() + 1}, {})


def test_far_more_processes_than_cores_are_refused(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    check_launch({**CPU, "devices": 8}, {}, 0)
    text = refusal({**CPU, "devices": 9})
    assert "this one sees only 2 cores. Write: devices: 2" in text

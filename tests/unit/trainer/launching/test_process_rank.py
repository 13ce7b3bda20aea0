import pytest

from espnet3.trainer.launching.process_rank import LAUNCHED, ProcessRank, process_rank


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ProcessRank()),
        # A batch script of Slurm, and a shell of salloc: nobody launched a training yet.
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, ProcessRank()),
        (
            {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3", "SLURM_NTASKS": "8"},
            ProcessRank(3, 8, "srun"),
        ),
        (
            {"TORCHELASTIC_RUN_ID": "none", "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"},
            ProcessRank(2, 4, "torchrun"),
        ),
        # torchrun inside srun: what torchrun says holds.
        (
            {
                "TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4",
                "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0",
            },
            ProcessRank(1, 4, "torchrun"),
        ),
        ({LAUNCHED: "train", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, ProcessRank(1, 2, "lightning")),
        # The first process of a second node that was started by hand.
        (
            {"MASTER_ADDR": "node1", "NODE_RANK": "1", "WORLD_SIZE": "4"},
            ProcessRank(1, 4, "lightning"),
        ),
        # A single node's shell with a master address is no launcher.
        ({"MASTER_ADDR": "127.0.0.1", "NODE_RANK": "0"}, ProcessRank()),
    ],
)  # fmt: skip
def test_the_launcher_says_the_rank(environ, expected):
    assert process_rank(environ) == expected


def test_only_launchers_that_start_the_whole_command_are_external():
    assert ProcessRank(0, 2, "srun").is_external
    assert not ProcessRank(0, 1, "srun").is_external
    assert not ProcessRank(1, 2, "lightning").is_external

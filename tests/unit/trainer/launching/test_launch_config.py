import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.launching.job_script import LaunchConfig, load_launch_config


def load(tmp_path, text):
    file = tmp_path / "launch.yaml"
    file.write_text(text)
    return load_launch_config(load_config(file))


def test_a_whole_block(tmp_path):
    config = load(
        tmp_path,
        'launch:\n  scheduler: pbs\n  queue: gpu\n  time: "1-12:00:00"\n  memory: 64G\n'
        "  environment: {NCCL_DEBUG: INFO, LEVEL: 1}\n  setup: [module load cuda]\n",
    )
    assert config.seconds == 36 * 3600
    assert config.megabytes == 64 * 1024
    assert config.uses_torchrun
    assert not LaunchConfig(scheduler="slurm").uses_torchrun
    assert LaunchConfig(scheduler="slurm", launcher="torchrun").uses_torchrun


@pytest.mark.parametrize(
    ("lines", "advice"),
    [
        ("time: 86400", 'quote it: time: "24:00:00"'),
        ("time: 90", 'quote it: time: "00:01:30"'),
        ('time: "24:00"', 'Write, for a day: "24:00:00"'),
        ('time: "00:02:00"', "Give more time"),
        ("memory: 64", "memory: 64G"),
        ("memory: lots", "memory: 64G"),
        ("partition: a\n  queue: b", "Delete one of them"),
        ("launcher: mpirun", "'srun' or 'torchrun'"),
        ("cpu_per_task: 4", "Write: cpus_per_task: 4"),
        ("environment: {MY-VAR: 1}", "Write: NAME: value"),
        ("job_name: bash", "job_name: train_bash"),
        ('setup: ["a\\nb"]', "Make each a list item"),
        ("nodes: 2", "Write: trainer: {num_nodes: 2}"),
    ],
)
def test_a_wrong_line_is_told_with_its_place_and_what_to_write(tmp_path, lines, advice):
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, f"launch:\n  scheduler: slurm\n  {lines}\n")
    text = str(refused.value)
    assert advice in text
    assert f"{tmp_path}/launch.yaml:" in text


@pytest.mark.parametrize(
    ("lines", "advice"),
    [
        ("scheduler: pbs, launcher: srun", "Write: launcher: torchrun"),
        ("scheduler: sge, memory: 4G", 'directives: ["-l h_vmem=8G"]'),
        ("scheduler: slrum", "Did you mean 'slurm'?"),
        ("queue: gpu", "scheduler: VALUE"),
    ],
)
def test_what_a_scheduler_does_not_have_is_refused(tmp_path, lines, advice):
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, f"launch: {{{lines}}}\n")
    assert advice in str(refused.value)


def test_a_config_without_the_block_says_what_to_write(tmp_path):
    with pytest.raises(ConfigError, match=r"conf/launch_slurm.yaml, with: launch: \{scheduler"):
        load(tmp_path, "trainer: {}\n")

"""YAML 1.1 takes 10:00:00 for the number 36000, and 04:00:00 for a text: here both are times."""

import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.parallel.clusters.registry import render_job_script
from espnet3.parallel.parallel import as_parallel_config
from espnet3.trainer.launching.job_script import load_launch_config

TIMES = ["01:00:00", "04:00:00", "10:00:00", "24:00:00", "1:30:00", "100:00:00"]


def load(tmp_path, text, *overrides):
    (tmp_path / "it's a config.yaml").write_text(text)
    return load_config(tmp_path / "it's a config.yaml", overrides)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("quote", ["", '"', "'"])
def test_a_walltime_is_what_was_written(tmp_path, time, quote):
    block = f"{{cores: 1, memory: 1GB, walltime: {quote}{time}{quote}}}"
    loaded = load(tmp_path, f"parallel: {{env: slurm, options: {block}}}\n")
    assert f"#SBATCH -t {time}\n" in render_job_script(as_parallel_config(loaded))


@pytest.mark.parametrize("time", TIMES)
def test_a_walltime_of_the_command_line_too(tmp_path, time):
    text = "parallel: {env: slurm, options: {cores: 1, memory: 1GB}}\n"
    loaded = load(tmp_path, text, f"parallel.options.walltime={time}")
    assert loaded.parallel.options.walltime == time
    listed = load(tmp_path, text, f"mine={{a: [{time}, 3]}}")
    assert listed.mine == {"a": [time, 3]}


def test_aliases_and_lists_and_comments_keep_their_places(tmp_path):
    text = (
        "base: &base {walltime: 10:00:00}  # 10:00:00\nmore: [10:00, 5, 0x10, *base]\n"
        "other:\n  <<: *base\n  n: 12\n10:00: kept\n"
    )
    config = load(tmp_path, text).config
    assert config.base.walltime == config.other.walltime == config.more[3].walltime == "10:00:00"
    assert list(config.more)[:3] == ["10:00", 5, 16]
    assert config.other.n == 12


def test_the_time_of_a_training_job_as_well(tmp_path):
    loaded = load(tmp_path, "launch: {scheduler: slurm, time: 24:00:00}\n")
    assert load_launch_config(loaded).seconds == 86_400


def test_a_bare_number_is_told_to_be_spelled_out(tmp_path):
    loaded = load(tmp_path, "parallel: {env: slurm, options: {walltime: 36000}}\n")
    with pytest.raises(ConfigError, match='quote it: walltime: "10:00:00"'):
        as_parallel_config(loaded)

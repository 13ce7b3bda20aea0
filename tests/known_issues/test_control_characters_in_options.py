"""No option of a job becomes a directive of its own, by a line break of whichever kind."""

import json
import subprocess

import dask
import pytest
from omegaconf import OmegaConf

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.parallel.clusters.registry import render_job_script
from espnet3.parallel.parallel import as_parallel_config
from espnet3.trainer.launching.job_script import (
    LaunchConfig,
    TrainingJob,
    load_launch_config,
    render,
)
from tests.helpers.exhaustive import pairs

CONTROL = ["\n", "\r", "\r\n", "\0", "\x0b", "\x0c", "\x1b", "\x1c", "\x85", "\u2028", "\u2029"]
SCHEDULERS = ("slurm", "pbs", "sge", "lsf", "moab", "oar", "htcondor")
OPTIONS = (
    "queue", "job_name", "account", "project", "walltime", "resource_spec", "log_directory",
    "memory", "disk", "local_directory", "shebang", "interface", "python", "worker_command",
    "job_mem", "job_cpu", "mem", "name", "config_name", "shared_temp_directory",
)  # fmt: skip
LISTS = (
    "job_extra_directives", "job_extra", "worker_extra_args", "extra", "job_directives_skip",
    "header_skip", "submit_command_extra",
)  # fmt: skip


def block(env, **options):
    return {"env": env, "options": {"cores": 1, "memory": "1GB", **options}}


@pytest.mark.parametrize(("env", "option"), pairs(SCHEDULERS, OPTIONS))
def test_a_line_break_in_an_option_is_refused_with_its_key(env, option):
    with pytest.raises(ConfigError, match=rf"{option} is .*control character"):
        as_parallel_config(block(env, **{option: "x\n#SBATCH --account=other\n#$ -P other"}))


@pytest.mark.parametrize("option", LISTS)
def test_a_line_break_in_a_list_is_refused_with_its_place(option):
    with pytest.raises(ConfigError, match=rf"{option}\[1\] is .*control character"):
        as_parallel_config(block("slurm", **{option: ["-x", "-y\n#SBATCH -A other"]}))


@pytest.mark.parametrize("character", CONTROL)
def test_any_control_character_is_refused(character):
    with pytest.raises(ConfigError, match="queue is"):
        as_parallel_config(block("slurm", queue=f"gpu{character}#SBATCH -A other"))


@pytest.mark.parametrize("settings", [{"requirements": "x\ny = 1"}, {"x\ny": "1"}])
def test_named_directives_of_htcondor_are_looked_at(settings):
    with pytest.raises(ConfigError, match="job_extra_directives"):
        as_parallel_config(block("htcondor", disk="1GB", job_extra_directives=settings))


@pytest.mark.parametrize("option", ["job_script_prologue", "env_extra"])
def test_lines_of_shell_may_be_several(option):
    lines = ["if true; then\n  module load x\nfi", "\texport A=1"]
    config = as_parallel_config(block("slurm", **{option: lines}))
    assert config.options[option] == lines


def test_backends_without_directives_may_have_them():
    pod = {"spec": {"args": ["set -e\npython"]}}
    as_parallel_config({"env": "kube", "options": {"custom_cluster_spec": pod}})


def test_the_place_in_the_file_is_named(tmp_path):
    (tmp_path / "conf.yaml").write_text(
        'parallel:\n  env: slurm\n  options: {cores: 1, memory: 1GB, queue: "a\\nb"}\n'
    )
    loaded = load_config([str(tmp_path / "conf.yaml")])
    with pytest.raises(ConfigError, match=r"parallel\.options"):
        as_parallel_config(OmegaConf.to_container(loaded.config.parallel))


def test_dask_s_own_configuration_is_looked_at():
    import dask_jobqueue  # noqa: F401  # first: else leaving the block removes its defaults, too

    with dask.config.set({"jobqueue.slurm.queue": "a\n#SBATCH -A b"}):
        with pytest.raises(ConfigError, match=r"jobqueue\.slurm\.queue is"):
            render_job_script(as_parallel_config(block("slurm")))


FIELDS = ("queue", "partition", "account", "time", "memory", "job_name", "parallel_environment",
          "log_dir")  # fmt: skip


def launch(tmp_path, **values):
    file = tmp_path / "launch.yaml"
    # As JSON, which is YAML with all such characters spelled out.
    file.write_text(json.dumps({"launch": {"scheduler": "sge", **values}}))
    return load_launch_config(load_config([str(file)]))


@pytest.mark.parametrize(
    ("field", "character"), pairs(FIELDS, ["\n", "\r", "\x0b", "\x85", "\u2028"])
)
def test_no_field_of_a_launch_block_may_have_them(tmp_path, field, character):
    with pytest.raises(ConfigError, match=rf"launch\.{field}"):
        launch(tmp_path, **{field: f"a{character}#$ -P other"})


@pytest.mark.parametrize("field", ["directives", "setup"])
@pytest.mark.parametrize("character", ["\n", "\r", "\x0b", "\x0c", "\x85", "\u2028"])
def test_no_line_of_a_launch_block_is_two(tmp_path, field, character):
    with pytest.raises(ConfigError, match=rf"launch\.{field}"):
        launch(tmp_path, **{field: [f"-l x=1{character}-P other"]})


def job(**values):
    facts = {
        "config": LaunchConfig(scheduler="sge", log_dir="/logs"), "name": "x", "n_nodes": 1,
        "n_processes": 1, "n_gpus": 0, "n_threads": 1, "recipe_dir": "/recipe",
        "script": "/recipe/x.sh", "log": "/logs/x.log", "python": "/bin/python", "arguments": (),
    }  # fmt: skip
    return TrainingJob(**{**facts, **values})


@pytest.mark.parametrize("field", ["recipe_dir", "script", "python"])
def test_no_path_becomes_an_option_of_a_training_s_job(field):
    script = render(job(**{field: "/a\n#$ -P other\n/it's"}))
    assert len(script.splitlines()) == len(render(job()).splitlines())
    assert [line for line in script.splitlines() if line.startswith("#$")] == [
        line for line in render(job()).splitlines() if line.startswith("#$")
    ]


def test_words_with_line_breaks_mean_the_same_to_bash(tmp_path):
    value = 'first\n#$ -P other\nit\'s \\ "x" $HOME `x`\ttab\r\x1bé'
    config = LaunchConfig(scheduler="sge", environment={"VALUE": value})
    lines = render(job(config=config)).splitlines()
    (line,) = [line for line in lines if line.startswith("export VALUE=")]
    told = subprocess.run(
        ["bash", "-c", f'{line}\nprintf %s "$VALUE"'], capture_output=True, check=True
    )
    assert told.stdout.decode() == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("item_timeout", float("nan")), ("item_timeout", float("inf")), ("item_timeout", 0.0),
        ("worker_timeout", float("inf")), ("worker_timeout", float("nan")),
        ("start_timeout", float("inf")), ("n_workers", 10**9), ("n_workers", 1e9),
        ("n_workers", 0), ("shards_per_worker", 10**9), ("retries", -1), ("retries", float("inf")),
    ],
)  # fmt: skip
def test_a_number_without_sense_is_refused(key, value):
    with pytest.raises(ConfigError, match=key):
        as_parallel_config({"env": "local", key: value})

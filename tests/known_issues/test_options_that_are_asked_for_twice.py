"""What settings and directives both ask for is one option of the job, and nothing of it is lost.

OpenPBS takes the first of two `-l select`, and asked for no GPU; Slurm takes the last of two
`--gres`; OAR takes each `-l` for an alternative.
"""

import logging
import re

import pytest

from espnet3.errors import ConfigError
from espnet3.parallel.checkup.backend import render
from espnet3.parallel.clusters import registry
from espnet3.parallel.clusters.registry import render_job_script, walltime_seconds
from espnet3.parallel.detached.job_script import render_worker_script
from espnet3.parallel.parallel import as_parallel_config
from espnet3.trainer.launching.job_script import directive_lines
from tests.helpers.launch_jobs import FULL, make_job


@pytest.fixture(autouse=True)
def _told_anew():
    registry.warn_once.cache_clear()


def config_of(env, *directives, **options):
    disk = {"disk": "1GB"} if env == "htcondor" else {}
    base = {"cores": 4, "memory": "32GB", "job_extra_directives": list(directives), **disk}
    return as_parallel_config({"env": env, "n_workers": 8, "options": {**base, **options}})


def header_of(script):
    lines = (re.match(r"#(?:SBATCH|PBS|\$|BSUB|OAR) (.*)", line) for line in script.splitlines())
    return [match[1] for match in lines if match]


def header(env, *directives, **options):
    config = config_of(env, *directives, **options)
    rendered = header_of(render_job_script(config))
    detached = header_of(render_worker_script(config, []))
    assert [line for line in detached if not line.startswith(("-J", "-N", "-n espnet3"))] == [
        line for line in rendered if not line.startswith(("-J", "-N", "-n dask"))
    ]
    return rendered


def lines_with(word, found):
    return [line for line in found if word in line]


@pytest.mark.parametrize(
    ("directives", "options", "selected"),
    [
        (["-l select=1:ngpus=1"], {}, "1:ncpus=4:mem=30GB:ngpus=1"),  # as seed 003 prints it
        (["-lselect=1:ngpus=1"], {}, "1:ncpus=4:mem=30GB:ngpus=1"),
        (["-l 'select=1:ngpus=1'"], {}, "1:ncpus=4:mem=30GB:ngpus=1"),
        (["#PBS -l select=1:ngpus=1"], {}, "1:ncpus=4:mem=30GB:ngpus=1"),
        (["-l select=ngpus=1"], {}, "1:ncpus=4:mem=30GB:ngpus=1"),
        (["-l  select=1:ngpus=1:host=n3"], {}, "1:ncpus=4:mem=30GB:ngpus=1:host=n3"),
        (["-l select=1:ncpus=4:mem=32gb:ngpus=1"], {}, "1:ncpus=4:mem=32gb:ngpus=1"),
        (["-l select=1:mpiprocs=4", "-l select=1:ngpus=2"], {},
         "1:ncpus=4:mem=30GB:mpiprocs=4:ngpus=2"),
        (["-l select=1:ngpus=1"], {"resource_spec": "select=1:ncpus=8:mem=9gb"},
         "1:ncpus=8:mem=9gb:ngpus=1"),
        (["-l ngpus=1"], {}, "1:ncpus=4:mem=30GB:ngpus=1"),  # qsub refuses it beside a select
        (["-l ngpus=1,walltime=01:00:00 -l place=excl"], {}, "1:ncpus=4:mem=30GB:ngpus=1"),
        ([], {"resource_spec": "select=2:ncpus=1+1:ngpus=1"}, "2:ncpus=1+1:ngpus=1"),
    ],
)  # fmt: skip
def test_pbs_gets_one_select_with_all_of_it(directives, options, selected):
    found = header("pbs", *directives, **options)
    assert lines_with("select", found) == [f"-l select={selected}"]
    assert not lines_with("-l ngpus", found)


@pytest.mark.parametrize("env", ["pbs", "moab"])
def test_nodes_as_torque_and_moab_spell_them_get_cores_and_memory(env):
    found = header(env, "-l nodes=1:gpus=1")
    assert lines_with("nodes", found) == ["-l nodes=1:ppn=4:gpus=1"]
    assert "-l mem=30GB" in found
    assert not lines_with("select", found)
    found = header(env, "-l nodes=node3:ppn=2:gpus=1,pmem=4gb")
    assert lines_with("nodes", found) == ["-l nodes=node3:ppn=2:gpus=1"]
    assert "-l mem=30GB" not in found


@pytest.mark.parametrize(
    ("directives", "options", "fix"),
    [
        (["-l select=2:ngpus=1"], {}, "-l select=1:ngpus=1"),
        (["-l select=1:ngpus=1+2:ncpus=8"], {}, "-l select=1:ngpus=1"),
        (["-l select=1:ngpus=1", "-l select=1:ngpus=2"], {}, "Delete the one"),
        (["-l nodes=1:gpus=1"], {"resource_spec": "select=1:ncpus=2"}, "resource_spec: "),
        (["-l select=1:ngpus=1"], {"resource_spec": "select=1:ncpus=2+1:mem=1gb"}, "in one of"),
        (["-l place=excl", "-l place=scatter"], {}, "Delete the one"),
    ],
)
def test_what_cannot_be_merged_is_refused_with_what_to_write(directives, options, fix):
    with pytest.raises(ConfigError, match=re.escape(fix)):
        header("pbs", *directives, **options)


def test_a_walltime_that_is_asked_for_twice_is_told_and_the_directive_counts(caplog):
    found = header("pbs", "-l walltime=02:00:00")
    assert lines_with("walltime", found) == ["-l walltime=02:00:00"]
    assert not caplog.records  # in place of dask-jobqueue's default
    with caplog.at_level(logging.WARNING):
        found = header("pbs", "-l walltime=02:00:00", walltime="04:00:00")
    assert lines_with("walltime", found) == ["-l walltime=02:00:00"]
    assert "parallel.options.walltime makes '-l walltime=04:00:00', which is not used" in (
        caplog.records[0].message
    )
    for env, line in [("pbs", "-l walltime=02:00:00"), ("slurm", "-t120"), ("lsf", "-W 2:00")]:
        assert walltime_seconds(config_of(env, line, walltime="04:00:00")) == 7200


@pytest.mark.filterwarnings("ignore:OAR Job memory")
@pytest.mark.parametrize(
    ("env", "directives", "options", "word", "expected"),
    [
        ("slurm", ["--gres=gpu:1", "--gres=shard:2"], {}, "--gres", ["--gres=gpu:1,shard:2"]),
        ("slurm", ["--gres=gpu:1", "--gres=gpu:1"], {}, "--gres", ["--gres=gpu:1"]),
        ("slurm", ["--mem=64G"], {}, "--mem", ["--mem=64G"]),
        ("slurm", ["--mem-per-cpu=16G"], {}, "--mem", ["--mem-per-cpu=16G"]),
        ("slurm", ["--gres=gpu:1 --mem=0"], {}, "--mem", ["--gres=gpu:1 --mem=0"]),
        ("slurm", ["--time=10:00:00"], {}, "0:", ["--time=10:00:00"]),
        ("slurm", ["--partition=gpu"], {"queue": "gpu"}, "-p ", []),
        ("slurm", ["-c8"], {}, "c8", ["-c8"]),
        ("sge", ["-l gpu=1"], {"resource_spec": "h_vmem=8G,gpu=1"}, "gpu", ["-l gpu=1"]),
        ("sge", ["-l h_rt=60"], {}, "h_rt", ["-l h_rt=60"]),
        ("lsf", ['-R "span[ptile=2]"'], {}, "-R", ['-R "span[ptile=2]"']),
        ("lsf", ['-R "select[mem>1]"'], {}, "-R", ['-R "span[hosts=1]"', '-R "select[mem>1]"']),
        ("lsf", ["-W 10:00"], {}, "-W", ["-W 10:00"]),
        ("oar", ["-l /host=1/gpu=1"], {}, "-l", ["-l /host=1/gpu=1,walltime=00:30:00"]),
        ("oar", ["-l walltime=2"], {}, "-l", ["-l /nodes=1/core=4,walltime=2"]),
    ],
)
def test_other_schedulers_get_each_option_once(env, directives, options, word, expected):
    assert [line for line in header(env, *directives, **options) if word in line] == expected


@pytest.mark.filterwarnings("ignore:OAR Job memory")
@pytest.mark.parametrize(
    ("env", "directives", "options"),
    [
        ("slurm", ["--gres=gpu:1", "--gres=gpu:2"], {}),
        ("slurm", ["--gres=gpu:1", "--gres=gpu:tesla:1"], {}),
        ("slurm", ["--constraint=a100", "-C v100"], {}),
        ("oar", ["-l /host=1/gpu=1"], {"resource_spec": "/nodes=1/core=2"}),
        ("sge", ["-pe smp 4", "-pe mpi 4"], {}),
    ],
)
def test_what_a_job_can_have_once_is_refused(env, directives, options):
    with pytest.raises(ConfigError, match=r"job_extra_directives has"):
        header(env, *directives, **options)


@pytest.mark.parametrize(
    ("env", "line", "fix"),
    [("slurm", "gres=gpu:1", "'--gres=gpu:1'"), ("pbs", "ngpus=1", "'-l ngpus=1'")],
)
def test_a_line_that_would_be_a_comment_is_refused(env, line, fix):
    with pytest.raises(ConfigError, match=fix):
        header(env, line)
    with pytest.raises(ConfigError, match="must be a list"):
        header(env, job_extra_directives=dict([line.split("=")]))
    with pytest.raises(ConfigError, match="request_gpus: 1"):
        render_job_script(config_of("htcondor", line))


def test_a_line_copied_from_a_script_loses_its_mark():
    assert lines_with("--gres", header("slurm", "#SBATCH --gres=gpu:1")) == ["--gres=gpu:1"]
    assert lines_with("--gres", launched("slurm", "#SBATCH --gres=gpu:2")) == ["--gres=gpu:2"]


def test_memory_below_what_the_worker_counts_on_is_told(caplog):
    with caplog.at_level(logging.WARNING):
        header("slurm", "--mem=8G")
    assert "--mem=8G" in caplog.text
    assert "parallel.options.memory" in caplog.text


def test_htcondor_knows_one_name_of_each_request():
    options = {"job_extra_directives": {"request_memory": "64 GB", "Request_GPUs": "1"}}
    script = render_job_script(config_of("htcondor", **options))
    assert "request_memory = 64 GB" in script
    assert "RequestMemory" not in script
    assert "RequestCpus" in script


def test_parts_of_a_heterogeneous_job_are_left_alone():
    own = ["--gres=gpu:1", "hetjob", "--gres=gpu:2"]
    assert header("slurm", *own)[-4:] == [*own, "--no-requeue"]


def test_the_doctor_judges_the_merged_script():
    script, findings = render(config_of("pbs", "-l select=1:ngpus=1", walltime="04:00:00"))
    assert lines_with("select", header_of(script)) == ["-l select=1:ncpus=4:mem=30GB:ngpus=1"]
    assert [finding.level for finding in findings] == ["ok"]
    assert "-l select=1:ncpus=4:mem=30GB:ngpus=1" in findings[0].told
    _, findings = render(config_of("slurm", "--time=1:00:00", walltime="04:00:00"))
    assert any("walltime" in finding.told and finding.level == "warning" for finding in findings)


def launched(scheduler, *directives, n_nodes=2, **block):
    job = make_job(scheduler, n_nodes, 4, **{**FULL, **block}, directives=directives)
    return [line.split(" ", 1)[1] for line in directive_lines(job)]


def test_a_training_job_keeps_what_its_settings_ask_for():
    found = launched("pbs", "-l select=2:model=a100")
    assert lines_with("select", found) == [
        "-l select=2:ncpus=32:ngpus=4:mem=65536mb:mpiprocs=1:model=a100"
    ]
    found = launched("slurm", "--gres=shard:1")
    assert lines_with("--gres", found) == ["--gres=gpu:4,shard:1"]
    found = launched("slurm", "--gres=gpu:a100:4")
    assert lines_with("--gres", found) == ["--gres=gpu:a100:4"]
    found = launched("lsf", '-R "rusage[ngpus_physical=1]"')
    assert lines_with("rusage", found) == [
        '-R "rusage[mem=65536MB]"',
        '-R "rusage[ngpus_physical=1]"',
    ]


def test_a_training_job_says_what_a_directive_replaces(caplog):
    with caplog.at_level(logging.WARNING):
        found = launched("slurm", "-p debug")
    assert "-p debug" in found
    assert "launch.queue makes '--partition=gpu', which is not used" in caplog.text
    with pytest.raises(ConfigError, match=r"trainer\.num_nodes"):
        launched("pbs", "-l select=3:ngpus=4")

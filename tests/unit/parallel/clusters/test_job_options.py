"""Options of jobs: the user's win, and what is missing is made right."""

import sys

import dask
import pytest

from espnet3.errors import ConfigError
from espnet3.parallel.clusters.job_options import (
    complete_options,
    submission_environment,
    with_log_folder,
)
from espnet3.parallel.clusters.registry import BACKENDS, render_job_script
from espnet3.parallel.config import ParallelConfig
from espnet3.schedulers.slurm import Slurm

BASE = {"cores": 8, "memory": "4GB"}
JOBS = [env for env, backend in BACKENDS.items() if backend.module == "jobqueue"]


def config(env="slurm", **options):
    more = {"disk": "1GB"} if env == "htcondor" else {}
    return ParallelConfig(env=env, options={**BASE, **more, **options})


@pytest.fixture
def nodes(monkeypatch):
    """Return a function that says which nodes there are."""

    def are(*names):
        monkeypatch.setattr(Slurm, "nodes", lambda self, options: list(names))

    return are


def test_options_of_the_user_are_handed_on_word_for_word():
    options = {"queue": "gpu", "account": "lab", "interface": "lo", "processes": 2, "python": "py"}
    completed = complete_options(config(**options))
    assert {name: completed[name] for name in [*options, *BASE]} == {**BASE, **options}


def test_lists_of_the_user_are_extended_not_replaced():
    lists = {
        "job_script_prologue": ["module load cuda"],
        "job_extra_directives": ["--gres=gpu:1"],
        "worker_extra_args": ["--lifetime", "1h"],
    }
    completed = complete_options(config(**lists), is_dry=True)
    for name, value in lists.items():
        assert completed[name][: len(value)] == value
        assert len(completed[name]) > len(value)


def test_lists_under_their_older_names_are_not_lost(recwarn):
    script = render_job_script(config(job_extra=["--gres=gpu:1"], env_extra=["module load cuda"]))
    assert "#SBATCH --gres=gpu:1\n#SBATCH --no-requeue\nmodule load cuda\nexport" in script
    assert not [each for each in recwarn if each.category is FutureWarning]


def test_a_text_where_a_list_belongs_is_told():
    with pytest.raises(ConfigError, match=r"job_extra_directives: \['--gres=gpu:1'\]"):
        complete_options(config(job_extra_directives="--gres=gpu:1"), is_dry=True)


@pytest.mark.parametrize("env", JOBS)
def test_the_script_of_every_scheduler_has_the_environment(env, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "it's"))
    (tmp_path / "it's").mkdir()
    script = render_job_script(config(env, processes=2)).replace("''", "'")
    assert f"{sys.executable} -m espnet3.parallel.clusters.worker_main tls://" in script
    assert "export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}" in script
    assert "it'\"'\"'s" in script.replace('""', '"')
    assert "--dashboard-address 127.0.0.1:0" in script
    assert "--preload espnet3.parallel.clusters.worker_preload" in script
    assert "--death-timeout 120" in script
    assert [file.name for file in tmp_path.iterdir()] == ["it's"]  # no certificates, no logs


@pytest.mark.parametrize(
    ("env", "given", "lines"),
    [
        ("slurm", [], ["--no-requeue"]),
        ("slurm", ["--requeue"], ["--requeue"]),
        ("sge", ["-l gpu=1"], ["-l gpu=1", "-V", "-r n"]),
        ("sge", ["-r y", "-V"], ["-r y", "-V"]),
        ("sge", ["-v PATH"], ["-v PATH", "-V", "-r n"]),
        ("pbs", ["-ry"], ["-ry", "-V"]),
        ("lsf", ["-P lab"], ["-P lab"]),
    ],
)
def test_directives_are_added_unless_the_user_said_otherwise(env, given, lines):
    completed = complete_options(config(env, job_extra_directives=given), is_dry=True)
    assert completed["job_extra_directives"] == lines


def test_a_directive_that_is_to_be_skipped_is_not_added():
    completed = complete_options(config("sge", job_directives_skip=["-V"]), is_dry=True)
    assert completed["job_extra_directives"] == ["-r n"]


def test_settings_of_htcondor_are_added_unless_the_user_has_them():
    mine = {"request_gpus": 1, "getenv": "PATH"}
    over = "(JobStatus == 5) && (HoldReasonCode == 46 || HoldReasonCode == 47)"
    assert complete_options(config("htcondor"), is_dry=True)["job_extra_directives"] == {
        "getenv": "True",
        "periodic_remove": over,
    }
    completed = complete_options(config("htcondor", job_extra_directives=mine), is_dry=True)
    assert completed["job_extra_directives"] == {**mine, "periodic_remove": over}
    mine = {**mine, "PeriodicRemove": "JobStatus == 5"}
    completed = complete_options(config("htcondor", job_extra_directives=mine), is_dry=True)
    assert completed["job_extra_directives"] == mine


@pytest.mark.parametrize(
    ("env", "options", "is_exported"),
    [
        ("sge", {"job_extra_directives": ["-l gpu=2"]}, True),
        ("pbs", {"resource_spec": "select=1:ncpus=8:ngpus=2"}, True),
        ("pbs", {"resource_spec": "select=1:ncpus=8"}, False),
        ("slurm", {"job_extra_directives": ["--gres=gpu:2"]}, False),
    ],
)
def test_gpus_are_counted_where_the_scheduler_does_not_tell_which(env, options, is_exported):
    script = render_job_script(config(env, **options))
    assert ("export ESPNET3_JOB_GPUS=2" in script) is is_exported


def test_jobs_of_pbs_begin_in_this_folder(tmp_path, monkeypatch):
    folder = tmp_path / "it's a recipe"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert "recipe'\nexport PYTHONPATH" in render_job_script(config("pbs"))
    assert "cd " not in render_job_script(config("slurm"))


@pytest.mark.parametrize(
    "own",
    [
        {"protocol": "tcp://"},
        {"security": True},
        {"scheduler_options": {"protocol": "tcp://"}},
    ],
)
def test_who_chose_a_protocol_is_left_alone(own):
    completed = complete_options(config(interface="lo", **own))
    assert completed.get("security") == own.get("security")


def test_certificates_are_where_nodes_can_see_them(tmp_path, monkeypatch):
    def base(**options):
        return complete_options(config(interface="lo", **options))["security"].folder.parent

    monkeypatch.chdir(tmp_path)
    assert base() == tmp_path
    assert base(log_directory="logs/jobs") == tmp_path / "logs/jobs"
    assert base(log_directory="logs", shared_temp_directory="/scratch") == tmp_path / "/scratch"
    assert not list(tmp_path.iterdir())


def test_the_driver_listens_where_nodes_are(nodes, caplog):
    nodes("127.0.0.1", "localhost")
    completed = complete_options(config())
    assert completed["scheduler_options"]["host"] == "127.0.0.1"
    assert completed["scheduler_options"]["dashboard_address"] == "127.0.0.1:0"
    assert not caplog.records or caplog.records[0].levelname == "INFO"


def test_nodes_that_are_not_found_are_told_with_what_to_set(nodes, caplog):
    nodes("node.invalid")
    host = complete_options(config())["scheduler_options"]["host"]
    assert host != "0.0.0.0"
    assert "node node.invalid is not found" in caplog.text
    assert "parallel.options.interface: ib0" in caplog.text
    assert "lo (127.0.0.1)" in caplog.text


@pytest.mark.parametrize(
    "own",
    [{"interface": "lo"}, {"scheduler_options": {"interface": "lo"}},
     {"scheduler_options": {"host": "127.0.0.1"}}],
)  # fmt: skip
def test_an_address_of_the_user_wins(nodes, own):
    nodes("node.invalid")
    chosen = complete_options(config(**own))["scheduler_options"]
    assert {**chosen, **own.get("scheduler_options", {})} == chosen
    assert chosen.get("host") == own.get("scheduler_options", {}).get("host")


def test_an_interface_that_is_not_there_is_told():
    with pytest.raises(ConfigError, match=r"interface is 'ib7'.*lo \(127\.0\.0\.1\)"):
        complete_options(config(interface="ib7"))
    complete_options(config(interface="ib7"), is_dry=True)  # it may be there where jobs are made


def test_the_configuration_files_of_dask_count_as_options():
    own = {"interface": "lo", "death-timeout": 7, "job-extra-directives": ["--qos=low"]}
    with dask.config.set({"jobqueue.slurm": own}):
        completed = complete_options(config(), is_dry=True)
    assert "interface" not in completed
    assert "death_timeout" not in completed
    assert completed["job_extra_directives"] == ["--qos=low", "--no-requeue"]


def test_one_process_per_job_unless_the_user_says_otherwise():
    assert complete_options(config(), is_dry=True)["processes"] == 1
    assert complete_options(config(processes=4), is_dry=True)["processes"] == 4


def test_another_program_in_place_of_the_worker_gets_no_arguments_of_ours():
    own = {"worker_command": "my.worker", "worker_extra_args": ["--mine"]}
    assert complete_options(config(**own), is_dry=True)["worker_extra_args"] == ["--mine"]


def test_logs_of_jobs_are_with_the_run(tmp_path):
    logs = tmp_path / "logs"
    assert with_log_folder(config(), logs).options["log_directory"] == str(logs)
    own = config(log_directory="mine")
    assert with_log_folder(own, logs) is own
    assert with_log_folder(ParallelConfig(env="local"), logs).options == {}


def test_logs_go_elsewhere_if_no_directive_can_name_their_folder(awkward, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = with_log_folder(config(), awkward / "logs").options["log_directory"]
    assert folder.startswith(str(tmp_path / ".espnet3/job-logs/"))


def test_gpus_of_the_driver_do_not_travel_with_the_jobs(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert "CUDA_VISIBLE_DEVICES" not in submission_environment()
    assert "PATH" in submission_environment()

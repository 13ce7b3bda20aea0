from espnet3.parallel.checkup.backend import render, try_script
from espnet3.parallel.config import ParallelConfig
from tests.helpers.phrases import too_few_gpus


def test_an_option_that_does_not_exist_is_a_problem(slurm):
    script, (finding,) = render(slurm(quue="gpu"))
    assert script is None
    assert finding.level == "problem"
    assert "parallel.options.quue" in finding.told
    assert finding.fix.startswith("Did you mean 'queue'?")


def test_options_that_are_right_give_the_job_script(slurm):
    script, (finding,) = render(slurm(queue="gpu"))
    assert script is not None
    assert "#SBATCH -p gpu" in script
    assert finding.level == "ok"


def test_what_slurm_would_do_is_told(commands, slurm):
    commands(sbatch='cat > "$0.in"; echo "sbatch: Job 7 to start at 12:00 on nodes n1" >&2')
    (finding,) = try_script(slurm(), "#!/bin/sh\n#SBATCH -p gpu\n")
    assert finding.level == "ok"
    assert finding.told == "sbatch --test-only: Job 7 to start at 12:00 on nodes n1"
    assert (commands.folder / "sbatch.in").read_text() == "#!/bin/sh\n#SBATCH -p gpu\n"


def test_a_script_that_slurm_refuses_is_a_problem_with_advice(commands, slurm):
    body = 'echo "allocation failure: Requested node configuration is not available" >&2; exit 1'
    commands(sbatch=body)
    (finding,) = try_script(slurm(), "#!/bin/sh\n")
    assert finding.level == "problem"
    assert "Requested node configuration is not available" in finding.told
    assert "Ask for less of one node" in finding.fix


def test_grid_engine_refuses_with_exit_code_0_too(commands):
    commands(qsub='test "$1 $2" = "-w v" && echo "verification: no suitable queues"')
    config = ParallelConfig(env="sge", options={"cores": 1, "memory": "1GB"})
    (finding,) = try_script(config, "#!/bin/sh\n")
    assert finding.level == "problem"
    assert "qconf -sq" in finding.fix


def test_more_workers_than_cores_is_a_warning():
    _, (finding,) = render(ParallelConfig(env="local", n_workers=10_000))
    assert finding.level == "warning"
    assert "n_workers: " in finding.fix


def test_gpus_that_are_not_there_are_a_problem(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    _, (finding,) = render(ParallelConfig(env="local_gpu", n_workers=2))
    assert finding.level == "problem"
    assert too_few_gpus(2, 0) in finding.told
    assert finding.fix.startswith("Without a GPU, write env: local")


def test_warnings_of_the_backend_are_findings(monkeypatch):
    monkeypatch.setattr("espnet3.parallel.clusters.gpus.visible_gpus", lambda setting: ["0", "1"])
    _, (finding,) = render(ParallelConfig(env="local_gpu", n_workers=1))
    assert finding.level == "warning"
    assert "n_workers: 2" in finding.fix


def test_warnings_of_the_cluster_class_are_findings_once():
    config = ParallelConfig(
        env="oar", options={"cores": 1, "memory": "1GB", "walltime": "01:00:00"}
    )
    _, findings = render(config)
    assert [finding.level for finding in findings] == ["warning", "ok"]
    assert "memory reserved resources will not be set" in findings[0].told


def test_backends_that_judge_nothing_are_not_asked():
    assert try_script(ParallelConfig(env="local"), None) == []

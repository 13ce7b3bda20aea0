import pytest

from espnet3.parallel.checkup.backend import check_node_gpus, check_queue
from espnet3.parallel.config import ParallelConfig

GPU = {"job_extra_directives": ["--gres=gpu:1"]}


def test_a_misspelt_partition_gets_a_suggestion(commands, slurm):
    commands(sinfo="printf 'cpu\\ngpu\\n'")
    (finding,) = check_queue(slurm(queue="gpuu"))
    assert finding.level == "problem"
    assert "Did you mean 'gpu'? There are: cpu, gpu" in finding.told
    assert finding.fix == "Write under options: queue: gpu"


@pytest.mark.parametrize("queue", ["gpu", "gpu,cpu", None])
def test_partitions_that_exist_are_ok(commands, slurm, queue):
    commands(sinfo="printf 'cpu\\ngpu\\n'")
    (finding,) = check_queue(slurm(queue=queue))
    assert finding.level == "ok", finding


def test_a_scheduler_that_does_not_tell_is_believed(commands, slurm):
    commands(sinfo="exit 1")
    (finding,) = check_queue(slurm(queue="gpu"))
    assert finding.level == "ok"
    assert "no list" in finding.told


def test_backends_without_queues_are_left_alone():
    assert check_queue(ParallelConfig(env="local")) == []


@pytest.mark.parametrize(
    ("nodes", "n_workers", "asked", "level", "told", "fix"),
    [
        ("n1|gpu:2|gpu", 2, "gpu:1", "ok", "has 2 on 1 node", ""),
        ("n1|gpu:a100:4(S:0-1)|gpu", 1, "gpu:4", "ok", "has 4 on 1 node", ""),
        ("n1|gpu:2|gpu", 1, "gpu:3", "problem", "has gpu:2", "--gres=gpu:2"),
        ("n1|(null)|gpu", 1, "gpu:1", "problem", "no node has any", "queue: NAME"),
        ("n1|gpu:2|gpu\nn2|gpu:3|gpu", 3, "gpu:2", "warning", "at most 2 of the 3", "n_workers: 2"),
    ],
)
def test_gpus_of_a_job_are_compared_with_those_of_nodes(
    commands, slurm, nodes, n_workers, asked, level, told, fix
):
    commands(sinfo=f"cat <<'END'\n{nodes}\nEND")
    options = {"queue": "gpu", "job_extra_directives": [f"--gres={asked}"]}
    (finding,) = check_node_gpus(slurm(n_workers, **options))
    assert finding.level == level, finding
    assert told in finding.told
    assert fix in finding.fix


def test_without_a_queue_the_default_partition_counts(commands, slurm):
    commands(sinfo="printf 'n1|gpu:8|gpu\\nn2|gpu:1|cpu*\\n'")
    (finding,) = check_node_gpus(slurm(2, **GPU))
    assert "at most 1 of the 2" in finding.told


def test_jobs_without_gpus_are_not_compared(commands, slurm):
    assert check_node_gpus(slurm(queue="gpu")) == []

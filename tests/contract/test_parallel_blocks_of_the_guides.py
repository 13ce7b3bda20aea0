"""Every `parallel` block that the guides print, through run.py: workers and job script."""

import pytest

from espnet3.config.load import load_config
from espnet3.parallel import get_parallel_config, set_parallel
from espnet3.parallel.clusters.registry import render_job_script
from espnet3.systems.base.system import BaseSystem
from tests.helpers.recipe_copy import RecipeCopy
from tests.helpers.snippets import SLURM_001

LOCAL_GPU = "parallel:\n  env: local_gpu\n  n_workers: {}\n"
LOCAL_THREADS = """\
parallel:
  env: local
  n_workers: 8
  options:
    threads_per_worker: 1
"""
SLURM_002 = """\
parallel:
  env: slurm
  n_workers: 16
  options:
    queue: gpu
    cores: 4
    memory: 32GB
    walltime: "04:00:00"
"""
SLURM_003 = """\
parallel:
  env: slurm
  n_workers: 8
  options:
    queue: gpu
    account: my-lab
    cores: 4
    processes: 1
    memory: 32GB
    walltime: "04:00:00"
    interface: ib0
    log_directory: logs/dask
    job_script_prologue:
      - "module load cuda"
      - "source .pixi/envs/default/bin/activate"
    job_extra_directives:
      - "--gres=gpu:1"
"""
PBS_003 = """\
parallel:
  env: pbs
  n_workers: 8
  options:
    queue: gpu
    cores: 4
    processes: 1
    memory: 32GB
    walltime: "04:00:00"
    job_extra_directives:
      - "-l select=1:ngpus=1"
"""
SLURM_004 = """\
parallel:
  env: slurm
  n_workers: 16
  options:
    queue: batch
    cores: 4
    memory: 32GB
"""
OF_32GB = ("#SBATCH -n 1", "#SBATCH --cpus-per-task=4", "#SBATCH --mem=30G")
BLOCKS = {
    "002 local_gpu 4": (LOCAL_GPU.format(4), ["workers: 4 on env: local_gpu"]),
    "002 local_gpu 2": (LOCAL_GPU.format(2), ["workers: 2 on env: local_gpu"]),
    "002 local": (LOCAL_THREADS, ["workers: 8 on env: local"]),
    "002 slurm": (
        SLURM_002, ["workers: 16 on env: slurm", "#SBATCH -p gpu", *OF_32GB, "#SBATCH -t 04:00:00"]
    ),
    "003 local": ("parallel:\n  env: local\n  n_workers: 1\n", ["workers: 1 on env: local"]),
    "003 slurm": (
        SLURM_003,
        ["workers: 8 on env: slurm", "#SBATCH -p gpu", "#SBATCH -A my-lab", *OF_32GB,
         "#SBATCH -t 04:00:00", "#SBATCH --gres=gpu:1", "--interface ib0", "module load cuda",
         "source .pixi/envs/default/bin/activate", "#SBATCH -o logs/dask/dask-worker-%J.out"],
    ),
    "003 pbs": (
        PBS_003,
        ["workers: 8 on env: pbs", "#PBS -q gpu", "#PBS -l select=1:ncpus=4:mem=30GB:ngpus=1",
         "#PBS -l walltime=04:00:00"],
    ),
    "004 local": ("parallel:\n  env: local\n  n_workers: 8\n", ["workers: 8 on env: local"]),
    "004 slurm": (
        SLURM_004, ["workers: 16 on env: slurm", "#SBATCH -p batch", *OF_32GB, "30 minutes"]
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def asr(tmp_path_factory):
    """Return the template with its data."""
    recipe = RecipeCopy("TEMPLATE/asr", tmp_path_factory.mktemp("recipe") / "asr")
    recipe.run_here(BaseSystem, "--stages", "create_dataset", "--config", "conf/inference.yaml")
    return recipe


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_of_the_guides_makes_what_it_says(asr, capsys, name, mode):
    block, expected = BLOCKS[name]
    (asr.folder / "conf" / "mine.yaml").write_text(block)
    files = ("conf/inference.yaml", "conf/mine.yaml", f"parallel.mode={mode}")
    asr.run_here(BaseSystem, "--stage", "6", "--config", *files, "--dry-run")
    shown = capsys.readouterr().out
    if mode == "async":  # such workers have no Dask, and a name of their own
        expected = [
            word.replace("dask-worker", "espnet3") for word in expected if "interface" not in word
        ]
    assert [word for word in expected if word not in shown] == [], shown
    assert shown.count("-l select") <= 1
    assert shown.count("--gres") <= 1


def test_the_block_of_the_python_guide_is_taken_by_set_parallel(tmp_path):
    (tmp_path / "config.yaml").write_text(SLURM_001)
    config = load_config(tmp_path / "config.yaml")
    set_parallel(config.parallel_gpu)
    try:
        script = render_job_script(get_parallel_config())
    finally:
        set_parallel(None)
    for line in ("-p gpu", "--cpus-per-task=8", "--mem=15G", "-t 01:00:00", "--gres=gpu:1"):
        assert f"#SBATCH {line}\n" in script

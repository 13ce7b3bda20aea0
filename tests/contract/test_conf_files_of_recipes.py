"""Each recipe has the files that the guide on inference names, and they are what it says."""

from pathlib import Path

import pytest

from espnet3.config.load import load_config
from espnet3.parallel.clusters.registry import render_job_script
from espnet3.parallel.parallel import as_parallel_config
from espnet3.systems.base.context import DEFAULTS
from espnet3.systems.base.system import BaseSystem
from tests.helpers.recipe_copy import RecipeCopy

ROOT = Path(__file__).parents[2]
RECIPES = sorted(str(path.parent.relative_to(ROOT)) for path in (ROOT / "egs3").glob("*/*/run.py"))
ENVS = {"parallel_local": "local", "parallel_gpu": "local_gpu", "parallel_slurm": "slurm"}
BASES = {"egs3/TEMPLATE/runner": "loudness"}  # it measures, and does not decode
SHOWN = {"local": "workers: 2 on env: local", "local_gpu": "on env: local_gpu", "slurm": "#SBATCH"}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_that_decodes_has_them_all(recipe):
    conf = ROOT / recipe / "conf"
    names = [BASES.get(recipe, "inference"), *ENVS]
    assert [name for name in names if not (conf / f"{name}.yaml").is_file()] == []


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ENVS)
def test_it_is_taken_behind_the_config_of_the_stage(recipe, name):
    conf = ROOT / recipe / "conf"
    files = [conf / f"{BASES.get(recipe, 'inference')}.yaml", conf / f"{name}.yaml"]
    loaded = load_config(files, below=DEFAULTS, recipe_dir=ROOT / recipe)
    config = as_parallel_config(loaded)
    assert config.env == ENVS[name]
    assert config.n_workers > 1
    if config.env == "slurm":
        script = render_job_script(config)
        assert all(word in script for word in ("#SBATCH -p", "#SBATCH -A my-lab", "#SBATCH -t 0"))


@pytest.mark.parametrize("path", sorted((ROOT / "egs3").glob("*/*/conf/parallel_gpu.yaml")))
def test_nothing_needs_to_be_installed_for_gpus(path):
    assert "espnet3[gpu]" not in path.read_text()


@pytest.fixture(scope="module")
def asr(tmp_path_factory):
    """Return the template with its data."""
    recipe = RecipeCopy("TEMPLATE/asr", tmp_path_factory.mktemp("recipe") / "asr")
    recipe.run_here(BaseSystem, "--stages", "create_dataset", "--config", "conf/inference.yaml")
    return recipe


@pytest.mark.parametrize("name", ENVS)
def test_the_line_of_the_guide_is_taken(asr, name, capsys):
    files = ("conf/inference.yaml", f"conf/{name}.yaml")
    asr.run_here(BaseSystem, "--stage", "6", "--config", *files, "--dry-run")
    assert SHOWN[ENVS[name]] in capsys.readouterr().out


def test_a_stage_of_ones_own_checks_and_shows_its_jobs(tmp_path):
    recipe = RecipeCopy("TEMPLATE/runner", tmp_path / "runner")
    words = ("--stages", "create_dataset", "loudness", "--config", "conf/loudness.yaml")
    told = recipe.run(*words, "parallel.env=slurm", "parallel.options.quue=gpu", code=1)
    assert "Did you mean 'queue'?" in told
    assert not (recipe.folder / "data").exists()
    recipe.run("--stages", "create_dataset", "--config", "conf/loudness.yaml")
    line = ("--stages", "loudness", *words[3:], "conf/parallel_slurm.yaml", "--dry-run")
    told = recipe.run(*line)
    assert "#SBATCH -A my-lab" in told

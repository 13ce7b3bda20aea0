"""Names that users import, and what importing them must not cost."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "dask", "distributed", "lightning")


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            "espnet3.parallel",
            "set_parallel get_parallel_config use_parallel get_client parallel_map BaseRunner "
            "EnvironmentProvider register_backend",
        ),
        ("espnet3.parallel.parallel", "set_parallel use_parallel get_client parallel_map"),
        ("espnet3.parallel.env_provider", "EnvironmentProvider"),
        ("espnet3.parallel.base_runner", "BaseRunner"),
        ("espnet3.systems.base.inference_provider", "InferenceProvider"),
        ("espnet3.systems.base.inference_runner", "InferenceRunner"),
        ("espnet3.systems.base.system", "BaseSystem"),
        ("espnet3.components.data.data_organizer", "DataOrganizer"),
        ("espnet3.components.data.dataset_builder", "DatasetBuilder"),
        ("espnet3.systems.asr.metrics.wer", "WER"),
        ("espnet3.systems.asr.metrics.cer", "CER"),
        ("espnet3.systems.asr.metrics.ter", "TER"),
        ("espnet3.cli.recipe", "run_recipe"),
        ("espnet3.trainer", "train"),
        ("espnet3.trainer.trainer", "build_trainer"),
        ("espnet3.runner.base_runner", "BaseRunner"),
        ("espnet3.runner.inference_provider", "InferenceProvider"),
        ("espnet3.shards.join", "join_files"),
        ("espnet3.shards.merge_scp", "join_scp"),
        ("espnet3.io.json_text", "dump_json"),
    ],
)
def test_public_names_are_where_the_documentation_says(module, names):
    imported = __import__(module, fromlist=["*"])
    assert all(hasattr(imported, name) for name in names.split())


def test_older_paths_are_the_same_objects():
    from espnet3.parallel import BaseRunner
    from espnet3.runner import base_runner, inference_provider
    from espnet3.systems.base.inference_provider import InferenceProvider

    assert base_runner.BaseRunner is BaseRunner
    assert inference_provider.InferenceProvider is InferenceProvider


@pytest.mark.parametrize(
    "code",
    [
        "import espnet3.parallel",
        "from espnet3.parallel import BaseRunner, set_parallel, parallel_map, get_client",
        "import espnet3.parallel.worker",
        "import espnet3.systems.base.inference_provider",
        "import espnet3.systems.base.inference_runner",
        "import espnet3.systems.base.system",
        "from espnet3.cli.recipe import run_recipe",
        "from espnet3.trainer import train",
        "import sys; sys.argv = ['espnet3', '--help']\n"
        "try: import espnet3.cli.main as m; m.main()\nexcept SystemExit: pass",
    ],
)
def test_importing_is_light(code):
    check = f"{code}\nimport sys\nprint([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    process = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert process.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("code", "slow"),
    [
        # What a worker imports with the user's module.
        ("from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel", "pydantic"),
        ("from espnet3.parallel import set_parallel; set_parallel({'env': 'local'})", "omegaconf"),
        ("import espnet3.parallel.detached.work", "omegaconf"),
    ],
)
def test_what_starts_often_starts_without_what_it_does_not_need(code, slow):
    check = f"{code}\nimport sys; sys.exit({slow!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_every_env_of_the_documentation_is_known():
    from espnet3.parallel.clusters.registry import BACKENDS

    known = "local local_gpu slurm pbs sge lsf oar htcondor moab ssh kube dask ray"
    assert " ".join(BACKENDS) == known


def test_every_backend_has_a_module_with_a_start():
    from importlib import import_module

    from espnet3.parallel.clusters.registry import BACKENDS

    for backend in BACKENDS.values():
        assert callable(import_module(f"espnet3.parallel.clusters.{backend.module}").start)

from importlib import metadata

import pytest

from espnet3.parallel.checkup import backend
from espnet3.parallel.checkup.backend import check_versions
from espnet3.parallel.config import ParallelConfig

SLURM = ParallelConfig(env="slurm", options={"cores": 1, "memory": "1GB"})


@pytest.fixture
def packages(monkeypatch):
    """Return a function that changes what seems to be installed, and what it asks for."""
    version, requires = metadata.version, metadata.requires

    def change(installed: dict[str, str | None], asks: dict[str, list[str]] | None = None) -> None:
        def find(name):
            found = installed.get(name, "real")
            if found is None:
                raise metadata.PackageNotFoundError(name)
            return version(name) if found == "real" else found

        monkeypatch.setattr(backend.metadata, "version", find)

        def ask(name):
            return asks[name] if asks and name in asks else requires(name)

        monkeypatch.setattr(backend.metadata, "requires", ask)

    return change


def test_what_is_installed_here_fits():
    (finding,) = check_versions(SLURM, ["lightning", "torch"])
    assert finding.level == "ok", finding
    assert "dask-jobqueue 0.9" in finding.told
    assert "lightning 2." in finding.told


def test_a_missing_package_comes_with_its_line(packages):
    packages({"dask-jobqueue": None})
    (finding,) = check_versions(SLURM)
    assert finding.level == "problem"
    assert "dask-jobqueue is not installed, and parallel.env: slurm needs it" in finding.told
    assert finding.fix.endswith("pip install -c constraints.txt dask-jobqueue")


def test_a_version_that_we_exclude_is_a_problem(packages):
    packages({"lightning": "2.6.2"}, {"espnet3": ["lightning!=2.6.2,>=2.6"]})
    (finding,) = check_versions(SLURM, ["lightning"])
    assert finding.level == "problem"
    assert "lightning is 2.6.2" in finding.told
    assert "'lightning!=2.6.2,>=2.6'" in finding.fix


def test_what_the_extra_asks_of_dask_is_compared_through_its_pin(packages):
    asks = {
        "dask-cuda": ["rapids-dask-dependency==1", "numpy>=1; extra == 'test'"],
        "rapids-dask-dependency": ["dask==1999.1"],
    }
    packages({"dask-cuda": "26.10"}, asks)
    (finding,) = check_versions(ParallelConfig(env="local_gpu"))
    assert finding.level == "warning"
    assert "dask==1999.1, but dask is" in finding.told


def test_dask_cuda_is_a_choice(packages):
    packages({"dask-cuda": None})
    (finding,) = check_versions(ParallelConfig(env="local_gpu"))
    assert finding.level == "ok"


def test_dask_and_distributed_are_of_one_release(packages):
    packages({"dask": "2025.1.0", "distributed": "2025.2.0"})
    assert any("must be of one release" in finding.told for finding in check_versions(SLURM))


def test_an_extra_that_is_installed_but_broken_is_told(monkeypatch, packages):
    packages({"dask-kubernetes": "1"}, {"dask-kubernetes": []})
    monkeypatch.setitem(__import__("sys").modules, "dask_kubernetes.operator", None)
    (finding,) = check_versions(ParallelConfig(env="kube"))
    assert finding.level == "problem"
    assert "-e '.[kube]'" in finding.fix

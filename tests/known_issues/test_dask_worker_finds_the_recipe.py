"""A module that only the driver's `sys.path` had could not be imported on a Dask worker."""

from distributed import Client

RECIPE = """
from espnet3.parallel import BaseRunner

class Provider:
    def build_env_local(self): return {}
    def build_worker_setup_fn(self): return dict

class Square(BaseRunner):
    @staticmethod
    def forward(idx): return idx ** 2
"""


def test_a_runner_of_the_recipe_folder_runs_on_workers_started_elsewhere(
    tmp_path, monkeypatch, dask_address
):
    (tmp_path / "only_in_this_recipe.py").write_text(RECIPE)
    monkeypatch.syspath_prepend(tmp_path)
    import only_in_this_recipe as recipe

    with Client(dask_address) as client:
        assert recipe.Square(recipe.Provider())(range(5), client=client) == [0, 1, 4, 9, 16]

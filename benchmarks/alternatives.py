"""The same work in other libraries, each as its documentation has it: one function over items.

What they take to be imported does not count; their processes are started and stopped by each call.
"""

import multiprocessing
import os
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

Function = Callable[[Any], Any]


def map_pool(
    function: Function, items: Sequence[Any], n_workers: int, method: str | None = "spawn"
) -> list[Any]:
    """Map with a pool of processes, one task per item."""
    with multiprocessing.get_context(method).Pool(n_workers) as pool:
        return pool.map(function, items, chunksize=1)


def map_dask(function: Function, items: Sequence[Any], n_workers: int) -> list[Any]:
    """Map with Dask, one task per item."""
    from distributed import Client, LocalCluster

    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=n_workers, **options) as cluster, Client(cluster) as client:
        return client.gather(client.map(function, items, pure=False))


def map_joblib(function: Function, items: Sequence[Any], n_workers: int) -> list[Any]:
    """Map with joblib's processes, which are started by the first call and kept."""
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    results = Parallel(n_jobs=n_workers)(delayed(function)(item) for item in items)
    get_reusable_executor().shutdown()
    return results


def map_ray(function: Function, items: Sequence[Any], n_workers: int) -> list[Any]:
    """Run one Ray task per item."""
    import ray

    ray.init(num_cpus=n_workers, include_dashboard=False, logging_level="error")
    task = ray.remote(function)
    results = ray.get([task.remote(item) for item in items])
    ray.shutdown()
    return results


def map_ray_data(function: Function, items: Sequence[Any], n_workers: int) -> list[Any]:
    """Map over a dataset of Ray Data."""
    import ray

    ray.init(num_cpus=n_workers, include_dashboard=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    table = ray.data.from_items([{"item": item} for item in items])
    rows = table.map(partial(_apply_to_row, function)).take_all()
    ray.shutdown()
    return [row["result"] for row in rows]


def map_datasets(function: Function, items: Sequence[Any], n_workers: int) -> list[Any]:
    """Map over a table of Hugging Face's datasets, in its processes."""
    import datasets

    datasets.disable_progress_bars()
    table = datasets.Dataset.from_dict({"item": list(items)})
    apply = partial(_apply_to_row, function)
    return table.map(apply, num_proc=n_workers, load_from_cache_file=False)["result"]


def _apply_to_row(function: Function, row: dict[str, Any]) -> dict[str, Any]:
    result = function(row["item"])
    # Tables have typed columns: an integer beyond 64 bits fits into none.
    return {"result": str(result) if isinstance(result, int) else result}


def map_datatrove(function: Function, items: Sequence[Any], n_workers: int) -> list[Any]:
    """Run a datatrove pipeline, with one task per worker."""
    from datatrove.data import Document
    from datatrove.executor import LocalPipelineExecutor
    from loguru import logger

    logger.remove()
    documents = [Document(text="", id=str(i), metadata={"item": x}) for i, x in enumerate(items)]
    with tempfile.TemporaryDirectory() as folder:
        LocalPipelineExecutor(
            pipeline=[documents, partial(_apply_to_documents, function, folder)],
            tasks=n_workers,
            workers=n_workers,
            logging_dir=f"{folder}/logs",
        ).run()
        found = [pickle.loads(path.read_bytes()) for path in Path(folder).glob("*.pickle")]
    merged = dict(pair for part in found for pair in part)
    return [merged[i] for i in range(len(items))]


def _apply_to_documents(function, folder, data, rank=0, world_size=1):
    results = []
    for document in data:  # each task gets all of them
        if int(document.id) % world_size == rank:
            results.append((int(document.id), function(document.metadata["item"])))
            yield document
    Path(folder, f"{rank}.pickle").write_bytes(pickle.dumps(results))


def map_submitit(
    function: Function, items: Sequence[Any], n_workers: int, cluster: str = "local"
) -> list[Any]:
    """Submit one job per worker, each with every n-th item: a job per item is a Python each."""
    import submitit

    folder = tempfile.mkdtemp(dir=".")  # that nodes share
    os.environ["PYTHONPATH"] = os.getcwd()
    try:
        executor = submitit.AutoExecutor(folder, cluster=cluster)
        executor.update_parameters(timeout_min=5, cpus_per_task=1)
        parts = [list(items)[i::n_workers] for i in range(n_workers)]
        jobs = executor.map_array(partial(_apply_to_all, function), parts)
        done = [job.result() for job in jobs]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    results = [None] * len(items)
    for i, part in enumerate(done):
        results[i::n_workers] = part
    return results


def _apply_to_all(function: Function, items: Sequence[Any]) -> list[Any]:
    return [function(item) for item in items]


def has_slurm() -> bool:
    """Tell whether a Slurm answers here."""
    if shutil.which("sbatch") is None or shutil.which("sinfo") is None:
        return False
    try:
        return subprocess.run(["sinfo"], capture_output=True, timeout=10).returncode == 0
    except subprocess.TimeoutExpired:
        return False


ALTERNATIVES: dict[str, tuple[str, Callable[..., list[Any]]]] = {
    "client.map on a LocalCluster": ("distributed", map_dask),
    "joblib": ("joblib", map_joblib),
    "Ray tasks": ("ray", map_ray),
    "Ray Data": ("ray.data", map_ray_data),
    "datasets.map": ("datasets", map_datasets),
    "datatrove": ("datatrove.executor", map_datatrove),
    "submitit, local": ("submitit", map_submitit),
    "submitit, Slurm": ("submitit", partial(map_submitit, cluster="slurm")),
}
"""By name, the package that is needed, and `map(function, items, n_workers)`."""

"""The work of `whole_call` in other libraries, each as its documentation has it.

What they take to be imported does not count.
"""

import tempfile

from benchmarks.busy_items import N_ITEMS, compute

N_WORKERS = 2


def run_dask() -> None:
    """Map with Dask, one task per item."""
    from distributed import Client, LocalCluster

    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=N_WORKERS, **options) as cluster, Client(cluster) as client:
        assert len(client.gather(client.map(compute, range(N_ITEMS)))) == N_ITEMS


def run_joblib() -> None:
    """Map with joblib's processes, which are started by the first call and kept."""
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    results = Parallel(n_jobs=N_WORKERS)(delayed(compute)(idx) for idx in range(N_ITEMS))
    get_reusable_executor().shutdown()
    assert len(results) == N_ITEMS


def run_ray() -> None:
    """Run one Ray task per item."""
    import ray

    ray.init(num_cpus=N_WORKERS, include_dashboard=False, logging_level="error")
    task = ray.remote(compute)
    assert len(ray.get([task.remote(idx) for idx in range(N_ITEMS)])) == N_ITEMS
    ray.shutdown()


def run_datasets() -> None:
    """Map over a table of Hugging Face's datasets."""
    import datasets

    datasets.disable_progress_bars()
    table = datasets.Dataset.from_dict({"idx": list(range(N_ITEMS))})
    done = table.map(_compute_row, num_proc=N_WORKERS, load_from_cache_file=False)
    assert len(done) == N_ITEMS


def _compute_row(row: dict[str, int]) -> dict[str, str]:
    return {"result": str(compute(row["idx"]))}


def run_datatrove() -> None:
    """Run a datatrove pipeline, with one task per worker."""
    from datatrove.data import Document
    from datatrove.executor import LocalPipelineExecutor
    from loguru import logger

    logger.remove()
    documents = [Document(text="", id=str(idx)) for idx in range(N_ITEMS)]
    with tempfile.TemporaryDirectory() as folder:
        LocalPipelineExecutor(
            pipeline=[documents, _compute_documents],
            tasks=N_WORKERS,
            workers=N_WORKERS,
            logging_dir=folder,
        ).run()


def _compute_documents(data, rank=0, world_size=1):
    for document in data:  # each task gets all of them
        if int(document.id) % world_size == rank:
            compute(int(document.id))
            yield document


ALTERNATIVES = {
    "client.map on a LocalCluster": ("distributed", run_dask),
    "joblib": ("joblib", run_joblib),
    "Ray tasks": ("ray", run_ray),
    "datasets.map": ("datasets", run_datasets),
    "datatrove": ("datatrove.executor", run_datatrove),
}

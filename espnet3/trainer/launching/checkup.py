"""Check the `trainer` block for `espnet3 doctor`."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from espnet3.config.sources import names_places
from espnet3.errors import ResourceError
from espnet3.findings import Finding, never_raises
from espnet3.trainer.config import trainer_block
from espnet3.trainer.launching.devices import count_gpus, find_wanted
from espnet3.trainer.launching.launch_check import check_launch
from espnet3.trainer.launching.launchers import find_job

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_WHAT = "trainer"


@never_raises(_WHAT)
@names_places
def check_training(
    loaded: "LoadedConfig",
    environ: Mapping[str, str] = os.environ,
    *,
    recipe_dir: str = ".",
    trains_here: bool = True,
) -> list[Finding]:
    """Compare `trainer.devices x num_nodes` with the job around us, or with this machine.

    Args:
        loaded: the merged config; without a `trainer` block there is nothing to say.
        environ: of this process.
        recipe_dir: the folder of `run.py`.
        trains_here: whether the training is to run on this machine; a login node need not have
            the GPUs.
    """
    if not loaded.config.get("trainer"):
        return []
    if loaded.has("launch"):
        return _launched(loaded, recipe_dir)
    block = trainer_block(loaded)
    n_gpus = count_gpus()
    try:
        check_launch(block, environ, n_gpus)
    except ResourceError as error:
        error.locate(loaded)
        is_certain = trains_here or find_job(environ) is not None
        return [Finding.of(_WHAT, error, "problem" if is_certain else "warning")]
    wanted = find_wanted(block, n_gpus, environ)
    if wanted is None:
        return [Finding("ok", _WHAT, f"accelerator {block.get('accelerator')!r} is Lightning's")]
    job = find_job(environ)
    where = f"job {job.name} of {job.scheduler}" if job else "this machine"
    return [Finding("ok", _WHAT, f"{wanted}, as {where} has them ({n_gpus} GPU(s) visible)")]


def _launched(loaded: "LoadedConfig", recipe_dir: str) -> list[Finding]:
    """Check the `launch` block, which brings its own allocation."""
    from espnet3.trainer.launching.job_script import render
    from espnet3.trainer.launching.launch import plan_job

    job = plan_job(loaded, (), recipe_dir=recipe_dir)
    render(job)  # refuses options that cannot be written
    text = (
        f"`espnet3 launch` would ask {job.config.scheduler} for {job.n_nodes} node(s) x "
        f"{job.n_processes} process(es), {job.n_gpus} GPU(s) on each node"
    )
    return [Finding("ok", _WHAT, text)]

"""Make `conf/parallel_*.yaml` and `conf/launch_*.yaml` from `cmd.sh` and Kaldi's job options."""

from collections.abc import Callable
from typing import Any

from espnet3.migration.journal import Origin
from espnet3.migration.kaldi_jobs import JobCommand, JobConf, jobs_of
from espnet3.migration.source_recipe import SourceRecipe
from espnet3.schedulers import scheduler_of

AddConfig = Callable[[str, str, dict[str, Any]], None]
"""Takes the name of a config, the comment at its top, and its values."""
_PURPOSES = {
    "train_cmd": "parallel of conf/training.yaml",
    "cuda_cmd": "espnet3 launch",
    "decode_cmd": "parallel of conf/inference.yaml",
}
_USUAL_CONFS = {"slurm": "conf/slurm.conf", "pbs": "conf/pbs.conf", "sge": "conf/queue.conf"}


def add_places(recipe: SourceRecipe, add_config: AddConfig) -> list[tuple[str, str]]:
    """Add the configs of the places where a recipe runs: this machine, its GPUs, its cluster.

    Returns:
        Lines to type for the cluster, and what each does; empty without one.
    """
    local = {"parallel": {"env": "local", "n_workers": 2}}
    add_config("parallel_local", "After another file: two processes here.", local)
    if recipe.is_on("gpu_inference"):
        n_gpus = max(1, int(recipe.number("ngpu")))
        gpus = {"device": None, "parallel": {"env": "local_gpu", "n_workers": n_gpus}}
        comment = "After inference.yaml: a process for each GPU of this machine."
        add_config("parallel_gpu", comment, gpus)
    for name, (command, origin) in recipe.commands.items():
        _note_command(recipe, name, command, origin)
    default = (JobCommand("run.pl", {}), Origin("cmd.sh"))
    cuda, decode = (recipe.commands.get(name, default) for name in ("cuda_cmd", "decode_cmd"))
    if scheduler_of(decode[0].env) is None and "conf/slurm.conf" in recipe.confs:
        # A recipe that runs on this machine, with what it takes to run elsewhere.
        decode = cuda = (JobCommand("slurm.pl", {}), Origin("conf/slurm.conf"))
    if scheduler_of(decode[0].env) is None:
        return []
    return _add_cluster(recipe, add_config, decode, cuda)


def _note_command(recipe: SourceRecipe, name: str, command: JobCommand, origin: Origin) -> None:
    options = (f"--{key} {value}" for key, value in command.options.items())
    spelled = " ".join([command.program, *options, *command.rest])
    if command.env == "ssh":
        note = "hosts are listed under parallel.options.hosts: docs/clusters/ssh.md"
        recipe.journal.left_out(origin, name, spelled, note)
    elif not command.env:
        note = "is no wrapper that is known; workers run on this machine"
        recipe.journal.left_out(origin, name, spelled, note)
    else:
        recipe.journal.taken(origin, name, spelled, _PURPOSES[name])


def _conf_of(recipe: SourceRecipe, command: JobCommand) -> JobConf | None:
    name = command.options.get("config", _USUAL_CONFS.get(command.env, ""))
    return recipe.confs.get(name)


def _add_cluster(
    recipe: SourceRecipe,
    add_config: AddConfig,
    decode: tuple[JobCommand, Origin],
    cuda: tuple[JobCommand, Origin],
) -> list[tuple[str, str]]:
    command, origin = decode
    env, conf = command.env, _conf_of(recipe, command)
    gpu = "1" if recipe.is_on("gpu_inference") else "0"
    job = jobs_of(command, conf, origin, recipe.journal, gpu=gpu)
    workers = max(1, int(recipe.number("inference_nj")))
    limit = command.options.get("max_jobs_run", "")
    if limit.isdigit() and int(limit):
        workers = min(workers, int(limit))
    if conf is not None:
        became = f"conf/parallel_{env}.yaml"
        recipe.journal.taken(Origin(conf.file), "job options", "", became)
    if not job.gigabytes:
        note = "no memory is asked for, but a worker must know its own: 4 GB taken"
        recipe.journal.left_out(origin, "--mem", "", note)
    comment = (
        "After training.yaml or inference.yaml: jobs of the cluster. See that queue, memory and\n"
        f"time are right: espnet3 doctor conf/parallel_{env}.yaml; --dry-run shows the job script."
    )
    block = {"env": env, "n_workers": workers, "options": job.parallel(env)}
    add_config(f"parallel_{env}", comment, {"parallel": block})
    if cuda[0].env != env:
        cuda = decode
    n_gpus = str(int(recipe.number("ngpu")))
    training = jobs_of(cuda[0], _conf_of(recipe, cuda[0]), cuda[1], recipe.journal, gpu=n_gpus)
    comment = "After training.yaml, for `espnet3 launch`: the training as one job."
    add_config(f"launch_{env}", comment, {"launch": training.launch(env)})
    launch = f"espnet3 launch conf/training.yaml conf/launch_{env}.yaml --dry-run"
    infer = (
        "python run.py --stages infer --training_config conf/training.yaml --inference_config "
        f"conf/inference.yaml conf/parallel_{env}.yaml --dry-run"
    )
    return [
        (launch, "the training as a job; without --dry-run it is submitted"),
        (infer, "decoding in jobs"),
    ]

"""Convert values of other toolkits' keys to ours; `config.words` has the keys."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from espnet3.config.known_keys import (
    ENVS,
    INFER,
    PACK,
    STATISTICS,
    TRAIN,
    WORKERS,
    Unfit,
    UnfitKey,
    count,
    existing,
    flow,
    keep,
    not_negative,
    number,
    pattern,
    positive,
    switch,
    text,
    whole,
)
from espnet3.errors import closest

Has = Callable[[str], bool]
"""Returns whether the config has a dotted key."""
Settings = dict[str, Any]
"""Values by dotted key; the first is what was asked for, others belong to it."""
Way = Callable[[Any, Has], Settings | str]
"""Translates a value; a text instead of settings says what to do where there is no counterpart."""

TWO_LAYERS = "trainer is for training, parallel for the workers of the other stages."
STOPPING = "lightning.pytorch.callbacks.EarlyStopping"
WARMUP = "espnet3.components.schedulers.WarmupLR"
_PACK_KEYS = (
    "output_dir", "archive", "name", "weights", "inference_config", "metrics", "license",
    "language", "description", "data", "datasets", "tags",
)  # fmt: skip

_ENV_WORDS = {
    "local_gpu": "gpu gpus cuda multi_gpu multigpu localgpu gpu_local local_cuda nvidia ddp "
    "dask_cuda localcudacluster",
    "local": "cpu cpus process processes multiprocessing multiprocess mp thread threads none "
    "local_cpu localhost run.pl joblib pool default single serial laptop localcluster",
    "slurm": "sbatch srun slurm.pl slurmcluster salloc slurm_gpu",
    "pbs": "qsub pbs.pl pbspro openpbs torque pbscluster",
    "sge": "queue.pl uge gridengine grid_engine sgecluster",
    "lsf": "bsub lsf.pl lsfcluster",
    "oar": "oarsub oarcluster",
    "htcondor": "condor condor_submit htcondorcluster",
    "moab": "msub moabcluster",
    "ssh": "ssh.pl sshcluster",
    "kube": "k8s kubernetes kubectl kubecluster",
    "dask": "distributed dask_scheduler scheduler client",
    "ray": "raycluster ray_cluster kuberay",
}
_ENVS_BY_WORD = {word: env for env, words in _ENV_WORDS.items() for word in words.split()}


@dataclass(frozen=True)
class Place:
    """The key to which a word belongs in some stages."""

    stages: tuple[str, ...]
    way: Way
    why: str = ""


Rule = tuple[Place, ...]


def env_for(word: Any) -> str | None:
    """Return the `parallel.env` that a word, or a command such as `queue.pl --mem 4G`, means.

    Example:
        >>> env_for("gpu"), env_for("slurm.pl --config conf/slurm.conf"), env_for("moon")
        ('local_gpu', 'slurm', None)
    """
    first = str(word).strip().lower().split(" ")[0].rpartition("/")[2].replace("-", "_")
    return first if first in ENVS else _ENVS_BY_WORD.get(first) or closest(first, ENVS)


def to(key: str, convert: Callable[[Any], Any] = keep, more: Settings | None = None) -> Way:
    """Return the way to one key, with fixed values of others."""

    def write(value: Any, has: Has) -> Settings:
        try:
            return {key: convert(value), **(more or {})}
        except Unfit as unfit:
            raise UnfitKey(f"The key here is {key}, which {unfit}.") from None

    return write


def tell(words: str) -> Way:
    """Return the way that only says what to do; `{value}` in it is what was written."""
    return lambda value, has: words.replace("{value}", flow(value))


def if_on(on: Way, off: Way) -> Way:
    """Return the way of a switch: one way for true, another for false."""
    return lambda value, has: (on if switch(value) else off)(value, has)


def devices(value: Any, has: Has) -> Settings | str:
    """Return the processes of a training."""
    if str(value) == "0" or value is False:
        return {"trainer.accelerator": "cpu"}
    if _is_all(value):
        return {"trainer.devices": "auto"}
    named = _gpu_list(value)
    if named:  # on CPUs it would have to be a number
        return {"trainer.devices": named, "trainer.accelerator": "gpu"}
    return to("trainer.devices", count)(value, has)


def gpus(value: Any, has: Has) -> Settings | str:
    """Return the processes of a training, each with a GPU."""
    settings = devices(value, has)
    if isinstance(settings, str) or "trainer.accelerator" in settings:
        return settings
    return {**settings, "trainer.accelerator": "gpu"}


def gpu_workers(value: Any, has: Has) -> Settings | str:
    """Return workers of a runner, each with a GPU."""
    if str(value) == "0" or value is False:
        return {"device": "cpu"}
    # A config that says device: cpu would keep the models of all workers there.
    rest: Settings = {"parallel.env": "local_gpu", **({"device": None} if has("device") else {})}
    if _is_all(value):
        return rest
    named = _gpu_list(value)
    n_workers = named and {"parallel.n_workers": len(named)}
    return {**(n_workers or _count_of("parallel.n_workers", value)), **rest}


def gpu_workers_without_model(value: Any, has: Has) -> Settings | str:
    """Return the same for stages that read no `device`."""
    found = gpu_workers(value, has)
    if isinstance(found, str):
        return found
    return {k: v for k, v in found.items() if k != "device"} or {"parallel.env": "local"}


def _count_of(key: str, value: Any) -> Settings:
    found = to(key, count)(value, lambda _: False)
    assert isinstance(found, dict)
    return found


def _is_all(value: Any) -> bool:
    return value is True or str(value).lower() in ("auto", "-1", "all")


def _gpu_list(value: Any) -> list[int] | None:
    """Return the GPUs that `[0, 1]` or `0,1` names; None for a count."""
    if isinstance(value, str) and "," in value:
        value = [part for part in value.split(",") if part.strip()]
    return [whole(one) for one in value] if isinstance(value, list | tuple) else None


def device(value: Any, has: Has) -> Settings | str:
    """Return what a training runs on: a number counts devices, a name is their kind."""
    is_count = isinstance(value, int | list) and not isinstance(value, bool)
    return (devices if is_count else accelerator)(value, has)


def accelerator(value: Any, has: Has) -> Settings | str:
    """Return the trainer's words for `cuda:1` or `cpu`."""
    kind, _, index = str(value).lower().partition(":")
    chosen = {"trainer.accelerator": "gpu" if kind in ("cuda", "gpu") else kind}
    if kind not in ("cuda", "gpu", "cpu", "mps", "tpu", "auto"):
        raise UnfitKey(f"trainer.accelerator takes gpu, cpu or auto, and this is {value!r:.60}.")
    return {**chosen, "trainer.devices": [int(index)]} if index.isdigit() else chosen


def worker_device(value: Any, has: Has) -> Settings | str:
    """Return the device of a worker's model; `cuda` without a number is a GPU for each."""
    word = str(value).lower()
    if word in ("gpu", "cuda", "gpus"):
        return gpu_workers("auto", has)
    if word in ("auto", "none"):
        return "Each worker takes a GPU where there is one, unless device says otherwise."
    return to("device", pattern(r"cpu|mps|cuda:\d+", "cpu or cuda:0"))(value, has)


def env_of_workers(value: Any, has: Has) -> Settings | str:
    """Return `parallel.env` for a name or a command of Kaldi's."""
    env = env_for(value)
    if env is None:
        return f"{value!r:.60} is no parallel.env. Known: {', '.join(ENVS)}."
    if env in ("local", "local_gpu"):
        return {"parallel.env": env}
    needed = _NEEDED.get(env, {"cores": 4, "memory": "16GB"})
    lacking = {k: v for k, v in needed.items() if not has(f"parallel.options.{k}")}
    if lacking and env in ("ssh", "kube", "dask"):  # only the user knows them
        return f"It needs its own options: parallel: {flow({'env': env, 'options': lacking})}"
    return {"parallel.env": env, **{f"parallel.options.{k}": v for k, v in lacking.items()}}


_NEEDED: dict[str, Settings] = {
    "htcondor": {"cores": 4, "memory": "16GB", "disk": "10GB"},
    "ssh": {"hosts": ["head", "node1"]},
    "kube": {"image": "registry/espnet3:1"},
    "dask": {"address": "tcp://host:8786"},
    "ray": {},
}
"""What a block must say of a backend; of those not here, cores and memory."""


def env_of_training(value: Any, has: Has) -> Settings | str:
    """Return what gives a training the machines that `parallel.env` names."""
    env = env_for(value)
    if env == "local_gpu":
        return {"trainer.accelerator": "gpu"}
    if env in ("slurm", "pbs", "sge", "lsf"):
        return (
            f"A training is a job of its own: espnet3 launch conf/training.yaml "
            f"conf/launch_{env}.yaml, with launch: {{scheduler: {env}}} in the latter."
        )
    return f"{TWO_LAYERS} A training takes what trainer.accelerator and trainer.devices say."


def trainer_for_workers(value: Any, has: Has) -> Settings | str:
    """Return for a whole `trainer` block what the workers of a runner can have of it."""
    block = value if isinstance(value, Mapping) else {}
    n, kind = block.get("devices"), str(block.get("accelerator", "")).lower()
    if n is None and kind not in ("gpu", "cuda"):
        return f"{TWO_LAYERS} Delete the block here."
    if kind == "cpu":
        return to("parallel.n_workers", count)(n, has)
    return gpu_workers("auto" if n is None else n, has)


def workers_for_trainer(value: Any, has: Has) -> Settings | str:
    """Return for a whole `parallel` block what a training can have of it."""
    block = value if isinstance(value, Mapping) else {}
    env, n = env_for(block.get("env", "local")), block.get("n_workers", 1)
    if env == "local" and "n_workers" not in block:
        return f"{TWO_LAYERS} Delete the block here."
    if env not in ("local", "local_gpu"):
        return env_of_training(env, has)
    settings = devices(n, has)
    gpu = {"trainer.accelerator": "gpu"} if env == "local_gpu" else {}
    return {**settings, **gpu} if isinstance(settings, dict) else settings


def loader_for_inference(value: Any, has: Has) -> Settings | str:
    """Return for a whole `dataloader` block what `infer` can have of it."""
    block = value if isinstance(value, Mapping) else {}
    inner = [part for part in block.values() if isinstance(part, Mapping)]
    for name in ("batch_size", "batch_seconds"):
        for part in (block, *inner):
            if part.get(name) is not None:
                return to(name, positive)(part[name], has)
    return "infer makes its batches by batch_size or batch_seconds at the top. Delete the block."


def batch_size(value: Any, has: Has) -> Settings | str:
    """Return the batch of a training process."""
    if has("dataloader.train.batch_sampler"):
        return "dataloader.train.batch_sampler makes the batches; their size is its argument."
    return to("dataloader.train.batch_size", count)(value, has)


def batch_bins(value: Any, has: Has) -> Settings | str:
    """Return seconds of audio for samples of it; bins need the shapes of collect_stats."""
    if has("dataloader.train.batch_bins"):
        return to("dataloader.train.batch_bins", count)(value, has)
    if has("dataloader.train.batch_sampler"):
        return "dataloader.train.batch_sampler makes the batches; their size is its argument."
    return {"dataloader.train.batch_seconds": max(1, round(count(value) / 16000))}


def batch_type(value: Any, has: Has) -> Settings | str:
    """Say which size stands for a way of ESPnet2 to make batches."""
    if str(value) in ("unsorted", "sorted", "folded"):
        return f"Batches of {value} go by their number of samples: dataloader.train.batch_size=16"
    return "Batches by length go by seconds of audio: dataloader.train.batch_seconds=120"


def of_optimizer(name: str, *, is_usual: bool = True) -> Way:
    """Return the way to an argument of the optimizer, of which there may be several."""

    def write(value: Any, has: Has) -> Settings | str:
        if has("optimizers"):
            return (
                "There are several optimizers; write it for the one that you mean: "
                f"optimizers.NAME.optimizer.{name}={value}"
            )
        if not is_usual:
            return f"It is an argument of some optimizers: optimizer.{name}={value}"
        convert = positive if name == "lr" else not_negative
        # OneCycleLR replaces the rate of the optimizer from the first step on.
        highest = name == "lr" and has("scheduler.max_lr")
        more = {"scheduler.max_lr": convert(value)} if highest else {}
        return to(f"optimizer.{name}", convert, more)(value, has)

    return write


def of_scheduler(name: str, ours: str, convert: Callable[[Any], Any]) -> Way:
    """Return the way to a key that needs a scheduler, and one that has it."""

    def write(value: Any, has: Has) -> Settings | str:
        if has("scheduler" if ours == "scheduler_interval" else ours):
            return to(ours, convert)(value, has)
        return (
            f"{name} belongs to a scheduler, such as: scheduler: {{_target_: "
            "torch.optim.lr_scheduler.OneCycleLR, max_lr: 0.001}"
        )

    return write


def resuming(value: Any) -> str:
    """Return the value of `resume` for a training."""
    return "auto" if str(value).lower() == "auto" or switch(value) else "never"


def resumed(value: Any, has: Has) -> Settings | str:
    """Return the checkpoint that a training resumes from."""
    if isinstance(value, bool) or str(value).lower() in ("none", "auto", "latest", "last", ""):
        return "A training resumes from last.ckpt by itself: delete the line."
    return to("fit.ckpt_path", existing)(value, has)


def warmup(value: Any, has: Has) -> Settings | str:
    """Return a schedule that warms up, if there is none that could be meant."""
    if has("scheduler.warmup_steps"):
        return to("scheduler.warmup_steps", count)(value, has)
    if has("scheduler") or has("schedulers") or has("optimizers"):
        return (
            "It is an argument of a scheduler that warms up. In place of yours, write: "
            f"scheduler: {{_target_: {WARMUP}, warmup_steps: {value}}}"
        )
    steps = _count_of("warmup_steps", value)["warmup_steps"]
    return {"scheduler": {"_target_": WARMUP, "warmup_steps": steps}}


def early_stopping(value: Any, has: Has) -> Settings | str:
    """Return the callback for a patience, a criterion, or a block of both."""
    if value is False or value is None or str(value).lower() in ("false", "none", "0", "null"):
        return "There is no early stopping unless trainer.callbacks has it: delete the line."
    given = dict(value) if isinstance(value, Mapping) else {}
    monitor, mode = _monitor(given.get("monitor", given.get("criterion", "valid/loss")))
    if isinstance(value, list | tuple) and len(value) >= 2:  # ESPnet2: [valid, loss, min]
        monitor, mode = _monitor("/".join(map(str, value[:2])))
    elif isinstance(value, int | float | str) and not isinstance(value, bool):
        given["patience"] = value
    callback: Settings = {"_target_": STOPPING, "monitor": monitor}
    callback["patience"] = _count_of("patience", given.get("patience", 3))["patience"]
    if given.get("mode", mode) != "min":
        callback["mode"] = given.get("mode", mode)
    if has("trainer.callbacks"):
        node = ", ".join(f"{key}: {part}" for key, part in callback.items())
        return f"It is a callback; add to the list under trainer.callbacks: {{{node}}}"
    return {"trainer.callbacks": [callback]}


def _monitor(name: Any) -> tuple[str, str]:
    """Return our name of a metric, and whether less or more of it is better."""
    plain = re.sub(r"^(eval|val|valid|validation|dev)[_/.]", "", str(name)).strip("_/")
    fewer = re.search(r"loss|wer|cer|ter|eer|err|ppl|perplexity|mcd", plain, re.IGNORECASE)
    is_train = plain.startswith(("train/", "train_"))
    return (plain if is_train else f"valid/{plain}"), "min" if fewer else "max"


def kept_checkpoints(value: Any, has: Has) -> Settings | str:
    """Return how many of the best checkpoints are kept."""
    many = [count(one) for one in value] if isinstance(value, list | tuple) and value else value
    best = max(many) if isinstance(many, list) else many
    if str(best) in ("-1", "None"):
        return "All cannot be kept; say how many: best_model_criterion=[[valid/loss,3,min]]"
    k = _count_of("best_model_criterion", best)["best_model_criterion"]
    return {"best_model_criterion": [["valid/loss", k, "min"]]}


def best_by(value: Any, has: Has) -> Settings | str:
    """Return the metric that the best checkpoints are chosen by."""
    monitor, mode = _monitor(text(value))
    return {"best_model_criterion": [[monitor, 3, mode]]}


def precision(value: Any, has: Has) -> Settings | str:
    """Return Lightning's word for a number format."""
    word = str(value).lower().replace("torch.", "")
    words = {
        **dict.fromkeys(("16", "fp16", "float16", "half", "16-mixed", "amp", "true"), "16-mixed"),
        **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed"), "bf16-mixed"),
        **dict.fromkeys(
            ("32", "fp32", "float32", "32-true", "no", "false", "none", "single"), "32-true"
        ),
        **dict.fromkeys(("64", "float64", "64-true", "double"), "64-true"),
        **{exact: exact for exact in ("bf16-true", "16-true", "transformer-engine")},
    }
    if word not in words:
        raise UnfitKey(
            f"trainer.precision takes 32-true, bf16-mixed or 16-mixed, not {value!r:.60}."
        )
    return {"trainer.precision": words[word]}


def with_workers(name: str, convert: Callable[[Any], Any]) -> Way:
    """Return the way to a setting of the loader's workers, which there must be."""
    return to(f"dataloader.train.{name}", convert, {"dataloader.train.num_workers": 2})


def logger(value: Any, has: Has) -> Settings | str:
    """Return what writes the curves."""
    word = str(value[0] if isinstance(value, list) and len(value) == 1 else value).lower()
    if word in ("none", "false", "no"):
        return {"trainer.logger": False}
    if isinstance(value, Mapping | list) and word != "tensorboard" and "_target_" in str(value):
        return {"trainer.logger": value}
    if word in ("tensorboard", "true", "all"):
        return "TensorBoard is on by default, in exp_dir/tensorboard: delete the line."
    kinds = {"wandb": "WandbLogger", "mlflow": "MLFlowLogger", "csv": "CSVLogger"}
    kind = kinds.get(word, "CSVLogger")
    folder = ", save_dir: '${exp_dir}'" if kind != "MLFlowLogger" else ""
    return (
        "Loggers are classes of Lightning: trainer: {logger: [{_target_: "
        f"lightning.pytorch.loggers.{kind}{folder}}}]}}"
    )


def decoder(name: str, ours: str = "", convert: Callable[[Any], Any] = number) -> Way:
    """Return the way to an argument of the decoder, if the config has it."""
    ours = ours or name

    def write(value: Any, has: Has) -> Settings | str:
        for key in (f"model.decoder.{ours}", f"provider.params.{name}", f"model.{name}"):
            if has(key):
                return to(key, convert)(value, has)
        beam = "espnet3.components.decoding."
        beam += "joint_beam.JointBeam" if ours in _OF_JOINT else "ctc_beam.PrefixBeamCTC"
        return (
            "It is an argument of the decoder, which this config lacks. With one that has it: "
            f"model: {{decoder: {{_target_: {beam}, {ours}: {value}}}}}"
        )

    return write


_OF_JOINT = ("ctc_weight", "lm_weight", "length_bonus", "max_length_ratio")


def length_ratio(value: Any) -> float | int:
    """Return ESPnet2's `maxlenratio`, whose 0 means as many tokens as frames."""
    found = not_negative(value)
    return found if found else 1.0


def vocabulary(value: Any, has: Has) -> Settings | str:
    """Return the size of a vocabulary, with a tokenizer that has one."""
    more = {} if has("tokenizer.vocab_size") else {"tokenizer.model_type": "unigram"}
    return to("tokenizer.vocab_size", lambda size: whole(size, least=4), more)(value, has)


def token_type(value: Any, has: Has) -> Settings | str:
    """Return the kind of tokens."""
    word = str(value).lower()
    if word in ("char", "chars", "character", "characters"):
        unset = {"tokenizer.vocab_size": None} if has("tokenizer.vocab_size") else {}
        return {"tokenizer.model_type": "characters", **unset}
    if word not in ("bpe", "unigram"):
        return (
            f"There are no tokens of type {value}; tokenizer.model_type is characters, bpe or "
            "unigram, and others are a class of your own, see docs/asr.md."
        )
    more = {} if has("tokenizer.vocab_size") else {"tokenizer.vocab_size": 500}
    return {"tokenizer.model_type": word, **more}


def packing(value: Any, has: Has) -> Settings | str:
    """Return a block of the public ESPnet3, as far as its keys are those of `pack`."""
    if isinstance(value, Mapping) and value and set(value) <= set(_PACK_KEYS):
        return {"pack": dict(value)}
    return f"What pack_model reads is the block pack, with the keys {', '.join(_PACK_KEYS)}."


def option(name: str) -> Way:
    """Return the way to an option of the command line that names a file."""

    def write(value: Any, has: Has) -> str:
        file = value if isinstance(value, str) and value else "FILE"
        return f"A config is an option of its own: --{name} {file}"

    return write


def of_jobs(name: str) -> Way:
    """Return the way to what a job of a worker asks for, if there are jobs."""

    def write(value: Any, has: Has) -> Settings | str:
        if has("parallel.options"):
            return {f"parallel.options.{name}": value}
        return (
            "It is for jobs, which env: local does not submit: parallel: {env: slurm, options: "
            f"{{{name}: {flow([value])[1:-1]}}}}}"
        )

    return write


def evaluation(value: Any, has: Has) -> Settings | str:
    """Return when a training validates."""
    word = str(value).lower().rpartition(".")[2]
    if word in ("no", "false", "none"):
        return {"trainer.limit_val_batches": 0}
    if word == "steps":
        return "Write how many batches lie between two validations: trainer.val_check_interval=500"
    return "It is done after each epoch by default: delete the line."


def batches_between(value: Any, has: Has) -> Settings | str:
    """Return how many batches, or which share of an epoch, lie between two validations."""
    found = positive(value)
    if isinstance(found, float) and found <= 1:
        return {"trainer.val_check_interval": found}
    # Without the second, more than an epoch has would be refused.
    return {"trainer.val_check_interval": count(value), "trainer.check_val_every_n_epoch": None}


_GPU_EACH = f"{TWO_LAYERS} Each worker of local_gpu has a GPU of its own."
DEVICES: Rule = (
    Place(TRAIN, devices, f"{TWO_LAYERS} GPUs also need trainer.accelerator: gpu or auto."),
    Place(INFER, gpu_workers, _GPU_EACH),
    Place(WORKERS, gpu_workers_without_model, _GPU_EACH),
)
GPUS: Rule = (Place(TRAIN, gpus, TWO_LAYERS), *DEVICES[1:])
N_WORKERS: Rule = (
    Place(WORKERS, to("parallel.n_workers", count), TWO_LAYERS),
    Place(TRAIN, devices, TWO_LAYERS),
)
LOADER_WORKERS: Rule = (
    Place(TRAIN, to("dataloader.train.num_workers", whole), "They read the samples to train on."),
    Place(WORKERS, to("parallel.n_workers", count), TWO_LAYERS),
)
BATCH_SIZE: Rule = (
    Place(TRAIN, batch_size, "It is the batch of one process."),
    Place(INFER, to("batch_size", count), "The batch of infer stands at the top."),
    Place(STATISTICS, to("collect_stats.batch_size", count), "The stage has a batch of its own."),
)
PACKING: Rule = (Place(PACK, packing, "The block has another name here."),)

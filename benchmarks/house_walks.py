"""Which files of ours four ordinary things enter: a function of them is called, not only imported.

Every Python that a walk starts notes the functions that it calls, by a `sitecustomize` of ours and
`sys.setprofile`; what is called while a module is imported does not count.
"""

import os
import subprocess
import sys
import tempfile
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

PACKAGE = "espnet3"
_DEADLINE = 300.0

TRACER = """\
import os, sys, threading

_folder, _root = os.environ["HOUSE_NOTES"], os.environ["HOUSE_ROOT"]
_seen, _file = {}, None


def _note(frame, event, _):
    if event != "call":
        return
    code = frame.f_code
    if id(code) in _seen:
        return
    if not code.co_filename.startswith(_root):
        _seen[id(code)] = code  # kept, or its number could become that of another
        return
    above = frame
    while above is not None:
        if above.f_code.co_filename.startswith("<frozen importlib"):
            return
        above = above.f_back
    _seen[id(code)] = code
    if code.co_name != "<module>":
        _write(f"{os.path.relpath(code.co_filename, _root)}\\t{code.co_qualname}\\n")


def _write(line):
    # At once, as many a worker is killed.
    global _file
    if _file is None or _file[0] != os.getpid():
        name = os.path.join(_folder, str(os.getpid()))
        _file = (os.getpid(), os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    os.write(_file[1], line.encode())


def start():
    threading.setprofile(_note)
    sys.setprofile(_note)


def stop():
    threading.setprofile(None)
    sys.setprofile(None)


if os.environ.get("HOUSE_FROM_START"):
    start()
"""

LOCAL = """\
import os
import sys
from pathlib import Path
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.parallel import set_parallel


class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {}

    def build_worker_setup_fn(self):
        return dict


class Runner(BaseRunner):
    @staticmethod
    def forward(idx, **env):
        return idx


if __name__ == "__main__":
    os.environ["HOUSE_FROM_START"] = "1"  # of the processes that this one starts
    set_parallel(%r)
    %s
    Runner(Provider({}), output_dir=Path("out"))(range(1000))
"""

# Not an import: what a script imports is part of its fingerprint.
_START = 'sys.modules["sitecustomize"].start()'

RUN = """\
import sys
from espnet3.cli.recipe import run_recipe
from espnet3.systems.asr.system import ASRSystem

if __name__ == "__main__":
    sys.exit(run_recipe(ASRSystem))
"""

STEPS = """\
import sys
from lightning.pytorch import Callback


class Steps(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == 3:
            sys.modules["sitecustomize"].start()
        if batch_idx == 6:
            sys.modules["sitecustomize"].stop()
"""

TRAINING = """\
dataset:
  train: [{data_src: jsonl, data_src_args: {path: "data/train.jsonl", sample_rate: 8000}}]
  valid: [{data_src: jsonl, data_src_args: {path: "data/valid.jsonl", sample_rate: 8000}}]
  preprocessor: {_target_: espnet3.systems.asr.preprocessor.Tokenize, tokenizer: exp/tokenizer}
tokenizer: {model_type: characters, save_path: exp/tokenizer}
dataloader: {train: {batch_size: 2}, valid: {batch_size: 2}}
model:
  _target_: espnet3.systems.asr.model.ASRModel
  tokenizer: exp/tokenizer
  frontend: {_target_: espnet3.components.models.log_mel.LogMel, sample_rate: 8000, n_mels: 20}
  encoder:
    _target_: espnet3.components.models.tdnn.TDNN
    input_size: 20
    n_channels: 16
    n_layers: 2
optimizer: {_target_: torch.optim.AdamW, lr: 0.001}
scheduler: {_target_: torch.optim.lr_scheduler.OneCycleLR, max_lr: 0.001}
best_model_criterion: [[valid/loss, 1, min]]
trainer:
  accelerator: cpu
  devices: 1
  max_epochs: 1
  gradient_clip_val: 5.0
  callbacks: [{_target_: src.steps.Steps}]
"""

INFERENCE = """\
dataset:
  test: [{name: test, data_src: jsonl, data_src_args: {path: data/test.jsonl}}]
model:
  _target_: espnet3.systems.asr.inference.Speech2Text
  weights: ${exp_dir}/valid.loss.ave_1best.safetensors
  decoder: {_target_: espnet3.components.decoding.ctc_greedy.GreedyCTC}
device: cpu
input_key: speech
output_fn: espnet3.systems.asr.inference.output_fn
output_keys: [hyp, ref]
parallel: {env: local, n_workers: 1}
"""


def walk_all(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each walk with the functions that it called: file, tab, name."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, walk in WALKS.items():
            yield name, walk(Walk(root, Path(scratch) / walk.__name__))


class Walk:
    """A folder to run programs in, and what they note."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root.resolve(), folder
        self.notes = folder / "notes"
        self.notes.mkdir(parents=True)
        self.write("site/sitecustomize.py", TRACER)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, *words: str, traced: bool = False) -> None:
        """Run a Python program; it notes what it calls from its start if `traced`."""
        paths = os.pathsep.join(map(str, (self.folder / "site", self.root)))
        environment = {
            **os.environ,
            "PYTHONPATH": paths,
            "HOUSE_NOTES": str(self.notes),
            "HOUSE_ROOT": str(self.root / PACKAGE),
            "HOUSE_FROM_START": "1" if traced else "",
        }
        ended = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_DEADLINE,
        )
        if ended.returncode:
            raise RuntimeError(f"{' '.join(words)} failed:\n{ended.stdout}")

    def entered(self) -> list[str]:
        """Return what all processes have noted."""
        texts = [path.read_text() for path in self.notes.iterdir()]
        return sorted({line for text in texts for line in text.splitlines()})


def local_run(walk: Walk) -> list[str]:
    """Run 1,000 items on two local workers."""
    walk.write("main.py", LOCAL % ({"env": "local", "n_workers": 2}, _START))
    walk.run("main.py")
    return walk.entered()


def detached_worker(walk: Walk) -> list[str]:
    """Leave the same run to a detached worker on this machine; its starter does not count."""
    walk.write("main.py", LOCAL % ({"env": "local", "n_workers": 1, "mode": "async"}, ""))
    walk.run("main.py")
    walk.run("-m", "espnet3.cli", "wait", "out")
    return walk.entered()


def training_step(walk: Walk) -> list[str]:
    """Train with batches of this process; three steps in the middle count."""
    _make_recipe(walk, n_train=20)
    walk.run("run.py", *_TRAIN)
    return walk.entered()


def inference(walk: Walk) -> list[str]:
    """Recognise one utterance with `run.py --stages infer`, in one process."""
    _make_recipe(walk, n_train=20)
    walk.run("run.py", *_TRAIN)
    for path in walk.notes.iterdir():
        path.unlink()
    walk.run("run.py", *_INFER, traced=True)
    return walk.entered()


_TRAIN = ("--stages", "train_tokenizer", "train", "--training_config", "conf/training.yaml")
_INFER = ("--stages", "infer", *_TRAIN[-2:], "--inference_config", "conf/inference.yaml")


def _make_recipe(walk: Walk, n_train: int) -> None:
    walk.write("run.py", RUN)
    walk.write("src/__init__.py", "")
    walk.write("src/steps.py", STEPS)
    walk.write("conf/training.yaml", TRAINING)
    walk.write("conf/inference.yaml", INFERENCE)
    for split, number in (("train", n_train), ("valid", 2), ("test", 1)):
        walk.write(f"data/{split}.jsonl", "".join(_row(f"{split}{i}") for i in range(number)))
        for i in range(number):
            with wave.open(str(walk.folder / f"data/{split}{i}.wav"), "wb") as file:
                file.setparams((1, 2, 8000, 0, "NONE", ""))
                file.writeframes(bytes(range(256)) * 64)


def _row(id: str) -> str:
    return f'{{"utt_id": "{id}", "audio": "{id}.wav", "text": "one two", "duration": 1.024}}\n'


WALKS: dict[str, Callable[[Walk], list[str]]] = {
    "`runner(range(1000))` on 2 local workers": local_run,
    "one utterance through `run.py --stages infer`": inference,
    "a training step": training_step,
    "a detached worker and its child": detached_worker,
}

"""Compare a recipe with a model of 1 GB against the run in its folder: first time, and second.

The first time all of the model is read, the second what is remembered of it is looked up. Reading
is measured against loading the same file, which each worker does, both from the file system's
cache. A model is a folder as `save_pretrained` makes it, with one file of weights.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, best_of
from espnet3.config.fingerprint import file_identity
from espnet3.parallel import BaseRunner
from espnet3.parallel.folder_run import RunRequest, open_run
from espnet3.parallel.identity import changes, describe_run
from espnet3.systems.base.inference_provider import InferenceProvider

N_TENSORS = 100
TENSOR_BYTES = 10_000_000
LIMIT_READ = 1.0
LIMIT_AGAIN_MS = 50.0
_N_ROUNDS = 5
_N_KEYS = 300


class Runner(BaseRunner):
    """Stands for that of inference."""

    @staticmethod
    def forward(idx: int) -> int:
        """Do nothing; it is never called."""
        return idx


def measure() -> Iterator[Figure]:
    """Measure the file alone, then all that a second call of a recipe compares."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.environ["ESPNET3_CACHE"] = str(root / "cache")
        try:
            yield from _measure(root)
        finally:
            del os.environ["ESPNET3_CACHE"]


def _measure(root: Path) -> Iterator[Figure]:
    weights = _make_model(root / "model")
    size = f"{weights.stat().st_size / 1e9:.1f} GB"

    def read() -> None:
        shutil.rmtree(root / "cache", ignore_errors=True)
        file_identity(weights)

    cold, load = best_of(_N_ROUNDS, read, lambda: _load(weights))
    yield Figure(f"content of {size}, first time; against loading it", cold, "s", load, LIMIT_READ)
    request = _request(root)
    manifest = open_run(request, lambda: 1)

    def compare() -> None:
        described = describe_run(_runner(root), range(1000))
        assert not changes(manifest, described, outputs=request.outputs)

    (again,) = best_of(20, compare)
    what = f"fingerprint of a recipe with {_N_KEYS} keys and a model of {size}, second time"
    yield Figure(what, again * 1e3, "ms", limit=LIMIT_AGAIN_MS)


def _make_model(folder: Path) -> Path:
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "config.json").write_text("{}")
    tensors = {f"layer.{i}": torch.rand(TENSOR_BYTES // 4) for i in range(N_TENSORS)}
    save_file(tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


def _load(weights: Path) -> None:
    """Load weights into memory of their own, as a model has them."""
    from safetensors.torch import load_file

    copied = {name: tensor.clone() for name, tensor in load_file(weights).items()}
    assert len(copied) == N_TENSORS


def _runner(root: Path) -> Runner:
    config: dict[str, Any] = {"model": {"pretrained": str(root / "model")}}
    config["settings"] = {f"key_{i}": f"some text with number {i}" for i in range(_N_KEYS)}
    return Runner(InferenceProvider(config))


def _request(root: Path) -> RunRequest:
    described = describe_run(_runner(root), range(1000))
    out = root / "out"
    return RunRequest(out, out, "Runner", range(1000), None, described, None)

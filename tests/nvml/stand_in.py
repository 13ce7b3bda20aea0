"""A machine with stand-in GPUs, for programs that are started on it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def build_library(folder: Path) -> Path:
    """Compile the stand-in for the driver's library; return its folder."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the stand-in for NVML needs a C compiler (cc or gcc)")
    library = folder / "libnvidia-ml.so.1"
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        "-Wl,-soname,libnvidia-ml.so.1",
    ]
    subprocess.run([*command, "-o", str(library), str(HERE / "fake_nvml.c")], check=True)
    return folder


def environment(library: Path, n_gpus: int, visible: str | None, lost: int | None = None) -> dict:
    """Return the variables of a program that sees `n_gpus` GPUs, as far as they are visible."""
    variables = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML_DEVICES": str(n_gpus),
        "FAKE_NVML_LOST": "" if lost is None else str(lost),
    }
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        variables["CUDA_VISIBLE_DEVICES"] = visible
    return variables


def uuid(index: int) -> str:
    """Return what the stand-in calls a GPU."""
    return f"GPU-{0x5EED0000 + index:08x}-feed-4bad-8bed-000000000000"


def run(library, tmp_path, way, n_workers, *, setting=None, python=sys.executable, per_gpu=1):
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    return subprocess.run(
        [python, "-m", "tests.nvml.job", way, str(n_workers), str(meeting), str(per_gpu)],
        env={**environment(library, 4, setting), "LOCAL_RANK": "3"},  # of a job of torchrun, say
        capture_output=True,
        text=True,
        timeout=170,
    )


def assert_each_has_its_own(workers, gpus):
    turned = [gpus[i:] + gpus[:i] for i in range(len(gpus))]
    assert sorted(each["visible"] for each in workers) == sorted(turned)
    assert [each["own"] for each in workers] == [each["visible"][0] for each in workers]

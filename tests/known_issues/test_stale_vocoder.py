"""Keys such as `parallel_wavegan`, and modules such as `abcnews`, were not in the fingerprint."""

import subprocess
import sys

from espnet3.parallel import BaseRunner
from espnet3.parallel.identity import describe_code, describe_run
from espnet3.systems.base.inference_provider import InferenceProvider


def describe(config):
    return describe_run(BaseRunner(InferenceProvider(config)), range(3))


def test_a_model_called_parallel_counts():
    assert describe({"parallel_wavegan": {"path": "a"}}) != describe(
        {"parallel_wavegan": {"path": "b"}}
    )
    assert describe({"device_noise": 1}) != describe({"device_noise": 2})


def test_a_second_parallel_block_does_not_count():
    gpu = {"env": "local", "n_workers": 2}
    assert describe({"beam": 1, "parallel_gpu": gpu}) == describe({"beam": 1})


def test_the_code_of_a_module_whose_name_begins_like_abc_counts():
    class First(BaseRunner):
        @staticmethod
        def forward(idx):
            return 1

    class Second(BaseRunner):
        @staticmethod
        def forward(idx):
            return 2

    First.__module__ = Second.__module__ = "abcnews.run"
    assert describe_code(First) != describe_code(Second)


def test_a_set_in_a_script_from_a_pipe_is_the_same_in_each_process():
    script = (
        "from espnet3.parallel.identity import describe_code\n"
        "class Runner:\n"
        "    def forward(idx):\n"
        "        return idx in {'a', 'b', 'c', 'd', 'e'}\n"
        "print(describe_code(Runner))\n"
    )
    run = [sys.executable, "-c", f"exec({script!r})"]
    digests = {subprocess.check_output(run, env={"PYTHONHASHSEED": str(seed)}) for seed in range(4)}
    assert len(digests) == 1

"""A dataset that draws with torch was seeded only where something else had imported torch."""

import json
import subprocess
import sys

DATASET = """
import torch

class Dataset:
    def __init__(self, recipe_dir=None):
        self.value = torch.rand(1).item()

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return {"utt_id": "a", "x": self.value}

    def fingerprint(self):
        return str(self.value)
"""
DESCRIBE = """
import json, sys
if sys.argv[1] == "loaded":
    import torch
assert ("torch" in sys.modules) == (sys.argv[1] == "loaded")
from espnet3.systems.base.training_fingerprint import describe_training_run
values = {"dataset": {"train": [{"data_src": "drawn"}]}, "recipe_dir": "."}
print(json.dumps(describe_training_run(values).fingerprint))
"""


def test_data_is_described_alike_whether_torch_was_loaded_before_or_comes_with_it(tmp_path):
    (tmp_path / "drawn.py").write_text(DATASET)

    def describe(how):
        command = [sys.executable, "-c", DESCRIBE, how]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    described = describe("loaded")

    assert described["dataset.train.0.content"]
    assert describe("later") == described

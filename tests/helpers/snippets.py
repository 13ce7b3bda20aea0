"""Snippets and blocks of the documentation, as printed."""

from pathlib import Path

SNIPPETS = Path(__file__).parents[1] / "contract" / "snippets"
# What the provider of the guide wraps its dataset in, and does not print.
FILTERED = """

class FilteredDataset:
    def __init__(self, dataset, min_duration):
        durations = dataset.durations()
        self.kept = [dataset[i] for i in range(len(dataset)) if durations[i] >= min_duration]

    def __len__(self):
        return len(self.kept)

    def __getitem__(self, i):
        return self.kept[i]
"""


def read_snippet(name: str) -> str:
    """Return a snippet of the documentation."""
    return (SNIPPETS / f"{name}.py.txt").read_text(encoding="utf-8")


SLURM_001 = """\
parallel_gpu:
  env: slurm
  n_workers: 4
  options:
    queue: gpu
    cores: 8
    processes: 1
    memory: 16GB
    walltime: 01:00:00
    job_extra_directives:
      - "--gres=gpu:1"
"""

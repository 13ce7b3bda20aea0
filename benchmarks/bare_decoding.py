"""Decode every second batch of a manifest with a recogniser, in a plain loop without a runner.

Run as `python -m benchmarks.bare_decoding MODEL.safetensors DECODER MANIFEST FIRST STEP`.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import yaml

from benchmarks.digits_recipe import BATCH_SECONDS, DECODERS
from espnet3.config.instantiate import instantiate
from espnet3.io.tables import read_jsonl
from espnet3.shards.plan import batch_by_cost
from espnet3.systems.asr.inference import Speech2Text


def main(weights: str, decoder: str, manifest: str, first: int, step: int) -> None:
    """Decode batches number `first`, `first + step`, ..., and write the texts."""
    torch.set_num_threads(1)
    model = Speech2Text(weights, decoder=instantiate(yaml.safe_load(DECODERS[decoder])))
    rows = list(read_jsonl(Path(manifest)))
    planned = batch_by_cost(np.array([row["duration"] for row in rows]), BATCH_SECONDS)
    edges = list(zip(planned.edges, planned.edges[1:], strict=False))
    folder = Path(manifest).parent
    with Path(f"{manifest}.{first}").open("w") as file:
        for begin, end in edges[first::step]:
            own = [rows[i] for i in planned.order[begin:end]]
            found = model([str(folder / row["audio"]) for row in own])
            for row, one in zip(own, found, strict=True):
                file.write(f"{row['utt_id']} {one.text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:6]))  # type: ignore[arg-type]

"""The loss of a model of ESPnet2 on several ranks."""

import subprocess
import sys

RANK = """
import sys

import torch
import torch.distributed as dist
from torch import nn

from espnet3.systems.espnet2.model import ESPnet2Model

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
model = ESPnet2Model.__new__(ESPnet2Model)
nn.Module.__init__(model)
loss, weight = [(torch.tensor(2.0), torch.tensor(3)), (torch.tensor(6.0), torch.tensor(1))][rank]
print(float(model.train()._weighted(loss, weight)), float(model.eval()._weighted(loss, weight)))
dist.destroy_process_group()
"""


def test_gradients_of_ranks_average_to_those_of_all_items(tmp_path):
    command = [sys.executable, "-c", RANK]
    store = str(tmp_path / "store")
    ranks = [
        subprocess.Popen([*command, str(rank), store], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=120)[0].split() for rank in ranks]
    training, validation = zip(*[[float(number) for number in one] for one in told], strict=True)
    # (3 items x 2 + 1 item x 6) / 4 items; DDP takes the mean of the two ranks.
    assert sum(training) / 2 == 3.0
    assert validation == (2.0, 6.0)

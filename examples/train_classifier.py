"""A classifier of points, trained from Python: kill it and start it again, and it goes on."""

import torch
from torch import nn

from espnet3.trainer import train


class Classifier(nn.Module):
    """Stands for yours: `forward` takes the fields of a batch, and returns a loss and numbers."""

    def __init__(self, hidden: int = 16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
        self.output = nn.Linear(hidden, 2)

    def forward(self, point, label):
        logits = self.output(self.encoder(point))
        accuracy = (logits.argmax(-1) == label).float().mean()
        return {"loss": nn.functional.cross_entropy(logits, label), "accuracy": accuracy}


points = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
samples = [{"point": point, "label": int(point.sum() > 0)} for point in points]

config = {
    "exp_dir": "exp/classifier",
    "model": {"hidden": 32},  # arguments of Classifier
    "freeze": ["encoder.*"],  # its weights, and the running statistics of its BatchNorm
    "optimizer": {"_target_": "torch.optim.Adam", "lr": 0.05},
    "dataloader": {"train": {"batch_size": 32}},
    "best_model_criterion": [["valid/accuracy", 1, "max"]],
    "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 50, "callbacks": [{
        "_target_": "lightning.pytorch.callbacks.EarlyStopping",
        "monitor": "valid/accuracy", "mode": "max", "patience": 3,
    }]},
}  # fmt: skip

if __name__ == "__main__":
    result = train(config, model=Classifier, train=samples[:300], valid=samples[300:])
    best = max(epoch["valid/accuracy"] for epoch in result.history)
    print(f"accuracy {best:.2f} after {len(result.history)} epochs: {result.weights}")

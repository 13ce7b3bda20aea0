"""The classifier that `train` trains, and what `infer` calls with its weights."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from espnet3.components.models.log_mel import LogMel
from espnet3.config.instantiate import instantiate
from espnet3.config.load import load_config

Speech = NDArray[np.float32]


class Classifier(nn.Module):
    """Convolutions over a log-mel spectrum, their mean over time, and a linear layer.

    Args:
        classes: Their names; `label` in a sample is a position in this list.
        sample_rate: Of the audio.
        n_mels: Bins of the spectrum.
        n_channels: Of the convolutions.
    """

    def __init__(
        self, classes: list[str], sample_rate: int, n_mels: int = 40, n_channels: int = 32
    ) -> None:
        super().__init__()
        self.classes = list(classes)
        self.frontend = LogMel(sample_rate=sample_rate, n_mels=n_mels)
        self.encoder = nn.Sequential(
            nn.Conv1d(n_mels, n_channels, 9, padding=4),
            nn.ReLU(),
            nn.Conv1d(n_channels, n_channels, 9, padding=4, stride=2),
            nn.ReLU(),
        )
        self.output = nn.Linear(n_channels, len(self.classes))

    def forward(self, speech: Tensor, speech_lengths: Tensor, label: Tensor) -> dict[str, Tensor]:
        """Return the loss, and beside it what is to be logged; fields of a batch come by name."""
        logits = self.classify(speech, speech_lengths)
        accuracy = (logits.argmax(-1) == label).float().mean()
        return {"loss": nn.functional.cross_entropy(logits, label), "accuracy": accuracy}

    def classify(self, speech: Tensor, speech_lengths: Tensor) -> Tensor:
        """Return a score for each class, [batch, classes]."""
        feats, n_frames = self.frontend(speech, speech_lengths)
        hidden = self.encoder(feats.transpose(1, 2)).transpose(1, 2)
        # Frames of padding do not count: a clip gets the same class in any batch.
        n_kept = (n_frames + 1) // 2
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        is_speech = (positions < n_kept[:, None]).unsqueeze(-1)
        mean = (hidden * is_speech).sum(1) / n_kept.clamp_min(1)[:, None]
        return self.output(mean)


class Predictor:
    """The trained classifier, called with the audio of one clip or of a list of them.

    Args:
        weights: `<monitor>.ave_<K>best.safetensors`; `config.yaml` beside it has the model.
        device: Given by espnet3: `cpu`, or this worker's GPU.
    """

    def __init__(self, weights: str, device: str = "cpu") -> None:
        self.device = torch.device(device)
        training = load_config(Path(weights).with_name("config.yaml")).config
        self.model = instantiate(training["model"], key="model")
        self.model.load_state_dict(load_file(weights))
        self.model.to(self.device).eval()

    def __call__(self, speech: Speech | list[Speech]) -> Any:
        """Return class and probability for a clip, or for each of a list."""
        return self._predict(speech) if isinstance(speech, list) else self._predict([speech])[0]

    @torch.inference_mode()
    def _predict(self, batch: list[Speech]) -> list[dict[str, str]]:
        lengths = torch.tensor([len(one) for one in batch], device=self.device)
        clips = [torch.from_numpy(one).to(self.device) for one in batch]
        padded = nn.utils.rnn.pad_sequence(clips, batch_first=True)
        highest, best = self.model.classify(padded, lengths).softmax(-1).max(-1)
        names = [self.model.classes[i] for i in best.tolist()]
        # Each key becomes a file: found.scp, confidence.scp.
        return [
            {"found": name, "confidence": f"{probability:.2f}"}
            for name, probability in zip(names, highest.tolist(), strict=True)
        ]

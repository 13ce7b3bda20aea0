"""The trained network as the model of `infer`; see conf/inference_trained.yaml."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from espnet3.config.instantiate import instantiate
from espnet3.config.load import load_config
from src.model import Hypothesis
from src.network import BLANK, DIGITS, collapse

Speech = NDArray[np.float32]


class Recognizer:
    """Builds the network as it was trained, with the weights that stage 5 averaged.

    Args:
        device: Given by espnet3: `cpu`, or this worker's GPU.
        weights: `<monitor>.ave_<K>best.safetensors`; `config.yaml` beside it has the network.
        threshold: The least probability of a digit; a frame without one counts as a pause.
    """

    def __init__(self, weights: str, device: str = "cpu", threshold: float = 0.5) -> None:
        self.device = torch.device(device)
        self.threshold = threshold
        training = load_config(Path(weights).with_name("config.yaml")).config
        self.network = instantiate(training["model"], key="model")
        self.network.load_state_dict(load_file(weights))
        self.network.to(self.device).eval()

    def __call__(self, speech: Speech | list[Speech]) -> Any:
        """Return the hypothesis for one utterance, or one for each of a list."""
        return self._decode(speech) if isinstance(speech, list) else self._decode([speech])[0]

    @torch.inference_mode()
    def _decode(self, batch: list[Speech]) -> list[Hypothesis]:
        lengths = torch.tensor([len(speech) for speech in batch], device=self.device)
        tensors = [torch.from_numpy(speech).to(self.device) for speech in batch]
        padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
        log_probs, n_frames = self.network.recognize(padded, lengths)
        rows = zip(log_probs.exp(), n_frames.tolist(), strict=True)
        return [self._search(row[:n]) for row, n in rows]

    def _search(self, probs: torch.Tensor) -> Hypothesis:
        highest, best = probs.max(-1)
        best = best.where(highest > self.threshold, BLANK)
        heard = highest[best != BLANK]
        keys = [DIGITS[token - 1] for token in collapse(best)]
        confidence = float(heard.mean()) if keys else 0.0
        return Hypothesis(keys, confidence, probs.cpu().numpy())

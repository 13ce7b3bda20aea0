"""Recognise speech with a model of Hugging Face, fine-tuned here or as it comes."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from espnet3.errors import ConfigError
from espnet3.systems.asr.huggingface import (
    HuggingFaceCTC,
    HuggingFaceSeq2Seq,
    load_network_config,
    transformers,
)
from espnet3.systems.asr.recognizer import Candidate, Recognition, Recognizer, to_samples
from espnet3.systems.asr.trained_model import load_trained


class HuggingFaceSpeech2Text:
    """Calls a CTC or sequence-to-sequence model of Hugging Face, one batch at a time.

    Args:
        model: A folder that `save_pretrained` wrote, with its processor, or a name on the Hub.
        device: `cpu`, or a GPU, such as `cuda:0`.
        weights: Instead of `model`: those of a `HuggingFaceCTC` or `HuggingFaceSeq2Seq` that was
            trained here; `config.yaml` beside them has the model.
        generate: Of a sequence-to-sequence model: arguments of `generate`, such as
            `{language: en, num_beams: 5}`.
        **settings: Of a CTC model: `decoder`, `n_best`, `word_times`, `window_seconds`, ..., as of
            `Speech2Text`.

    Raises:
        ConfigError: There is no such model, or settings do not fit its kind.
    """

    def __init__(
        self,
        model: str | None = None,
        device: str = "cpu",
        *,
        weights: str | os.PathLike[str] | None = None,
        generate: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        if (model is None) == (weights is None):
            raise ConfigError(
                "HuggingFaceSpeech2Text needs either a model or weights.",
                fix="Write: model: "
                "openai/whisper-tiny, or weights: ${exp_dir}/valid.loss.ave_3best.safetensors",
            )
        built: Any = _pretrained(model) if model is not None else load_trained(Path(weights or ""))
        self.model = built.to(device).eval()
        self.device = torch.device(device)
        self.sample_rate: int = self.model.sample_rate
        self._recognizer: Recognizer | None = None
        if isinstance(built, HuggingFaceCTC):
            self._refuse("generate", generate, "a CTC model")
            self._recognizer = Recognizer(self.model, device, **settings)
        else:
            self._refuse(next(iter(settings), ""), settings, "a sequence-to-sequence model")
            self.model.generate_options.update(generate or {})

    def __call__(self, speech: Any, sample_rate: int | None = None) -> Any:
        """Return a `Recognition`, or a list of them for a list; see `Recognizer`."""
        if self._recognizer is not None:
            return self._recognizer(speech, sample_rate)
        many = isinstance(speech, list | tuple)
        results = self._transcribe(speech if many else [speech], sample_rate)
        return results if many else results[0]

    @torch.inference_mode()
    def _transcribe(self, batch: Any, sample_rate: int | None) -> list[Recognition]:
        if not batch:
            return []
        samples = [to_samples(one, sample_rate, self.sample_rate) for one in batch]
        tensors = [torch.from_numpy(one) for one in samples]
        lengths = torch.tensor([len(one) for one in samples], device=self.device)
        padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(self.device)
        texts = self.model.transcribe(padded, lengths)
        return [Recognition.of([Candidate(text, tuple(text.split()), 0.0)]) for text in texts]

    @staticmethod
    def _refuse(name: str, value: Any, kind: str) -> None:
        if value:
            raise ConfigError(f"{name} is set, which {kind} does not have.", fix="Delete the line.")


def _pretrained(place: str) -> HuggingFaceCTC | HuggingFaceSeq2Seq:
    config = load_network_config(place, None)
    auto = transformers()
    names = config.architectures or ()
    is_ctc = type(config) in auto.MODEL_FOR_CTC_MAPPING
    is_seq2seq = type(config) in auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING
    if is_ctc and (not is_seq2seq or any(name.endswith("CTC") for name in names)):
        return HuggingFaceCTC(place)
    if is_seq2seq:
        return HuggingFaceSeq2Seq(place)
    raise ConfigError(
        f"{place!r} is a {config.model_type}, which is neither a CTC nor a sequence-to-sequence "
        "model of speech.",
        fix="Give one such as facebook/wav2vec2-base-960h or openai/whisper-tiny",
    )

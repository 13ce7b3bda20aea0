"""Recognise speech with a model of Hugging Face, fine-tuned here or as it comes."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from espnet3.components.decoding.windows import join_texts, split_windows
from espnet3.errors import ConfigError
from espnet3.systems.asr.huggingface import (
    HuggingFaceCTC,
    HuggingFaceSeq2Seq,
    load_network_config,
    transformers,
)
from espnet3.systems.asr.inference import (
    Candidate,
    Recognition,
    Recognizer,
    Samples,
    to_batch,
)
from espnet3.systems.asr.inference_checks import OVERLAP_SECONDS, check_windows
from espnet3.systems.asr.trained_model import load_trained


class HuggingFaceSpeech2Text:
    """Calls a CTC or sequence-to-sequence model of Hugging Face, one batch at a time.

    Args:
        pretrained: A folder that `save_pretrained` wrote, with its processor, or a name on the Hub;
            the same key as of the models that are trained.
        device: `cpu`, or a GPU, such as `cuda:0`.
        model: The former name of `pretrained`.
        weights: Instead of `pretrained`: those of a `HuggingFaceCTC` or `HuggingFaceSeq2Seq` that
            was trained here; `config.yaml` beside them has the model.
        generate: Of a sequence-to-sequence model: arguments of `generate`, such as
            `{language: en, num_beams: 5}`.
        window_seconds: Longer audio is cut into overlapping windows of this length; the texts of a
            sequence-to-sequence model, which takes no more than its training's, are joined.
        overlap_seconds: Of two neighbouring windows.
        decoder: Of a CTC model, as of `Speech2Text`; so are the next two.
        n_best: Texts to keep.
        word_times: Whether to tell when each word was said.

    Raises:
        ConfigError: There is no such model, or settings do not fit its kind.
    """

    def __init__(  # noqa: PLR0913 - one by one, as a config names them
        self,
        pretrained: str | None = None,
        device: str = "cpu",
        *,
        model: str | None = None,
        weights: str | os.PathLike[str] | None = None,
        generate: Mapping[str, Any] | None = None,
        window_seconds: float | None = None,
        overlap_seconds: float = OVERLAP_SECONDS,
        decoder: Any = None,
        n_best: int | None = None,
        word_times: bool | None = None,
    ) -> None:
        check_windows(window_seconds, overlap_seconds)
        # With both, one of them would silently have no effect.
        if sum(place is not None for place in (pretrained, model, weights)) != 1:
            raise ConfigError(
                "HuggingFaceSpeech2Text needs either a pretrained model or weights.",
                fix="Write: pretrained: "
                "openai/whisper-tiny, or weights: ${exp_dir}/valid.loss.ave_3best.safetensors",
            )
        place = pretrained or model
        built: Any = _pretrained(place) if place is not None else load_trained(Path(weights or ""))
        self.model = built.to(device).eval()
        self.device = torch.device(device)
        self.sample_rate: int = self.model.sample_rate
        self._window = (window_seconds, overlap_seconds)
        self._recognizer: Recognizer | None = None
        if isinstance(built, HuggingFaceCTC):
            self._refuse("generate", generate, "a CTC model")
            self._recognizer = Recognizer(
                self.model,
                device,
                decoder,
                n_best=1 if n_best is None else n_best,
                word_times=bool(word_times),
                window_seconds=window_seconds,
                overlap_seconds=overlap_seconds,
            )
        else:
            of_ctc = {"decoder": decoder, "n_best": n_best, "word_times": word_times}
            for name, value in of_ctc.items():
                self._refuse(name, value is not None, "a sequence-to-sequence model")
            self.model.generate_options.update(generate or {})

    def __call__(self, speech: Any, sample_rate: int | Sequence[int] | None = None) -> Any:
        """Return a `Recognition`, or a list of them for a list; see `Recognizer`."""
        if self._recognizer is not None:
            return self._recognizer(speech, sample_rate)
        many = isinstance(speech, list | tuple)
        results = self._transcribe(speech if many else [speech], sample_rate)
        return results if many else results[0]

    @torch.inference_mode()
    def _transcribe(
        self, batch: Sequence[Any], sample_rate: int | Sequence[int] | None
    ) -> list[Recognition]:
        samples = to_batch(batch, sample_rate, self.sample_rate)
        pieces = [self._pieces(one) for one in samples]
        texts = iter(self._texts([piece for some in pieces for piece in some]))
        joined = [join_texts([next(texts) for _ in some]) for some in pieces]
        # Without a score, as `generate` returns none unless it is asked for.
        return [Recognition.of([Candidate(text, tuple(text.split()), 0.0)]) for text in joined]

    def _pieces(self, samples: Samples) -> list[Samples]:
        """Cut what is too long at once into overlapping windows."""
        seconds, overlap = self._window
        if seconds is None:
            return [samples]
        sizes = round(seconds * self.sample_rate), round(overlap * self.sample_rate)
        return [samples[w.start : w.end] for w in split_windows(len(samples), 1, *sizes)]

    def _texts(self, pieces: Sequence[Samples]) -> list[str]:
        if not pieces:
            return []
        tensors = [torch.from_numpy(one) for one in pieces]
        lengths = torch.tensor([len(one) for one in pieces], device=self.device)
        padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(self.device)
        texts: list[str] = self.model.transcribe(padded, lengths)
        return texts

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
    # A config class may be in both mappings; then the architecture that was saved decides.
    if is_ctc and (not is_seq2seq or any(name.endswith("CTC") for name in names)):
        return HuggingFaceCTC(place)
    if is_seq2seq:
        return HuggingFaceSeq2Seq(place)
    raise ConfigError(
        f"{place!r} is a {config.model_type}, which is neither a CTC nor a sequence-to-sequence "
        "model of speech.",
        fix="Give one such as facebook/wav2vec2-base-960h or openai/whisper-tiny",
    )

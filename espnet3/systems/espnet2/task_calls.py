"""ESPnet2's own inference classes, called for one item: what goes in, and what comes out."""

import argparse
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from espnet3.components.data.audio import read_audio
from espnet3.errors import ConfigError, RecordError
from espnet3.systems.asr.inference import Candidate, Recognition, to_samples
from espnet3.systems.espnet2.package import TASKS, task_class

Item = Mapping[str, Any]
"""The inputs of one item, by ESPnet2's names."""
Call = Callable[[Item], Any]

# ESPnet2's names of the parts of a score, and ours.
_PARTS = {"decoder": "attention"}
_NOT_SCORES = ("length_bonus",)
_DIGITS = 4
WAV = "wav"


def call_of(task: str, theirs: Any, values: Mapping[str, Any], outputs: Sequence[str] = ()) -> Call:
    """Return the function that decodes one item.

    Args:
        task: Of ESPnet2.
        theirs: Its inference class with the trained model in it; of `lm`, the model itself.
        values: The complete config of the training.
        outputs: Of `tts`: what else of ESPnet2's result to return beside the audio.
    """
    if task == "lm":
        return LanguageModelScores(theirs, values)
    if task == "mt":
        preprocess = preprocessor_of(task, values)
        return lambda item: recognition(theirs(preprocess("src_text", item["src_text"])))
    if task == "tts":
        return SpeechSynthesis(theirs, outputs)
    if task == "enh":
        return lambda item: _separated(theirs, item)
    if task == "spk":
        return lambda item: {"embedding": _array(theirs(item["speech"])).reshape(-1)}
    if task == "asr_transducer":
        return lambda item: recognition(theirs.hypotheses_to_results(theirs(item["speech"])))
    return lambda item: recognition(theirs(**item))


def inputs_of(task: str, theirs: Any) -> set[str]:
    """Return the names of what can be given beside the input itself."""
    if task == "enh":
        return set()
    known = {"tts": ("speech", "durations", "spembs", "sids", "lids"), "slu": ("transcript",)}
    parameters = inspect.signature(theirs.__call__).parameters if theirs is not None else {}
    return {name for name in known.get(task, ()) if name in parameters}


def recognition(found: Any) -> Recognition:
    """Return the candidates of a beam search of ESPnet2: text, tokens, ids, hypothesis."""
    # Models with two decoders return the transcripts as well.
    results = found[0] if isinstance(found, tuple) else found
    # It has none where a length is asked for that cannot be reached.
    if not results:
        return Recognition.of([Candidate("", (), -math.inf)])
    candidates = []
    for text, tokens, *_, hypothesis in results:
        scores = getattr(hypothesis, "scores", None) or {}
        parts = {_PARTS.get(k, k): float(v) for k, v in scores.items() if k not in _NOT_SCORES}
        words = text if text is not None else " ".join(tokens)
        candidates.append(Candidate(words, tuple(tokens), float(hypothesis.score), parts))
    return Recognition.of(candidates)


def preprocessor_of(task: str, values: Mapping[str, Any]) -> Callable[[str, Any], Any]:
    """Return the function that makes ids of a text, as in ESPnet2's training."""
    function = task_class(task).build_preprocess_fn(argparse.Namespace(**values), False)

    def preprocess(name: str, text: Any) -> Any:
        if not isinstance(text, str):
            return text  # ids already
        return function("", {name: text})[name]

    return preprocess


class LanguageModelScores:
    """The probability of a text by a language model of ESPnet2.

    Results are `score`, the natural logarithm of the probability, `n_tokens`, which counts the end
    of the text, and `perplexity`. That of a whole test set is exp(-sum of scores / sum of tokens).
    """

    def __init__(self, model: Any, values: Mapping[str, Any]) -> None:
        self._model = model
        self._preprocess = preprocessor_of("lm", values)

    def __call__(self, item: Item) -> dict[str, float]:
        ids = torch.as_tensor(np.asarray(self._preprocess("text", item["text"]), dtype=np.int64))
        device = next(self._model.parameters()).device
        lengths = torch.tensor([len(ids)], device=device)
        losses, n_tokens = self._model.nll(ids[None].to(device), lengths)
        total, count = float(losses.sum()), int(n_tokens.sum())
        score = round(-total, _DIGITS)
        return {"score": score, "n_tokens": count, "perplexity": math.exp(total / count)}


class SpeechSynthesis:
    """Speech of a text: `wav`, and what else of ESPnet2's result is asked for."""

    def __init__(self, theirs: Any, outputs: Sequence[str]) -> None:
        self._theirs = theirs
        self._outputs = tuple(outputs)

    def __call__(self, item: Item) -> dict[str, Any]:
        given = {name: _input(value) for name, value in item.items()}
        found = self._theirs(**given)
        if WAV not in found:
            raise ConfigError(
                "The model makes features, and there is no vocoder that makes audio of them.",
                fix="Write: options: {vocoder_config: PATH, vocoder_file: PATH}, or train with a "
                "feats_extract from which Griffin-Lim can, such as fbank.",
            )
        lacking = next((name for name in self._outputs if name not in found), None)
        if lacking is not None:
            raise ConfigError(
                key="extra_outputs",
                value=list(self._outputs),
                problem=f"but {lacking} is no output of this model",
                fix=f"It has: {', '.join(name for name in found if name != WAV)}",
            )
        return {name: _array(found[name]) for name in (WAV, *self._outputs)}


def _separated(theirs: Any, item: Item) -> dict[str, Any]:
    samples = item["speech_mix"]
    rate = {} if item.get("sample_rate") is None else {"fs": int(item["sample_rate"])}
    found = [_array(one)[0] for one in theirs(samples[None], **rate)]
    n_speakers = theirs.num_spk
    if n_speakers == 1:
        return {"enhanced": found[0]}
    return {f"spk{i + 1}": one for i, one in enumerate(found[:n_speakers])}


def recording(speech: Any, sample_rate: int | None) -> tuple[Any, int | None]:
    """Return samples with all their channels and their rate, for models that take any rate."""
    if isinstance(speech, str | os.PathLike):
        audio = read_audio(speech)
        return audio.samples, audio.sample_rate
    array = speech.detach().cpu().numpy() if hasattr(speech, "detach") else np.asarray(speech)
    if array.ndim > 2:
        raise RecordError(
            f"The speech is an array of shape {list(array.shape)}.",
            fix="Give [samples], or [samples, channels].",
        )
    rate = sample_rate or 16000
    if array.ndim == 1:
        return to_samples(array, rate, rate), sample_rate
    channels = [to_samples(one, rate, rate) for one in array.T]
    return np.stack(channels, axis=1), sample_rate


def _input(value: Any) -> Any:
    return value if isinstance(value, str | np.ndarray | torch.Tensor) else np.asarray(value)


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def names_of_input(task: str) -> tuple[str, ...]:
    """Return what the input may be called: ESPnet2's name, and where it is another one, ours."""
    name = TASKS[task].reads
    other = {"speech_mix": ("speech",), "src_text": ("text",)}
    return (name, *other.get(name, ()))

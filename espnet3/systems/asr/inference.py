"""The trained recogniser, to be called: in `infer`, and in three lines of Python."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espnet3.components.data.audio import change_rate, read_audio
from espnet3.components.data.errors import AudioError, DataError
from espnet3.components.decoding.alignment import Word, word_times
from espnet3.components.decoding.ctc_greedy import GreedyCTC
from espnet3.components.decoding.joint_beam import JointBeam
from espnet3.components.decoding.windows import encode_windows, join_texts, windows_of
from espnet3.config.trust import Trust, under
from espnet3.errors import ConfigError
from espnet3.io.atomic import dump_json
from espnet3.systems.asr.inference_checks import OVERLAP_SECONDS, check_windows, searching_for
from espnet3.systems.asr.trained_model import find_weights, load_trained

Samples = NDArray[np.float32]

_DIGITS = 4


@dataclass(frozen=True)
class Candidate:
    """One of the texts that a decoder found for an utterance."""

    text: str
    tokens: tuple[str, ...]
    """As the tokenizer spells them."""
    score: float
    """Log-probability by which the candidates are ranked; weights of the decoder included."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Its parts by name, unweighted: ctc, attention, lm, ngram."""


@dataclass(frozen=True)
class Recognition:
    """The result for one utterance.

    Example:
        >>> best = Candidate("one two", ("one", "two"), -0.5)
        >>> Recognition.of([best]).text
        'one two'
    """

    text: str
    tokens: tuple[str, ...] = ()
    """As the tokenizer spells them."""
    score: float = 0.0
    """Log-probability of the text, as the decoder ranks it."""
    n_best: tuple[Candidate, ...] = ()
    """The best texts, this one first; as many as were asked for, or found."""
    words: tuple[Word, ...] | None = None
    """With `word_times`: each with `word`, `start` and `end` in seconds, and `confidence`."""

    @classmethod
    def of(
        cls, candidates: list[Candidate], words: tuple[Word, ...] | None = None
    ) -> "Recognition":
        """Make the result of one utterance of its candidates, best first."""
        best = candidates[0]
        return cls(best.text, best.tokens, best.score, tuple(candidates), words)

    def n_best_json(self) -> str:
        """Return the candidates as one line of JSON, best first."""
        rows = []
        for one in self.n_best:
            parts = {name: _rounded(value) for name, value in one.scores.items()}
            row = {"text": one.text, "score": _rounded(one.score)}
            rows.append({**row, "scores": parts} if parts else row)
        return dump_json(rows)

    def words_json(self) -> str:
        """Return the words with their times as one line of JSON."""
        rows = [
            {
                "word": one.word,
                "start": _rounded(one.start),
                "end": _rounded(one.end),
                "confidence": _rounded(one.confidence),
            }
            for one in self.words or ()
        ]
        return dump_json(rows)


def _rounded(value: float) -> float:
    """Leave out the digits that depend on which utterances shared a batch."""
    return round(value, _DIGITS)


class Recognizer:
    """Calls a model that was built already; see `Speech2Text` for one from files.

    Args:
        model: Has `encode`, `ctc_log_probs`, `tokenizer`, `sample_rate`, `frame_seconds`, as
            `ASRModel`; in eval mode.
        device: Where the model is.
        decoder: From what the model computed to hypotheses; `GreedyCTC` if None.
        n_best: Texts to keep of each utterance.
        word_times: Tell when each word was said.
        window_seconds: Longer audio is cut into overlapping windows of this length. Their frames
            are joined, and decoded as one; of an attention decoder, the texts are joined instead,
            and there is no n-best list.
        overlap_seconds: Of two neighbouring windows.

    Raises:
        ConfigError: The settings do not fit each other.
    """

    def __init__(
        self,
        model: Any,
        device: str = "cpu",
        decoder: Any = None,
        *,
        n_best: int = 1,
        word_times: bool = False,
        window_seconds: float | None = None,
        overlap_seconds: float = OVERLAP_SECONDS,
    ) -> None:
        check_windows(window_seconds, overlap_seconds)
        # Copied if it must be widened: a decoder may be shared by several recognisers.
        self.decoder = searching_for(n_best, GreedyCTC() if decoder is None else decoder)
        self.n_best = n_best
        self.device = torch.device(device)
        self.word_times = word_times
        self.window_seconds = window_seconds
        self.overlap_seconds = overlap_seconds
        self.decoder_trust: Trust | None = None
        """What a decoder of a packed model may use when it loads something at its first call."""
        self.model = model
        self.tokenizer = model.tokenizer
        self.sample_rate: int = model.sample_rate

    def __call__(self, speech: Any, sample_rate: int | Sequence[int] | None = None) -> Any:
        """Return what was said.

        Args:
            speech: A path, a numpy array (floating-point of full scale 1, or int16) or a tensor,
                or a list of these. Files are mixed down and resampled if need be.
            sample_rate: Of arrays, in Hz, if it is not that of the model; of a list, one for all or
                one for each.

        Returns:
            A `Recognition`; for a list, a list of them.

        Raises:
            AudioError: Naming what cannot be recognised, and why.
            DataError: The model computes numbers that are none, as after a training that diverged.
        """
        many = isinstance(speech, list | tuple)
        batch = to_batch(speech if many else [speech], sample_rate, self.sample_rate)
        results = self._recognize(batch)
        return results if many else results[0]

    def eval(self) -> "Recognizer":
        """Put the model into evaluation mode, where it is already, as a module of torch does."""
        self.model.eval()
        return self

    def load_language_model(self, path: str | os.PathLike[str]) -> None:
        """Let the decoder score texts by a language model as well: the weights of a training.

        Raises:
            ConfigError: The decoder has no place for one.
        """
        if not isinstance(self.decoder, JointBeam):
            raise ConfigError(
                f"The decoder is {type(self.decoder).__name__}, which takes no language model.",
                fix=f"Write: 'model.decoder={{_target_: {JointBeam.__module__}.JointBeam, "
                "ctc_weight: 1.0}'",
            )
        self.decoder.load_language_model(path)

    @torch.inference_mode()
    def _recognize(self, batch: Sequence[Samples]) -> list[Recognition]:
        is_long = [self._is_long(samples) for samples in batch]
        short = [samples for samples, long in zip(batch, is_long, strict=True) if not long]
        results = iter(self._decode(*self._encode(short)) if short else [])
        return [
            self._recognize_long(samples) if long else next(results)
            for samples, long in zip(batch, is_long, strict=True)
        ]

    def _encode(self, batch: Sequence[Samples]) -> tuple[Tensor, Tensor]:
        tensors = [torch.from_numpy(samples) for samples in batch]
        lengths = torch.tensor([len(samples) for samples in batch], device=self.device)
        padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(self.device)
        encoded: tuple[Tensor, Tensor] = self.model.encode(padded, lengths)
        return encoded

    def _decode(self, encoded: Tensor, lengths: Tensor) -> list[Recognition]:
        _check_finite(encoded, lengths)
        found = self._search(encoded, lengths)
        return [
            # Without padding: words must not be aligned to frames without speech.
            self._result(hypotheses, encoded[i : i + 1, : int(lengths[i])])
            for i, hypotheses in enumerate(found)
        ]

    def _search(self, encoded: Tensor, lengths: Tensor) -> list[Any]:
        # A decoder may load its language model only now, after `from_packed` has returned.
        with under(self.decoder_trust):
            found: list[Any] = self.decoder(self.model, encoded, lengths)
        return found

    def _result(self, hypotheses: Sequence[Any], encoded: Tensor) -> Recognition:
        candidates = [self._candidate(one) for one in hypotheses[: self.n_best]]
        words = self._words(hypotheses[0].tokens, encoded) if self.word_times else None
        return Recognition.of(candidates, words)

    def _candidate(self, hypothesis: Any) -> Candidate:
        names = self.tokenizer.tokens
        tokens = tuple(names[token] for token in hypothesis.tokens)
        # A recogniser may output two blanks in a row, or one at the end.
        text = " ".join(self.tokenizer.decode(hypothesis.tokens).split())
        return Candidate(text, tokens, float(hypothesis.score), dict(hypothesis.scores))

    def _words(self, tokens: Sequence[int], encoded: Tensor) -> tuple[Word, ...]:
        log_probs = self.model.ctc_log_probs(encoded)[0]
        return tuple(word_times(log_probs, tokens, self.tokenizer, self.model.frame_seconds))

    def _is_long(self, samples: Samples) -> bool:
        seconds = self.window_seconds
        return seconds is not None and len(samples) > seconds * self.sample_rate

    def _recognize_long(self, samples: Samples) -> Recognition:
        assert self.window_seconds is not None
        sizes = self.window_seconds, self.overlap_seconds
        # Decoders without this attribute follow the frames, which can simply be joined.
        if getattr(self.decoder, "ctc_weight", 1.0) < 1:
            return self._join_texts(samples, *sizes)
        speech = torch.from_numpy(samples).to(self.device)
        return self._decode(*encode_windows(self.model, speech, *sizes))[0]

    def _join_texts(
        self, samples: Samples, window_seconds: float, overlap_seconds: float
    ) -> Recognition:
        """Decode each window by itself: an attention decoder loses its place in long audio."""
        windows = windows_of(self.model, len(samples), window_seconds, overlap_seconds)
        found = []
        for window in windows:
            encoded, lengths = self._encode([samples[window.start : window.end]])
            _check_finite(encoded, lengths)
            found.append(self._candidate(self._search(encoded, lengths)[0][0]))
        text = join_texts([one.text for one in found])
        # Texts are joined at words, so the tokens of the windows no longer fit.
        ids = self.tokenizer.encode(text)
        tokens = tuple(self.tokenizer.tokens[id] for id in ids)
        joined = Candidate(text, tokens, sum(one.score for one in found))
        words = None
        if self.word_times:
            speech = torch.from_numpy(samples).to(self.device)
            sizes = window_seconds, overlap_seconds
            words = self._words(ids, encode_windows(self.model, speech, *sizes)[0])
        return Recognition.of([joined], words)


def _check_finite(encoded: Tensor, lengths: Tensor) -> None:
    """Refuse NaN, of which decoders would make an empty text or any."""
    frames = torch.arange(encoded.shape[1], device=encoded.device)
    is_speech = frames < lengths.to(encoded.device)[:, None]
    # Padded frames may hold anything, and are no fault of the utterance.
    is_bad = (~torch.isfinite(encoded).all(-1) & is_speech).any(1)
    if bad := is_bad.nonzero().flatten().tolist():
        raise DataError(
            f"The model computes NaN for {len(bad)} of {len(encoded)} utterances (in this batch "
            f"number {', '.join(map(str, bad[:5]))}). Their audio is finite, so look at the "
            "weights: did valid/loss stay finite in training?"
        )


def to_batch(speech: Sequence[Any], sample_rate: Any, model_rate: int) -> list[Samples]:
    """Return the samples of several utterances; see `to_samples`."""
    rates = sample_rate if isinstance(sample_rate, list | tuple) else [sample_rate] * len(speech)
    return [to_samples(one, rate, model_rate) for one, rate in zip(speech, rates, strict=True)]


def to_samples(speech: Any, sample_rate: int | None, model_rate: int) -> Samples:
    """Return one utterance as samples of full scale 1, [samples].

    A file is mixed down and resampled if need be, with soxr. An array is resampled only where its
    rate is given; it must have one channel.

    Args:
        speech: A path, a numpy array or a tensor: floating-point of full scale 1, or int16.
        sample_rate: Of an array, in Hz; None for that of the model.
        model_rate: What the model was trained with, in Hz.

    Raises:
        AudioError: It has no samples, NaN, several channels, no such rate, or cannot be read.
    """
    _check_rate(sample_rate)
    if isinstance(speech, str | os.PathLike):
        return _read(speech, sample_rate, model_rate)
    samples = _to_float(_to_array(speech))
    if samples.ndim != 1:
        raise AudioError(
            f"The speech is an array of shape {list(samples.shape)}, but must have one axis, of "
            "samples. Mix it down first: speech.mean(axis=1), or the axis that counts channels; "
            "several utterances go in a list."
        )
    _check(samples, "The speech")
    return change_rate(samples, model_rate if sample_rate is None else int(sample_rate), model_rate)


def _read(path: str | os.PathLike[str], sample_rate: int | None, model_rate: int) -> Samples:
    if sample_rate is not None:
        raise AudioError(
            f"sample_rate is {sample_rate}, but {os.fspath(path)} is a file, which has its own. "
            "Leave sample_rate out."
        )
    samples = read_audio(path, channel="mix", sample_rate=model_rate, resample=True).samples
    _check(samples, os.fspath(path))
    return samples


def _to_array(speech: Any) -> NDArray[Any]:
    if hasattr(speech, "detach"):  # a tensor; asked so, torch need not be imported
        speech = speech.detach().cpu()
        # NumPy has no bfloat16.
        speech = (speech.float() if speech.is_floating_point() else speech).numpy()
    if isinstance(speech, np.ndarray):
        return speech
    raise AudioError(
        f"The speech is a {type(speech).__name__}.",
        fix="Give a path, a numpy array or a tensor of samples, or a list of these.",
    )


def _to_float(samples: NDArray[Any]) -> Samples:
    # A big-endian dtype does not compare equal to int16 as it is.
    if samples.dtype.newbyteorder("=") == np.int16:
        # Divided by 32768, not 32767, as libsndfile does; otherwise arrays and files would differ.
        return (samples / np.float32(32768)).astype(np.float32)
    if not np.issubdtype(samples.dtype, np.floating):
        raise AudioError(
            f"The samples are of type {samples.dtype}.",
            fix="Give int16, or floating-point between -1 "
            "and 1: speech.astype('float32') / full_scale",
        )
    # torch warns of arrays that cannot be written, such as those of mapped files.
    return samples.astype(np.float32, copy=not samples.flags.writeable)


def _check_rate(sample_rate: Any) -> None:
    is_number = isinstance(sample_rate, int | float | np.integer | np.floating)
    if sample_rate is None or (is_number and sample_rate > 0 and float(sample_rate).is_integer()):
        return
    raise AudioError(
        f"sample_rate is {sample_rate!r:.80}, but must be a whole number of Hz above 0, such as "
        "sample_rate=16000"
    )


def _check(samples: Samples, name: str) -> None:
    # An empty utterance would otherwise fail deep inside the convolutions, without its name.
    if samples.size == 0:
        raise AudioError(f"{name} has no samples. Leave it out, or make it again.")
    if not np.isfinite(samples).all():
        raise AudioError(f"{name} has samples that are NaN or infinite.", fix="Make it again.")


class Speech2Text(Recognizer):
    """Recognises speech with a model that `train` trained.

    One call is one batch: it returns a `Recognition` for an utterance, a list of them for a list.

    Args:
        weights: `.safetensors` or a checkpoint; `config.yaml` beside it has the model.
        device: `cpu`, or a GPU, such as `cuda:0`.
        decoder: From what the model computed to hypotheses; `GreedyCTC` if None.
        n_best: Texts to keep of each utterance; the decoder searches for as many.
        word_times: Tell when each word was said, from the CTC alignment of the best text.
        window_seconds: Longer audio is cut into overlapping windows of this length; None: at once.
        overlap_seconds: Of two neighbouring windows.
        trust_remote_code: Of a packed model, build whatever its config names, not only parts of
            ESPnet3. That runs code of its author.

    Raises:
        ConfigError: The weights are missing, or the settings do not fit each other.

    Example:
        >>> model = Speech2Text.from_experiment("exp/training")     # doctest: +SKIP
        >>> model("speech.wav").text                                # doctest: +SKIP
        'one two three'
    """

    def __init__(
        self,
        weights: str | os.PathLike[str],
        device: str = "cpu",
        decoder: Any = None,
        *,
        n_best: int = 1,
        word_times: bool = False,
        window_seconds: float | None = None,
        overlap_seconds: float = OVERLAP_SECONDS,
        trust_remote_code: bool = False,
    ) -> None:
        model = _load(Path(weights), device, trust_remote_code)
        super().__init__(
            model,
            device,
            decoder,
            n_best=n_best,
            word_times=word_times,
            window_seconds=window_seconds,
            overlap_seconds=overlap_seconds,
        )
        self._keeper: Any = None  # of the files of an archive

    @classmethod
    def from_experiment(
        cls, exp_dir: str | os.PathLike[str], device: str = "cpu", **settings: Any
    ) -> "Speech2Text":
        """Load the model of a training from its folder, wherever one is.

        The weights are the average of the best checkpoints, or the best or the last checkpoint
        where none was averaged; the log says which.

        Args:
            exp_dir: Of the training, such as `exp/training`.
            device: See the class.
            **settings: Others of the class.

        Raises:
            RunFolderError: Nothing is trained there.
        """
        return cls(find_weights(os.fspath(exp_dir)), device, **settings)

    @classmethod
    def from_packed(
        cls, path: str | os.PathLike[str], device: str = "cpu", **settings: Any
    ) -> "Speech2Text":
        """Load what `pack_model` wrote. No code comes with it, and none is run.

        Args:
            path: The folder, or its `.tar.gz` or `.zip`.
            device: See the class.
            **settings: Others of the class; where left out, those that the model was packed with
                hold, the decoder among them.

        Raises:
            PackedModelError: It is no packed model, is damaged, or wants to run foreign code.
        """
        from espnet3.systems.asr.packed_archive import WEIGHTS
        from espnet3.systems.asr.trained_model import open_packed, packed_settings

        trusted = settings.get("trust_remote_code", False)
        _check_trust(trusted)
        folder, keeper, trust = open_packed(path, trust_code=trusted)
        with under(trust):
            own = packed_settings(folder, trust, given=settings)
            model = cls(folder / WEIGHTS, device, **{**own, **settings})
        # Decoders may read their files when they are first used, by the same rules.
        model._keeper = keeper
        # A decoder that the caller gave is the caller's own, and may use whatever it likes.
        model.decoder_trust = trust if "decoder" in own else None
        return model


def _load(weights: Path, device: str, trust_remote_code: bool) -> Any:
    _check_trust(trust_remote_code)
    from espnet3.systems.asr.trained_model import is_packed, load_packed_model

    # Also for a path inside a packed folder, so that `weights:` is no way around its checks.
    if is_packed(weights.parent):
        return load_packed_model(weights.parent, device, trust=trust_remote_code)
    return load_trained(weights, device)


def _check_trust(value: Any) -> None:
    if not isinstance(value, bool):  # the text "false" would be true
        raise ConfigError(
            f"trust_remote_code is {value!r:.80}, but must be true or false, without quotes.",
            fix="Write: trust_remote_code: false",
        )


def output_fn(data: Any, model_output: Any, idx: Any) -> Any:
    """Return the fields of an utterance, or of each in a batch.

    They are `hyp` and `score`, `ref` where the sample has a text, and what the model was asked
    for: `nbest` with `n_best` above 1, and `words` with `word_times`, both as a line of JSON.
    `output_keys` of the config chooses among them.

    Args:
        data: The sample, or a list of samples.
        model_output: The `Recognition` of it, or a list of them.
        idx: Its position in the dataset, or a list of positions.
    """
    if isinstance(idx, list):
        return [output_fn(*item) for item in zip(data, model_output, idx, strict=True)]
    fields = {"hyp": model_output.text, "score": f"{model_output.score:.4f}"}
    # Test sets without references, such as those of a challenge, are decoded all the same.
    if "text" in data:
        fields["ref"] = data["text"]
    if len(model_output.n_best) > 1:
        fields["nbest"] = model_output.n_best_json()
    if model_output.words is not None:
        fields["words"] = model_output.words_json()
    return fields

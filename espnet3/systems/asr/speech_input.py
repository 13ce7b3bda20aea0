"""Convert the input of a recogniser to float32 samples at its model's rate."""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espnet3.components.data.audio import read_audio
from espnet3.components.data.errors import AudioError
from espnet3.components.data.resampling import resample

Samples = NDArray[np.float32]


def to_samples(speech: Any, sample_rate: int | None, model_rate: int) -> Samples:
    """Return one utterance as samples of full scale 1, [samples].

    A file is mixed down and resampled if need be, with soxr. An array is resampled only where its
    rate is told; it must have one channel.

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
    return resample(samples, model_rate if sample_rate is None else int(sample_rate), model_rate)


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
        f"The speech is a {type(speech).__name__}. Give a path, a numpy array or a tensor of "
        "samples, or a list of these."
    )


def _to_float(samples: NDArray[Any]) -> Samples:
    if samples.dtype.newbyteorder("=") == np.int16:
        return (samples / np.float32(32768)).astype(np.float32)
    if not np.issubdtype(samples.dtype, np.floating):
        raise AudioError(
            f"The samples are of type {samples.dtype}. Give int16, or floating-point between -1 "
            "and 1: speech.astype('float32') / full_scale"
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
    if samples.size == 0:
        raise AudioError(f"{name} has no samples. Leave it out, or make it again.")
    if not np.isfinite(samples).all():
        raise AudioError(f"{name} has samples that are NaN or infinite. Make it again.")

"""Artifacts: one value in one file, as wav, npy, json, text or pickle."""

from __future__ import annotations

import io
import json
import logging
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from espnet3.errors import ConfigError, RecordError, suggest
from espnet3.io.atomic import open_atomic, write_bytes, write_json

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)

_MAX_CHANNELS = 64  # beyond it an array is surely [channels, samples]


def write_artifact(
    value: Any,
    path_without_suffix: str | os.PathLike[str],
    type: str,
    *,
    sample_rate: int | None = None,
    sync: bool = True,
) -> Path:
    """Write a value atomically and return the path, with the suffix of its type added.

    - wav: floats, int16 or int32, as [samples] or [samples, channels]. Floats become 16-bit, or,
      where one is outside [-1, 1], 32-bit float with a logged warning: nothing is clipped.
    - npy: what `numpy.asarray` takes, but no objects; never a pickle.
    - json: what `espnet3.io.atomic.dump_json` takes, indented.
    - text (.txt): a str as it is, in UTF-8; no newline is added.
    - pickle (.pkl): anything; reading it runs code, so `read_artifact` needs `allow_pickle`.

    Tensors are taken as arrays.

    Args:
        value: What to write.
        path_without_suffix: Gets a suffix: `utt.0` becomes `utt.0.wav`. The folder must exist.
        type: One of the list.
        sample_rate: In Hz; needed by wav, unused by the others.
        sync: As in `espnet3.io.atomic.open_atomic`.

    Raises:
        ConfigError: The type is unknown, or wav has no sample rate.
        RecordError: The value does not fit the type; no file is written.
    """
    if type not in _TYPES:
        raise ConfigError(
            f"The artifact type {type!r} is unknown.{suggest(type, _TYPES)} "
            f"Known are {', '.join(_TYPES)}; write for example `type: npy`."
        )
    path = Path(f"{os.fspath(path_without_suffix)}{_TYPES[type].suffix}")
    _TYPES[type].write(value, path, _Options(sample_rate, sync))
    return path


def read_artifact(path: str | os.PathLike[str], *, allow_pickle: bool = False) -> Any:
    """Return the value of a file that `write_artifact` wrote; the suffix decides the type.

    For wav that is `(samples, sample_rate)`, the samples as floats of full scale 1: float32, or
    float64 for files of more than 16 bits.

    Raises:
        RecordError: The suffix is unknown, the file is damaged, or it is a pickle and
            `allow_pickle` is False.
        OSError: It is not there, or cannot be read from here, which says nothing of its content.
    """
    path = Path(path)
    kind = next((name for name, entry in _TYPES.items() if entry.suffix == path.suffix), None)
    if kind is None:
        known = ", ".join(entry.suffix for entry in _TYPES.values())
        raise RecordError(f"{path} has the suffix {path.suffix!r}. Rename it to one of {known}.")
    if kind == "pickle" and not allow_pickle:
        raise RecordError(
            f"{path} is a pickle, and reading one runs the code inside. If you trust its author: "
            "read_artifact(path, allow_pickle=True)"
        )
    try:
        return _TYPES[kind].read(path)
    except (ValueError, EOFError, RuntimeError) as error:
        # No OSError among them: it is about this node. Those of soundfile are RuntimeErrors.
        raise RecordError(
            f"{path} cannot be read as {kind}: {error}.", fix="Delete it and write it again."
        ) from error


class _Options(NamedTuple):
    sample_rate: int | None
    sync: bool


class _Type(NamedTuple):
    suffix: str
    write: Callable[[Any, Path, _Options], None]
    read: Callable[[Path], Any]


def _write_wav(value: Any, path: Path, options: _Options) -> None:
    import soundfile

    sample_rate = _check_sample_rate(options.sample_rate, path)
    audio = _check_audio(_to_array(value, path), path)
    if audio.dtype.kind == "f":
        audio, subtype = _fit_float(audio, path)
    else:
        subtype = "PCM_16" if audio.dtype.itemsize == 2 else "PCM_32"
    # In memory first: soundfile's file callbacks swallow errors such as a full disk.
    buffer = io.BytesIO()
    soundfile.write(buffer, audio, sample_rate, format="WAV", subtype=subtype)
    write_bytes(path, buffer.getvalue(), sync=options.sync)


def _check_sample_rate(sample_rate: Any, path: Path) -> int:
    try:
        # Not `int`, which would cut 16000.5 and accept text.
        rate = operator.index(sample_rate)
    except TypeError:
        rate = 0
    if rate <= 0 or isinstance(sample_rate, bool):  # True is an integer, too
        raise ConfigError(
            f"The sample rate for {path} is {sample_rate!r}; a wav needs a whole number of Hz.",
            fix="Set it beside the type, such as `sample_rate: 16000`.",
        )
    return rate


def _check_audio(audio: np.ndarray[Any, Any], path: Path) -> np.ndarray[Any, Any]:
    if audio.dtype.kind != "f" and audio.dtype.name not in ("int16", "int32"):
        raise RecordError(
            f"{path}: The audio is of type {audio.dtype}, whose full scale is unknown.",
            fix='Pass floats in [-1, 1], or samples as numpy.asarray(audio, dtype="int16").',
        )
    if audio.ndim not in (1, 2) or (audio.ndim == 2 and not 0 < audio.shape[1] <= _MAX_CHANNELS):
        raise RecordError(
            f"{path}: The audio has the shape {audio.shape}; a wav takes [samples] or "
            "[samples, channels].",
            fix="Pass audio.squeeze(), or audio.T if channels come first.",
        )
    return audio


def _fit_float(audio: np.ndarray[Any, Any], path: Path) -> tuple[np.ndarray[Any, Any], str]:
    """Return the audio as float32, and the wav subtype that holds it without clipping."""
    import numpy as np

    # A float64 too large for float32 becomes infinite, which is reported below with its place.
    with np.errstate(over="ignore"):
        audio = audio.astype(np.float32)
    bad = np.argwhere(~np.isfinite(audio))
    if len(bad):
        first = tuple(bad[0].tolist())
        raise RecordError(
            f"{path}: {len(bad)} of {audio.size} samples are not finite; the first is "
            f"{audio[first]} at {list(first)}. Look for the cause in the model, or write silence: "
            "numpy.nan_to_num(audio, posinf=0, neginf=0)"
        )
    # Empty audio has no maximum of its own.
    peak = float(np.abs(audio).max(initial=0))
    if peak <= 1:
        return audio, "PCM_16"
    logger.warning(
        "%s: The peak %g is outside [-1, 1]; written as 32-bit float, not clipped. "
        "For 16 bits scale it first: audio / abs(audio).max()",
        path,
        peak,
    )
    return audio, "FLOAT"


def _read_wav(path: Path) -> tuple[np.ndarray[Any, Any], int]:
    import soundfile

    # Opened here: libsndfile says "System error" for a file that cannot be reached.
    with path.open("rb") as opened, soundfile.SoundFile(opened) as file:
        dtype = "float32" if file.subtype in ("PCM_16", "FLOAT") else "float64"
        return file.read(dtype=dtype), file.samplerate


def _write_npy(value: Any, path: Path, options: _Options) -> None:
    import numpy as np

    array = _to_array(value, path)
    # `hasobject` is also true of a structured type with an object in one field.
    if array.dtype.hasobject:
        raise RecordError(
            f"{path}: The array is of type {array.dtype}, which npy holds only as a pickle.",
            fix="Pass numbers, or set `type: json`.",
        )
    with open_atomic(path, "wb", sync=options.sync) as file:
        np.save(file, array, allow_pickle=False)


def _read_npy(path: Path) -> Any:
    import numpy as np

    return np.load(path, allow_pickle=False)


def _to_array(value: Any, path: Path) -> np.ndarray[Any, Any]:
    import numpy as np

    # By attribute, because importing torch only to ask for its class would take seconds.
    if hasattr(value, "detach"):
        value = _tensor_to_array(value)
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise RecordError(
            f"{path}: The {type(value).__name__} {value!r:.80} is no array: {error} "
            "Pass rows of one length, or set `type: json`."
        ) from error


def _tensor_to_array(tensor: Any) -> Any:
    tensor = tensor.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:  # NumPy has no bfloat16
        return tensor.float().numpy()


def _write_json(value: Any, path: Path, options: _Options) -> None:
    write_json(path, value, sync=options.sync)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _write_text(value: Any, path: Path, options: _Options) -> None:
    if not isinstance(value, str):
        raise RecordError(
            f"{path}: The value is {value!r:.80}, of type {type(value).__name__}.",
            fix="Pass str(value), or set `type: json`.",
        )
    try:
        data = value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RecordError(
            f"{path}: The text cannot be written as UTF-8: {error}.",
            fix='Set `type: json`, or pass text.encode("utf-8", "replace").decode().',
        ) from error
    write_bytes(path, data, sync=options.sync)


def _read_text(path: Path) -> str:
    # Not `read_text`, which turns "\r\n" into "\n".
    return path.read_bytes().decode("utf-8")


def _write_pickle(value: Any, path: Path, options: _Options) -> None:
    import pickle

    try:
        data = pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise RecordError(
            f"{path}: The {type(value).__name__} cannot be pickled: {error}.",
            fix="Pass plain data, without lambdas, local classes or open files.",
        ) from error
    write_bytes(path, data, sync=options.sync)


def _read_pickle(path: Path) -> Any:
    import pickle

    return pickle.loads(path.read_bytes())


_TYPES = {
    "wav": _Type(".wav", _write_wav, _read_wav),
    "npy": _Type(".npy", _write_npy, _read_npy),
    "json": _Type(".json", _write_json, _read_json),
    "text": _Type(".txt", _write_text, _read_text),
    "pickle": _Type(".pkl", _write_pickle, _read_pickle),
}

"""The package `espnet`, which is optional: whether it is there, and its tasks."""

import importlib
import importlib.metadata
import importlib.util
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from espnet3.errors import ConfigError, MissingExtraError, ResourceError, suggest

logger = logging.getLogger(__name__)

VERSION = "202511"
"""The last release of `espnet` without a package `espnet3` of its own."""
_FIRST_CLASH = 202512
INSTALL = (
    "In your clone of ESPnet3: pip install --no-deps -r constraints-espnet2.txt; without --no-deps "
    "it would replace packages that ESPnet3 needs"
)


@dataclass(frozen=True)
class Task:
    """Class of a task of ESPnet2, and of its inference with a trained model."""

    module: str
    class_name: str
    inference: str = ""
    """The class that ESPnet2 itself decodes with; empty: none that is used here."""
    argument: str = ""
    """What the names of its arguments begin with: `st_` of `st_train_config`."""
    network: str = ""
    """The attribute of that class that holds the model."""
    reads: str = "speech"
    """The input of that class, by ESPnet2's name."""


def _decoded(name: str, class_name: str, inference: str, network: str, **other: str) -> Task:
    module = f"espnet2.tasks.{name}"
    return Task(module, class_name, f"espnet2.bin.{inference}", network=network, **other)


def _trained(name: str, class_name: str) -> Task:
    return Task(f"espnet2.tasks.{name}", class_name)


TASKS: Mapping[str, Task] = {
    "asr": _decoded(
        "asr", "ASRTask", "asr_inference.Speech2Text", "asr_model", argument="asr_"
    ),
    "asr_transducer": _decoded(
        "asr_transducer", "ASRTransducerTask", "asr_transducer_inference.Speech2Text", "asr_model",
        argument="asr_",
    ),
    "st": _decoded("st", "STTask", "st_inference.Speech2Text", "st_model", argument="st_"),
    "mt": _decoded(
        "mt", "MTTask", "mt_inference.Text2Text", "mt_model", argument="mt_", reads="src_text"
    ),
    "lm": Task("espnet2.tasks.lm", "LMTask", reads="text"),
    "tts": _decoded("tts", "TTSTask", "tts_inference.Text2Speech", "model", reads="text"),
    "enh": _decoded(
        "enh", "EnhancementTask", "enh_inference.SeparateSpeech", "enh_model", reads="speech_mix"
    ),
    "spk": _decoded("spk", "SpeakerTask", "spk_inference.Speech2Embedding", "spk_model"),
    "slu": _decoded(
        "slu", "SLUTask", "slu_inference.Speech2Understand", "asr_model", argument="slu_"
    ),
    "s2t": _trained("s2t", "S2TTask"),
    "asvspoof": _trained("asvspoof", "ASVSpoofTask"),
    "cls": _trained("cls", "CLSTask"),
    "diar": _trained("diar", "DiarizationTask"),
    "enh_s2t": _trained("enh_s2t", "EnhS2TTask"),
    "enh_tse": _trained("enh_tse", "TargetSpeakerExtractionTask"),
    "hubert": _trained("hubert", "HubertTask"),
    "lid": _trained("lid", "LIDTask"),
    "s2st": _trained("s2st", "S2STTask"),
    "s2t_ctc": _trained("s2t_ctc", "S2TTask"),
    "ssl": _trained("ssl", "SSLTask"),
    "svs": _trained("svs", "SVSTask"),
    "tts2": _trained("tts2", "TTS2Task"),
}  # fmt: skip
"""All but those that ESPnet2 trains by two losses in turn, see `_IN_TURN`."""
_IN_TURN = ("gan_codec", "gan_svs", "gan_tts", "uasr")


def task_of(name: Any) -> Task:
    """Return the task of this name.

    Raises:
        ConfigError: there is none, or it is not supported.
    """
    if name in _IN_TURN:
        raise ConfigError(
            key="task",
            value=name,
            problem="which ESPnet2 trains by two losses in turn, and ESPnet2Model has one",
            fix=f"Take another task, one of {', '.join(TASKS)}.",
        )
    if name not in TASKS:
        raise ConfigError(
            key="task",
            value=name,
            problem=f"but must be one of {', '.join(TASKS)}",
            fix=f"{suggest(str(name), TASKS)} Write: task: asr".strip(),
        )
    return TASKS[name]


def task_class(name: str) -> Any:
    """Import a task, and return its class."""
    task = task_of(name)
    return getattr(import_espnet2(task.module), task.class_name)


def default_config(name: str) -> dict[str, Any]:
    """Return every key of a task's training config with ESPnet2's default."""
    kind = task_class(name)
    # ESPnet2 parses the command line of this process on the way, and ends it at a word of ours
    # that is one of its own options too.
    words, sys.argv = sys.argv, sys.argv[:1]
    try:
        return dict(kind.get_default_config())
    finally:
        sys.argv = words


def inference_class(name: str) -> Any:
    """Import what ESPnet2 itself decodes a task with."""
    module, _, class_name = task_of(name).inference.rpartition(".")
    return getattr(import_espnet2(module), class_name)


def import_espnet2(module: str) -> Any:
    """Import a module of ESPnet2.

    Raises:
        MissingExtraError: `espnet`, or a package that it needs, is not installed.
        ResourceError: a release of `espnet` is installed that has an `espnet3` of its own.
    """
    check_installed()
    if module in sys.modules:
        return sys.modules[module]
    if "espnet2" not in sys.modules:
        logger.info("importing espnet2, which takes 10 to 30 seconds in a new process")
    begin = time.monotonic()
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module} of the package espnet cannot be imported: {error}.", fix=f"{INSTALL}."
        ) from error
    logger.info("imported %s in %.0f s", module, time.monotonic() - begin)
    return loaded


def check_installed() -> None:
    """Refuse to continue without `espnet`, or with a release that hides this package.

    Raises:
        MissingExtraError: it is not installed.
        ResourceError: it is too new.
    """
    version = installed_version()
    if version is not None and _release(version) >= _FIRST_CLASH:
        raise ResourceError(
            f"espnet {version} is installed, which brings a package espnet3 of its own: which of "
            "the two is imported depends on the order of the folders in sys.path.",
            fix="pip uninstall espnet; then install ESPnet3 once more, so that its files are whole "
            f"again, and espnet {VERSION}. {INSTALL}.",
        )
    # Asked so, because `espnet` may be on the path without having been installed.
    if importlib.util.find_spec("espnet2") is None:
        raise MissingExtraError(
            "Models of ESPnet2 need the package espnet, which is not installed.", fix=f"{INSTALL}."
        )


def installed_version() -> str | None:
    """Return the version of `espnet` as it was installed; None if it was not."""
    try:
        return importlib.metadata.version("espnet")
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> int:
    """Return the year and month of a release; 0 for what has none, such as a clone."""
    digits = version.partition(".")[0].partition("+")[0]
    # Patches are written as 202509.post1 or 202308.1; before 2021 releases were 0.9.
    return int(digits) if digits.isdigit() and len(digits) == 6 else 0

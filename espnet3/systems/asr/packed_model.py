"""Open what `pack_model` wrote: a folder or an archive, checked, and without running its code."""

import hashlib
import importlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from espnet3.config.trust import (
    PackedModelError,
    Trust,
    checked_path,
    current_trust,
    leads_out,
    under,
)
from espnet3.errors import ConfigError, suggest
from espnet3.systems.asr.packed_archive import (
    FORMAT_VERSION,
    INFERENCE,
    META,
    TRAINING,
    WEIGHTS,
    extract,
    is_archive,
    model_in,
)
from espnet3.systems.asr.trained_model import build_trained, change_texts

_DEEPEST = 5
"""Folders between a packed model and the files of a language model in it, at most."""
_SETTINGS = ("decoder", "n_best", "word_times", "window_seconds", "overlap_seconds")


def is_packed(folder: Path) -> bool:
    """Tell whether a folder is a packed model."""
    return (folder / META).is_file()


def open_packed(
    path: str | os.PathLike[str], *, trust_code: bool = False
) -> tuple[Path, Any, Trust]:
    """Check a packed model, and say what its parts may use.

    An archive is extracted to a temporary folder, which is gone with its keeper.

    Args:
        path: The folder, or its archive.
        trust_code: Whether it may run code that is no part of ESPnet3.

    Returns:
        The folder, its keeper, and the trust to build it under.

    Raises:
        PackedModelError: It is none, or damaged.
    """
    place = Path(path)
    keeper = extract(place) if is_archive(place) else None
    try:
        folder = place if keeper is None else model_in(Path(keeper.name))
        return folder, keeper, _checked(folder, place, trust_code)
    except BaseException:
        # Also on Ctrl-C, as no other process knows of the temporary folder.
        if keeper is not None:
            keeper.cleanup()
        raise


def load_packed_model(folder: Path, device: str, *, trust: bool = False) -> Any:
    """Build the model of a packed folder.

    Args:
        folder: Of the packed model. Its checksums are compared, unless `open_packed` did so.
        device: Where the model goes.
        trust: Whether it may run code that is no part of ESPnet3.

    Raises:
        PackedModelError: Its config names foreign code, and is not trusted.
    """
    known = current_trust()
    # Compared by realpath: the temporary folder of macOS is itself behind a link.
    if known is None or os.path.realpath(known.root) != os.path.realpath(folder):
        known = _checked(folder, folder, trust)
    # Only now, as its checksum must have been compared.
    config = read_yaml(folder / TRAINING)
    block = config.get("model")
    if not isinstance(block, Mapping):
        raise PackedModelError(f"{folder / TRAINING} has no model block. Pack the model again.")
    with under(known):
        known.check(block, "model", TRAINING)
        return build_trained(_inside(block, folder), folder / WEIGHTS, device)


def trust_around(path: Path) -> Trust | None:
    """Return what may be used of the packed model that a file is in; None if it is in none."""
    for folder in list(Path(os.path.abspath(path)).parents)[:_DEEPEST]:
        if is_packed(folder):
            meta = read_yaml(folder / META)
            if "format" in meta and "sha256" in meta:  # another program may have such a file too
                return _checked(folder, folder, trust_code=False)
    return None


def packed_settings(folder: Path, trust: Trust, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the model was packed with, but for those that are given."""
    from espnet3.config.instantiate import instantiate

    file = folder / INFERENCE
    if not file.is_file():
        return {}
    with under(trust):
        block = read_yaml(checked_path(file)).get("model")
        if not isinstance(block, Mapping):
            return {}
        # Other keys, such as `_target_` and `device`, are for the caller to decide.
        wanted = {k: v for k, v in block.items() if k in _SETTINGS and k not in given}
        if isinstance(wanted.get("decoder"), Mapping):
            trust.check(wanted["decoder"], "model.decoder", INFERENCE)
            _check_other_configs(folder, trust)
            inside = _inside(wanted["decoder"], folder)
            wanted["decoder"] = instantiate(inside, key="model.decoder")
    return wanted


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a YAML file as it is: nothing is interpolated, nothing else is read.

    Raises:
        PackedModelError: It is missing or malformed.
    """
    from espnet3.config.files import read_file

    try:
        values = read_file(file).values
    except ConfigError as error:
        raise PackedModelError(f"{error} Copy the packed model again.") from error
    return {str(key): value for key, value in values.items()}


def _check_other_configs(folder: Path, trust: Trust) -> None:
    """Check configs that a decoder may read at its first call, such as that of a language model.

    They are checked when they are read as well; here they are refused before anything is built.
    """
    if trust.code:
        return
    known = {folder / name for name in (META, TRAINING, INFERENCE)}
    for file in sorted({*folder.rglob("*.yaml"), *folder.rglob("*.yml")} - known):
        is_own = file.is_file() and not file.is_symlink()
        if is_own or os.path.realpath(file) in trust.files:
            trust.check_file(read_yaml(file), file.relative_to(folder))


def _inside(values: Any, folder: Path) -> Any:
    """Return a copy of checked values in which paths of the packed folder are absolute."""

    def absolute(text: str) -> str:
        # Any text may be a path; one that does not exist in the folder is a plain word.
        is_path = text and not leads_out(text) and (folder / text).exists()
        return str((folder / text).absolute()) if is_path else text

    return change_texts(values, absolute)


def _checked(folder: Path, named: Path, trust_code: bool) -> Trust:
    """Compare the checksums of a folder, and return what may be read and run of it."""
    _require_packed(folder, named)
    meta = read_yaml(folder / META)
    version = meta.get("format")
    if version != FORMAT_VERSION:
        raise PackedModelError(
            f"{named} is of format {version!r:.80}, and this version of ESPnet3 reads format "
            f"{FORMAT_VERSION}. Update ESPnet3, or pack the model again."
        )
    sums = meta.get("sha256")
    files = _check_sums(folder, named, sums if isinstance(sums, Mapping) else {})
    return Trust(str(folder.absolute()), files, is_allowed, trust_code)


def _require_packed(folder: Path, named: Path) -> None:
    if folder.is_file():
        raise PackedModelError(
            f"{named} is a file of an unknown kind.",
            fix="Give the folder that the stage pack_model "
            "wrote, or its archive, whose name ends in .tar.gz or .zip",
        )
    if not folder.is_dir():
        siblings = [one.name for one in named.absolute().parent.glob("*")]
        raise PackedModelError(
            f"{named} does not exist.{suggest(named.name, siblings)} Give the folder or archive "
            "that the stage pack_model wrote."
        )
    if not is_packed(folder):
        raise PackedModelError(
            f"{named} is no packed model: it has no {META}. Pack one with: python run.py --stages "
            "pack_model; or load an experiment's folder: Speech2Text.from_experiment(...)"
        )


def _check_sums(folder: Path, named: Path, sums: Mapping[Any, Any]) -> frozenset[str]:
    """Return the real paths of the files that the checksums are of."""
    roots = _roots(folder)
    files = {name: _real_file(folder, name, named, roots) for name in sums}
    for name, wanted in sums.items():
        file = files[name]
        if file is None or sha256(file) != wanted:
            raise PackedModelError(
                f"{name} of {named} is {'missing' if file is None else 'damaged'}: its checksum in "
                f"{META} does not fit.",
                fix="Copy the packed model again.",
            )
    # Without these two a packed model could leave its weights or its config unchecked.
    for name in (WEIGHTS, TRAINING):
        if name not in sums:
            raise PackedModelError(f"{named} has no {name} in its {META}. Pack the model again.")
    return frozenset(str(file) for file in files.values())


def _roots(folder: Path) -> tuple[str, ...]:
    """Return the folders that files may really be in.

    The cache of the Hub has links in `snapshots/REVISION`, and what they lead to in `blobs`. It is
    the cache that makes them, not those who packed the model.
    """
    root = os.path.realpath(folder)
    is_cache = os.path.basename(os.path.dirname(root)) == "snapshots"
    blobs = os.path.join(os.path.dirname(os.path.dirname(root)), "blobs")
    return (root, blobs) if is_cache else (root,)


def _real_file(folder: Path, name: Any, named: Path, roots: tuple[str, ...]) -> Path | None:
    """Return the real path of a plain file in the folder; None if it does not exist."""
    if not isinstance(name, str) or not name or leads_out(name) or "\0" in name:
        raise PackedModelError(
            f"{META} of {named} has the checksum of {name!r:.80}, a path that leads out of the "
            "packed model.",
            fix="Do not use it; get the model from elsewhere.",
        )
    # Links are resolved first; otherwise one inside the folder could lead out of it.
    real = os.path.realpath(folder / name)
    if not os.path.lexists(real):
        return None
    # With a separator at the end, as /a/model is also the beginning of /a/model_2.
    if not real.startswith(tuple(f"{root}{os.sep}" for root in roots)):
        raise PackedModelError(
            f"{name!r:.80} of {named} is a link that leads out of the packed model.",
            fix="Copy what it leads to in its place, if you trust those who packed the model.",
        )
    # Reading a pipe would wait forever.
    if not stat.S_ISREG(os.stat(real).st_mode):
        raise PackedModelError(
            f"{name!r:.80} of {named} is no plain file.",
            fix="Do not use it; get the model from elsewhere.",
        )
    return Path(real)


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# What the config of a packed model may name.
_OWN_MODULES = ("espnet3.components.models.", "espnet3.systems.asr.")
"""Where modules of torch that ESPnet3 defines come from."""
_DECODERS = "espnet3.components.decoding."
_TORCH_NAMES = ("torch.nn", "torch.nn.modules")
_TORCH_MODULES = frozenset(
    f"torch.nn.modules.{name}"
    for name in (
        "activation", "adaptive", "batchnorm", "channelshuffle", "container", "conv", "distance",
        "dropout", "flatten", "fold", "instancenorm", "linear", "loss", "normalization", "padding",
        "pixelshuffle", "pooling", "rnn", "sparse", "transformer", "upsampling",
    )
)  # fmt: skip
"""Layers; not those that wrap a model for several processes, nor what is built lazily."""
_FUNCTIONS = (
    "espnet3.systems.asr.language_model.load_language_model",
    "espnet3.components.text.characters.CharacterTokenizer",
    "espnet3.components.text.sentencepiece.SentencePieceTokenizer",
)
"""What our own code looks up by its name."""


def is_allowed(target: str) -> bool:
    """Tell whether a dotted name is that of a part of a recogniser.

    Allowed are modules of torch that ESPnet3 defines, layers of torch.nn, and ESPnet3's decoders. A
    name alone proves nothing, as `espnet3.components.models.x.os.system` would be one: it must be
    that of a module and of a class in it, and what counts is where that class is defined.
    """
    if target in _FUNCTIONS:
        return True
    module_name, _, name = target.rpartition(".")
    # `isidentifier` allows letters of other scripts, which may look like ASCII ones.
    if not all(part.isidentifier() and part.isascii() for part in target.split(".")):
        return False
    is_ours = module_name.startswith((*_OWN_MODULES, _DECODERS))
    # Before the import: importing a module already runs code.
    if not is_ours and module_name not in (*_TORCH_NAMES, *_TORCH_MODULES):
        return False
    try:
        # Not `getattr`, which would also find what a module's `__getattr__` makes up.
        found = vars(importlib.import_module(module_name)).get(name)
    except ImportError:
        return False
    return isinstance(found, type) and _is_part(found)


def _is_part(found: Any) -> bool:
    home = f"{found.__module__}."
    if home.startswith(_DECODERS):
        # Helpers of the package must not be built by a config, only what decodes.
        return "__call__" in vars(found) and not found.__name__.startswith("_")
    from torch import nn

    is_home = home.startswith(_OWN_MODULES) or found.__module__ in _TORCH_MODULES
    is_lazy = found.__name__.startswith("Lazy")
    return issubclass(found, nn.Module) and is_home and not is_lazy

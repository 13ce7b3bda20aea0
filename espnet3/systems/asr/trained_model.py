"""Build a trained model again, from the folder of an experiment or a packed one.

In an experiment its config lies beside the weights. What `pack_model` wrote, a folder or an
archive, is checked first, and built without running its code.
"""

import hashlib
import importlib
import json
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.commands import recipe_command, same_command
from espnet3.components.text.tokenizer import load_tokenizer
from espnet3.config.trust import (
    PackedModelError,
    Trust,
    checked_path,
    current_trust,
    leads_out,
    under,
)
from espnet3.errors import ConfigError, ResourceError, RunFolderError, StaleRunError, suggest
from espnet3.io.atomic import write_json
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
from espnet3.systems.base.context import CONFIG, LAST_INFERENCE
from espnet3.systems.base.training_record import has_weights

if TYPE_CHECKING:
    from torch import nn


logger = logging.getLogger(__name__)


def load_trained(weights: str | os.PathLike[str], device: str = "cpu") -> "nn.Module":
    """Build the `model` of the training config beside the weights, load them, and set it to eval.

    Relative paths in the config, such as that of the tokenizer, count from the recipe's folder,
    wherever this is called.

    Args:
        weights: `.safetensors`, or a checkpoint of the training.
        device: Where the model goes.

    Raises:
        ConfigError: The weights or the config are missing.
        RunFolderError: They do not belong together, or the tokenizer is not that of the training.
        ResourceError: There is no such device.
        PackedModelError: They are part of a packed model, whose config names foreign code.
    """

    path = Path(weights)
    # Files of a packed model are untrusted, whichever config names them.
    with under(current_trust() or trust_around(path)):
        config = read_training_config(path)
        return build_trained(config["model"], path, device)


def build_trained(block: Mapping[str, Any], weights: Path, device: str) -> "nn.Module":
    """Build a `model` block whose paths are resolved, with these weights, in eval mode."""
    from espnet3.config.instantiate import instantiate
    from espnet3.trainer.checkpointing.checkpoint_io import load_weights

    require_weights(weights)
    model: nn.Module = instantiate(block, key="model")
    # Before the weights: with as many tokens in another order they would load without an error.
    check_trained_tokens(model, weights.parent)
    try:
        # Strict, so that a missing layer is reported, and does not stay random.
        model.load_state_dict(load_weights(weights))
    except RuntimeError as error:
        raise RunFolderError(
            f"The weights {weights} are not those of the model in the config beside them: "
            f"{_first_lines(error)} Give the weights that were trained with this config."
        ) from error
    return _to_device(model, device).eval()


def _to_device(model: "nn.Module", device: str) -> "nn.Module":
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:  # the latter of a torch without CUDA
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ResourceError(
            f"The model cannot go to the device {device!r}: {first:.200} Write device: cpu, or one "
            "that is here, such as cuda:0"
        ) from error


def require_weights(path: Path, key: str = "") -> None:
    """Refuse weights that are not there.

    Args:
        path: Of the file.
        key: Of the config that names it.

    Raises:
        ConfigError: Saying which stage makes it, and which ones there are.
    """
    if path.is_file():
        return
    there = sorted(one.name for one in path.parent.glob("*.safetensors"))
    # The usual mistake is another exp_tag, so the experiments beside this one are searched.
    found: Iterable[Path] = path.parent.parent.glob("*/*.safetensors")
    here = path.parent
    found = sorted(found, key=lambda one: (one.parent != here, one.name != path.name, one))
    elsewhere = list(map(str, found))
    known = f" There are: {', '.join(there or elsewhere)}." if there or elsewhere else ""
    other = same_command(f"model.weights={elsewhere[0]}") if elsewhere else ""
    named = f"To decode with these: {other} ; else, " if elsewhere else ""
    raise ConfigError(
        f"The weights {path}",
        key=key,
        problem=f" do not exist.{known}",
        fix=f"{named}Stage train (4) makes them at its end, and average (5) again: "
        f"{recipe_command('train')}",
    )


def read_training_config(weights: Path) -> dict[str, Any]:
    """Return the training config beside the weights, its model's paths absolute.

    Raises:
        ConfigError: It is missing, or has no model.
    """
    from espnet3.config.load import read_values

    require_weights(weights)
    file = weights.with_name(CONFIG)
    if not file.is_file():
        raise ConfigError(
            f"There is no {CONFIG} beside the weights {weights}, so the model is not known. The "
            f"stage train writes it there; copy it from the training's folder: {file}"
        )
    config = read_values(file)
    if not isinstance(config.get("model"), Mapping):
        raise ConfigError(
            f"{file} has no model block.", fix="Copy the config of the training there."
        )
    exp_dir = file.parent.resolve()  # the file itself may be a link, as in the cache of the Hub
    return {**config, "model": _absolute_texts(config["model"], config, exp_dir)}


def read_decoding(exp_dir: Path) -> dict[str, Any]:
    """Return the `model` block of the last `infer` of an experiment, its paths absolute.

    Empty if there was none.
    """
    from espnet3.config.load import read_values

    file = exp_dir / LAST_INFERENCE
    if not file.is_file():
        return {}
    config = read_values(file)
    block: dict[str, Any] = _absolute_texts(config.get("model") or {}, config, exp_dir.resolve())
    return block


def _absolute_texts(block: Any, config: Mapping[str, Any], exp_dir: Path) -> Any:
    # A list, since the roots are gone through once for each text.
    recorded, roots = str(config.get("exp_dir", "")), list(_roots(exp_dir, config))

    def absolute(text: str) -> str:
        return _absolute(_moved_along(text, recorded, exp_dir), roots)

    return change_texts(block, absolute)


def change_texts(values: Any, change: Callable[[str], Any]) -> Any:
    """Return a copy of containers in which each text is what a function makes of it."""
    if isinstance(values, Mapping):
        return {key: change_texts(value, change) for key, value in values.items()}
    if isinstance(values, list):
        return [change_texts(value, change) for value in values]
    return change(values) if isinstance(values, str) else values


def _moved_along(text: str, recorded: str, exp_dir: Path) -> str:
    """Return a path below the recorded `exp_dir` as one below where that is now.

    So a folder that was copied reads its own tokenizer, and not what has become of the original.
    """
    if not recorded:
        return text
    # Compared with a separator at the end, or exp/a would also match exp/a_2.
    before, path = os.path.normpath(recorded), os.path.normpath(text)
    now = exp_dir / path.removeprefix(before + os.sep)
    return str(now) if path.startswith(before + os.sep) and now.exists() else text


def _absolute(text: str, roots: Iterable[Path]) -> str:
    """Return a relative path that exists below one of the folders as an absolute one."""
    # Without a slash it may be a plain word.
    if "/" not in text or os.path.isabs(text):
        return text
    found = (root / text for root in roots if (root / text).exists())
    return os.path.normpath(next(found, text))


def _roots(exp_dir: Path, config: Mapping[str, Any]) -> Iterable[Path]:
    """Yield the folders that relative paths may count from, the likeliest first.

    That is the recipe's folder, which is known from where the experiment was below it; if the
    experiment was moved, one of the folders around it.
    """
    recorded = os.path.normpath(str(config.get("exp_dir", "")))
    if not os.path.isabs(recorded) and str(exp_dir).endswith(os.sep + recorded):
        yield Path(str(exp_dir)[: -len(recorded) - 1] or os.sep)
    yield from (exp_dir, *exp_dir.parents)


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(lines[:4])[:600]


_INDEX, _LAST = "best.json", "last.ckpt"


def find_weights(exp_dir: str | Path) -> Path:
    """Return the weights of an experiment, and log which they are.

    The average of the first entry of `best_model_criterion` comes first, then that of another
    entry, then the best checkpoint of `best.json`, and last `last.ckpt`.

    Raises:
        RunFolderError: nothing is trained there.
    """
    folder = Path(exp_dir)
    found, what = _find(checked_path(folder))
    if found is None:
        raise RunFolderError(
            f"{folder} has no trained model: there is {_content(folder)}.",
            fix="Give the folder of a "
            f"training, such as exp/training, or train first: {recipe_command('train')}",
        )
    logger.info("Weights: %s, %s", found, what)
    return found


def _find(folder: Path) -> tuple[Path | None, str]:
    criteria = _criteria(folder)
    for criterion in criteria:
        stem = f"{criterion['monitor'].replace('/', '.')}.ave_{criterion['k']}best"
        if (file := folder / f"{stem}.safetensors").is_file():
            return file, f"the average of the best {criterion['k']} by {criterion['monitor']}"
    averages = sorted(folder.glob("*.ave_*best.safetensors"))
    if averages:
        return averages[0], "an average of the best checkpoints"
    for criterion in criteria:
        for one in _names_in(criterion):
            if (file := folder / one).is_file():
                return file, f"the best checkpoint by {criterion['monitor']}; none is averaged"
    if (file := folder / _LAST).is_file():
        return file, "the last checkpoint, as none is averaged"
    return None, ""


def _criteria(folder: Path) -> list[dict[str, Any]]:
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        criteria = index["criteria"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []  # other files may still be there
    return [one for one in criteria if _is_criterion(one)] if isinstance(criteria, list) else []


def _is_criterion(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("monitor"), str)
        and isinstance(value.get("k"), int)
    )


def _names_in(criterion: dict[str, Any]) -> Iterator[str]:
    """Yield the checkpoints, best first; they are beside the index, so a path is none of ours.

    Raises:
        PackedModelError: The index of a packed model names a path.
    """
    checkpoints = criterion.get("checkpoints")
    for one in checkpoints if isinstance(checkpoints, list) else ():
        name = one.get("file") if isinstance(one, dict) else None
        if isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0"):
            yield name
        elif current_trust() is not None:
            raise PackedModelError(
                f"{_INDEX} of a packed model names {name!r:.80} as weights, which leads out of its "
                "folder.",
                fix="Do not use it; get the model from elsewhere.",
            )


def _content(folder: Path) -> str:
    if not folder.is_dir():
        return "no such folder"
    if (folder / CONFIG).is_file():
        return f"a {CONFIG}, but no weights"
    names = sorted(one.name for one in folder.iterdir())
    return f"only {', '.join(names[:5])}" if names else "nothing in it"


_TOKENS = "tokens.json"


def record_tokens(block: Any, exp_dir: Path) -> None:
    """Write the tokens of a model's tokenizer into the experiment, before it is trained.

    Args:
        block: `model` of the training config.
        exp_dir: The experiment.

    Raises:
        StaleRunError: The experiment has weights, and they were trained with other tokens.
    """
    folder = block.get("tokenizer") if isinstance(block, Mapping) else None
    tokens = _tokens_in(folder)
    if tokens is None:
        return
    known = _read(exp_dir)
    # Without weights nothing depends on the old tokens, so a failed first try does not block.
    if known is None or not has_weights(exp_dir):
        exp_dir.mkdir(parents=True, exist_ok=True)
        write_json(exp_dir / _TOKENS, tokens)
    elif known != tokens:
        raise StaleRunError(
            f"The tokenizer in {folder} is not the one that the model in {exp_dir} is trained "
            f"with: {_difference(known, tokens)}.",
            fix="Put the old one back, or train another model: exp_tag: NAME_2",
        )


def check_trained_tokens(model: Any, folder: Path) -> None:
    """Refuse a model whose tokenizer is not that of the training whose weights are in a folder.

    Raises:
        RunFolderError: With the first difference.
    """
    known = _read(folder)
    # A language model has its tokens itself, a recogniser those of its tokenizer.
    tokens = getattr(getattr(model, "tokenizer", model), "tokens", None)
    if known is not None and tokens is not None and known != tuple(tokens):
        raise RunFolderError(
            f"The tokenizer is not the one that the weights in {folder} were trained with: "
            f"{_difference(known, tuple(tokens))}. The texts would be wrong.",
            fix=f"Put the tokenizer of the training back, whose tokens are in {folder / _TOKENS}",
        )


def _tokens_in(folder: Any) -> tuple[str, ...] | None:
    try:
        return load_tokenizer(folder).tokens if isinstance(folder, str) else None
    except ConfigError:
        return None  # one of Hugging Face, or none: the model reports what is missing


def _read(folder: Path) -> tuple[str, ...] | None:
    file = folder / _TOKENS
    if not file.is_file():
        return None  # it was not trained by a stage, or is packed, with checksums
    try:
        tokens = json.loads(checked_path(file).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        tokens = None
    if not isinstance(tokens, list):
        raise RunFolderError(
            f"{file} is damaged: it is not a list of tokens.",
            fix="Copy it again from the folder of the "
            "training, or delete it if you know that the tokenizer is that of the training.",
        )
    return tuple(tokens)


def _difference(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    if len(before) != len(now):
        return f"it had {len(before)} tokens, and has {len(now)}"
    id = next(i for i, (old, new) in enumerate(zip(before, now, strict=True)) if old != new)
    return f"token {id} was {before[id]!r}, and is {now[id]!r}"


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
    roots = _real_roots(folder)
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


def _real_roots(folder: Path) -> tuple[str, ...]:
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
    "espnet3.components.text.tokenizer.CharacterTokenizer",
    "espnet3.components.text.tokenizer.SentencePieceTokenizer",
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

"""Context shared by the configs of a recipe: the folders of its experiment, data and results.

`exp_dir` of an inference config alone is named after that config, and nothing is trained there. If
the weights that it names, or the results to score, are in exactly one experiment beside that
folder, it is meant; of several, the user has to choose.
"""

import logging
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.commands import recipe_command
from espnet3.config.content import WEIGHTS
from espnet3.config.sources import Source, names_places
from espnet3.errors import ConfigError
from espnet3.systems.base.stages import KINDS, Stage

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


logger = logging.getLogger(__name__)

DEFAULTS = {
    "recipe_dir": ".",
    "data_dir": "${recipe_dir}/data",
    "exp_tag": "${self_name:}",
    "exp_dir": "${recipe_dir}/exp/${exp_tag}",
    "stats_dir": "${recipe_dir}/exp/stats",
    "inference_dir": "${exp_dir}/${self_name:}",
    "num_device": 1,
    "num_nodes": 1,
}
"""Values of every config, below what its files say; `inference_dir` see `_without_doubled_name`."""

SHARED = (
    "recipe_dir",
    "exp_tag",
    "exp_dir",
    "data_dir",
    "stats_dir",
    "dataset_dir",
    "seed",
    "num_device",
    "num_nodes",
)
"""Keys whose values in the first config (training, else inference) hold in the later ones."""

_INFERENCE_DIR = "inference_dir"
_FOLDERS = ("recipe_dir", "data_dir", "exp_tag", "exp_dir", "stats_dir", _INFERENCE_DIR)
_PLACES = ("exp_tag", "exp_dir", _INFERENCE_DIR)
_COMMON = {*SHARED, *DEFAULTS, "parallel"}
"""Keys that an override sets in all configs, also where a file does not have them."""


@dataclass(frozen=True)
class Configs:
    """One config of each kind that was given; each has the shared context."""

    training: "LoadedConfig | None" = None
    inference: "LoadedConfig | None" = None
    metrics: "LoadedConfig | None" = None
    publication: "LoadedConfig | None" = None
    demo: "LoadedConfig | None" = None


def load_configs(
    files: Mapping[str, Sequence[str | Path]],
    overrides: Sequence[str] = (),
    *,
    recipe_dir: str | Path | None = None,
    experiment: "LoadedConfig | None" = None,
) -> Configs:
    """Load the configs of a recipe, so that what they share is the same in all of them.

    Training's context wins over that of the other files, and `inference_dir` of the inference
    config over that of the metrics config; overrides win over all. An info line says where a
    value that a file sets is replaced by another.

    Args:
        files: by kind, as in `KINDS`.
        overrides: applied to each config, but for keys that only others have.
        recipe_dir: the folder of the recipe.
        experiment: the context of an experiment that was found, in place of a training config.

    Raises:
        ConfigError: as `load_config`, or if a shared key refers to nothing or is no folder.
    """
    from espnet3.config.load import load_config

    given = [kind for kind in KINDS if files.get(kind)]
    # Without overrides, to know which keys each config has of its own; one alone gets them all.
    chooses = bool(overrides) and len(given) > 1
    plain = {kind: load_config(files[kind], recipe_dir=recipe_dir) for kind in given if chooses}
    loaded: dict[str, LoadedConfig] = {}
    for kind in given:
        chosen = overrides_for(kind, overrides, plain) if chooses else overrides
        # What was loaded before takes precedence, so `KINDS` must be in the order of precedence.
        loaded[kind] = _load(files[kind], chosen, _above(loaded) or experiment, recipe_dir)
        _check_folders(loaded[kind])
    return Configs(**loaded)


def _load(
    files: Sequence[str | Path],
    overrides: Sequence[str],
    above: "LoadedConfig | None",
    recipe_dir: str | Path | None,
) -> "LoadedConfig":
    from espnet3.config.load import load_config

    loaded = load_config(files, overrides, below=DEFAULTS, recipe_dir=recipe_dir)
    if above is None:
        return _without_doubled_name(loaded, loaded.names.self_name)
    # Loaded once without the context from above, to know what this file itself would say.
    _log_differences(loaded, above)
    found = load_config(files, overrides, below=DEFAULTS, above=above, recipe_dir=recipe_dir)
    # The results of another config have their place already.
    is_placed = _INFERENCE_DIR in above.config
    return found if is_placed else _without_doubled_name(found, found.names.self_name)


def _without_doubled_name(loaded: "LoadedConfig", name: str | None) -> "LoadedConfig":
    """Return a config whose results are not in a folder `name` below one of the same name.

    Where no file and no override sets `exp_tag`, `exp_dir` or `inference_dir`, and the experiment
    is called like the config, the results are in `exp_dir` itself: `exp/inference/test`. Results
    in `exp/inference/inference`, the default before 0.2.0, stay there and are found.
    """
    from omegaconf import OmegaConf

    from espnet3.config.load import LoadedConfig, load_config

    if not all(is_default(loaded, key) for key in _PLACES):
        return loaded
    if str(context_value(loaded, "exp_tag")) != name:
        return loaded
    folder = Path(str(context_value(loaded, "exp_dir")))
    old = folder / str(name)
    if old.is_dir() and has_results(old):
        has_both = has_results(folder)
        _log_old_results(os.path.abspath(old), os.path.normpath(old), has_both)
        if not has_both:
            return loaded
    values = OmegaConf.create({_INFERENCE_DIR: "${exp_dir}"})
    return load_config(loaded, above=LoadedConfig(values, {_INFERENCE_DIR: Source("default")}))


@cache  # configs are loaded more than once in a command
def _log_old_results(place: str, old: str, has_both: bool) -> None:
    new = os.path.dirname(old)
    if has_both:
        logger.warning(
            "inference_dir is %s, and %s has other results, of an earlier version. For those: %s",
            new, old, shlex.quote(f"inference_dir={old}"),
        )  # fmt: skip
    else:
        logger.info(
            "inference_dir is %s, which has results of an earlier version; without them it is %s",
            old, new,
        )  # fmt: skip


@names_places
def _check_folders(loaded: "LoadedConfig") -> None:
    for key in _FOLDERS:
        value = context_value(loaded, key)
        is_number = key == "exp_tag" and isinstance(value, int | float)  # such as 2024
        if isinstance(value, str) and value:
            _check_path(key, value)
        elif not is_number:
            raise _no_folder(key, value, "but must be the name of a folder, as text")


def _no_folder(key: str, value: Any, problem: str, fix: str = "") -> ConfigError:
    fix = fix or f'Write: {key}: "{DEFAULTS[key]}"'
    return ConfigError(key=key, value=value, problem=problem, fix=fix)


def _check_path(key: str, value: str) -> None:
    """Refuse what no folder can be, before anything is written."""
    # They would break job scripts and lines of a log.
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise _no_folder(key, value, "which has control characters in it")
    if key == "exp_tag":
        # Results would be written outside of the recipe.
        if value.startswith("/") or ".." in value.split("/"):
            raise _no_folder(key, value, "but is a name below exp/, not a path out of it")
        return
    for place in (Path(value), *Path(value).parents):
        if place.is_dir():
            return
        # Not exists(), which is false for a dangling link, on which mkdir then fails.
        if os.path.lexists(place):
            what = "a link that leads nowhere" if place.is_symlink() else "a file, no folder"
            ways = f"Name another folder, or move it away: mv '{place}' '{place}.old'"
            raise _no_folder(key, value, f"but {place} is {what}", ways)


def _above(loaded: Mapping[str, "LoadedConfig"]) -> "LoadedConfig | None":
    """Return what the configs so far say of the context."""
    from omegaconf import OmegaConf

    from espnet3.config.load import LoadedConfig
    from espnet3.config.resolve import escaped_values

    first, inference = loaded.get("training") or loaded.get("inference"), loaded.get("inference")
    if first is None:
        return None
    # A mere default gives way to what a later file says, but not the name of the experiment.
    homes = {key: first for key in SHARED if key in _PLACES or not is_default(first, key)}
    if inference is not None:
        homes[_INFERENCE_DIR] = inference
    values = {key: context_value(home, key) for key, home in homes.items()}
    values = {key: value for key, value in values.items() if value is not None}
    sources = {key: source for key in values if (source := homes[key].find_source(key))}
    # Escaped: a value that was resolved once must not be interpolated again.
    return LoadedConfig(OmegaConf.create(escaped_values(values)), sources)


def is_default(loaded: "LoadedConfig", key: str) -> bool:
    """Tell whether no file and no override sets a key of the context."""
    return str(loaded.find_source(key)) == "default"


def context_value(loaded: "LoadedConfig", key: str) -> Any:
    """Return the resolved value of a key, or None if it is not set.

    Raises:
        ConfigError: it refers to a key that does not exist.
    """
    from omegaconf.errors import OmegaConfBaseException

    try:
        return loaded.config.get(key)
    except OmegaConfBaseException:
        loaded.plain()  # words the error
        raise


def _log_differences(loaded: "LoadedConfig", above: "LoadedConfig") -> None:
    for key in map(str, above.config):
        source = loaded.find_source(key)
        if source is None or source.line is None:
            continue  # a default, or an override, which wins
        own, shared = context_value(loaded, key), above.config[key]
        if own != shared:
            logger.info(
                "%s is %r, from %s, and not %r as %s says",
                key, shared, above.source_of(key), own, source,
            )  # fmt: skip


def check_inference_dir(configs: Configs) -> None:
    """Refuse a metrics config that does not know which results it is about.

    Raises:
        ConfigError: with the two ways to name them.
    """
    metrics = configs.metrics
    if metrics is None or configs.inference is not None:
        return
    folder = context_value(metrics, _INFERENCE_DIR)
    if any(_is_set(metrics, configs.training, key) for key in _PLACES) or Path(folder).is_dir():
        return
    file = metrics.files[0] if metrics.files else "the metrics config"
    raise ConfigError(
        f"{file} does not say which results to score: inference_dir would be {folder}, which does "
        "not exist.",
        fix=f"Decode and score: {recipe_command('infer', 'measure')} ; or write in {file}: "
        "inference_dir: FOLDER",
    )


def _is_set(metrics: "LoadedConfig", training: "LoadedConfig | None", key: str) -> bool:
    """Tell whether the metrics files or an override set a key."""
    source = metrics.find_source(key)
    if source is None or source.file == "default":
        return False
    # An override has no line, and counts even if the training config has the same value.
    by_override = source.line is None
    return by_override or training is None or source != training.find_source(key)


_TRAINING_ONLY = ("resume", "accept_changes")
"""Of a training at the top; others have them in a block."""


def overrides_for(
    kind: str,
    overrides: Sequence[str],
    plain: Mapping[str, "LoadedConfig"],
) -> list[str]:
    """Return the overrides that a config gets: not those of keys that only others have.

    `trainer.max_epochs=5` is for the config with a trainer, so that results of `infer` do not
    depend on it, and `model.encoder.n_layers=4` for that whose model has an encoder. A key that no
    config has is for all of them; where it is a mistake, each can say so.

    Args:
        kind: of the config.
        overrides: as they were typed.
        plain: the configs by kind, without overrides.
    """
    return [text for text in overrides if kind in _kinds_of(text, plain)]


def _kinds_of(text: str, plain: Mapping[str, "LoadedConfig"]) -> list[str]:
    from espnet3.config.load import parse_override

    path = parse_override(text).path
    if path[0] in _COMMON:
        return list(plain)
    if path[0] in _TRAINING_ONLY and "training" in plain:
        return ["training"]
    steps = [".".join(path[: n + 1]) for n in range(len(path))]
    # How far each config knows the path: the whole key is below one that has its block.
    depths = {kind: sum(map(loaded.has, steps)) for kind, loaded in plain.items()}
    return [kind for kind, depth in depths.items() if depth == max(depths.values())]


# Configs that `load_config` alone has read, as in a notebook, know no `exp_dir`, which every stage
# writes to or reads from. `run.py` loads the configs of a recipe with the defaults below them.


def completed(loaded: "LoadedConfig") -> "LoadedConfig":
    """Return a training config with the defaults of recipes for what it does not set.

    The folder of an experiment is `exp/<name of the first file>` below the current folder, and
    `exp/training` for a config without a file; a log line says so.
    """
    return _with(loaded, {}, "training", is_placed=False)


def complete_all(
    given: Mapping[str, "LoadedConfig | None"],
) -> dict[str, "LoadedConfig | None"]:
    """Return the configs of a system, by kind, with the folders of the first in all of them."""
    configs: dict[str, LoadedConfig | None] = {}
    shared: dict[str, Any] = {}
    is_placed = False
    for kind in KINDS:
        loaded = given.get(kind)
        if loaded is not None:
            loaded = _with(loaded, shared, kind, is_placed=is_placed)
            # Below a later config, what this one sets would look like a default.
            is_placed |= kind == "inference" or not all(is_default(loaded, key) for key in _PLACES)
            names = [
                *(() if shared else _FOLDERS[:-1]),
                *([_INFERENCE_DIR] * (kind == "inference")),
            ]
            shared |= {name: _value(loaded, name) for name in names}
        configs[kind] = loaded
    return configs


def _with(
    loaded: "LoadedConfig", shared: Mapping[str, Any], kind: str, *, is_placed: bool
) -> "LoadedConfig":
    below = {**DEFAULTS, **{key: value for key, value in shared.items() if value is not None}}
    # The config of `run.py` has the defaults already, and is not loaded again.
    if all(key in loaded.config for key in below):
        return loaded
    from espnet3.config.load import load_config

    name = loaded.names.self_name
    if name is None:
        name = kind
        unnamed = {"exp_tag": kind, _INFERENCE_DIR: f"${{exp_dir}}/{kind}"}
        below |= {key: value for key, value in unnamed.items() if key not in shared}
    found = load_config(loaded, below=below)
    if not is_placed:
        found = _without_doubled_name(found, name)
    if kind == "training" and "exp_dir" not in loaded.config and "exp_tag" not in loaded.config:
        logger.info(
            "exp_dir is not set: all is written to %s. For another folder, write exp_tag: NAME or "
            "exp_dir: FOLDER", os.path.abspath(str(_value(found, "exp_dir"))),
        )  # fmt: skip
    return found


def _value(loaded: "LoadedConfig", key: str) -> Any:
    """Return a value as text that means the same below another config."""
    from espnet3.config.resolve import escaped_values

    return escaped_values(context_value(loaded, key))


CONFIG = "config.yaml"
LAST_INFERENCE = "config/infer.yaml"
"""In the folder of an experiment: the inference config that was last used with it."""
_PACKED = (".tar.gz", ".zip")
_BLOCKS = ("model", "provider")
_MOST_LINES = 5
_BEFORE_TRAINING = {"create_dataset", "train_tokenizer", "collect_stats"}
"""Stages that need nothing of an experiment."""


@dataclass(frozen=True)
class _Lacking:
    """A name missing in the folder of a config, though something below it is needed."""

    loaded: "LoadedConfig"
    what: str
    """Such as `exp/inference/valid.loss.ave_3best.safetensors (model.weights)`."""
    kind: str
    fitting: Sequence[Path]
    """Folders of experiments that have it, or of results."""
    are_results: bool = False
    """Whether they are folders of results, for which `inference_dir` is set."""


def find_experiment(
    configs: Configs, stages: Sequence[Stage], command: Callable[[str], str]
) -> "LoadedConfig | None":
    """Return the context of the one experiment that fits, as its training config would give it.

    Args:
        configs: as they were given.
        stages: those to run.
        command: returns the line to type, with another argument at its end.

    Returns:
        None if the configs know their folder, or nothing fits.

    Raises:
        ConfigError: several experiments fit; with a line to type for each.
    """
    first = configs.inference or configs.metrics or configs.publication
    # Where a training config is given, it says which experiment is meant.
    if configs.training is not None or first is None or not _is_unsaid(first):
        return None
    names = {stage.name for stage in stages} - _BEFORE_TRAINING
    lacking = _lacking(configs, names) if names else None
    if lacking is None or not lacking.fitting:
        return None
    if len(lacking.fitting) > 1:
        raise ConfigError(_choice(lacking, command))
    return _context_of(lacking)


def _is_unsaid(loaded: "LoadedConfig") -> bool:
    # One that the user has set is never replaced by a guess, even if nothing is there.
    return all(is_default(loaded, key) for key in ("exp_tag", "exp_dir"))


def _lacking(configs: Configs, stages: set[str]) -> _Lacking | None:
    if configs.inference is not None:
        by_weights = _lacking_weights(configs.inference)
        if by_weights is None or "infer" in stages:
            return by_weights
        by_results = _lacking_results(configs.inference)
        # Results elsewhere are a better sign than weights if nothing is to be decoded.
        return by_results if by_results and by_results.fitting else by_weights
    if configs.metrics is not None and stages & {"measure", "report"}:
        return _lacking_results(configs.metrics, is_alone=True)
    if configs.publication is not None and stages & {"pack_model", "upload_model"}:
        exp_dir = Path(context_value(configs.publication, "exp_dir"))
        others = [] if _is_trained(exp_dir) else _experiments(exp_dir)
        fitting = [folder for folder in others if _is_trained(folder)]
        return _Lacking(configs.publication, f"{exp_dir}", "a trained model", fitting)
    return None


def _lacking_weights(loaded: "LoadedConfig") -> _Lacking | None:
    """Return which weights a config names in its own folder, where they are not."""
    exp_dir = Path(context_value(loaded, "exp_dir"))
    values = loaded.plain()
    named = {
        key: os.path.relpath(text, exp_dir)
        for block in _BLOCKS
        for key, text in _texts(values.get(block), block)
        if _is_input(key, text, exp_dir)
    }
    missing = {key: inner for key, inner in named.items() if not _has(exp_dir, inner)}
    if not missing:
        return None
    fitting = [
        folder
        for folder in _experiments(exp_dir)
        if all(_has(folder, inner) for inner in missing.values())
    ]
    key, inner = next(iter(missing.items()))
    what = f"{os.path.normpath(exp_dir / inner)} ({key})"
    return _Lacking(loaded, what, "such weights", fitting)


def _lacking_results(loaded: "LoadedConfig", *, is_alone: bool = False) -> _Lacking | None:
    """Return where there are results, if there are none where a config looks for them.

    A metrics config that is alone does not know what the inference config was called.
    """

    exp_dir = Path(context_value(loaded, "exp_dir"))
    folder = Path(context_value(loaded, "inference_dir"))
    if not is_default(loaded, "inference_dir") or has_results(folder):
        return None
    if is_alone:
        experiments = {*_experiments(exp_dir), *_experiments(exp_dir, LAST_INFERENCE)}
        places = {place for one in experiments for place in (one, *one.glob("*"))}
        fitting = sorted(place for place in places if found_test_sets(place))
    else:
        named = ((one, one / folder.name) for one in _experiments(exp_dir))
        fitting = [experiment for experiment, place in named if found_test_sets(place)]
    what = f"{os.path.normpath(folder)} (inference_dir)"
    return _Lacking(loaded, what, "results", fitting, are_results=is_alone)


def _texts(values: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield all texts in plain containers, with their dotted keys."""
    if isinstance(values, str):
        yield key, values
    elif isinstance(values, Mapping):
        for name, value in values.items():
            yield from _texts(value, f"{key}.{name}")
    elif isinstance(values, list):
        for i, value in enumerate(values):
            yield from _texts(value, f"{key}.{i}")


def _is_input(key: str, text: str, exp_dir: Path) -> bool:
    """Tell whether a value names weights in the folder of the experiment, or that folder."""
    if not text or "\0" in text:
        return False
    path, root = os.path.abspath(text), os.path.abspath(exp_dir)
    # With a separator: exp/a_2 is not inside of exp/a.
    is_weights = path.endswith((*WEIGHTS, *_PACKED)) and path.startswith(root + os.sep)
    return is_weights or (path == root and key.endswith(".exp_dir"))


def _has(exp_dir: Path, inner: str) -> bool:
    return _is_trained(exp_dir) if inner == os.curdir else (exp_dir / inner).exists()


def _is_trained(folder: Path) -> bool:
    return any(file.name.endswith(WEIGHTS) for file in folder.glob("*"))


def _experiments(exp_dir: Path, config: str = CONFIG) -> list[Path]:
    """Return the folders of trainings beside one, also of tags with a slash in them.

    Args:
        exp_dir: The one that is not meant.
        config: The file by which they are known.
    """
    above = exp_dir.parent
    folders = [place for pattern in ("*", "*/*") for place in above.glob(pattern)]
    own = os.path.abspath(exp_dir)
    known = (place for place in folders if (place / config).is_file())
    return sorted(place for place in known if os.path.abspath(place) != own)


def _experiment_of(place: Path) -> Path:
    return place if _config_in(place) else place.parent


def _config_in(folder: Path) -> Path | None:
    """Return what is saved of the config of an experiment: of its training, or of its decoding."""
    files = (folder / CONFIG, folder / LAST_INFERENCE)
    return next((file for file in files if file.is_file()), None)


def _context_of(lacking: _Lacking) -> "LoadedConfig":
    """Return the shared keys as the experiment has them, and where it lies now."""
    from omegaconf import OmegaConf

    from espnet3.config.load import LoadedConfig, load_config, read_values
    from espnet3.config.resolve import escaped_values

    place = lacking.fitting[0]
    folder = _experiment_of(place)
    file = _config_in(folder) or folder / CONFIG
    saved = read_values(file)
    # Only what differs from the defaults was set on purpose, and is taken over.
    own_defaults = load_config([], below={**DEFAULTS, "exp_tag": saved.get("exp_tag")}).config
    values = {
        key: saved[key]
        for key in SHARED
        if saved.get(key) is not None
        and key != "recipe_dir"
        and saved[key] != own_defaults.get(key)
    }
    is_there = os.path.abspath(str(saved.get("exp_dir", ""))) == os.path.abspath(folder)
    # An experiment that was moved has its old place in the config.
    values["exp_dir"] = saved["exp_dir"] if is_there else str(folder)
    values["exp_tag"] = saved.get("exp_tag") or folder.name
    if lacking.are_results:
        values["inference_dir"] = str(Path(values["exp_dir"], place.relative_to(folder)))
    config = lacking.loaded.files[0] if lacking.loaded.files else "the config"
    key = "inference_dir" if lacking.are_results else "exp_dir"
    other = "inference_dir=FOLDER" if lacking.are_results else "exp_tag=NAME"
    logger.info(
        "%s names no experiment, and %s does not exist: %s is %s, the only one with %s. For "
        "another: --training_config FILE, or %s",
        config, lacking.what, key, os.path.normpath(values[key]), lacking.kind, other,
    )  # fmt: skip
    source = Source(str(file))
    return LoadedConfig(OmegaConf.create(escaped_values(values)), dict.fromkeys(values, source))


def _choice(lacking: _Lacking, command: Callable[[str], str]) -> str:
    places = lacking.fitting
    config = lacking.loaded.files[0] if lacking.loaded.files else "the config"
    names = ", ".join(os.path.normpath(place) for place in places)
    above = Path(context_value(lacking.loaded, "exp_dir")).parent
    lines = [command(_argument(place, above, lacking)) for place in places[:_MOST_LINES]]
    return (
        f"{config} does not say which experiment is meant: {lacking.what} does not exist, and "
        f"{len(places)} have {lacking.kind}: {names}. Name one:\n  " + "\n  ".join(lines)
    )


def _argument(place: Path, above: Path, lacking: _Lacking) -> str:
    """Return the argument that names an experiment below `above`, or results in it."""
    if lacking.are_results:
        return shlex.quote(f"inference_dir={os.path.normpath(place)}")
    training = Path("conf", f"{place.name}.yaml")
    if training.is_file():
        return f"--training_config {shlex.quote(str(training))}"
    return shlex.quote(f"exp_tag={place.relative_to(above)}")


SWEEP = "sweep"
"""The folder below `inference_dir` with a folder for each choice of values of a sweep."""


SCORES = "metrics.json"
"""The file in `inference_dir` with what `measure` computed."""


def found_test_sets(inference_dir: Path) -> list[str]:
    """Return the folders of results, sorted: also one that has begun but has no results yet."""
    if not inference_dir.is_dir():
        return []
    # Imported where there is a folder of results: a wrong key is told without.
    from espnet3.shards.layout import shard_of

    folders = (path for path in inference_dir.iterdir() if path.is_dir())
    return sorted(f.name for f in folders if shard_of(f.name) is None and _is_test_set(f))


def _is_test_set(folder: Path) -> bool:
    from espnet3.io.atomic import is_temp_name
    from espnet3.shards.layout import manifest_path

    files = folder.glob("*.scp")
    is_there = any(file.is_file() and not is_temp_name(file.name) for file in files)
    return is_there or manifest_path(folder).exists()


def has_results(inference_dir: Path) -> bool:
    """Tell whether a folder holds results of test sets, also begun ones, of a sweep, or scores."""
    if not inference_dir.is_dir() or _is_test_set(inference_dir):
        return False
    others = ((inference_dir / name).exists() for name in (SWEEP, SCORES))
    return any(others) or bool(found_test_sets(inference_dir))


def also_found(names: Iterable[str]) -> str:
    """Return the line about results that no config names."""
    return f"also found, not in the config: {', '.join(names)}"


def whole_folder(inference_dir: Path) -> Path:
    """Return `inference_dir` as it was set: for one choice of values, that of the sweep."""
    is_choice = inference_dir.parent.name == SWEEP
    return inference_dir.parent.parent if is_choice else inference_dir


def results_folder(inference_dir: str, test_set: str) -> Path:
    """Return the folder of a test set's results."""
    return Path(inference_dir) / test_set

"""The experiment that configs are about if none of them says so.

`exp_dir` of an inference config alone is named after that config, and nothing is trained there. If
the weights that it names, or the results to score, are in exactly one experiment beside that
folder, it is meant; of several, the user has to choose.
"""

import logging
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.config.content import WEIGHTS
from espnet3.config.sources import Source
from espnet3.errors import ConfigError
from espnet3.systems.base.context import DEFAULTS, SHARED, Configs, context_value, is_default
from espnet3.systems.base.stages import Stage

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

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
    from espnet3.systems.base.inference_config import found_test_sets, has_results

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

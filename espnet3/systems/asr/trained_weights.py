"""Which weights of an experiment to take: the average of the best, else a checkpoint."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from espnet3.config.trust import PackedModelError, checked_path, current_trust
from espnet3.errors import RunFolderError
from espnet3.systems.asr.trained_model import CONFIG

logger = logging.getLogger(__name__)

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
            f"{folder} has no trained model: there is {_content(folder)}. Give the folder of a "
            "training, such as exp/training, or train first: python run.py --stages train "
            "--training_config conf/training.yaml"
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
                "folder. Do not use it; get the model from elsewhere."
            )


def _content(folder: Path) -> str:
    if not folder.is_dir():
        return "no such folder"
    if (folder / CONFIG).is_file():
        return f"a {CONFIG}, but no weights"
    names = sorted(one.name for one in folder.iterdir())
    return f"only {', '.join(names[:5])}" if names else "nothing in it"

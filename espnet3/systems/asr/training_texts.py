"""The texts that a tokenizer is trained on, from the training sets or a function."""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.components.data.dataset import fields_of, fingerprint_of, has_fields, locality_of
from espnet3.components.data.functions import find_function
from espnet3.config.instantiate import instantiate
from espnet3.errors import ConfigError, StaleRunError
from espnet3.io.tables import read_jsonl
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.parallel import use_parallel
from espnet3.systems.asr.preprocessor import text_of
from espnet3.systems.base.training_data import ORGANIZER

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)

BLOCK = "tokenizer"
TEXT_BUILDER = f"{BLOCK}.text_builder"

_BATCH_SIZE = 100


@dataclass(frozen=True)
class TextSummary:
    """What is remembered of texts, so that others are not taken for them."""

    n_texts: int
    sha256: str


class LineFile(Iterable[str]):
    """The texts in a file, one per line; empty lines are none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[str]:
        with self.path.open(encoding="utf-8-sig", newline="\n") as lines:
            yield from filter(None, map(str.strip, lines))


class JsonFile(Iterable[str]):
    """The texts in a file with one as JSON per line, as a run over a dataset leaves it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[str]:
        return read_jsonl(self.path)


def summarize(texts: Iterable[str]) -> TextSummary:
    """Return how many texts there are, and a digest of them in their order."""
    hasher, n_texts = hashlib.sha256(), 0
    for text in texts:
        hasher.update(text.encode("utf-8") + b"\n")
        n_texts += 1
    return TextSummary(n_texts, hasher.hexdigest())


class TextProvider(EnvironmentProvider):
    """Builds the training set, without the preprocessor that needs the tokenizer."""

    def build_env_local(self) -> dict[str, Any]:
        """Build it in this process."""
        return _build_env(self.config)

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return a function that builds it in a worker."""
        return partial(_build_env, self.config)


class TextRunner(BaseRunner):
    """Reads the texts of a dataset, and writes them as `results.jsonl` in its order."""

    can_detach = False  # the stage needs its return value

    @staticmethod
    def forward(idx: list[int], dataset: Any) -> list[str]:  # type: ignore[override]
        """Return the texts of some items; no audio is decoded where the dataset can do without."""
        return [text_of(fields_of(dataset, i)) for i in idx]


def dataset_texts(
    values: Mapping[str, Any], parallel: "ParallelConfig", folder: Path
) -> Iterable[str]:
    """Return the texts of the training sets.

    They are read by workers, or in this process where no audio stands between us and them.

    Args:
        values: The config.
        parallel: The workers.
        folder: Where the texts are kept.

    Raises:
        ConfigError: There is no training set.
        EspnetError: What the datasets raise.
    """
    own = training_set_config(values)
    dataset = _build_env(own)["dataset"]
    if dataset is None or len(dataset) == 0:
        raise _no_training_set()

    def run(resume: bool) -> Path:
        runner = TextRunner(TextProvider(own), _BATCH_SIZE, folder, resume=resume)
        runner.not_results = ("config.recipe_dir",)
        runner.config_block, runner.folder_key = BLOCK, f"{BLOCK}.save_path"
        runner.depends_on = {"dataset.content": fingerprint_of(dataset)}
        merged: Path = runner(range(len(dataset)))
        return merged

    # A job may wait for hours, which texts in memory need not.
    is_at_hand = has_fields(dataset) and locality_of(dataset) is None
    with use_parallel({} if is_at_hand else parallel):
        try:
            return JsonFile(run(resume=True))
        except StaleRunError:
            logger.info("The training sets have changed, so their texts are read again")
            return JsonFile(run(resume=False))


def training_set_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the texts depend on, and no more: a change of the rest must not matter.

    Raises:
        ConfigError: There is no training set.
    """
    block, recipe_dir = values.get("dataset"), values.get("recipe_dir")
    if not isinstance(block, Mapping):
        raise _no_training_set()
    if block.get("_target_", ORGANIZER) == ORGANIZER:
        if not block.get("train"):
            raise _no_training_set()
        # How often training takes an item does not change its text.
        train = [{k: v for k, v in entry.items() if k != "weight"} for entry in block["train"]]
        recipe_dir = block.get("recipe_dir", recipe_dir)
        block = {"_target_": ORGANIZER, "recipe_dir": recipe_dir, "train": train}
    return {"dataset": dict(block), "recipe_dir": recipe_dir}


def _no_training_set() -> ConfigError:
    return ConfigError(
        "dataset.train",
        key="dataset",
        problem=" lists no training set, so there are no texts to train a tokenizer on",
        fix="Write: dataset: {train: [{data_src: kaldi, data_src_args: {path: data/train}}]}; or "
        "take the texts from elsewhere: tokenizer: {text_builder: {func: src.texts.build}}",
    )


def _build_env(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"dataset": instantiate(config["dataset"], key="dataset").train}


def built_texts(builder: Mapping[str, Any]) -> Iterable[str]:
    """Return what the function of a `text_builder` returns, or the lines of the file it names.

    Raises:
        ConfigError: These are not texts.
    """
    arguments = {name: value for name, value in builder.items() if name != "func"}
    function = find_function(builder["func"], key=f"{TEXT_BUILDER}.func")
    result = function(**arguments)
    if isinstance(result, str | os.PathLike):
        path = Path(result)
        if path.is_file():
            return LineFile(path)
        raise _returned(
            f"{os.fspath(result)!r:.80}, but there is no such file",
            "Return the path of a file with one text per line, or a list of texts.",
        )
    if not isinstance(result, Iterable):
        raise _returned(
            f"{result!r:.80}, of type {type(result).__name__}",
            "Return or yield texts, or return the path of a file with one text per line.",
        )
    texts = list(result)
    bad = next((text for text in texts if not isinstance(text, str)), None)
    if bad is not None:
        problem = f"{bad!r:.80} among the texts, of type {type(bad).__name__}"
        raise _returned(problem, "Return texts alone.")
    return [text for text in texts if text.strip()]


def _returned(what: str, fix: str) -> ConfigError:
    return ConfigError(key=f"{TEXT_BUILDER}.func", problem=f"returned {what}", fix=fix)

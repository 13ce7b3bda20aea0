"""Stage 2, `train_tokenizer`: from the texts of the training sets to a tokenizer on disk.

The texts come from the training sets, or from a function of the user. A tokenizer that was made
from the same texts with the same settings is kept. If these have changed, it is trained again,
unless a model was trained with it: its output would then mean other tokens, so the stage refuses
and says how to continue.
"""

import hashlib
import logging
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from espnet3.commands import free_name, recipe_command
from espnet3.components.data.data_organizer import check_datasets
from espnet3.components.data.dataset import fields_of, fingerprint_of, has_fields, locality_of
from espnet3.components.data.dataset_builder import is_dataset_made
from espnet3.components.text.spelling import Speller
from espnet3.components.text.tokenizer import (
    MODEL_TYPES,
    CharacterTokenizer,
    Tokenizer,
    TokenizerFolder,
    train_pieces,
)
from espnet3.config.fingerprint import diff
from espnet3.config.instantiate import find_function, instantiate
from espnet3.config.load import LoadedConfig
from espnet3.config.schema import FrozenConfig, Names, validate
from espnet3.config.sources import names_places
from espnet3.config.targets import find_bad_argument, signature_of
from espnet3.errors import ConfigError, StaleRunError
from espnet3.io.tables import read_jsonl
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.clusters.registry import check_resources
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.parallel import as_parallel_config, use_parallel
from espnet3.systems.asr.preprocessor import text_of
from espnet3.systems.base.inference_provider import ORGANIZER
from espnet3.systems.base.stages import Skipped
from espnet3.systems.base.training_record import has_weights

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)

_SOURCE = "made_from"
_OURS = "espnet3.systems.asr."
_SMALLEST = 4  # the special tokens, and one more
BLOCK = "tokenizer"
TEXT_BUILDER = f"{BLOCK}.text_builder"

_BATCH_SIZE = 100


@dataclass(frozen=True)
class TextSummary:
    """Facts of training texts by which they are recognised again."""

    n_texts: int
    sha256: str


class LineFile(Iterable[str]):
    """The texts in a file, one per line; empty lines are none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[str]:
        # Editors on Windows add a byte order mark, which would become a character of its own.
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
        # With a separator, so that "ab" + "c" is not the same as "a" + "bc".
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
        # The same data in a copied recipe gives the same texts.
        runner.not_results = ("config.recipe_dir",)
        runner.config_block, runner.elsewhere = BLOCK, f"{BLOCK}.save_path={free_name(folder)}"
        runner.depends_on = {"dataset.content": fingerprint_of(dataset)}
        merged: Path = runner(range(len(dataset)))
        return merged

    # A job may wait for hours, which texts in memory need not.
    is_at_hand = has_fields(dataset) and locality_of(dataset) is None
    with use_parallel({} if is_at_hand else parallel):
        try:
            return JsonFile(run(resume=True))
        except StaleRunError:
            # Texts are no results, so the user is not asked as for other stale runs.
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
            # A file is read lazily, as a corpus for a language model may exceed the memory.
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
    # The texts are iterated twice, for the digest and for training; a generator lasts once.
    texts = list(result)
    bad = next((text for text in texts if not isinstance(text, str)), None)
    if bad is not None:
        problem = f"{bad!r:.80} among the texts, of type {type(bad).__name__}"
        raise _returned(problem, "Return texts alone.")
    return [text for text in texts if text.strip()]


def _returned(what: str, fix: str) -> ConfigError:
    return ConfigError(key=f"{TEXT_BUILDER}.func", problem=f"returned {what}", fix=fix)


def _spelled_out(value: Any) -> Any:
    return CharacterTokenizer.kind if value == "char" else value


class TokenizerConfig(FrozenConfig):
    """Settings of stage 2, `train_tokenizer`."""

    model_type: Annotated[Literal["characters", "bpe", "unigram"], BeforeValidator(_spelled_out)]
    """characters (or char), or word pieces of SentencePiece: bpe or unigram."""
    vocab_size: int | None = Field(default=None, ge=_SMALLEST)
    """Tokens of bpe or unigram, with <blank>, <unk> and <sos/eos>; characters are all there are."""
    save_path: str | None = None
    """Folder of the tokenizer; unset: data_dir/tokenizer."""
    clean_types: Names = []
    """What is done to texts before they are cut, here and wherever this tokenizer is used."""
    character_coverage: float = Field(default=1.0, gt=0, le=1)
    """Of bpe or unigram: share of the characters that get a token; less for Chinese or Japanese."""
    text_builder: dict[str, Any] | None = None
    """Texts that are not those of dataset.train: `func`, a dotted path, and its arguments."""

    @property
    def folder(self) -> Path:
        """Folder of the tokenizer."""
        assert self.save_path is not None
        return Path(self.save_path)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that the tokens depend on, beside the texts."""
        settings: dict[str, Any] = {"model_type": self.model_type, "clean_types": self.clean_types}
        if self.model_type in MODEL_TYPES:
            settings["vocab_size"] = self.vocab_size
            settings["character_coverage"] = self.character_coverage
        return settings


def load_tokenizer_block(loaded: LoadedConfig) -> TokenizerConfig:
    """Read the block as it is.

    Raises:
        ConfigError: one error that lists every problem.
    """
    return validate(TokenizerConfig, loaded.plain().get(BLOCK), prefix=BLOCK, loaded=loaded)


@names_places
def load_tokenizer_config(loaded: LoadedConfig) -> TokenizerConfig:
    """Read the block, with `save_path` filled in.

    Raises:
        ConfigError: There is no such block, or it is wrong.
    """
    values = loaded.plain()
    if values.get(BLOCK) is None:
        raise ConfigError(
            key=BLOCK,
            problem="is not set, so which tokenizer to train is not known",
            fix="Write: tokenizer: {model_type: characters, save_path: '${data_dir}/tokenizer'}",
        )
    config = load_tokenizer_block(loaded)
    if config.save_path is None:
        config = config.model_copy(update={"save_path": str(Path(values["data_dir"], BLOCK))})
    size = f"{BLOCK}.vocab_size"
    if config.model_type == CharacterTokenizer.kind and config.vocab_size is not None:
        logger.warning(
            "%s is ignored%s: with model_type characters, all characters of the texts are tokens",
            size, loaded.set_in(size),
        )  # fmt: skip
    _check(config)
    return config


def _check(config: TokenizerConfig) -> None:
    if config.model_type in MODEL_TYPES and config.vocab_size is None:
        raise ConfigError(
            key=f"{BLOCK}.model_type",
            value=config.model_type,
            problem=f"but {BLOCK}.vocab_size is not set",
            fix="Write the number of tokens: vocab_size: 500",
        )
    try:
        Speller(config.clean_types)
    except ConfigError as error:
        # `Speller` knows nothing of the block that its argument comes from.
        raise error.below(BLOCK) from None
    if config.text_builder is not None:
        _check_builder(config.text_builder)


def _check_builder(builder: Mapping[str, Any]) -> None:
    func = builder.get("func")
    if not isinstance(func, str):
        raise ConfigError(
            key=f"{TEXT_BUILDER}.func",
            value=func,
            problem="but must be the dotted path of a function that returns texts, or a file of "
            "them",
            fix="Write: text_builder: {func: src.texts.build}",
        )
    found = find_function(func, key=f"{TEXT_BUILDER}.func")
    arguments = {name: value for name, value in builder.items() if name != "func"}
    signature = signature_of(found)
    bad = find_bad_argument(signature, arguments) if signature else None
    if bad is not None:
        raise ConfigError(
            f"{TEXT_BUILDER} does not fit {func}: {bad.reason}",
            key=f"{TEXT_BUILDER}.{bad.name}" if bad.name else TEXT_BUILDER,
            fix=bad.hint,
        )


@names_places
def check_tokenizer_exists(loaded: LoadedConfig) -> None:
    """Refuse a config whose preprocessor or model reads a tokenizer that was not made yet.

    Raises:
        ConfigError: The message has the key, its place, and the command that makes it.
    """
    values: Any = loaded.plain()
    for block in (("dataset", "preprocessor"), ("model",)):
        found = values
        for name in block:
            found = found.get(name) if isinstance(found, Mapping) else None
        # Others may call something else a tokenizer.
        if not isinstance(found, Mapping) or not str(found.get("_target_")).startswith(_OURS):
            continue
        folder = found.get(BLOCK)
        if isinstance(folder, str) and not TokenizerFolder(folder).exists():
            raise ConfigError(
                key=".".join((*block, BLOCK)),
                value=folder,
                problem="where there is no tokenizer",
                fix=f"Make it first: {recipe_command(*_stages_before(loaded))}",
            )


def _stages_before(loaded: LoadedConfig) -> tuple[str, ...]:
    """Return the stages that make a tokenizer, in a fresh recipe its data as well."""
    # A builder of the user's may fail: that is for `create_dataset` to report.
    with suppress(Exception):
        if not is_dataset_made(loaded.resolved()):
            return "create_dataset", "train_tokenizer"
    return ("train_tokenizer",)


@names_places
def train_tokenizer(loaded: LoadedConfig) -> Any:
    """Train the tokenizer of the `tokenizer` block, unless it is there.

    Returns:
        Its folder, or `Skipped` if it was made from the same texts and settings before.

    Raises:
        ConfigError: The block is wrong, or does not fit the texts.
        StaleRunError: A trained model needs the tokenizer as it is.
    """
    config = load_tokenizer_config(loaded)
    texts = _texts(config, loaded.plain(), as_parallel_config(loaded))
    # The texts are read even if a tokenizer exists; only they can tell whether it is stale.
    summary = summarize(texts)
    source = _describe_source(config, summary)
    known = _known_source(config)
    if known == source:
        return Skipped(f"{config.folder} was made from the same {summary.n_texts} texts")
    if known is not None:
        _refuse_if_needed(config, _changes(known, source), loaded["exp_dir"])
        logger.info("The tokenizer is trained again: %s", "; ".join(_changes(known, source)))
    tokenizer = _train(config, texts)
    tokenizer.save(config.folder, {_SOURCE: source})
    logger.info(
        "%d tokens (%s) from %d texts: %s",
        len(tokenizer.tokens), config.model_type, summary.n_texts, config.folder,
    )  # fmt: skip
    return config.folder


@names_places
def check_train_tokenizer(loaded: LoadedConfig) -> None:
    """Check all that can be checked without reading texts.

    Raises:
        ConfigError: Naming the key, its place, and what to write.
        StaleRunError: The settings are not those of the tokenizer that a trained model needs.
    """
    config = load_tokenizer_config(loaded)
    if config.text_builder is None:
        check_datasets(loaded, ("train",))
        training_set_config(loaded.plain())
        check_resources(as_parallel_config(loaded))
    known = _known_source(config)
    if known is not None:
        changed = _changed_settings(known, config.settings)
        if changed:
            _refuse_if_needed(config, changed, loaded["exp_dir"])


def describe_train_tokenizer(loaded: LoadedConfig) -> list[str]:
    """Return what the stage would do; no text is read.

    Raises:
        ConfigError: As the stage itself would.
    """
    config = load_tokenizer_config(loaded)
    builder = config.text_builder
    origin = "dataset.train" if builder is None else str(builder["func"])
    size = "" if config.vocab_size is None else f", vocab_size {config.vocab_size}"
    lines = [f"model_type {config.model_type}{size}, from the texts of {origin}: {config.folder}"]
    known = _known_source(config)
    if known is not None:
        changed = _changed_settings(known, config.settings)
        lines.append(
            f"there is one, of other settings: {'; '.join(changed)}"
            if changed
            else f"there is one, from {known['texts']['n_texts']} texts; kept if these are the same"
        )
    return lines


def _texts(
    config: TokenizerConfig, values: Mapping[str, Any], parallel: "ParallelConfig"
) -> Iterable[str]:
    """Return the texts, which can be gone through more than once.

    Those of the training sets are kept in a folder beside the tokenizer, so that a killed run
    resumes, and the same texts are not read twice.
    """
    if config.text_builder is not None:
        key, texts = TEXT_BUILDER, built_texts(config.text_builder)
    else:
        folder = config.folder.with_name(f"{config.folder.name}_texts")
        key, texts = "dataset.train", dataset_texts(values, parallel, folder)
    # Here, because the trainers would fail without naming the key.
    if next(iter(texts), None) is None:
        problem = "gives no texts to train a tokenizer on"
        raise ConfigError(key=key, problem=problem, fix="Check its arguments.")
    return texts


def _train(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    if config.vocab_size is None or config.model_type == CharacterTokenizer.kind:
        return CharacterTokenizer.from_texts(texts, config.clean_types)
    try:
        return train_pieces(
            texts,
            config.model_type,
            config.vocab_size,
            clean_types=config.clean_types,
            character_coverage=config.character_coverage,
        )
    except ConfigError as error:
        raise error.below(BLOCK) from error.__cause__


def _describe_source(config: TokenizerConfig, summary: TextSummary) -> dict[str, Any]:
    return {"settings": config.settings, "texts": asdict(summary)}


def _known_source(config: TokenizerConfig) -> dict[str, Any] | None:
    """Return what the tokenizer on disk was made from; None if there is none of ours."""
    folder = TokenizerFolder(config.folder)
    if not folder.exists():
        return None
    known = folder.read_about().get(_SOURCE)
    if known is None:
        raise StaleRunError(
            f"The tokenizer in {folder} was not made by this stage, and is not replaced. To use "
            "it, leave the stage out; to train another one, write another folder: tokenizer: "
            "{save_path: '${data_dir}/tokenizer_2'}"
        )
    return dict(known)


def _changes(known: dict[str, Any], source: dict[str, Any]) -> list[str]:
    changed = _changed_settings(known, source["settings"])
    before, now = known["texts"], source["texts"]
    if before != now:
        changed.append(f"other texts: {before['n_texts']} then, {now['n_texts']} now")
    return changed


def _changed_settings(known: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    return diff({BLOCK: known["settings"]}, {BLOCK: settings})


def _refuse_if_needed(config: TokenizerConfig, changed: list[str], exp_dir: str) -> None:
    users = trained_with(config.folder, Path(exp_dir))
    if not users:
        return
    folders = shlex.join(map(str, users))
    error = StaleRunError(
        f"The tokenizer in {config.folder} would be another one ({'; '.join(changed)}), but "
        f"the model in {folders} was trained with it as it is. To keep both, write another folder "
        f"and another experiment: tokenizer: {{save_path: {config.folder}_2}} and exp_tag: NAME_2. "
        f"To start over, remove them first: rm -r {shlex.quote(str(config.folder))} {folders}"
    )
    raise error.at(f"{BLOCK}.save_path")


def trained_with(tokenizer: Path, exp_dir: Path) -> list[Path]:
    """Return the experiments with trained weights whose config names a tokenizer.

    Args:
        tokenizer: Its folder.
        exp_dir: An experiment; those beside it are looked at as well, since they may share it.
    """
    found = []
    for file in sorted({exp_dir / "config.yaml", *exp_dir.parent.glob("*/config.yaml")}):
        if has_weights(file.parent) and file.is_file() and _names(file, tokenizer):
            found.append(file.parent)
    return found


def _names(config_file: Path, tokenizer: Path) -> bool:
    from espnet3.config.files import read_file

    # Compared as absolute paths, because a config may have either form.
    wanted = tokenizer.absolute()
    values: list[Any] = [read_file(config_file).values]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value
        elif isinstance(value, str) and Path(value).absolute() == wanted:
            return True
    return False

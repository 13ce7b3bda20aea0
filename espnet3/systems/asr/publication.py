"""Stages 9 and 10: pack a trained recogniser for others, and upload it to the Hugging Face Hub."""

import importlib.util
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from espnet3 import __version__
from espnet3.commands import recipe_command
from espnet3.components.text.tokenizer import ABOUT
from espnet3.config.load import LoadedConfig, read_values
from espnet3.config.schema import FrozenConfig, Names, validate
from espnet3.config.sources import names_places
from espnet3.config.trust import PackedModelError
from espnet3.errors import (
    ConfigError,
    EspnetError,
    MissingExtraError,
    ResourceError,
    RunFolderError,
)
from espnet3.io.atomic import temp_path, write_json, write_text
from espnet3.systems.asr.packed_archive import (
    CARD,
    FILES,
    FORMAT_VERSION,
    INFERENCE,
    META,
    METRICS,
    TOKENIZER,
    TRAINING,
    WEIGHTS,
    write_archive,
)
from espnet3.systems.asr.trained_model import (
    change_texts,
    find_weights,
    load_packed_model,
    open_packed,
    read_training_config,
    require_weights,
    sha256,
)
from espnet3.systems.base.context import CONFIG, LAST_INFERENCE
from espnet3.systems.base.results_table import MEASURED_FROM, format_results
from espnet3.text import first_line

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|multilingual")


class PackConfig(FrozenConfig):
    """Settings of stage `pack_model`: files and model card."""

    output_dir: str | None = None
    """The folder to write; `${exp_dir}/packed` if left out."""
    archive: bool = True
    """Write `<name>.tar.gz` beside it as well."""
    name: str | None = None
    """Of the model; `<corpus>_<system>_<exp_tag>` by default, from the folders."""
    weights: str | None = None
    """File to pack; by default the average of the best checkpoints, as the log says."""
    inference_config: str | None = None
    """How the model decodes; by default as the last run of `infer` did, if there was one."""
    metrics: str | None = None
    """A metrics.json; by default that of the last run of `infer`, if it was measured."""
    license: str = "other"
    """Of the weights, as the Hugging Face Hub spells it: cc-by-4.0, apache-2.0, ..."""
    language: str | list[str] | None = None
    """One or several codes: en, ja, multilingual."""
    description: str = ""
    """A few sentences for the model card: what it recognises, and what not."""
    data: str = ""
    """What it was trained on, and under which licence that is."""
    datasets: Names = Field(default_factory=list)
    """Names of data sets on the Hugging Face Hub."""
    tags: Names = Field(default_factory=list)
    """Further tags of the card."""

    @field_validator("name", mode="after")
    @classmethod
    def _name_is_plain(cls, value: str | None) -> str | None:
        if value is not None and not _NAME.fullmatch(value):
            raise ValueError(
                f"is {value!r}, but may have letters, digits, '.', '_' and '-' only, as it becomes "
                "the name of a file. Write: name: my_corpus_asr"
            )
        return value

    @field_validator("language", mode="after")
    @classmethod
    def _language_is_a_code(cls, value: str | list[str] | None) -> str | list[str] | None:
        for one in [value] if isinstance(value, str) else value or ():
            if not _LANGUAGE.fullmatch(one):
                raise ValueError(f"has {one!r}, which is no code of a language. Write: en")
        return value

    def folder(self, exp_dir: Path) -> Path:
        """Return the folder of the packed model of an experiment."""
        return Path(self.output_dir or exp_dir / "packed")

    @property
    def languages(self) -> list[str]:
        """The codes as a list."""
        return [self.language] if isinstance(self.language, str) else list(self.language or ())


class UploadConfig(FrozenConfig):
    """Settings of stage `upload_model`; the token comes from the environment, never from here."""

    repo_id: str | None = None
    """`user/name`, or `organisation/name`."""
    private: bool = True
    """Whether a repository that is created is seen by its owner only."""
    revision: str | None = None
    """Branch to commit to; main if left out."""
    message: str = "Upload the model"
    """Of the commit."""

    @field_validator("repo_id", mode="after")
    @classmethod
    def _is_a_repository(cls, value: str | None) -> str | None:
        if value is None:
            return None
        owner, _, name = value.partition("/")
        # The Hub forbids runs of dots and dashes, and names that look like a git folder.
        is_odd = "--" in value or ".." in value or value.endswith((".git", ".", "-"))
        if not (_NAME.fullmatch(owner) and _NAME.fullmatch(name)) or is_odd:
            raise ValueError(
                f"is {value!r}, which is no repository. Write: repo_id: user/{name or 'model'}"
            )
        return value


class PublicationConfig(FrozenConfig):
    """The blocks that the two stages read."""

    pack: PackConfig = Field(default_factory=PackConfig)
    """What `pack_model` packs, and what the model card says."""
    upload: UploadConfig = Field(default_factory=UploadConfig)
    """Where the packed model goes."""

    @field_validator("pack", "upload", mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return {} if value is None else value


def load_publication_config(loaded: LoadedConfig) -> PublicationConfig:
    """Check the blocks; a config may hold other keys, for other readers.

    Raises:
        ConfigError: one that lists every problem, with its place.
    """
    values = loaded.plain()
    known = {key: values[key] for key in PublicationConfig.model_fields if key in values}
    return validate(PublicationConfig, known, loaded=loaded)


_ENDPOINT = "https://huggingface.co"


def upload_model(loaded: LoadedConfig) -> str:
    """Create the repository if need be, and commit the files of the packed model to it.

    The token is that of `HF_TOKEN` or of `hf auth login`; it is written nowhere. `HF_ENDPOINT`
    names another server than the Hugging Face Hub.

    Returns:
        The address of the commit.

    Raises:
        ConfigError: No repository is named.
        ResourceError: There is no token, or the server refuses.
        PackedModelError: The packed model is not there, or damaged.
    """
    settings = check_upload_model(loaded)
    # Not in the check: `pack_model` may run before, in the same command.
    folder = _packed(load_publication_config(loaded).pack, loaded["exp_dir"])
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(endpoint=endpoint())
    repo_id = settings.repo_id
    assert repo_id is not None
    try:
        api.create_repo(repo_id, private=settings.private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=settings.revision,
            commit_message=settings.message,
        )
    except HfHubHTTPError as error:
        raise ResourceError(_refusal(error, repo_id)) from error
    except Exception as error:
        # httpx is a dependency of the Hub's client, not of ours, so its errors go by their module.
        if not type(error).__module__.startswith("httpx"):  # of the connection
            raise
        raise ResourceError(
            f"{endpoint()} cannot be reached: {error}.",
            fix="Mend the connection, and run the stage "
            "again; what was sent already is not sent again.",
        ) from error
    logger.info("Uploaded %s to %s", folder, commit)
    return str(commit)


@names_places
def check_upload_model(loaded: LoadedConfig) -> UploadConfig:
    """Check the `upload` block, the package and the token, before any stage runs.

    Raises:
        ConfigError: No repository is named, or the token is in the config.
        ResourceError: There is no token, or no package to upload with.
    """
    # First: the check of the block would only call it an unknown key.
    _refuse_token(loaded.config.get("upload"))
    settings = load_publication_config(loaded).upload
    if settings.repo_id is None:
        raise ConfigError(
            "upload.repo_id is not set",
            key="upload",
            problem="so where to upload is not known",
            fix="Write: upload: {repo_id: user/model}",
        )
    if importlib.util.find_spec("huggingface_hub") is None:
        raise MissingExtraError(
            "Stage upload_model (10) needs the package 'huggingface_hub', which is not installed.",
            fix="In your clone of ESPnet3: pip install -c constraints.txt -e '.[hub]'",
        )
    from huggingface_hub import get_token

    if not get_token():
        raise ResourceError(
            f"There is no token to upload to {settings.repo_id} with.",
            fix="Make one that may write at "
            f"{endpoint()}/settings/tokens, and log in: hf auth login; or: export HF_TOKEN=...",
        )
    return settings


def describe_upload_model(loaded: LoadedConfig) -> list[str]:
    """Return the repository and the files that would be sent; nothing is sent."""
    config = load_publication_config(loaded)
    settings, folder = config.upload, _packed(config.pack, loaded["exp_dir"])
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    kind = "private" if settings.private else "public"
    lines = [
        f"repository: {endpoint()}/{settings.repo_id} ({kind} if it is created), "
        f"branch {settings.revision or 'main'}",
        f"{len(files)} files of {folder}:",
    ]
    return lines + [
        f"  {path.relative_to(folder).as_posix()} ({path.stat().st_size:,} bytes)" for path in files
    ]


def endpoint() -> str:
    """Return the address of the server."""
    return os.environ.get("HF_ENDPOINT", _ENDPOINT).rstrip("/")


def _packed(settings: PackConfig, exp_dir: str) -> Path:
    folder = settings.folder(Path(exp_dir))
    if not (folder / META).is_file():
        raise ConfigError(
            f"There is no packed model in {folder}. Pack it first: "
            f"{recipe_command('pack_model', 'upload_model')} ; or name its folder: "
            "pack.output_dir=FOLDER"
        )
    # Compares the checksums: a damaged folder must not be published.
    return open_packed(folder)[0]


def _refuse_token(block: Any) -> None:
    if hasattr(block, "get") and block.get("token") is not None:
        raise ConfigError(
            key="upload.token",
            problem="is set: a token does not belong into a config",
            fix="Delete the line, and write: export HF_TOKEN=...",
        )


def _refusal(error: Any, repo_id: str) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    hint = {
        401: "The token is not valid: make a new one, and: export HF_TOKEN=...",
        403: f"The token may not write to {repo_id}: give it that right, or name another repo_id.",
        404: f"{repo_id} is not there: is the user or organisation spelled right?",
    }.get(status or 0, "What was sent already is not sent again: run the stage once more.")
    first = first_line(error) or type(error).__name__
    return f"{endpoint()} refused the upload to {repo_id}: {first} {hint}"


def pack_model(loaded: LoadedConfig) -> Path:
    """Write the folder of the packed model, and its archive; the same input gives the same bytes.

    What is there already is replaced when the new one is whole.

    Returns:
        The folder.

    Raises:
        ConfigError: something of the config is not there.
        RunFolderError: nothing is trained, or another folder is in the way.
    """
    plan = plan_packing(loaded)
    # Beside the target, so that the rename below stays within one file system.
    temporary = Path(temp_path(os.path.abspath(plan.output_dir)))
    try:
        temporary.mkdir(parents=True)
        _write(plan, temporary)
        # Before the old one is replaced: a model that does not load must not take its place.
        _try_out(temporary, plan)
        _replace(temporary, plan.output_dir)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    logger.info("Packed %s to %s", plan.weights, plan.output_dir)
    if plan.archive is not None:
        write_archive(plan.output_dir, plan.archive, plan.name)
        logger.info("Archive: %s (%.1f MB)", plan.archive, plan.archive.stat().st_size / 1e6)
    return plan.output_dir


@names_places
def check_pack_model(loaded: LoadedConfig) -> None:
    """Check the `pack` block; whether a model is there is known when the stage starts."""
    settings = load_publication_config(loaded).pack
    path = settings.inference_config
    if path is not None and not Path(path).is_file():
        raise ConfigError(
            key="pack.inference_config",
            value=path,
            problem="which does not exist",
            fix="Correct the path, which counts from the recipe's folder, or delete the line.",
        )


def describe_pack_model(loaded: LoadedConfig) -> list[str]:
    """Return what would be packed, and where to."""
    plan = plan_packing(loaded)
    return [
        f"weights: {plan.weights}",
        f"decoder and its settings: {plan.inference or 'greedy CTC, as no run of infer is there'}",
        f"results: {plan.metrics or 'none, as nothing was measured'}",
        f"-> {plan.output_dir}",
        *([f"-> {plan.archive}"] if plan.archive else []),
    ]


def _write(plan: "PackPlan", folder: Path) -> None:
    collector = FileCollector(folder)
    training = read_training_config(plan.weights)
    training = {**training, "model": collector.collect(training["model"], "model")}
    _write_yaml(folder / TRAINING, training)
    if plan.inference is not None:
        inference = read_values(plan.inference)
        block = dict(inference.get("model") or {})
        # Only what the decoder reads is copied: test sets and the like are of no use elsewhere.
        if "decoder" in block:
            block["decoder"] = collector.collect(block["decoder"], "decoder")
        block.update({"weights": WEIGHTS} if "weights" in block else {})
        _write_yaml(folder / INFERENCE, {**inference, "model": block})
    write_weights(plan.weights, folder / WEIGHTS)
    metrics = None
    if plan.metrics is not None:
        metrics = _published(json.loads(plan.metrics.read_text(encoding="utf-8")))
        write_json(folder / METRICS, metrics)
    facts = _facts(plan, training)
    write_text(folder / CARD, model_card(plan.name, plan.settings, metrics, facts))
    # Last, since it holds the checksums of all other files.
    _write_meta(plan, folder)


def _write_meta(plan: "PackPlan", folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    settings = plan.settings
    meta = {
        "format": FORMAT_VERSION,
        "name": plan.name,
        "task": "asr",
        "espnet3": __version__,
        "license": settings.license,
        "language": settings.languages,
        "weights": plan.weights.name,
        "sha256": {path.relative_to(folder).as_posix(): sha256(path) for path in files},
    }
    _write_yaml(folder / META, meta)


def _write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    from omegaconf import OmegaConf

    from espnet3.config.redact import redact

    path.parent.mkdir(parents=True, exist_ok=True)
    # Values are redacted because a packed model is published, and a config may hold a token.
    write_text(path, OmegaConf.to_yaml(OmegaConf.create(redact(values))))


def _facts(plan: "PackPlan", training: Mapping[str, Any]) -> dict[str, Any]:
    model = training["model"]
    parts = {key: value for key, value in model.items() if isinstance(value, Mapping)}
    named = {key: str(part.get("_target_", "")).rpartition(".")[2] for key, part in parts.items()}
    rate = (model.get("frontend") or {}).get("sample_rate") if "frontend" in parts else None
    return {
        "model": f"`{model.get('_target_')}`",
        **{key: f"`{name}`" for key, name in named.items() if name},
        "sample rate": rate and f"{rate} Hz",
        "weights": f"`{plan.weights.name}`",
        "ESPnet3": __version__,
    }


def _published(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers without the paths and times of the files that they come from."""
    kept = ("settings", "n_missing", "on_missing", "run")

    def cleaned(numbers: Any) -> Any:
        if not isinstance(numbers, Mapping) or MEASURED_FROM not in numbers:
            return numbers
        record = {key: value for key, value in numbers[MEASURED_FROM].items() if key in kept}
        return {**numbers, MEASURED_FROM: record}

    return {
        name: {test_set: cleaned(numbers) for test_set, numbers in sets.items()}
        if isinstance(sets, Mapping)
        else sets
        for name, sets in metrics.items()
    }


def _try_out(folder: Path, plan: "PackPlan") -> None:
    """Load the model as a user would, so that every published one loads."""
    try:
        load_packed_model(folder, "cpu")
    except PackedModelError as error:
        logger.warning(
            "Others can load this model only with trust_remote_code=True, and with the code of "
            "the recipe installed: %s", error,
        )  # fmt: skip
        # It must load at least for those who trust it; otherwise it is damaged.
        load_packed_model(folder, "cpu", trust=True)
    except EspnetError as error:
        raise RunFolderError(
            f"The packed model of {plan.weights} does not load: {error}"
        ) from error


def _replace(written: Path, target: Path) -> None:
    """Rename the new folder to its place; the old packed model goes first, and only such a one."""
    # A wrong `pack.output_dir`, such as a home folder, must never be removed.
    if target.exists() and not (target / META).is_file() and any(target.iterdir()):
        raise RunFolderError(
            f"{target} exists and is no packed model, so it is not replaced.",
            fix="Choose another folder: pack.output_dir=FOLDER",
        )
    old = Path(temp_path(os.path.abspath(target)))
    # Renamed rather than removed, so that a model is missing only for a moment.
    if target.exists():
        target.rename(old)
    written.rename(target)
    shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True)
class PackPlan:
    """Content of a packed model, and its path."""

    settings: PackConfig
    name: str
    weights: Path
    inference: Path | None
    metrics: Path | None
    output_dir: Path

    @property
    def archive(self) -> Path | None:
        """The file beside the folder, if there is to be one."""
        beside = self.output_dir.parent / f"{self.name}.tar.gz"
        return beside if self.settings.archive else None


@names_places
def plan_packing(loaded: LoadedConfig) -> PackPlan:
    """Find all that goes into the packed model.

    Raises:
        ConfigError: a file of the config does not exist.
        RunFolderError: nothing is trained.
    """
    settings = load_publication_config(loaded).pack
    exp_dir = Path(loaded.config["exp_dir"])
    inference = _inference_config(settings, exp_dir)
    try:
        weights = _weights(settings, exp_dir)
    except RunFolderError as error:
        raise RunFolderError(
            f"{error} exp_dir{loaded.set_in('exp_dir')} is that of the training if its config is "
            "given as well: add --training_config conf/training.yaml"
        ) from None
    return PackPlan(
        settings=settings,
        name=settings.name or _default_name(loaded.config["recipe_dir"], exp_dir),
        weights=weights,
        inference=inference,
        metrics=_metrics(settings, inference, loaded.config.get("inference_dir")),
        output_dir=settings.folder(exp_dir),
    )


def _weights(settings: PackConfig, exp_dir: Path) -> Path:
    if settings.weights is None:
        return find_weights(exp_dir)
    require_weights(Path(settings.weights), "pack.weights")
    return Path(settings.weights)


def _inference_config(settings: PackConfig, exp_dir: Path) -> Path | None:
    if settings.inference_config is not None:
        return Path(settings.inference_config)
    last = exp_dir / LAST_INFERENCE
    return last if last.is_file() else None


def _metrics(settings: PackConfig, inference: Path | None, folder: str | None) -> Path | None:
    if settings.metrics is not None:
        if not Path(settings.metrics).is_file():
            raise ConfigError(
                key="pack.metrics",
                value=settings.metrics,
                problem="which does not exist",
                fix="Stage measure (7) writes it; or delete the line.",
            )
        return Path(settings.metrics)
    folders = [folder]
    if inference is not None:
        folders.append(read_values(inference).get("inference_dir"))
    found = [Path(folder) / METRICS for folder in folders if folder]
    return next((file for file in found if file.is_file()), None)


def _default_name(recipe_dir: str, exp_dir: Path) -> str:
    folder = Path(os.path.abspath(recipe_dir))
    words = [folder.parent.name, folder.name, exp_dir.name]
    kept = ["".join(c if c.isalnum() or c in "._-" else "-" for c in word) for word in words]
    # The Hub allows 96 characters, and no name that begins with punctuation.
    return "_".join(filter(None, kept)).lstrip("._-")[:96] or "model"


def model_card(
    name: str, settings: PackConfig, metrics: Mapping[str, Any] | None, facts: Mapping[str, Any]
) -> str:
    """Return the text of the card.

    Args:
        name: Of the model.
        settings: What the config says of it.
        metrics: The content of metrics.json, if there is one.
        facts: Lines of the table under "Model", by what they are about.
    """
    parts = [
        _front_matter(settings),
        f"# {name}",
        settings.description or "A speech recogniser, trained with ESPnet3.",
        _usage(name),
        _results(metrics),
        "## Data",
        settings.data or "Not stated by those who packed the model.",
        "## Model",
        _table(facts),
        f"## Licence\n\n{settings.license}",
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _front_matter(settings: PackConfig) -> str:
    from omegaconf import OmegaConf

    values: dict[str, Any] = {
        "license": settings.license,
        "language": settings.languages,
        "library_name": "espnet3",
        "pipeline_tag": "automatic-speech-recognition",
        "tags": ["espnet3", "audio", "automatic-speech-recognition", *settings.tags],
        "datasets": list(settings.datasets),
    }
    filled = {key: value for key, value in values.items() if value}
    return f"---\n{OmegaConf.to_yaml(OmegaConf.create(filled))}---"


def _usage(name: str) -> str:
    return (
        "## How to use\n\n```python\n"
        "from espnet3.systems.asr.inference import Speech2Text\n\n"
        f'model = Speech2Text.from_packed("{name}")  # this folder, or its .tar.gz\n'
        'print(model("speech.wav").text)\n```'
    )


def _results(metrics: Mapping[str, Any] | None) -> str:
    if not metrics:
        return "## Results\n\nNot measured."
    # One level deeper than in a file of their own.
    lines = format_results(metrics).splitlines()
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in lines)


def _table(facts: Mapping[str, Any]) -> str:
    rows = [f"| {key} | {value} |" for key, value in facts.items() if value not in (None, "")]
    return "\n".join(["| | |", "|---|---|", *rows])


_HUGGINGFACE = "espnet3.systems.asr.huggingface."
_HUB_KEYS = ("pretrained", "tokenizer")
# Of a folder of Hugging Face, all but the weights, which ours replace, and code.
_NO_WEIGHTS = shutil.ignore_patterns(
    "*.safetensors*", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", ".*",
    "*.py", "*.so", "*.pkl", "*.pickle",
)  # fmt: skip


class FileCollector:
    """Copies what configs name into a folder, each thing once.

    Args:
        folder: Of the packed model.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies: dict[str, str] = {}

    def collect(self, values: Any, key: str) -> Any:
        """Return a copy of a block, with paths as they are in the packed folder.

        A path that does not exist loses its folders: what was there is in the weights, such as
        the statistics of the features.

        Args:
            values: Plain containers, paths absolute or relative to the current folder.
            key: Of the block, from which the names of copies are made.
        """
        if isinstance(values, Mapping):
            return {
                name: value if name == "_target_" else self.collect(value, f"{key}.{name}")
                for name, value in _with_hub_folders(values).items()
            }
        if isinstance(values, list):
            return [self.collect(value, f"{key}.{i}") for i, value in enumerate(values)]
        # Without a slash it may be a plain word, such as `lstm`.
        if not isinstance(values, str) or "/" not in values:
            return values
        if not os.path.exists(values):
            # An absolute path would tell the author's folders to everyone who loads the model.
            return os.path.basename(values) if os.path.isabs(values) else values
        # Model and decoder often name the same file by different paths.
        known = os.path.realpath(values)
        if known not in self._copies:
            self._copies[known] = self._copy(Path(values), key)
        return self._copies[known]

    def _copy(self, source: Path, key: str) -> str:
        if _is_tokenizer(source):
            name = TOKENIZER if not (self._folder / TOKENIZER).exists() else f"{FILES}/{key}"
            _copy_folder(source, self._folder / name)
            return name
        name = f"{FILES}/{key}"
        if _is_trained(source):
            return self._copy_trained(source, name)
        if source.is_dir():
            _copy_folder(source, self._folder / name)
            return name
        (self._folder / name).mkdir(parents=True)
        shutil.copyfile(source, self._folder / name / source.name)
        return f"{name}/{source.name}"

    def _copy_trained(self, source: Path, name: str) -> str:
        """Copy another trained model, such as a language model: its weights and `model` block."""
        weights = find_weights(source) if source.is_dir() else source
        folder = self._folder / name
        folder.mkdir(parents=True)
        block = read_training_config(weights)["model"]
        # A collector of its own: the paths of a language model count from that model's folder.
        own = FileCollector(folder).collect(block, "model")

        def with_slash(text: str) -> str:
            # A path counts from the folder itself; without a slash it would be a plain word.
            is_plain_path = text and "/" not in text and (folder / text).exists()
            return f"./{text}" if is_plain_path else text

        _write_yaml(folder / CONFIG, {"model": change_texts(own, with_slash)})
        write_weights(weights, folder / WEIGHTS)
        return f"{name}/{WEIGHTS}"


def _with_hub_folders(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let a model of Hugging Face name the folder in the cache, instead of a name on the Hub.

    A packed model may only use what is in it.
    """
    if not str(block.get("_target_", "")).startswith(_HUGGINGFACE):
        return block
    named = {key: block[key] for key in _HUB_KEYS if isinstance(block.get(key), str)}
    found = {key: _hub_folder(name) for key, name in named.items() if not os.path.exists(name)}
    return {**block, **{key: folder for key, folder in found.items() if folder is not None}}


def _hub_folder(name: str) -> str | None:
    """Return where the Hub's cache has a model, as the training left it; None if it has not."""
    try:
        from huggingface_hub import snapshot_download

        # Never download while packing: it could be another revision than the one that was trained.
        return str(snapshot_download(name, local_files_only=True))
    except (ImportError, OSError, ValueError):
        return None


def write_weights(source: Path, target: Path) -> None:
    """Write weights as safetensors; a checkpoint is converted."""
    if source.suffix == ".safetensors":
        shutil.copyfile(source, target)
        return
    from safetensors.torch import save_file

    from espnet3.trainer.checkpointing.checkpoint_io import load_weights

    # Tied weights share their memory, which the format cannot say.
    weights = {name: value.clone().contiguous() for name, value in load_weights(source).items()}
    save_file(weights, target, metadata={"format": "pt"})


def _copy_folder(source: Path, target: Path) -> None:
    # Without permissions and times, which differ between machines.
    shutil.copytree(source, target, ignore=_NO_WEIGHTS, copy_function=shutil.copyfile)


def _is_tokenizer(source: Path) -> bool:
    # Tokenizers of Hugging Face may have a file of the same name, but come with a config.json.
    return (source / ABOUT).is_file() and not (source / "config.json").is_file()


def _is_trained(source: Path) -> bool:
    """Tell whether a path is an experiment's folder, or weights with their config beside them."""
    if source.is_dir():
        return (source / CONFIG).is_file()
    return source.suffix in (".safetensors", ".ckpt") and source.with_name(CONFIG).is_file()

"""The keys of conf/publication.yaml, and stage 10, `upload_model`, to the Hugging Face Hub."""

import importlib.util
import logging
import os
import re
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from espnet3.commands import recipe_command
from espnet3.config.load import LoadedConfig
from espnet3.config.schema import FrozenConfig, Names, validate
from espnet3.config.sources import names_places
from espnet3.errors import ConfigError, MissingExtraError, ResourceError
from espnet3.systems.asr.packed_archive import META
from espnet3.systems.asr.packed_model import open_packed
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

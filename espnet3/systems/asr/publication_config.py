"""The keys of conf/publication.yaml: what `pack_model` writes, where `upload_model` sends it."""

import re
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from espnet3.config.load import LoadedConfig
from espnet3.config.schema import FrozenConfig, Names, validate

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|multilingual")


class PackConfig(FrozenConfig):
    """What is packed, and what the model card says of it."""

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
    """Where the packed model goes; the token comes from the environment, never from here."""

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
    upload: UploadConfig = Field(default_factory=UploadConfig)

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

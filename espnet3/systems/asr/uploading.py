"""Stage 10, `upload_model`: send the packed model to the Hugging Face Hub."""

import importlib.util
import logging
import os
from pathlib import Path
from typing import Any

from espnet3.config.load import LoadedConfig
from espnet3.config.sources import names_places
from espnet3.errors import ConfigError, MissingExtraError, ResourceError
from espnet3.systems.asr.packed_archive import META
from espnet3.systems.asr.packed_model import open_packed
from espnet3.systems.asr.publication_config import PackConfig, UploadConfig, load_publication_config
from espnet3.text import first_line

logger = logging.getLogger(__name__)

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
            f"There is no packed model in {folder}. Pack it first: --stages pack_model "
            "upload_model; or name its folder: pack.output_dir=FOLDER"
        )
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

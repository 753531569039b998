"""Upload an exported model to a model hub."""

from __future__ import annotations

import os
from pathlib import Path

from rl2f_core.errors import ConfigError, ModelError, shorten

TOKEN = "HF_TOKEN"
"""Environment variable of the hub's token; `HF_ENDPOINT` names another hub than huggingface.co."""


def check_upload(repository: str) -> str:
    """Return the hub's token. Raises `ConfigError` without one, or if the name of the repository is invalid."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    token = os.environ.get(TOKEN)
    if not token:
        raise ConfigError("An upload needs a token with write access.", fix=f"Set the environment variable {TOKEN}.")
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ConfigError("This is not the name of a repository.", value=repository, fix="Write ORG/NAME.") from error
    return token


def push(folder: Path, repository: str, *, public: bool = False, message: str = "Upload a model") -> str:
    """Upload all files of a folder in one commit, and return the address of the repository.

    Args:
        folder: An export of `export_model`.
        repository: `ORG/NAME`; it is created if it does not exist.
        public: Whether a new repository is public.
        message: Commit message.

    Raises `ConfigError` without a token or for an invalid name, and `ModelError` if the hub refuses the upload or
    cannot be reached.
    """
    from httpx2 import HTTPError
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    token = check_upload(repository)
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    try:
        url = api.create_repo(repository, private=not public, exist_ok=True)
        operations = [CommitOperationAdd(file.name, file) for file in sorted(folder.iterdir())]
        api.create_commit(repository, operations, commit_message=message)
    except OfflineModeIsEnabled as error:
        raise ModelError("HF_HUB_OFFLINE disables the hub.", value=repository) from error
    except (HfHubHTTPError, HTTPError, OSError, RuntimeError) as error:
        text = shorten(str(error).replace(token, "…"), 200)
        raise ModelError(f"The upload failed: {text}", value=repository,
                         fix="Check the token and the connection, and try again.") from error  # fmt: skip
    return str(url)

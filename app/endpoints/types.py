"""Argument and result types that several endpoints share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypedDict, TypeVar

from pydantic import BaseModel, Field, ValidationError

from rl2f_core.config.loading import format_validation_error
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.types import JsonObject

RunId = Annotated[int, Field(ge=1, le=2**31 - 1)]
RunIds = Annotated[list[RunId], Field(max_length=1000)]
ShortText = Annotated[str, Field(max_length=300)]
Model = TypeVar("Model", bound=BaseModel)


class QueuedRun(TypedDict):
    """A run that an endpoint put into the queue."""

    run: int
    name: str
    url: str
    """Address of the run's page."""


class FileMeta(TypedDict):
    """Type tag of a file reference."""

    _type: Literal["gradio.FileData"]


class FileRef(TypedDict):
    """A file of the server in Gradio's format; `gradio_client` downloads it and returns the local path."""

    path: str
    orig_name: str
    size: int
    meta: FileMeta


def file_ref(path: Path) -> FileRef:
    """Return the reference of a file below the workspace's `exports/`."""
    return {
        "path": str(path),
        "orig_name": path.name,
        "size": path.stat().st_size,
        "meta": {"_type": "gradio.FileData"},
    }


def check_file_name(name: str) -> str:
    """Return the name of a file; raise `DataError` if it has folders, or cannot be a name."""
    if name in ("", "..") or Path(name).name != name or "\0" in name or len(name.encode()) > 255:
        raise DataError("A file name has no folders, and at most 255 bytes.", value=name, fix="Pass the name alone.")
    return name


def validated(model: type[Model], data: JsonObject) -> Model:
    """Return `data` as a model; raise `ConfigError` that names the field."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(format_validation_error(error, model), fix="Correct the field and try again.") from error

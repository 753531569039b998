"""Argument and result types that several endpoints share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from rl2f_core.config.loading import validate_config
from rl2f_core.errors import DataError
from rl2f_core.types import FrozenModel, JsonObject


@dataclass(frozen=True)
class OldName:
    """Mark of an argument that had another name; programs may still use it."""

    name: str


RunId = Annotated[int, Field(ge=1, le=2**31 - 1, description="Number of a run.")]
RunIds = Annotated[list[RunId], Field(max_length=1000, description="Numbers of runs.")]
RunOrOldId = Annotated[RunId, OldName("run_id")]
"""Argument `run`, which was called `run_id`."""
RunsOrOldIds = Annotated[RunIds, OldName("run_ids")]
"""Argument `runs`, which was called `run_ids`."""
NoteId = Annotated[int, Field(ge=1, le=2**31 - 1, description="Number of a note.")]
ShortText = Annotated[str, Field(max_length=300)]
Checkpoint = Annotated[str, Field(max_length=300, description="Name of a checkpoint, e.g. `rl2f@24`.")]
Cursor = Annotated[str, Field(max_length=1000, description="`before` or `after` of another page.")]

MAX_LISTED_RUNS = 200
"""Newest runs that a filter offers."""
Model = TypeVar("Model", bound=BaseModel)


class QueuedRun(FrozenModel):
    """A run that an endpoint put into the queue."""

    run: RunId
    name: str
    url: str
    """Address of the run's page."""


class FileMeta(FrozenModel):
    """Type of a file reference."""

    type: Literal["gradio.FileData"] = Field("gradio.FileData", serialization_alias="_type")
    """Gradio's mark of a file."""


class FileRef(FrozenModel):
    """A file of the server in Gradio's format; `gradio_client` downloads it and returns the local path."""

    model_config = ConfigDict(serialize_by_alias=True)
    path: str
    """Path on the server."""
    orig_name: str
    """Name of the file."""
    size: int
    """Bytes of the file."""
    meta: FileMeta = FileMeta()


def file_ref(path: Path) -> FileRef:
    """Return the reference of a file below the workspace's `exports/`."""
    return FileRef(path=str(path), orig_name=path.name, size=path.stat().st_size)


def check_file_name(name: str) -> str:
    """Return the name of a file; raise `DataError` if it has folders, or cannot be a name."""
    if name in ("", "..") or Path(name).name != name or "\0" in name or len(name.encode()) > 255:
        raise DataError("A file name has no folders, and at most 255 bytes.", value=name, fix="Pass the name alone.")
    return name


def validated(model: type[Model], data: JsonObject) -> Model:
    """Return `data` as a model; raise `ConfigError` that names the field."""
    return validate_config(model, data, fix="Correct the field and try again.")


def from_row(model: type[Model], row: object, **computed: object) -> Model:
    """Return a database row as a model, with computed values; the field `run` is the column `run_id`."""
    names = {name: "run_id" if name == "run" else name for name in model.model_fields if name not in computed}
    return model(**{name: getattr(row, column) for name, column in names.items()}, **computed)

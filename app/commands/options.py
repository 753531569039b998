"""Options and arguments that several commands share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.completion import complete_run
from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.workspace import Workspace

Sets = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one value; may be repeated.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the new run; by default one below runs/.")]
Resume = Annotated[Path | None, typer.Option(help="Resume the run in this folder.", autocompletion=complete_run)]
Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET…", help="A run's folder, RUN:CHECKPOINT, or a checkpoint's folder.", autocompletion=complete_run
    ),
]
Root = Annotated[
    Path | None, typer.Option("--workspace", help="The workspace's folder; else RL2F_WORKSPACE, else ./workspace.")
]
Detectors = Annotated[
    str, typer.Option("--detector", help="mentions, or likelihood:threshold=2, or a YAML or JSON file.")
]
DetectorModel = Annotated[str, typer.Option(help="Model of detectors that need one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@contextmanager
def migrated(root: Path | None) -> Iterator[tuple[Workspace, Database]]:
    """Open a workspace, created if necessary, and its database with the newest schema."""
    from jobs.db.engine import Database
    from jobs.ingest.ingester import ingest_pending
    from jobs.workspace import Workspace

    workspace = Workspace(root).create()
    with closing(Database(workspace.database_url())) as db:
        if db.migrate():
            ingest_pending(db, workspace)
        yield workspace, db


def parse_checkpoint(text: str, root: Path | None) -> tuple[Path, str]:
    """Return run directory and checkpoint of `RUN@STEP`, `RUN@stage@step` or `RUN/checkpoints/stage@step`."""
    path = Path(text)
    if path.parent.name == "checkpoints":
        return path.parent.parent, path.name
    match = re.fullmatch(r"(?P<run>.+?)@(?P<name>(?:[^@/]+@)?\d+)", text)
    if match is None:
        raise ConfigError("This names no checkpoint.", value=text, fix="Write RUN@STEP, e.g. runs/first@24.")
    return find_run(match["run"], root), match["name"]


def find_run(text: str, root: Path | None) -> Path:
    """Return the directory of a run: `text` is a folder, or the run's number in the workspace."""
    if not text.isascii() or not text.isdigit():
        return Path(text)
    from jobs.db.queries.runs import get
    from jobs.export.datasets.resolve_sources import open_workspace

    with open_workspace(root) as (workspace, db):
        return workspace.folder(get(db, int(text)).folder)

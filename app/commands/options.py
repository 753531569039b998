"""Options and arguments that several commands share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.completion import complete_run, complete_run_or_number
from rl2f_core.common.text.integers import whole_number
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.run.directory import RunDir

if TYPE_CHECKING:
    from app.common.context import Context
    from jobs.db.engine import Database
    from jobs.workspace import Workspace

RUN_HELP = "Number or name of a run of the workspace, or its folder."
Run = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP, autocompletion=complete_run_or_number)]
OptionalRun = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help=f"{RUN_HELP} Not needed with --resume.", autocompletion=complete_run_or_number),
]
Runs = Annotated[list[str], typer.Argument(metavar="RUN…", help=RUN_HELP, autocompletion=complete_run_or_number)]
CheckpointName = Annotated[
    str,
    typer.Argument(
        metavar="RUN@STEP",
        help=f"RUN: {RUN_HELP[0].lower()}{RUN_HELP[1:]} STEP is 24 or, if stages share it, rl2f@24.",
        autocompletion=complete_run_or_number,
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET…",
        help="RUN, RUN@STEP, or a checkpoint's folder. RUN is a run's number, name or folder.",
        autocompletion=complete_run_or_number,
    ),
]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one value; may be repeated.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the new run; by default one below runs/.")]
Resume = Annotated[Path | None, typer.Option(help="Resume the run in this folder.", autocompletion=complete_run)]
Root = Annotated[
    Path | None, typer.Option("--workspace", help="The workspace's folder; else RL2F_WORKSPACE, else ./workspace.")
]
Detectors = Annotated[
    str, typer.Option("--detector", help="mentions, or likelihood:threshold=2, or a YAML or JSON file.")
]
DetectorModel = Annotated[str, typer.Option(help="Model of detectors that need one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@contextmanager
def migrated(root: str | Path | None) -> Iterator[tuple[Workspace, Database]]:
    """Open a workspace, created if necessary, and its database with the newest schema."""
    from jobs.db.engine import Database
    from jobs.ingest.ingester import ingest_pending
    from jobs.workspace import Workspace

    workspace = Workspace(root).create()
    with closing(Database(workspace.database_url())) as db:
        if db.migrate(workspace.lock):
            ingest_pending(db, workspace)
        yield workspace, db


@contextmanager
def opened_context(root: Path | None) -> Iterator[Context]:
    """Open a workspace as in `migrated`, for endpoints that are called in this process."""
    from app.common.context import Context
    from app.endpoints.recorder import CALLER
    from jobs.queue.queue import Queue

    with migrated(root) as (workspace, db):
        caller = CALLER.set("command line")
        try:
            yield Context(workspace, db, Queue(db, workspace), is_command=True)
        finally:
            CALLER.reset(caller)


def find_listed(text: str, root: Path | None) -> tuple[int, Path] | None:
    """Return number and directory of the run of the workspace whose number or name is `text`; None for a folder."""
    from jobs.db.queries.runs import find_named, get
    from jobs.export.datasets.resolve_sources import open_workspace

    number = whole_number(text, None)
    if number is None and (Path(text).exists() or Path(text).name != text):
        return None
    try:
        with open_workspace(root) as (workspace, db):
            run = find_named(db, text) if number is None else get(db, number)
            return None if run is None or run.id is None else (run.id, workspace.folder(run.folder))
    except RunError:
        if number is not None:
            raise
        return None  # there is no workspace


def find_number(text: str, root: Path | None) -> int:
    """Return the number of a run of the workspace that `text` names by its number, name or folder.

    A deleted run, which can be restored, is named by its number.
    """
    from jobs.db.errors import UnknownRunError
    from jobs.queue.trash import deleted_runs
    from jobs.workspace import Workspace

    try:
        found = find_listed(text, root) or find_listed(Path(text).resolve().name, root)
    except UnknownRunError:
        if text in (str(item.run) for item in deleted_runs(Workspace(root))):
            return int(text)
        raise
    if found is None or (Path(text).is_dir() and not Path(text).samefile(found[1])):
        raise RunError("The workspace has no such run.", value=text, fix="Give the number or the name of a run.")
    return found[0]


def find_run(text: str, root: Path | None) -> Path:
    """Return the directory of a run: `text` is a folder, or the number or name of a run of the workspace."""
    found = find_listed(text, root)
    return Path(text) if found is None else found[1]


def find_target(text: str, root: Path | None) -> tuple[Path, str | None]:
    """Return run directory and checkpoint of `RUN@STEP`, `RUN@stage@step` or `RUN/checkpoints/stage@step`.

    The checkpoint is None if `text` names a run alone.
    """
    path = Path(text)
    if path.parent.name == "checkpoints":
        return path.parent.parent, path.name
    if path.is_dir():
        return path, None
    match = re.fullmatch(r"(?P<run>.+?)@(?P<name>(?:[^@/]+@)?\d+)", text)
    if match is None:
        return find_run(text, root), None
    run = find_run(match["run"], root)
    return run, RunDir.open(run).find_checkpoint(match["name"])


def parse_checkpoint(text: str, root: Path | None) -> tuple[Path, str]:
    """Return run directory and checkpoint of a text, see `find_target`. Raises `ConfigError` without a checkpoint."""
    run, name = find_target(text, root)
    if name is None:
        raise ConfigError("This names no checkpoint.", value=text, fix="Write RUN@STEP, e.g. runs/first@24.")
    return run, name

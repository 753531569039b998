"""`rl2f token`: create, list and revoke the API tokens of programs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.common.console import err, out, table
from rl2f_core.errors import UnknownNameError

if TYPE_CHECKING:
    from jobs.db.engine import Database

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API tokens of programs.", rich_markup_mode=None)
WorkspaceOption = Annotated[
    Path | None, typer.Option(help="The workspace's folder; else RL2F_WORKSPACE, else ./workspace.")
]


@app.command("new")
def new(
    scope: Annotated[
        list[str],
        typer.Option(metavar="read|run|label", help="What the token permits; may be repeated. Every token can read."),
    ],
    name: Annotated[str, typer.Option(help="Name in the list; by default token-N.")] = "",
    workspace: WorkspaceOption = None,
) -> None:
    """Create a token and print it once. A program sends it as `Authorization: Bearer TOKEN`."""
    from app.endpoints.endpoint import SCOPES
    from jobs.db.queries import tokens

    for each in scope:
        if each not in SCOPES:
            raise UnknownNameError("Unknown scope of a token.", value=each, known=SCOPES, fix="Correct --scope.")
    with _database(workspace) as db:
        row, token = tokens.create(db, [each for each in SCOPES if each == "read" or each in scope], name)
    err().print(f"Token {row.name} permits: {row.scopes}. It is shown only now.", markup=False)
    out().print(token, markup=False)


@app.command("list")
def list_(workspace: WorkspaceOption = None) -> None:
    """Show name, scopes and last use of all tokens."""
    from jobs.db.queries import tokens

    with _database(workspace) as db:
        rows = [
            (
                str(row.id),
                row.name,
                row.scopes,
                _time(row.created),
                "never" if not row.last_used else _time(row.last_used),
            )
            for row in tokens.list_all(db)
        ]
    if rows:
        out().print(table("id", "name", "scopes", "created", "last use", rows=rows))
    else:
        err().print("There are no tokens. Create one with `rl2f token new --scope read`.", markup=False)


@app.command("revoke")
def revoke(
    token: Annotated[str, typer.Argument(metavar="NAME|ID", help="Name or id from `rl2f token list`.")],
    workspace: WorkspaceOption = None,
) -> None:
    """Revoke a token immediately, also in a server that is running."""
    from jobs.db.queries import tokens

    with _database(workspace) as db:
        row = tokens.revoke(db, token)
    err().print(f"Token {row.name} is revoked.", markup=False)


@contextlib.contextmanager
def _database(workspace: Path | None) -> Iterator[Database]:
    from jobs.db.engine import Database
    from jobs.workspace import Workspace

    with contextlib.closing(Database(Workspace(workspace).create().database_url())) as db:
        db.migrate()
        yield db


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))

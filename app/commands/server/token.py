"""`rl2f token`: create, list and revoke the API tokens of programs."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from app.commands.options import Root, migrated
from app.common.console import err, out, table
from rl2f_core.errors import UnknownNameError

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API tokens of programs.", rich_markup_mode=None)


@app.command("new")
def new(
    scope: Annotated[
        list[str],
        typer.Option(metavar="read|run|label", help="What the token permits; may be repeated. Every token can read."),
    ],
    name: Annotated[str, typer.Option(help="Name in the list; by default token-N.")] = "",
    workspace: Root = None,
) -> None:
    """Create a token and print it once. A program sends it as `Authorization: Bearer TOKEN`."""
    from app.endpoints.endpoint import SCOPES
    from jobs.db.queries import tokens

    for item in scope:
        if item not in SCOPES:
            raise UnknownNameError("Unknown scope of a token.", value=item, known=SCOPES, fix="Correct --scope.")
    with migrated(workspace) as (_, db):
        row, token = tokens.create(db, [item for item in SCOPES if item == "read" or item in scope], name)
    err().print(f"Token {row.name} permits: {row.scopes}. Store it now: it is not shown again.", markup=False)
    out().print(token, markup=False)


@app.command("list")
def list_(workspace: Root = None) -> None:
    """Show name, scopes and last use of all tokens."""
    from jobs.db.queries import tokens

    with migrated(workspace) as (_, db):
        rows = [
            (str(row.id), row.name, row.scopes, _time(row.created), _time(row.last_used) if row.last_used else "never")
            for row in tokens.list_all(db)
        ]
    if rows:
        out().print(table("id", "name", "scopes", "created", "last use", rows=rows))
    else:
        err().print("There are no tokens. Create one with `rl2f token new --scope read`.", markup=False)


@app.command("revoke")
def revoke(
    token: Annotated[str, typer.Argument(metavar="NAME|ID", help="Name or id from `rl2f token list`.")],
    workspace: Root = None,
) -> None:
    """Revoke a token immediately, also in a server that is running."""
    from jobs.db.queries import tokens

    with migrated(workspace) as (_, db):
        row = tokens.revoke(db, token)
    err().print(f"Revoked the token {row.name}.", markup=False)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))

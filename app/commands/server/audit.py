"""`rl2f audit`: the audit log of a workspace."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from app.commands.options import AsJson, Root, migrated
from app.common.console import err, out, table
from app.common.urls import audit_url


def audit(
    search: Annotated[str, typer.Option(help="Only entries that contain this text, e.g. a token or an endpoint.")] = "",
    limit: Annotated[int, typer.Option(help="Maximum number of entries.", min=1)] = 50,
    as_json: AsJson = False,
    workspace: Root = None,
) -> None:
    """Show what people and programs did in the studio, newest first, and what was refused."""
    from jobs.db.queries import audit_log

    with migrated(workspace) as (_, db):
        entries = audit_log.recent(db, limit, search=search)
    if as_json:
        listed = [{**each.model_dump(), "url": audit_url(each.arguments, each.detail)} for each in entries]
        out().print_json(json.dumps({"entries": listed}))
    elif entries:
        rows = [
            (
                _time(each.time),
                each.caller,
                each.action,
                each.arguments,
                each.outcome,
                each.detail,
                audit_url(each.arguments, each.detail) or "",
            )
            for each in entries
        ]
        out().print(table("time", "caller", "action", "arguments", "outcome", "detail", "page", rows=rows))
    else:
        err().print("There are no entries.", markup=False)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))

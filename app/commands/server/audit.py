"""`rl2f audit`: the audit log of a workspace."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from app.commands.options import AsJson, Root, opened_context
from app.common.console import err, out, table


def audit(
    search: Annotated[str, typer.Option(help="Only entries that contain this text, e.g. a token or an endpoint.")] = "",
    limit: Annotated[int, typer.Option(help="Maximum number of entries.", min=1)] = 50,
    as_json: AsJson = False,
    workspace: Root = None,
) -> None:
    """Show what people and programs did in the studio, newest first, and what was refused."""
    from app.endpoints.audit import AuditEndpoints

    with opened_context(workspace) as context:
        entries = AuditEndpoints(context).list_actions(search, limit)
    if as_json:
        out().print_json(json.dumps({"entries": [entry.model_dump() for entry in entries]}))
    elif entries:
        columns = ("caller", "action", "arguments", "outcome", "detail")
        rows = [(_time(e.time), *(getattr(e, name) for name in columns), e.url or "") for e in entries]
        out().print(table("time", *columns, "page", rows=rows))
    else:
        err().print("There are no entries.", markup=False)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))

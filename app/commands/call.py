"""`rl2f call`: any endpoint of the studio as a command, with its arguments as options."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.options import Root, opened_context
from app.commands.settings import SettingsOptions, expand
from app.common.console import out, table
from rl2f_core.errors import UnknownNameError

if TYPE_CHECKING:
    from pydantic import BaseModel


def call(
    ctx: typer.Context,
    endpoint: Annotated[
        str | None, typer.Argument(metavar="ENDPOINT", help="Name of an endpoint; without one, all are listed.")
    ] = None,
) -> None:
    """Call an endpoint of the studio on a workspace, and print its result as JSON.

    `rl2f call ENDPOINT --help` shows the options of an endpoint, which are its arguments in the API.
    """
    from app.endpoints.endpoint import OPERATIONS
    from app.endpoints.studio import Studio

    def run(arguments: BaseModel, workspace: Root = None) -> None:
        with opened_context(workspace) as context:
            functions = {name: function for name, _, function in Studio(context).endpoints()}
            given = {name: getattr(arguments, name) for name in arguments.model_fields_set}
            result: Any = functions[operation.name](**given)
            for part in result if operation.is_stream else [result]:
                typer.echo(json.dumps(operation.to_json(part), indent=2, ensure_ascii=False))

    if endpoint is None:
        rows = [(name, item.scope, item.summary) for name, item in sorted(OPERATIONS.items())]
        out().print(table("endpoint", "scope", "", rows=rows))
        return
    if endpoint not in OPERATIONS:
        raise UnknownNameError("Unknown endpoint.", value=endpoint, known=sorted(OPERATIONS))
    operation = OPERATIONS[endpoint]
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    run.__doc__ = operation.description
    run.__defaults__ = (SettingsOptions(lambda: operation.arguments), None)
    app.command(endpoint)(expand(run))
    typer.main.get_command(app).main(ctx.args, prog_name=f"rl2f call {endpoint}", standalone_mode=False)

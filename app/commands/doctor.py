"""`rl2f doctor`."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show versions, devices, memory, disk and cached models, and what is missing with the command that fixes it.

    The exit code is 1 where something is missing that an experiment needs.
    """
    from app.common.doctor import Doctor, show

    report = Doctor().examine()
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        show(report)
    if any(finding["needed"] for finding in report["findings"]):
        raise typer.Exit(1)

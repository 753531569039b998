"""`rl2f share`: a run as a folder of static pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.commands.completion import complete_run_or_number
from app.commands.options import Root, find_run
from app.common.console import err, out


def share_run(
    run: Annotated[
        str,
        typer.Argument(
            help="The run's folder, or the number of a run of the workspace.", autocompletion=complete_run_or_number
        ),
    ],
    folder: Annotated[
        Path | None, typer.Option("--out", help="New folder of the pages; by default NAME-share in this folder.")
    ] = None,
    dialogues: Annotated[int, typer.Option(help="Maximum number of dialogues.", min=0)] = 40,
    ids: Annotated[
        list[str] | None, typer.Option("--dialogue", help="Id of a dialogue to share instead; may be repeated.")
    ] = None,
    workspace: Root = None,
) -> None:
    """Write a run as static pages, which open from disk and on any host: curves, evaluation, chosen dialogues.

    The pages contain no path of this machine and no secret, and load nothing from the network.
    """
    from app.static_pages.folder import write_pages

    source = find_run(run, workspace)
    target = folder or Path(f"{source.resolve().name}-share")
    counts = write_pages(source, target, limit=dialogues, ids=ids or ())
    if counts["left_out"]:
        err().print(f"{counts['left_out']} dialogues with paths of this machine were left out.", markup=False)
    err().print(f"{counts['shared']} dialogues. Open {target / 'index.html'}", markup=False)
    out().print(str(target), markup=False)

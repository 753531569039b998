"""`rl2f results`: folders with the published numbers of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.commands.completion import complete_run
from app.common.console import err, out

app = typer.Typer(no_args_is_help=True, help="Publish the results of finished runs.", rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Publish the results of finished runs."""


@app.command("collect")
def collect(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Folders of finished runs.", autocompletion=complete_run)
    ],
    target: Annotated[Path, typer.Option("--out", help="Folder of the results; several runs go to OUT/seed-N.")],
) -> None:
    """Copy report, configuration, environment, times and training metrics of finished runs to a results folder.

    Runs are evaluations, training runs with one, forks, or estimations of hint values. Existing files are replaced.
    """
    from jobs.export.result_folder import collect as collect_runs

    for folder in collect_runs(runs, target):
        out().print(str(folder), markup=False)
    err().print("Update the pages that show these results with `make results`.", markup=False)

"""`rl2f results`: folders with the published numbers of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.commands.options import Root, Runs, find_run
from app.common.console import err, out

app = typer.Typer(no_args_is_help=True, help="Publish the results of finished runs.", rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Publish the results of finished runs."""


@app.command("collect")
def collect(
    runs: Runs,
    target: Annotated[Path, typer.Option("--out", help="Folder of the results; several runs go to OUT/seed-N.")],
    workspace: Root = None,
) -> None:
    """Copy report, configuration, environment, times and training metrics of finished runs to a results folder.

    The folder of a study stands for all its arms. Runs are evaluations, training runs with one, forks, or estimations
    of hint values. Existing files are replaced.
    """
    from jobs.export.result_folder import REGISTRATION, collect_study
    from jobs.export.result_folder import collect as collect_runs

    if len(runs) == 1 and (Path(runs[0]) / REGISTRATION).is_file():
        folders = collect_study(Path(runs[0]), target)
    else:
        folders = collect_runs([find_run(run, workspace) for run in runs], target)
    for folder in folders:
        out().print(str(folder), markup=False)
    err().print("Update the pages that show these results with `make results`.", markup=False)

"""`rl2f reproduce`: execute the steps with retained training states again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.commands.completion import complete_run_or_number
from app.commands.options import AsJson, Root, find_run
from app.common.console import err, out, table
from app.common.terminal_progress import TerminalProgress
from rl2f_core.common.file_io import write_atomically
from rl2f_core.run.directory import RunDir

REPORT = "reproduction.json"


def reproduce(
    run: Annotated[
        str,
        typer.Argument(
            help="The run's folder, or the number of a run of the workspace.", autocompletion=complete_run_or_number
        ),
    ],
    tolerance: Annotated[
        float, typer.Option(min=0, help="Relative difference of numbers that counts as within tolerance.")
    ] = 1e-4,
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Execute nothing; only check the stored files against their digests.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--out", help="Report; by default reproduction.json in the run's folder.")
    ] = None,
    as_json: AsJson = False,
    workspace: Root = None,
) -> None:
    """Execute the training steps whose state the run retained (retain_states) again, and compare the results.

    Each step is identical, within tolerance, or differs in stored files, events, tokens, rewards, advantages, metrics
    or weights. The exit code is 1 if anything differs.
    """
    from rl2f_core.learning.training.reproduction import PARTS, reproduce

    run_dir = RunDir.open(find_run(run, workspace))
    with TerminalProgress() as progress:
        result = reproduce(run_dir, tolerance, progress, files_only=files_only)
    path = report or run_dir.path / REPORT
    write_atomically(path, result.model_dump_json(indent=2) + "\n")
    if as_json:
        typer.echo(result.model_dump_json(indent=2))
    else:
        rows = [
            (step.name, *(step.parts[part].outcome if part in step.parts else "–" for part in PARTS), step.outcome)
            for step in result.steps
        ]
        out().print(table("step", *PARTS, "outcome", rows=rows))
        found = {"event file": result.events, "checkpoints": result.checkpoints}
        found |= {f"{step.name} {name}": part for step in result.steps for name, part in step.parts.items()}
        for where, part in found.items():
            if part.detail:
                out().print(f"{where}: {part.outcome}: {part.detail}", markup=False)
        out().print(f"{len(result.steps)} steps: {result.outcome}", markup=False)
    for name, (before, now) in result.environment.items():
        err().print(f"{name}: recorded {before}, now {now}", markup=False)
    err().print(f"Report: {path}", markup=False)
    if result.outcome == "differs":
        raise typer.Exit(1)

"""`rl2f import`: rollouts of other programs as read-only runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.commands.options import Root, migrated
from app.common.console import err, out, table


def import_rollouts(
    file: Annotated[Path, typer.Argument(help="A .parquet, .jsonl, .eval or .json file.")],
    format: Annotated[
        str | None,
        typer.Option(help="trl, verl, verifiers, verifiers_traces, inspect or messages; detected by default."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; by default the file's.")] = None,
    threshold: Annotated[
        float, typer.Option(help="Sum of the rewards from which a rollout without a verdict counts as correct.")
    ] = 1.0,
    workspace: Root = None,
) -> None:
    """Import rollouts of TRL, verl, verifiers, prime-rl or Inspect, or plain conversations, as a read-only run.

    Dialogues, search, replay, leak detectors, labels and exports work as in other runs. If a row is invalid, its
    position and the reason are listed, and nothing is imported.
    """
    from jobs.db.queries import dialogues
    from jobs.imports.importer import MAX_LISTED_ERRORS, ImportRowsError, import_file

    with migrated(workspace) as (opened, db):
        try:
            run = import_file(db, opened, file, format=format, name=name, threshold=threshold)
        except ImportRowsError as error:
            rows = [(row.position, row.reason) for row in error.bad[:MAX_LISTED_ERRORS]]
            out().print(table("row", "reason", rows=rows))
            raise
        number = dialogues.count(db, dialogues.DialogueFilter(run=run.id))
    out().print(f"Imported {number:,} dialogues as run {run.id}: {run.name}", markup=False)
    err().print(f"Read them: rl2f replay {opened.folder(run.folder)}, or page Dialogues.", markup=False)
    err().print(f"Search the hints for leaks: rl2f leaks {run.id}", markup=False)

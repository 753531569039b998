"""`rl2f import`: rollouts of other programs as read-only runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.options import Root, migrated
from app.commands.settings import options_of
from app.common.console import err, out, table
from rl2f_core.errors import rl2f_command

if TYPE_CHECKING:
    from jobs.imports.importer import ImportSettings


def import_rollouts(
    path: Annotated[
        Path, typer.Argument(help="A .parquet, .jsonl, .jsonl.gz, .eval or .json file, or a folder of them.")
    ],
    settings: ImportSettings = options_of("jobs.imports.importer:ImportSettings"),
    workspace: Root = None,
) -> None:
    """Import rollouts of TRL, verl, verifiers, prime-rl or Inspect, or plain conversations, as a read-only run.

    A folder becomes one run. Dialogues, search, replay, leak detectors, labels and exports work as in other runs. If a
    row is invalid, its position and the reason are listed, and nothing is imported.
    """
    from jobs.db.queries import dialogues
    from jobs.db.queries.runs import logs
    from jobs.imports.importer import MAX_LISTED_ERRORS, ImportRowsError, import_file

    with migrated(workspace) as (opened, db):
        try:
            run = import_file(db, opened, path, settings)
        except ImportRowsError as error:
            rows = [(row.position, row.reason) for row in error.bad[:MAX_LISTED_ERRORS]]
            out().print(table("row", "reason", rows=rows))
            raise
        number = dialogues.count(db, dialogues.DialogueFilter(run=run.id))
        remarks = [f"{run.detail}.", *(log.text for log in logs(db, run.id or 0))]
    out().print(f"Imported {number:,} dialogues as run {run.id}: {run.name}", markup=False)
    for remark in remarks:
        err().print(remark, markup=False)
    err().print(f"Read them: {rl2f_command('replay', opened.folder(run.folder))}, or page Dialogues.", markup=False)
    err().print(f"Search the hints for leaks: rl2f leaks {run.id}", markup=False)

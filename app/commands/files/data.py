"""`rl2f data`: check files of own questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.common.console import err, model_text, out, table
from app.common.jsonl_filter import build_environment
from rl2f_core.config.loading import apply_override, to_yaml
from rl2f_core.errors import shorten
from rl2f_core.types import JsonObject

app = typer.Typer(no_args_is_help=True, help="Check files of own questions.", rich_markup_mode=None)
Column = Annotated[str | None, typer.Option(metavar="COL", help="Column of this meaning; by default detected by name.")]
MAX_SHOWN = 100
"""Bad rows that are printed."""


@app.callback()
def group() -> None:
    """Keep `check` a command of its own."""


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="File: .csv, .jsonl, .ndjson, .jsonl.gz or .parquet.")],
    problem: Column = None,
    answer: Column = None,
    solution: Column = None,
    level: Column = None,
    split: Column = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change another setting, e.g. checker=exact, tolerance=0.01."),
    ] = None,
) -> None:
    """Show columns, counts, bad rows and the constant baseline of a file, and the YAML that uses it.

    The checker of the answers is suggested by the first rows, unless --set names it. The exit code is 1 if there are
    bad rows.
    """
    from rl2f_core.environments.dataset.summary import suggest_checker, summarize

    given = {"problem": problem, "answer": answer, "solution": solution, "level": level, "split": split}
    data: JsonObject = {
        "type": "dataset",
        "path": str(file),
        "columns": {k: v for k, v in given.items() if v is not None},
    }
    for override in sets or []:
        data = apply_override(data, override)
    if "checker" not in data:
        data["checker"] = suggest_checker(file, data["columns"])
    environment = build_environment(data, fix="Correct --set.")
    summary = summarize(environment.config)
    loaded = summary.loaded
    meanings = {column: meaning for meaning, column in loaded.columns.items()}
    first = loaded.preview[0] if loaded.preview else {}
    columns = dict.fromkeys([*loaded.header, *meanings])
    rows = [(name, meanings.get(name, "-"), shorten(first.get(name, ""), 60)) for name in columns]
    out().print(table("column", "used as", "first row", rows=rows))
    sizes = ", ".join(f"{len(questions):,} {name}" for name, questions in loaded.questions.items())
    out().print(f"\n{loaded.rows:,} rows: {loaded.valid:,} valid, {len(loaded.bad_rows):,} bad")
    out().print(
        f"problems: {sizes}; {loaded.duplicates:,} repeated, {loaded.near_duplicates:,} near-duplicates of tests"
    )
    best = f"constant baseline: {summary.baseline.score:.1%} with {shorten(summary.baseline.answer, 60)}"
    out().print(model_text(best))
    out().print(f"scripted hints: {summary.empty_hints:,} of {summary.checked_hints:,} would be empty")
    if loaded.bad_rows:
        shown = loaded.bad_rows[:MAX_SHOWN]
        cells = [(str(bad.row), bad.column or "-", shorten(bad.reason, 160)) for bad in shown]
        out().print(table("row", "column", "reason", rows=cells, title="\nBad rows"))
        if len(loaded.bad_rows) > len(shown):
            out().print(f"… and {len(loaded.bad_rows) - len(shown)} more")
    err().print("\nFor the configuration of a run:")
    out().print(model_text(to_yaml({"environment": summary.settings})))
    if loaded.bad_rows:
        raise typer.Exit(1)

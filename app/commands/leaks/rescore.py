"""`rl2f leaks`: rescore recorded hints; check, fit, benchmark and report on detectors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from app.commands.leaks import benchmark, check, fit, report
from app.commands.options import AsJson, Detectors, Root, Run, find_listed, migrated
from app.commands.settings import add_command, options_of
from app.commands.train import folder_for
from app.common.console import err, model_text, out, table
from app.common.terminal_progress import TerminalProgress
from rl2f_core.config.loading import parse_config
from rl2f_core.errors import rl2f_command
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink
from rl2f_core.run.execute import execute, removed_if_not_started
from rl2f_core.run.signals import InterruptHandler
from rl2f_core.types import JsonObject

DEFAULT = "rescore"
"""Command for a first argument that names no command."""


class DefaultCommand(TyperGroup):
    """`rl2f leaks RUN` is `rl2f leaks rescore RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default command before arguments that name no other."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=DefaultCommand,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run leak detectors on stored dialogues (rl2f leaks RUN) or on other hints, and measure them.",
)


def rescore(
    run: Run,
    detector: Detectors = "mentions",
    values: JsonObject = options_of("rl2f_core.run.kinds.rescore:RescoreRun", "penalty", "workers"),
    model: Annotated[
        str | None, typer.Option(help="Model of detectors that need one (default: the run's base model).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the rescoring run; by default beside the run.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of listed turns.")] = 20,
    as_json: AsJson = False,
    workspace: Root = None,
) -> None:
    """Rescore the stored hints of a run without its policy, and list the rewards and advantages whose sign changes.

    The result is a new run with rescore.json, changes.jsonl and one event per hint. If the run is named by its number
    or name, the new run belongs to the workspace, and the replay shows both reports.
    """
    from rl2f_core.leaks.parsing import parse_detectors
    from rl2f_core.run.kinds.rescore import CHANGES, SUMMARY

    detectors = parse_detectors(detector)
    listed = find_listed(run, workspace)
    target = Path(run) if listed is None else listed[1]
    RunDir.open(target)
    folder = out or folder_for(f"rescore-{target.resolve().name}", target.parent if listed else Path("runs"))
    is_sibling = folder.resolve().parent == target.resolve().parent
    name = re.sub(r"[^A-Za-z0-9 ._-]+", "-", f"rescore {target.resolve().name}")[:100]
    config = parse_config({
        "kind": "rescore", "name": name, "run": target.resolve().name if is_sibling else str(target.resolve()),
        "detectors": [part.model_dump(mode="json") for part in detectors],
        "model": None if model is None else {"name": model}, **values,
    })  # fmt: skip
    run_dir = RunDir.create(folder, config)
    with removed_if_not_started(run_dir), InterruptHandler() as stop, TerminalProgress() as progress:
        result = execute(config, run_dir, JsonlSink(run_dir.events_path), stop, progress)
    if result.status == "stopped":
        again = rl2f_command("leaks", run, "--detector", detector)
        err().print(f"Stopped; nothing was stored. Start again: {again}", markup=False)
        raise typer.Exit(130)
    summary = json.loads((run_dir.path / SUMMARY).read_text(encoding="utf-8"))
    changes = _sign_changes(run_dir.path / CHANGES, limit)
    if as_json:
        typer.echo(json.dumps({**summary, "folder": str(run_dir.path), "changes": changes}, indent=2))
    else:
        show(summary, changes)
    err().print(f"Every change: {run_dir.path / CHANGES}", markup=False)
    if listed is not None and out is None:
        _import(run_dir.path, workspace)
    else:
        err().print(f"Read the dialogues: {rl2f_command('replay', target)}", markup=False)


def _import(folder: Path, workspace: Path | None) -> None:
    """Add the rescoring run to the workspace, so that its reports are shown."""
    from jobs.ingest import ingester

    with migrated(workspace) as (opened, db):
        run = ingester.import_run(db, opened, folder.name, origin="cli")
    if run is not None:
        text = f"Stored as run {run.id} of the workspace. The replay of the rescored run shows both reports."
        err().print(text, markup=False)


def _sign_changes(path: Path, limit: int) -> list[JsonObject]:
    """Return the first turns whose reward or advantage changes its sign."""
    with open(path, encoding="utf-8") as file:
        changes = map(json.loads, file)
        return list(islice((c for c in changes if c["reward_sign"] or c["advantage_sign"]), limit))


def show(summary: JsonObject, changes: Sequence[JsonObject]) -> None:
    """Print the result of a rescoring as tables."""
    from rl2f_core.run.kinds.rescore import sentence

    console = out()
    console.print(model_text(sentence(summary)))
    detectors = ", ".join(f"{name} {count:,}" for name, count in sorted(summary["flagged_by"].items())) or "none"
    rows = [
        ("dialogues", f"{summary['dialogues']:,}"),
        ("turns", f"{summary['turns']:,}"),
        ("hints checked", f"{summary['hints'] - summary['errors']:,}"),
        ("flagged now", f"{summary['flagged']:,} ({detectors})"),
        ("flagged by the run", f"{summary['was_flagged']:,} of {summary['was_checked']:,}"),
        ("newly flagged", f"{summary['newly_flagged']:,}"),
        ("no longer flagged", f"{summary['no_longer_flagged']:,}"),
        ("rewards that change", f"{summary['rewards_changed']:,}{_signs(summary['reward_signs'])}"),
        ("advantages that change", f"{summary['advantages_changed']:,} in {summary['groups_changed']:,} groups"
                                   f"{_signs(summary['advantage_signs'])}"),
        ("seconds", f"{summary['seconds']:.1f}"),
    ]  # fmt: skip
    rows += [("hints without an answer", f"{summary['unchecked']:,}, not checked")] if summary.get("unchecked") else []
    rows += [("errors", f"{summary['errors']:,}")] if summary["errors"] else []
    rows += [("invalid lines", f"{summary['bad_lines']:,}")] if summary["bad_lines"] else []
    console.print(table("", "", rows=rows))
    if summary["stale"]:
        console.print(f"\nIn {summary['stale']:,} groups the stored advantages differ from those of the run's method.")
    if changes:
        console.print()
        columns = ("dialogue", "turn", "leak", "was", "reward", "", "advantage", "")
        console.print(table(*columns, rows=map(_row, changes), title="Turns whose sign changes"))


def _signs(counts: Mapping[str, int]) -> str:
    text = ", ".join(f"{count:,} {signs}" for signs, count in sorted(counts.items()))
    return f"; sign: {text}" if text else ""


def _row(change: JsonObject) -> tuple[str, ...]:
    def pair(values: Sequence[float] | None) -> str:
        return "" if values is None else f"{values[0]:+.3f} → {values[1]:+.3f}"

    return (
        change["dialogue"], str(change["turn"] + 1), change["detector"] or "", "leak" if change["was_leak"] else "",
        pair(change["reward"]), change["reward_sign"] or "", pair(change["advantage"]), change["advantage_sign"] or "",
    )  # fmt: skip


for name, command in (
    ("check", check.check),
    ("report", report.report),
    ("benchmark", benchmark.benchmark),
    ("fit", fit.fit),
    (DEFAULT, rescore),
):
    add_command(app, name, command)

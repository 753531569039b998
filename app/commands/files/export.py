"""`rl2f export`: dialogues with leak labels as datasets, from the workspace's runs or from run folders."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.options import Root, Runs, find_listed
from app.commands.settings import options_of
from app.common import console
from app.common.quantities import parse_range
from app.common.terminal_progress import TerminalProgress
from rl2f_core.config.loading import validate_config
from rl2f_core.errors import ConfigError
from rl2f_core.run.signals import InterruptHandler

if TYPE_CHECKING:
    from jobs.export.datasets.settings import ExportSettings
    from jobs.export.datasets.sources import Source


def export(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", help="New folder of the datasets.")],
    settings: ExportSettings = options_of(
        "jobs.export.datasets.settings:ExportSettings", step_from=None, step_to=None, pairs_per_leak="--pairs"
    ),
    steps: Annotated[str, typer.Option(help="Only these training steps, e.g. 10-20.")] = "",
    name: Annotated[str, typer.Option(help="Title of the dataset card (default: the folder's name).")] = "",
    workspace: Root = None,
) -> None:
    """Export dialogues with leak labels as JSONL and Parquet in TRL's dataset types, with manifest and card.

    Without --include options, only sampled turns of trained policies on training tasks are exported. A number or a name
    selects a run of the workspace, with its human labels. A folder needs no database; its labels are the detectors'
    findings.
    """
    from jobs.export.datasets import exporter

    err = console.err()
    if steps:
        if not (limits := parse_range("step", steps)):
            raise ConfigError("The steps are a number, or a range such as 10-20.", value=steps)
        data = settings.model_dump()
        settings = validate_config(type(settings), {**data, "filter": {**data["filter"], **limits}})
    stop = InterruptHandler()
    with ExitStack() as stack:
        sources = _sources(runs, workspace, settings.annotator, stack)
        has_labels = any(source.has_human_labels for source in sources)
        if settings.annotator and not has_labels:
            fix = "Name runs of the workspace by their numbers."
            raise ConfigError("A run folder has no human labels.", value=settings.annotator, fix=fix)
        if settings.labels == "both" and not has_labels:
            err.print("A run folder has no human labels, so the detectors' findings are used.", markup=False)
        with stop, TerminalProgress() as progress:
            manifest = exporter.export(sources, settings, out, name=name or out.name, progress=progress, stop=stop)
    if manifest is None:
        err.print("Stopped; nothing was written. Start the export again.", markup=False)
        raise typer.Exit(130)
    console.out().print(exporter.summary(manifest), markup=False)
    err.print(f"Datasets, manifest and card: {out}", markup=False)
    config = next(iter(manifest["formats"]))
    err.print(f'Load it: datasets.load_dataset({json.dumps(str(out))}, "{config}", split="train")', markup=False)


def _sources(runs: list[str], workspace: Path | None, annotator: str, stack: ExitStack) -> list[Source]:
    """Return one source per distinct run: numbers and names are runs of the workspace, the rest folders."""
    from app.common.known_values import check_known
    from jobs.export.datasets.resolve_sources import open_workspace, workspace_sources
    from jobs.export.datasets.sources import FolderSource
    from jobs.labels import label_queries

    listed = {run: find_listed(run, workspace) for run in runs}
    numbers = sorted({found[0] for found in listed.values() if found})
    by_number: dict[int, Source] = {}
    if numbers:
        opened, db = stack.enter_context(open_workspace(workspace))
        check_known("annotator", annotator, label_queries.annotators(db))
        by_number = dict(zip(numbers, workspace_sources(db, opened, numbers), strict=True))
    keyed = {found[0] if found else Path(run).resolve(): (run, found) for run, found in listed.items()}
    return [by_number[found[0]] if found else FolderSource(run) for run, found in keyed.values()]

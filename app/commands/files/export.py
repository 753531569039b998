"""`rl2f export`: dialogues with leak labels as datasets, from the workspace's runs or from run folders."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from app.commands.completion import complete_run_or_number
from app.commands.options import Root
from app.common import console
from app.common.terminal_progress import TerminalProgress
from rl2f_core.config.loading import format_validation_error
from rl2f_core.errors import ConfigError
from rl2f_core.run.signals import InterruptHandler

if TYPE_CHECKING:
    from jobs.export.datasets.settings import ExportSettings
    from jobs.export.datasets.sources import Source


def export(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…",
            help="Numbers of the workspace's runs, or run folders.",
            autocompletion=complete_run_or_number,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="New folder of the datasets.")],
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="stepwise_supervision, unpaired_preference, preference, messages or prompt_completion; repeatable.",
        ),
    ] = None,
    files: Annotated[list[str] | None, typer.Option("--file", help="jsonl or parquet; both by default.")] = None,
    labels: Annotated[str, typer.Option(help="Label source: human, detector, or both (human first).")] = "both",
    annotator: Annotated[str, typer.Option(help="Only labels of this annotator.")] = "",
    phase: Annotated[str, typer.Option(help="Only train, preflight, evaluation, chat, fork or distill.")] = "",
    stage: Annotated[str, typer.Option(help="Only this stage.")] = "",
    steps: Annotated[str, typer.Option(help="Only these training steps, e.g. 10-20.")] = "",
    checkpoint: Annotated[str, typer.Option(help="Only this checkpoint of an evaluation.")] = "",
    condition: Annotated[
        str, typer.Option(help="Only this condition of an evaluation; kept: accepted by a distillation.")
    ] = "",
    include_controls: Annotated[
        bool, typer.Option("--include-controls", help="Include dialogues of controls and forks; see their `condition`.")
    ] = False,
    include_test: Annotated[
        bool, typer.Option("--include-test", help="Include tasks of the validation and test splits; see `split`.")
    ] = False,
    include_demonstrations: Annotated[
        bool,
        typer.Option("--include-demonstrations", help="Include what the environment or a person wrote; see `policy`."),
    ] = False,
    include_base: Annotated[
        bool, typer.Option("--include-base", help="Include attempts of the untrained base at training tasks.")
    ] = False,
    labeled_only: Annotated[bool, typer.Option("--labeled-only", help="Only dialogues with a human label.")] = False,
    match: Annotated[str, typer.Option(help="What a preference pair shares: history, attempt or task.")] = "task",
    pairs: Annotated[int, typer.Option(help="Maximum number of preference pairs for one leaking hint.")] = 1,
    privileged: Annotated[
        bool, typer.Option("--privileged", help="Include the gold answer in the prompts; for teachers and judges only.")
    ] = False,
    name: Annotated[str, typer.Option(help="Title of the dataset card (default: the folder's name).")] = "",
    seed: Annotated[int, typer.Option(help="Seed of the choice among equally good pairs.")] = 0,
    workspace: Root = None,
) -> None:
    """Export dialogues with leak labels as JSONL and Parquet in TRL's dataset types, with manifest and card.

    Without --include options, only sampled turns of trained policies on training tasks are exported. A number selects a
    run of the workspace, with its human labels. A folder needs no database; its labels are the detectors' findings.
    """
    from jobs.export.datasets import exporter

    err = console.err()
    first, last = _parse_steps(steps)
    settings = _export_settings(
        seed=seed,
        formats=formats,
        files=files,
        labels=labels,
        annotator=annotator,
        filter={
            "phase": phase,
            "stage": stage,
            "step_from": first,
            "step_to": last,
            "checkpoint": checkpoint,
            "condition": condition,
            "include_controls": include_controls,
            "include_test": include_test,
            "include_demonstrations": include_demonstrations,
            "include_base": include_base,
            "labeled_only": labeled_only,
        },
        match=match,
        pairs_per_leak=pairs,
        privileged=privileged,
    )
    stop = InterruptHandler()
    with ExitStack() as stack:
        sources = _sources(runs, workspace, annotator, stack)
        has_labels = any(source.has_human_labels for source in sources)
        if annotator and not has_labels:
            fix = "Name runs of the workspace by their numbers."
            raise ConfigError("A run folder has no human labels.", value=annotator, fix=fix)
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


def _export_settings(**values: object) -> ExportSettings:
    from jobs.export.datasets.settings import ExportSettings

    try:
        return ExportSettings.model_validate({k: v for k, v in values.items() if v is not None})
    except ValidationError as error:
        raise ConfigError(
            format_validation_error(error, ExportSettings), fix="`rl2f export --help` lists the options."
        ) from error


def _parse_steps(text: str) -> tuple[int | None, int | None]:
    """Parse `10-20`, `10-`, `-20` or `10`."""
    if not text:
        return None, None
    match = re.fullmatch(r"(\d{0,9})(-?)(\d{0,9})", text)
    if match is None or not (match[1] or match[3]):
        raise ConfigError("Steps have the form 10-20, 10-, -20 or 10.", value=text)
    first = int(match[1]) if match[1] else None
    return first, (first if not match[2] else int(match[3]) if match[3] else None)


def _sources(runs: list[str], workspace: Path | None, annotator: str, stack: ExitStack) -> list[Source]:
    """Return one source per distinct run: numbers are runs of the workspace, the rest folders."""
    from app.common.known_values import check_known
    from jobs.export.datasets.resolve_sources import open_workspace, workspace_sources
    from jobs.export.datasets.sources import FolderSource
    from jobs.labels import label_queries

    keys = {run: int(run) if run.isascii() and run.isdigit() else Path(run).resolve() for run in runs}
    numbers = sorted({key for key in keys.values() if isinstance(key, int)})
    sources: dict[int | Path, Source] = {}
    by_number: dict[int | Path, Source] = {}
    if numbers:
        opened, db = stack.enter_context(open_workspace(workspace))
        check_known("annotator", annotator, label_queries.annotators(db))
        by_number = dict(zip(numbers, workspace_sources(db, opened, numbers), strict=True))
    for run, key in keys.items():
        sources[key] = by_number[key] if key in by_number else FolderSource(run)
    return list(sources.values())

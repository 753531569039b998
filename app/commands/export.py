"""`rl2f export`: leak-labelled dialogues as data sets, from the studio's runs or from bare run folders."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from jobs.export.sources import Source


def export(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Numbers of the studio's runs, or run folders.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to make for the data sets.")],
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="stepwise_supervision, unpaired_preference, preference, messages or prompt_completion; repeatable.",
        ),
    ] = None,
    files: Annotated[list[str] | None, typer.Option("--file", help="jsonl or parquet; both by default.")] = None,
    labels: Annotated[str, typer.Option(help="Whose label counts: people, detector, or both (people first).")] = "both",
    labeller: Annotated[str, typer.Option(help="Only this person's labels.")] = "",
    phase: Annotated[str, typer.Option(help="Only train, preflight, evaluation, chat, fork or distill.")] = "",
    stage: Annotated[str, typer.Option(help="Only this stage.")] = "",
    steps: Annotated[str, typer.Option(help="Only these training steps, e.g. 10-20.")] = "",
    checkpoint: Annotated[str, typer.Option(help="Only this checkpoint of an evaluation.")] = "",
    control: Annotated[
        str, typer.Option(help="Only this control of an evaluation; kept: what a distillation kept.")
    ] = "",
    without_controls: Annotated[
        bool, typer.Option("--without-controls", help="Leave out contentless, shuffled, misleading hints.")
    ] = False,
    labelled: Annotated[bool, typer.Option("--labelled", help="Only dialogues that a person labelled.")] = False,
    match: Annotated[str, typer.Option(help="What a preference pair shares: history, attempt or task.")] = "task",
    pairs: Annotated[int, typer.Option(help="Preference pairs for one leaking hint, at most.")] = 1,
    privileged: Annotated[
        bool, typer.Option("--privileged", help="Show the answer in the prompts; for teachers and judges only.")
    ] = False,
    name: Annotated[str, typer.Option(help="Title of the data-set card; the folder's name by default.")] = "",
    seed: Annotated[int, typer.Option(help="Chooses among equally good pairs.")] = 0,
    studio: Annotated[Path | None, typer.Option(help="The studio's folder, where runs are named by number.")] = None,
) -> None:
    """Export dialogues with leak labels as JSONL and Parquet in TRL's data set types, with manifest and card.

    A number is a run of the studio, with the labels of people; a folder needs no database, and its labels are the
    findings of its own detectors.
    """
    from app.console import err
    from app.console import out as stdout
    from app.progress import TerminalProgress
    from jobs.export.export import export as write
    from jobs.export.export import summary
    from rl2f_core.stopping import StopSignal

    first, last = _steps(steps)
    settings = _settings(
        seed=seed,
        formats=formats,
        files=files,
        labels=labels,
        labeller=labeller,
        filter={
            "phase": phase,
            "stage": stage,
            "step_from": first,
            "step_to": last,
            "checkpoint": checkpoint,
            "control": control,
            "without_controls": without_controls,
            "labelled": labelled,
        },
        match=match,
        pairs_per_leak=pairs,
        privileged=privileged,
    )
    stop = StopSignal()
    with ExitStack() as stack:
        sources = _sources(runs, studio, stack)
        if settings.labels == "both" and not any(source.people for source in sources):
            err().print("A run's folder holds no labels of people: the detectors' findings count.", markup=False)
        with stop, TerminalProgress() as progress:
            manifest = write(sources, settings, out, name=name or out.name, progress=progress, stop=stop)
    if manifest is None:
        err().print("Stopped; nothing was written. Start the export again.", markup=False)
        raise typer.Exit(130)
    stdout().print(summary(manifest), markup=False)
    err().print(f"Data sets, manifest and card: {out}", markup=False)
    config = next(iter(manifest["formats"]))
    err().print(f'Load it: datasets.load_dataset("{out}", "{config}", split="train")', markup=False)


def _settings(**values: object):  # type: ignore[no-untyped-def]  # the type would load pydantic models for --help
    from pydantic import ValidationError

    from jobs.export.settings import ExportSettings
    from rl2f_core.config import describe
    from rl2f_core.errors import ConfigError

    try:
        return ExportSettings.model_validate({k: v for k, v in values.items() if v is not None})
    except ValidationError as error:
        raise ConfigError(describe(error, ExportSettings), fix="`rl2f export --help` lists the options.") from error


def _steps(text: str) -> tuple[int | None, int | None]:
    """`10-20`, `10-`, `-20` or `10`."""
    from rl2f_core.errors import ConfigError

    if not text:
        return None, None
    found = re.fullmatch(r"(\d{0,9})(-?)(\d{0,9})", text)
    if found is None or not (found[1] or found[3]):
        raise ConfigError("Steps have the form 10-20, 10-, -20 or 10.", value=text)
    first = int(found[1]) if found[1] else None
    return first, (first if not found[2] else int(found[3]) if found[3] else None)


def _sources(runs: list[str], studio: Path | None, stack: ExitStack) -> list[Source]:
    """Numbers from the studio, the rest as folders, each once."""
    from jobs.export.locate import open_studio, studio_sources
    from jobs.export.sources import FolderSource

    numbers = {int(run) for run in runs if run.isascii() and run.isdigit()}
    by_number: dict[int, Source] = {}
    if numbers:
        place, db = stack.enter_context(open_studio(studio))
        by_number = dict(zip(sorted(numbers), studio_sources(db, place, sorted(numbers)), strict=True))
    sources: dict[object, Source] = {}
    for run in runs:
        if run.isascii() and run.isdigit():
            sources[int(run)] = by_number[int(run)]
        else:
            sources[Path(run).resolve()] = FolderSource(run)
    return list(sources.values())

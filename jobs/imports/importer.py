"""Import a file of rollouts as a read-only run of a workspace: all rows or none."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.imports.dialogues import CONDITION, STAGE, UNKNOWN, DialogueConverter
from jobs.imports.inspect_logs import InspectLog
from jobs.imports.messages import Messages
from jobs.imports.records import RolloutFormat, RowError
from jobs.imports.rows import Row, read_rows
from jobs.imports.trl import TRL
from jobs.imports.verifiers import VerifiersResults, VerifiersTraces
from jobs.imports.verl import Verl
from jobs.ingest.ingester import import_run, invalid_reason
from jobs.queue import run_dirs
from rl2f_core.config.loading import validate_config
from rl2f_core.environments.imported import Imported
from rl2f_core.errors import DataError
from rl2f_core.evaluation.report import EvaluatedTasks, build_report
from rl2f_core.file_io import write_atomically
from rl2f_core.run.directory import RunDir, sha256
from rl2f_core.run.events import DialogueEvent, JsonlSink, MetricEvent, StatusEvent
from rl2f_core.run.journal import Journal
from rl2f_core.run_kinds.imported import ImportedRun
from rl2f_core.types import Dialogue

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.workspace import Workspace

FORMATS: tuple[RolloutFormat, ...] = (TRL(), Verl(), VerifiersTraces(), VerifiersResults(), InspectLog(), Messages())
"""In the order of detection."""
MAX_LISTED_ERRORS = 20
BATCH = 500
"""Number of dialogues that are written at once."""


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be imported."""

    position: str
    """Line, row or entry of the file."""
    reason: str
    """Column and what is wrong."""


class ImportRowsError(DataError):
    """Rows of a file cannot be imported; nothing was imported."""

    bad: tuple[BadRow, ...] = ()
    """All of these rows."""


def _rows_error(path: Path, format: RolloutFormat, bad: list[BadRow], total: int) -> ImportRowsError:
    listed = "; ".join(f"{row.position}: {row.reason}" for row in bad[:MAX_LISTED_ERRORS])
    more = f"; and {len(bad) - MAX_LISTED_ERRORS} more" if len(bad) > MAX_LISTED_ERRORS else ""
    error = ImportRowsError(
        f"{len(bad)} of {total} rows cannot be read as {format.title}; nothing was imported. {listed}{more}.",
        value=path.name,
        fix="Correct or remove these rows, or name another format with --format.",
    )
    error.bad = tuple(bad)
    return error


def find_format(path: Path, name: str | None = None) -> RolloutFormat:
    """Return a format by its name, or the one that recognizes the first readable row of a file.

    Raises `DataError` listing the known formats.
    """
    known = [f"{each.name}: {each.title}" for each in FORMATS]
    if name is not None:
        for format in FORMATS:
            if format.name == name:
                return format
        raise DataError("Unknown format of rollouts.", value=name, known=[each.name for each in FORMATS])
    first = next((row for _, row in read_rows(path) if isinstance(row, dict)), None)
    if first is None:
        raise DataError("The file contains no readable row.", value=path.name, known=known)
    for format in FORMATS:
        if format.recognizes(frozenset(first)):
            return format
    raise DataError(f"The columns {', '.join(map(str, first))} are of no known format.", value=path.name, known=known)


def import_file(
    db: Database,
    workspace: Workspace,
    path: Path,
    *,
    format: str | None = None,
    name: str | None = None,
    threshold: float = 1.0,
) -> Run:
    """Import a file of rollouts as a run with origin `imported` and status `succeeded`.

    Args:
        db: The workspace's database.
        workspace: The workspace.
        path: The file.
        format: Name of its format; None detects it.
        name: Name of the run; by default the file's.
        threshold: Sum of the rewards from which a rollout without a verdict counts as correct.

    Raises `DataError` if the file or its format is unknown, and `ImportRowsError` listing the rows that cannot be read;
    then neither run nor directory remains.
    """
    reader = find_format(path, format)
    title = name or run_dirs.slug(path.stem).lstrip("_") or "import"
    source = {"format": reader.name, "source": path.name, "sha256": sha256(path), "threshold": threshold}
    config = validate_config(ImportedRun, {"name": title, "model": {"name": UNKNOWN}, **source})
    staged = folder = run_dirs.create_staged(workspace, config)
    try:
        _write_events(RunDir(staged), path, reader, threshold)
        folder = run_dirs.publish(workspace, staged, f"imported-{run_dirs.slug(title)}")
        run = import_run(db, workspace, folder.name)
        assert run is not None, "the directory is new, so no process has its lock"
    except BaseException:
        partial = runs.find(db, folder=folder.name)
        if partial is not None and partial.id is not None:
            runs.remove(db, partial.id)
        run_dirs.rollback(folder)
        raise
    run_dirs.confirm(folder)
    return run


def _write_events(run_dir: RunDir, path: Path, reader: RolloutFormat, threshold: float) -> None:
    """Write the dialogues, the metrics, and the final commit, which prevents a resume."""
    sink, converter = JsonlSink(run_dir.events_path), DialogueConverter(threshold, reader.name)
    bad: list[BadRow] = []
    rewards: dict[int, list[float]] = defaultdict(list)
    evaluated: dict[str, list[Dialogue]] = defaultdict(list)
    batch: list[DialogueEvent] = []
    total = count = 0
    sink.emit([StatusEvent(id="status:import:running", status="running")])
    for row in read_rows(path):
        total += 1
        try:
            events = list(_convert(row, reader, converter))
        except ValueError as error:  # includes RowError and pydantic's ValidationError
            bad.append(BadRow(row[0], invalid_reason(error)))
            continue
        count += len(events)
        for event in events:
            if event.phase == "train":
                rewards[event.step].append(sum(turn.reward for turn in event.dialogue.turns))
            elif event.phase == "evaluation":
                evaluated[event.checkpoint or ""].append(event.dialogue)
        batch += events
        if len(batch) >= BATCH:
            sink.emit(batch)
            batch = []
    if bad:
        raise _rows_error(path, reader, bad, total)
    if not count:
        raise DataError("The file contains no rollouts.", value=path.name)
    sink.emit(batch)
    means = {(STAGE, step): {"reward": math.fsum(v) / len(v)} for step, v in sorted(rewards.items())}
    for model, values in _write_report(run_dir, path.name, evaluated).items():
        means[f"evaluation:{model}:{CONDITION}", 0] = values
    metrics = means.items()
    sink.emit([MetricEvent(id=f"metric:{s}:{n}", stage=s, step=n, values=values) for (s, n), values in metrics])
    Journal(run_dir, sink).commit({"done": True})
    detail = f"{count} rollouts of {path.name}"
    sink.emit([StatusEvent(id="status:import:succeeded", status="succeeded", detail=detail)])


def _write_report(run_dir: RunDir, source: str, evaluated: Mapping[str, list[Dialogue]]) -> dict[str, dict[str, float]]:
    """Write the report on the dialogues of an evaluation, if there are any; return the metrics by model."""
    if not evaluated:
        return {}
    dialogues = [dialogue for by_model in evaluated.values() for dialogue in by_model]
    tasks = len({dialogue.task_id for dialogue in dialogues})
    turns = max(1, *(len(dialogue.turns) for dialogue in dialogues))
    report = build_report(
        Imported(Imported.Config()),
        {model: {CONDITION: by_model} for model, by_model in evaluated.items()},
        turns,
        EvaluatedTasks(tasks, max(1, max(map(len, evaluated.values())) // tasks)),
        [f"Imported from {source}; no control was measured."],
    )
    write_atomically(run_dir.evaluation / "report.json", report.to_json())
    write_atomically(run_dir.evaluation / "report.md", report.to_markdown())
    return {row.checkpoint: row.metrics.flat() for row in report.rows}


def _convert(row: Row, reader: RolloutFormat, converter: DialogueConverter) -> Iterator[DialogueEvent]:
    position, data = row
    if isinstance(data, str):
        raise RowError(data)
    for number, rollout in enumerate(reader.rollouts(data)):
        name = position if number == 0 else f"{position} rollout {number + 1}"
        yield converter.convert(rollout, name)

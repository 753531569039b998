"""Import a file or folder of rollouts as a read-only run of a workspace: all rows or, unless they are skipped, none."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.imports.dialogues import CONDITION, STAGE, UNKNOWN, DialogueConverter
from jobs.imports.inspect_logs import InspectLog
from jobs.imports.messages import Messages
from jobs.imports.records import MAX_NUMBER, ImportedRollout, Phase, RolloutFormat, RowError
from jobs.imports.rows import Row, find_files, phase_of_path, read_rows, stem, step_of_path
from jobs.imports.trl import TRL
from jobs.imports.verifiers import VerifiersResults, VerifiersTraces
from jobs.imports.verl import Verl
from jobs.ingest.ingester import import_run, invalid_reason
from jobs.queue import run_dirs
from rl2f_core.common.file_io import sha256, write_atomically
from rl2f_core.config.fields import BaseConfig
from rl2f_core.config.loading import validate_config
from rl2f_core.environments.imported import Imported
from rl2f_core.errors import DataError
from rl2f_core.evaluation.report import EvaluatedTasks, build_report
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, LogEvent, MetricEvent, StatusEvent
from rl2f_core.run.journal import Journal
from rl2f_core.run.kinds.imported import ImportedRun
from rl2f_core.types import Dialogue

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.workspace import Workspace

FORMATS: tuple[RolloutFormat, ...] = (TRL(), Verl(), VerifiersTraces(), VerifiersResults(), InspectLog(), Messages())
"""In the order of detection."""
MAX_LISTED_ERRORS = 20
BATCH = 500
"""Number of dialogues that are written at once."""
SEVERAL_ANSWERS = "with several gold answers, of which only the first is known to detectors"
COUNTED = ("without a verdict", "without a known reward", SEVERAL_ANSWERS)
"""Counts of rollouts in the summary."""


class ImportSettings(BaseConfig):
    """How rollouts are read."""

    format: str = Field("", max_length=300)
    """trl, verl, verifiers, verifiers_traces, inspect or messages; detected by default."""
    threshold: float = 1.0
    """Sum of the rewards from which a rollout without a verdict counts as correct."""
    phase: Literal["", Phase] = ""
    """Phase of all rollouts; by default what the rows or the path state."""
    rewards: tuple[Annotated[str, Field(max_length=300)], ...] | None = Field(None, max_length=24)
    """Rewards that count, each as NAME or NAME=WEIGHT; by default those that the format names."""
    skip_invalid: bool = False
    """Skip and list invalid rows instead of importing nothing."""
    name: str = Field("", max_length=300)
    """Name of the run; by default that of the file or folder."""


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be imported."""

    position: str
    """Line, row or entry of the file."""
    reason: str
    """Column and what is wrong."""

    def __str__(self) -> str:
        return f"{self.position}: {self.reason}"


class ImportRowsError(DataError):
    """Rows of a file cannot be imported; nothing was imported."""

    bad: tuple[BadRow, ...] = ()
    """All of these rows."""


def _list(items: Sequence[object]) -> str:
    listed = "; ".join(map(str, items[:MAX_LISTED_ERRORS]))
    return f"{listed}; and {len(items) - MAX_LISTED_ERRORS} more" if len(items) > MAX_LISTED_ERRORS else listed


def _rows_error(path: Path, what: str, bad: list[BadRow], total: int) -> ImportRowsError:
    skip = ", skip them with --skip-invalid" if len(bad) < total else ""
    error = ImportRowsError(
        f"{len(bad)} of {total} rows cannot be read as {what}; nothing was imported. {_list(bad)}.",
        value=path.name,
        fix=f"Correct these rows{skip}, or name another format with --format.",
    )
    error.bad = tuple(bad)
    return error


def find_format(path: Path, name: str = "") -> RolloutFormat:
    """Return a format by its name, or the one that recognizes the first readable row of a file or folder.

    Raises `DataError` listing the known formats, and `ImportRowsError` if no row is readable.
    """
    known = [f"{log_format.name}: {log_format.title}" for log_format in FORMATS]
    if name:
        for format in FORMATS:
            if format.name == name:
                return format
        raise DataError("Unknown format of rollouts.", value=name, known=[log_format.name for log_format in FORMATS])
    bad: list[BadRow] = []
    rows = ((file, *row) for file in find_files(path) for row in read_rows(file))
    for file, position, first in rows:
        if isinstance(first, dict):
            break
        bad.append(BadRow(_position(path, file, position), first))
    else:
        if bad:
            raise _rows_error(path, "objects", bad, len(bad))
        raise DataError("The file contains no row.", value=path.name, known=known)
    for format in FORMATS:
        if format.recognizes(frozenset(first)):
            return format
    raise DataError(f"The columns {', '.join(map(str, first))} are of no known format.", value=path.name, known=known)


def _position(path: Path, file: Path, position: str) -> str:
    """Return the position of a row of an imported path, in a folder with its file."""
    return position if file == path else f"{file.relative_to(path).as_posix()} {position}"


def parse_rewards(texts: Sequence[str]) -> dict[str, float]:
    """Return the weights of rewards that are written as `NAME` or `NAME=WEIGHT`. Raises `DataError`."""
    weights = {}
    for text in texts:
        name, _, weight = text.partition("=")
        try:
            weights[name] = float(weight or 1)
        except ValueError:
            weights[name] = 0.0
        if not name or not 0 < abs(weights[name]) <= MAX_NUMBER:
            raise DataError(
                f"A reward is NAME or NAME=WEIGHT; the weight is a number other than 0, at most {MAX_NUMBER:g}.",
                value=text,
            )
    return weights


def import_file(db: Database, workspace: Workspace, path: Path, settings: ImportSettings | None = None) -> Run:
    """Import a file of rollouts, or all files of a folder, as a run with origin `imported` and status `succeeded`.

    Raises `DataError` if the file, its format or a setting is unknown, and `ImportRowsError` listing the rows that
    cannot be read; then neither run nor directory remains.
    """
    settings, path = settings or ImportSettings(), path.absolute()
    weights = parse_rewards(settings.rewards or ())
    reader = find_format(path, settings.format)
    files = find_files(path)
    digests = [sha256(file) for file in files]
    digest = digests[0] if path.is_file() else hashlib.sha256("".join(digests).encode()).hexdigest()
    title = settings.name or run_dirs.slug(stem(path) if path.is_file() else path.name).lstrip("_") or "import"
    source = {"format": reader.name, "source": path.name, "sha256": digest, "threshold": settings.threshold}
    config = validate_config(ImportedRun, {"name": title, "model": {"name": UNKNOWN}, **source})
    staged = folder = run_dirs.create_staged(workspace, config)
    try:
        _Import(RunDir(staged), path, reader, settings).write(files, weights)
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


class _Import:
    """One pass over the files: the events of the run, its report, and what is stated about it."""

    def __init__(self, run_dir: RunDir, path: Path, reader: RolloutFormat, settings: ImportSettings) -> None:
        self.run_dir, self.path, self.reader, self.settings = run_dir, path, reader, settings
        self.sink, self.converter = JsonlSink(run_dir.events_path), DialogueConverter(settings.threshold, reader.name)
        self.bad: list[BadRow] = []
        self.names: dict[str, bool] = {}
        """Names of all rewards, and whether they count."""
        self.phases: dict[str, Phase] = {}
        """Phases that only the path states, by folder."""
        self.counts: Counter[str] = Counter()
        self._rewards: dict[int, list[float]] = defaultdict(list)
        self._evaluated: dict[str, list[Dialogue]] = defaultdict(list)

    def write(self, files: list[Path], weights: dict[str, float]) -> None:
        """Write the dialogues, the metrics, and the final commit, which prevents a resume."""
        self.sink.emit([StatusEvent(id="status:import:running", status="running")])
        if not weights:
            rows = (row for file in files for _, row in read_rows(file))
            weights = dict.fromkeys(self.reader.reward_names(rows), 1.0)
        batch: list[DialogueEvent] = []
        for file in files:
            for row in read_rows(file):
                batch += self._row(row, file, weights)
                if len(batch) >= BATCH:
                    self.sink.emit(batch)
                    batch = []
        if self.bad and not (self.settings.skip_invalid and self.counts["rollouts"]):
            raise _rows_error(self.path, self.reader.title, self.bad, self.counts["rows"])
        if not self.counts["rollouts"]:
            raise DataError("The file contains no rollouts.", value=self.path.name)
        if unknown := [name for name in weights if name not in self.names]:
            raise DataError("The file contains no such reward.", value=", ".join(unknown), known=list(self.names))
        self.sink.emit(batch)
        means = {(STAGE, step): {"reward": math.fsum(v) / len(v)} for step, v in sorted(self._rewards.items())}
        for model, values in self._write_report().items():
            means[f"evaluation:{model}:{CONDITION}", 0] = values
        self.sink.emit([MetricEvent(id=f"metric:{s}:{n}", stage=s, step=n, values=v) for (s, n), v in means.items()])
        self.sink.emit(list(self._remarks(files)))
        Journal(self.run_dir, self.sink).commit({"done": True})
        self.sink.emit([StatusEvent(id="status:import:succeeded", status="succeeded", detail=self._summary())])

    def _row(self, row: Row, file: Path, weights: Mapping[str, float]) -> list[DialogueEvent]:
        """Return the events of a row, of which none is counted if one is invalid."""
        position, data = _position(self.path, file, row[0]), row[1]
        self.counts["rows"] += 1
        try:
            if isinstance(data, str):
                raise RowError(data)
            rollouts = [self._complete(rollout, file, weights) for rollout in self.reader.rollouts(data)]
            events = [
                self.converter.convert(rollout, position if number == 0 else f"{position} rollout {number + 1}")
                for number, rollout in enumerate(rollouts)
            ]
        except ValueError as error:  # includes RowError and pydantic's ValidationError
            self.bad.append(BadRow(position, invalid_reason(error)))
            return []
        for rollout, event in zip(rollouts, events, strict=True):
            self._count(rollout, event)
        return events

    def _complete(self, rollout: ImportedRollout, file: Path, weights: Mapping[str, float]) -> ImportedRollout:
        """Return a rollout with phase and step, and with the rewards that count."""
        for name in rollout.rewards:
            self.names[name] = (name in weights) if weights else rollout.weights.get(name, 1.0) != 0
        default, training = self.reader.default_phase, self.reader.is_training
        stated = self.settings.phase or rollout.phase
        phase = stated or default
        if stated is None and training and (named := phase_of_path(file, self.path)):
            phase = self.phases[file.relative_to(self.path.parent).parent.as_posix()] = named
        step = step_of_path(file) if rollout.step is None and training else rollout.step
        rewards = {name: rollout.rewards.get(name) for name in weights} if weights else rollout.rewards
        if self.reader.sums_known_rewards and set(rewards.values()) != {None}:
            rewards = {name: score for name, score in rewards.items() if score is not None}
        return replace(rollout, phase=phase, step=step, rewards=rewards, weights=weights or rollout.weights)

    def _count(self, rollout: ImportedRollout, event: DialogueEvent) -> None:
        dialogue = event.dialogue
        self.counts["rollouts"] += 1
        self.counts["without a verdict"] += dialogue.solved is None
        self.counts[SEVERAL_ANSWERS] += rollout.other_answers > 0
        self.counts["without a known reward"] += dialogue.reward is None and bool(rollout.rewards)
        if event.phase == "evaluation":
            self._evaluated[dialogue.policy].append(dialogue)
        elif event.phase == "train" and dialogue.reward is not None:
            self._rewards[event.step].append(dialogue.reward)

    def _summary(self) -> str:
        counts = [f"{n} {name}" for name in COUNTED if (n := self.counts[name])]
        counts += [f"{len(self.bad)} rows skipped"] if self.bad else []
        return ", ".join([f"{self.counts['rollouts']} rollouts of {self.path.name}", *counts])

    def _remarks(self, files: list[Path]) -> Iterator[LogEvent]:
        """Yield the skipped rows, the files that were not read, and which rewards count if not all do."""
        if self.bad:
            yield LogEvent(id="import:skipped", level="warning", text=f"Skipped rows: {_list(self.bad)}.")
        in_folder = self.path.rglob("*") if self.path.is_dir() else ()
        if others := sorted({file for file in in_folder if file.is_file()}.difference(files)):
            names = _list([file.relative_to(self.path).as_posix() for file in others])
            yield LogEvent(id="import:files", level="warning", text=f"Files that were not read: {names}.")
        if self.phases:
            listed = ", ".join(f"{phase} in {folder}" for folder, phase in self.phases.items())
            yield LogEvent(id="import:phases", text=f"The paths state the phases: {listed}. `--phase` names another.")
        ignored = [name for name, counts in self.names.items() if not counts]
        if ignored:
            counted = [name for name, counts in self.names.items() if counts]
            text = f"Rewards that count: {', '.join(counted) or 'none'}. Others: {', '.join(ignored)}."
            yield LogEvent(id="import:rewards", text=f"{text} `--reward` names those that count.")

    def _write_report(self) -> dict[str, dict[str, float]]:
        """Write the report on the dialogues of an evaluation, if there are any; return the metrics by policy."""
        if not self._evaluated:
            return {}
        dialogues = [dialogue for by_policy in self._evaluated.values() for dialogue in by_policy]
        tasks = len({dialogue.task_id for dialogue in dialogues})
        sizes = Counter((dialogue.policy, dialogue.task_id) for dialogue in dialogues)
        is_even = len({*sizes.values()}) == 1 and len(sizes) == tasks * len(self._evaluated)
        notes = [f"{len(dialogues)} dialogues were imported from {self.path.name}; no control was measured."]
        if unknown := sum(dialogue.solved is None for dialogue in dialogues):
            notes.append(f"{unknown} of {len(dialogues)} dialogues have no verdict and count in no solve rate.")
        report = build_report(
            Imported(Imported.Config()),
            {policy: {CONDITION: by_policy} for policy, by_policy in self._evaluated.items()},
            max(1, *(len(dialogue.turns) for dialogue in dialogues)),
            EvaluatedTasks(tasks, max(sizes.values()) if is_even else 0),
            notes,
        )
        write_atomically(self.run_dir.evaluation / "report.json", report.to_json())
        write_atomically(self.run_dir.evaluation / "report.md", report.to_markdown())
        return {row.checkpoint: row.metrics.flat() for row in report.rows}

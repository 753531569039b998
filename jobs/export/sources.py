"""Where records come from: the workspace's database (with what people added), or a run's folder alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jobs.export.export_records import ExportRecord, ExportTurn, HumanLabel, TaskRenderer, from_event, task_key
from jobs.export.settings import ExportFilter
from rl2f_core.config.loading import parse_config
from rl2f_core.errors import RL2FError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, read_events
from rl2f_core.types import LeakReport, RewardTerm, Task, Verdict

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.db.models import Run
    from jobs.db.queries.dialogues import DialogueView, TurnView
    from jobs.workspace import Workspace

BATCH = 200
"""Dialogues held in memory at once."""


class Source(Protocol):
    """The dialogues of one run."""

    has_human_labels: bool
    """It can hold labels of people."""

    def about(self) -> dict[str, Any]:
        """What the manifest says of the run; no paths."""
        ...

    def count(self, filter: ExportFilter) -> int:
        """Number of dialogues that the filter takes."""
        ...

    def batches(self, filter: ExportFilter, size: int = BATCH) -> Iterator[list[ExportRecord]]:
        """The dialogues in a fixed order, some at a time."""
        ...


class FolderSource:
    """A run's folder without a database: findings of the run's own detectors."""

    has_human_labels = False

    def __init__(self, path: str | Path) -> None:
        self.run_dir = RunDir.open(path)
        try:
            self.config: Any = self.run_dir.config()
        except RL2FError:  # a plugin that is not here: the events can be read all the same
            self.config = None
        self.name = self.run_dir.path.resolve().name

    def about(self) -> dict[str, Any]:
        """What the manifest says of the run."""
        return _about(self.name, self.name, self.config, _meta(self.run_dir))

    def count(self, filter: ExportFilter) -> int:
        """Number of dialogues that the filter takes; reads the whole file."""
        return sum(1 for _ in self._events(filter))

    def batches(self, filter: ExportFilter, size: int = BATCH) -> Iterator[list[ExportRecord]]:
        """In the order of the event file; an event that stands there twice counts once."""
        voice = TaskRenderer.of(self.config)
        run_name = getattr(self.config, "name", self.name)
        batch: list[ExportRecord] = []
        seen: set[str] = set()
        for event in self._events(filter):
            if event.id in seen:
                continue
            seen.add(event.id)
            batch.append(from_event(event, self.name, run_name, voice))
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch

    def _events(self, filter: ExportFilter) -> Iterator[DialogueEvent]:
        if not self.run_dir.events_path.exists():
            return
        for event in read_events(self.run_dir.events_path):
            if isinstance(event, DialogueEvent) and filter.matches(event):
                yield event


class WorkspaceSource:
    """A run of the workspace: what was ingested, with the labels of people."""

    has_human_labels = True

    def __init__(self, db: Database, workspace: Workspace, run: Run) -> None:
        self.db, self.run = db, run
        self.run_dir = RunDir(workspace.folder(run.folder))
        try:
            import yaml

            self.config: Any = parse_config(yaml.safe_load(run.config))
        except (RL2FError, yaml.YAMLError):
            self.config = None

    def about(self) -> dict[str, Any]:
        """What the manifest says of the run."""
        return _about(str(self.run.id), self.run.name, self.config, _meta(self.run_dir))

    def count(self, filter: ExportFilter) -> int:
        """Number of dialogues that the filter takes."""
        from jobs.db.queries import dialogues

        return dialogues.count(self.db, filter.dialogue_filter(self.run.id or 0))

    def batches(self, filter: ExportFilter, size: int = BATCH) -> Iterator[list[ExportRecord]]:
        """In the order of ingestion, each batch in a short transaction of its own."""
        from jobs.db.queries import dialogues

        voice = TaskRenderer.of(self.config)
        after = 0
        while True:
            views = dialogues.next_views(self.db, filter.dialogue_filter(self.run.id or 0), after=after, limit=size)
            if not views:
                return
            after = views[-1].row.id or 0
            yield [from_view(view, self.run, voice) for view in views]


def from_view(view: DialogueView, run: Run, voice: TaskRenderer) -> ExportRecord:
    """A record from what the store says of a dialogue."""
    row, problem = view.row, view.task
    task = Task.model_construct(
        id=problem.task,
        environment=problem.environment,
        split=problem.split,  # type: ignore[arg-type]
        level=problem.level,
        public=problem.public,
        privileged=problem.privileged,
    )
    words, answer = voice.render(task)
    return ExportRecord(
        run=str(row.run_id),
        run_name=run.name,
        dialogue=row.event_id,
        task=problem.task,
        task_key=task_key(problem.environment, problem.public, problem.privileged),
        environment=problem.environment,
        level=problem.level,
        split=problem.split,
        phase=row.phase,
        stage=row.stage,
        step=row.step,
        checkpoint=row.checkpoint or "",
        condition=row.condition or "",
        group=row.group,
        index=row.index,
        policy=row.policy,
        seed=row.seed,
        stop_reason=row.stop_reason,
        system=voice.system,
        problem=words,
        answer=answer,
        steps=tuple(_step(turn) for turn in view.turns),
    )


def _step(view: TurnView) -> ExportTurn:
    row = view.row
    return ExportTurn(
        index=row.index,
        attempt=row.attempt,
        verdict=Verdict.model_validate(row.verdict),
        reward=row.reward,
        terms=tuple(
            RewardTerm(name=t.name, score=t.score, weight=t.weight) for t in sorted(view.terms, key=lambda t: t.name)
        ),
        hint=row.hint,
        feedback=row.feedback,
        teacher=row.teacher or "",
        source_task=row.source_task or "",
        prompt_template=row.hint_prompt_template or "",
        error=row.hint_error or "",
        leak=_finding(view),
        human_labels=tuple(
            HumanLabel(label.annotator, label.label, label.start, label.end, label.note, label.blind)
            for label in sorted(view.labels, key=lambda label: label.annotator)
        ),
    )


def _finding(view: TurnView) -> LeakReport | None:
    """What the run's own detectors said; a detector that was asked again later does not change the record."""
    if view.row.hint is None or not view.row.leak_checked:
        return None
    for found in view.findings:
        if found.source == "run":
            span = (found.start, found.end) if found.start is not None and found.end is not None else None
            return LeakReport(
                leaked=view.row.leak_found,
                detector=found.detector,
                span=span,
                answer_fraction=found.answer_fraction,
                action=found.action,
            )
    return LeakReport(leaked=view.row.leak_found)


def _about(run: str, name: str, config: Any, meta: dict[str, Any]) -> dict[str, Any]:
    environment, teacher = getattr(config, "environment", None), getattr(config, "teacher", None)
    detection = getattr(config, "leak_detection", None)
    return {
        "run": run,
        "name": getattr(config, "name", name),
        "kind": getattr(config, "kind", None),
        "seed": getattr(config, "seed", None),
        "model": Path(config.model.name).name if getattr(config, "model", None) else None,
        "environment": None if environment is None else environment.model_dump(mode="json"),
        "teacher": getattr(teacher, "type", None),
        "detectors": [] if detection is None else [detector.type for detector in detection.detectors],
        "git": meta.get("git"),
        "packages": meta.get("packages", {}),
    }


def _meta(run_dir: RunDir) -> dict[str, Any]:
    try:
        meta = json.loads(run_dir.meta_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}

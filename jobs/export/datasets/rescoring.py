"""The newest rescoring of a run (`rl2f leaks RUN`), whose findings replace those at run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jobs.export.datasets.export_records import ExportRecord
from rl2f_core.common.file_io import read_json
from rl2f_core.config.leaks import describe_detector
from rl2f_core.errors import RL2FError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import LeakEvent, LeakRescoreEvent, StatusEvent, read_events
from rl2f_core.types import LeakReport, Turn


@dataclass(frozen=True)
class Rescoring:
    """The findings of one rescoring."""

    name: str
    """Folder of the rescoring run."""
    detectors: tuple[str, ...]
    started: float
    """Dialogues before this time were checked."""
    ended: float
    """Later dialogues are others, even with the id of a checked one."""
    reports: Mapping[tuple[str, int], LeakReport]
    """Event id and turn → report; a checked hint without a report has no leak if its task has an answer."""

    def apply(self, record: ExportRecord) -> ExportRecord:
        """Return a dialogue with these findings; hints that were not checked keep theirs."""
        turns = tuple(self._rescored(record, turn) for turn in record.turns)
        dialogue = record.event.dialogue.model_copy(update={"turns": turns})
        return replace(record, event=record.event.model_copy(update={"dialogue": dialogue}))

    def _rescored(self, record: ExportRecord, turn: Turn) -> Turn:
        hint = turn.hint
        if hint is None or hint.is_fallback or record.event.time > self.ended:
            return turn
        report = self.reports.get((record.event.id, turn.index))
        if report is None and record.answer and record.event.time < self.started:
            report = LeakReport(leaked=False)
        if report is None or not report.is_complete:
            return turn
        action = None if hint.leak is None else hint.leak.action
        hint = hint.model_copy(update={"leak": report.model_copy(update={"action": action})})
        return turn.model_copy(update={"hint": hint})


def newest_rescoring(run_dir: RunDir, parents: Iterable[Path]) -> Rescoring | None:
    """Return the newest finished rescoring of a run among the folders in `parents`; None without one."""
    target = run_dir.path.resolve()
    found: list[tuple[float, Rescoring]] = []
    for file in sorted({file for parent in parents for file in parent.resolve().glob("*/rescore.json")}):
        summary, folder = read_json(file, file.parent), RunDir(file.parent)
        if Path(str(summary.get("run"))).name != target.name or not folder.events_path.is_file():
            continue
        try:
            folder.checked_path()
            is_same = folder.resolve_run(folder.config().run).path.resolve() == target  # type: ignore[attr-defined]
        except (RL2FError, AttributeError):  # a damaged folder, or a run that was moved
            continue
        found += [_read(folder)] if is_same else []
    return max(found, key=lambda item: item[0], default=(0.0, None))[1]


def _read(folder: RunDir) -> tuple[float, Rescoring]:
    """Return end and findings of a rescoring run."""
    detectors: tuple[str, ...] = ()
    started, ended = 0.0, 0.0
    reports: dict[tuple[str, int], LeakReport] = {}
    for event in read_events(folder.events_path):
        if isinstance(event, StatusEvent) and event.status == "running":
            started = event.time
        elif isinstance(event, LeakEvent):
            reports[event.dialogue, event.turn] = event.report
        elif isinstance(event, LeakRescoreEvent):
            detectors, ended = tuple(map(describe_detector, event.detectors)), event.time
    return ended, Rescoring(folder.path.name, detectors, started, ended, reports)

"""Database queries of the detector report: labels with findings, population sizes, and test set accesses."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, Select, func, select

from jobs.db.columns import table_of
from jobs.db.dialogue_models import DialogueRow, RescoreSummary, TaskRow, TurnRow
from jobs.db.errors import NotFoundError
from jobs.db.models import LeakLabel, Run, TestSetAccess
from jobs.db.queries.runs import get_in_session
from jobs.labels import detector_report, hint_counts, holdout, planted_hints
from jobs.labels.detector_report import AnnotatorLabel, DetectorReport, LabeledHint, Population, StratumVerdict
from jobs.labels.hint_counts import RUN, DetectorVerdict, HintGroup, Scope, Source, bucket
from jobs.labels.label_queries import annotator_name
from jobs.labels.sampling import SamplingFrame
from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    from jobs.db.engine import Database

_dialogue = table_of(DialogueRow)
_turn = table_of(TurnRow)
_label = table_of(LeakLabel)
_task = table_of(TaskRow)


def sources(db: Database) -> list[Source]:
    """Return the run-time findings and every rescore, the newest first."""
    summary, run = table_of(RescoreSummary), table_of(Run)
    columns = (summary.c.run_id, run.c.id, summary.c.detectors, summary.c.time)
    rescores = select(*columns).join(run, run.c.folder == summary.c.target).order_by(summary.c.run_id.desc())
    with db.read() as session:
        rows = session.execute(rescores).all()
    found = [Source(name=str(run), detectors=text, runs=(target,), time=at) for run, target, text, at in rows]
    return [Source(name=RUN, detectors="as each run was configured"), *found]


def source(db: Database, name: str) -> Source:
    """Return one of `sources`; raises `NotFoundError` if it does not exist."""
    known = {listed.name: listed for listed in sources(db)}
    if name not in known:
        raise NotFoundError("Unknown source of findings.", value=name, known=list(known)[:20])
    return known[name]


def read(db: Database, scope: Scope, group_by: str = "detector") -> DetectorReport:
    """Return the report of a scope; raises like `read_all`."""
    return read_all(db, scope, (group_by,))[group_by]


def read_all(
    db: Database, scope: Scope, group_by: Sequence[str] = detector_report.GROUP_BY
) -> dict[str, DetectorReport]:
    """Return the report of a scope under several groupings.

    Callers that show the test set must log it with `unlock_test_set`.

    Raises:
        ConfigError: A grouping is unknown.
        NotFoundError: The run or source does not exist.
    """
    if unknown := set(group_by) - set(detector_report.GROUP_BY):
        raise ConfigError("Unknown grouping.", value=unknown.pop(), known=detector_report.GROUP_BY)
    scored = source(db, scope.source)
    if scope.run is not None:
        with db.read() as session:
            get_in_session(session, scope.run)
    hints = labeled_hints(db, scope, scored)
    frames = [label.sampling_frame for hint in hints for label in hint.labels if label.sampling_frame is not None]
    drawn = Counter(SamplingFrame.parse(frame).source for frame in frames)
    frame_source = scored.name if drawn[scored.name] > drawn[RUN] else RUN
    sizes = population(db, scope, scored, frame_source)
    bits, leaks = hint_counts.information(db, scope, scored), planted_hints.count_planted(db, scope, scored)
    newer = {"newer_hints": count_newer(db, scope)}
    reports = {name: detector_report.build_report(hints, sizes, frame_source, name, bits, leaks) for name in group_by}
    return {name: report.model_copy(update=newer) for name, report in reports.items()}


def count_newer(db: Database, scope: Scope) -> int:
    """Count the hints of the scope that are newer than its last sampled label."""
    of_label = (_dialogue.c.run_id == _label.c.run_id) & (_dialogue.c.event_id == _label.c.event_id)
    last = select(func.max(_label.c.time)).join(_dialogue, of_label).where(*scope.within(_dialogue.c))
    with db.read() as session:
        newest = session.scalar(last.where(_label.c.sampling_frame.is_not(None)))
        if newest is None:
            return 0
        newer = hint_counts.hints_of(scope, func.count()).where(_turn.c.is_eligible, _dialogue.c.time > newest)
        return session.scalar(newer) or 0


def population(db: Database, scope: Scope, scored: Source, frame_source: str = RUN) -> Population:
    """Count the hints of the scope that the source checked, by group and verdict."""
    sizes: Counter[tuple[HintGroup, StratumVerdict]] = Counter()
    runtime_counts = hint_counts.count_runtime(db, scope, scored.runs)
    if scored.name == RUN:
        for (group, verdict), n in runtime_counts.items():
            if verdict.checked:
                sizes[group, StratumVerdict(verdict.flagged, verdict.named.detector or None)] += n
        return sizes
    own = frame_source == scored.name
    for (group, runtime), n in runtime_counts.items():
        sizes[group, StratumVerdict(runtime.flagged and not own, None)] += n
    for (group, runtime, verdict), n in hint_counts.count_rescored(db, scope, scored).items():
        sizes[group, StratumVerdict(runtime.flagged and not own, None)] -= n
        if verdict.checked:
            sizes[group, StratumVerdict(own or runtime.flagged, verdict.named.detector)] += n
    return sizes


def labeled_hints(db: Database, scope: Scope, scored: Source) -> list[LabeledHint]:
    """Return all labeled hints of the scope, the latest label last."""
    statement: Select[Any] = (
        select(
            _label.c.run_id, _label.c.event_id, _label.c.turn, _label.c.annotator, _label.c.label, _label.c.blind,
            _label.c.sampling_frame, _dialogue.c.environment, _dialogue.c.stage, _dialogue.c.step,
            _dialogue.c.checkpoint, _dialogue.c.condition, _task.c.task_hash, _turn.c.teacher, _turn.c.leak_checked,
            _turn.c.leak_found, _turn.c.detector,
        )
        .join(_dialogue, (_dialogue.c.run_id == _label.c.run_id) & (_dialogue.c.event_id == _label.c.event_id))
        .join(_turn, (_turn.c.dialogue_id == _dialogue.c.id) & (_turn.c.index == _label.c.turn))
        .join(_task, _task.c.id == _dialogue.c.task_id)
        .where(_turn.c.is_eligible, *scope.within(_dialogue.c))
        .order_by(_label.c.time, _label.c.id)
    )  # fmt: skip
    statement = hint_counts.with_verdict(statement, scored)
    hints: dict[tuple[int, str, int], list[Row[Any]]] = defaultdict(list)
    with db.read() as session:
        for row in session.execute(statement):
            if holdout.is_test(row.task_hash) == scope.test:
                hints[row.run_id, row.event_id, row.turn].append(row)
    return [_labeled_hint(rows) for rows in hints.values()]


def _labeled_hint(rows: Sequence[Row[Any]]) -> LabeledHint:
    """Build a hint from its rows, one per label."""
    row = rows[-1]
    labels = tuple(AnnotatorLabel(row.annotator, row.label, row.blind, row.sampling_frame) for row in rows)
    group = HintGroup(
        row.run_id, row.environment, row.teacher or "", row.stage, bucket(row.step), row.checkpoint or "",
        row.condition or "", holdout.is_test(row.task_hash),
    )  # fmt: skip
    runtime = DetectorVerdict(row.leak_checked, row.leak_found, row.detector or "")
    verdict = DetectorVerdict(row.checked, row.flagged, row.found_by or "").named
    return LabeledHint(row.run_id, row.event_id, row.turn, group, row.task_hash, runtime, verdict, labels)


def unlock_test_set(db: Database, scope: Scope, annotator: str) -> TestSetAccess:
    """Log an access to the test set.

    Raises:
        ConfigError: The name is invalid.
        NotFoundError: The run or source does not exist.
    """
    access = TestSetAccess(
        time=time.time(),
        annotator=annotator_name(annotator),
        source=scope.source,
        detectors=source(db, scope.source).detectors,
        run_id=scope.run,
        environment=scope.environment,
    )
    with db.write() as session:
        if scope.run is not None:
            get_in_session(session, scope.run)
        session.add(access)
    return access


def list_accesses(db: Database) -> list[TestSetAccess]:
    """Return all accesses to the test set, the newest first."""
    access = table_of(TestSetAccess).c
    return db.fetch_all(select(TestSetAccess).order_by(access.time.desc(), access.id.desc()))

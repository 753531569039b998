"""Convert events to rows (`event_to_rows`, outside any transaction) and insert batches of them (`insert_batch`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic import ValidationError
from sqlalchemy import JSON, TableClause, func, insert, select, text
from sqlmodel import Session, SQLModel, col

from jobs.db.columns import table_of
from jobs.db.dialogue_models import LEAKED, DialogueRow, RecordRow, TaskRow, TurnRow
from jobs.db.models import Checkpoint, LeakLabel, Log, Metric, Run, Stage
from jobs.db.queries import hint_values, rescores, run_values, runs
from jobs.db.queries.metrics import DEMONSTRATED
from jobs.db.search import TEXTS, clean, clean_json, join_leaves
from jobs.labels import hint_counts, holdout
from rl2f_core.run.events import (
    CheckpointEvent,
    DialogueEvent,
    Event,
    HintValueEvent,
    LeakEvent,
    LeakRescoreEvent,
    LogEvent,
    MetricEvent,
)
from rl2f_core.types import Dialogue, LeakReport, Turn

_INT32, _INT64 = 2**31, 2**63
_encode = json.JSONEncoder(ensure_ascii=False).encode
Row = dict[str, Any]


@dataclass(frozen=True)
class DialogueRows:
    """The rows of a dialogue event, without row ids."""

    dialogue: Row
    record: str
    """JSON of the dialogue."""
    task: Row
    turns: list[Row]
    texts: Row


Prepared = DialogueRows | MetricEvent | CheckpointEvent | LogEvent | HintValueEvent | LeakEvent | LeakRescoreEvent


def event_to_rows(event: Event) -> Prepared | None:
    """Convert an event; None for events that are not stored.

    Raises `ValueError` if a database cannot store a value.
    """
    if not math.isfinite(event.time):
        raise ValueError("the time is not a finite number")
    if isinstance(event, DialogueEvent):
        return _dialogue_rows(event)
    if isinstance(event, HintValueEvent):
        if not all(map(math.isfinite, [event.value, event.low, event.high, *event.arms.values()])):
            raise ValueError("a value is not a finite number")
    elif not isinstance(event, LeakEvent | MetricEvent | CheckpointEvent | LeakRescoreEvent | LogEvent):
        return None
    return event


def _check_range(value: int, limit: int, name: str) -> None:
    if not -limit <= value < limit:
        raise ValueError(f"{name} {value} is too large")


def _dialogue_rows(event: DialogueEvent) -> DialogueRows:
    dialogue, task = event.dialogue, event.task
    _check_range(dialogue.index, _INT32, "index")
    _check_range(dialogue.seed, _INT64, "seed")
    if [turn.index for turn in dialogue.turns] != list(range(len(dialogue.turns))):
        raise ValueError("the turns are not numbered from 0")
    if any(turn.logprobs and len(turn.logprobs) != len(turn.token_ids) for turn in dialogue.turns):
        raise ValueError("a turn has another number of tokens than of log-probabilities")
    record = dialogue.model_dump_json(exclude_defaults=True)
    if not math.isfinite(event.time) or not _is_readable(record, dialogue):
        raise ValueError("a number is not finite")
    task_row = {
        **{name: getattr(task, name) for name in ("environment", "split", "level")},
        "task": task.id,
        "public": _encode(task.public),
        "privileged": _encode(task.privileged),
        "task_hash": holdout.task_hash(task.environment, task.public, task.privileged),
    }
    hints = (turn.hint.text for turn in dialogue.turns if turn.hint is not None)
    texts = {
        "task": clean(join_leaves(task.public)),
        "attempts": clean("\n".join(turn.attempt for turn in dialogue.turns)),
        "hints": clean("\n".join(filter(None, hints))),
    }
    turns = [_turn_row(turn, dialogue.policy) for turn in dialogue.turns]
    return DialogueRows(_dialogue_row(event, turns), clean_json(record), task_row, turns, texts)


def _is_readable(record: str, dialogue: Dialogue) -> bool:
    """Whether the JSON gives the dialogue again; JSON has null for a number that is not finite."""
    try:
        return Dialogue.model_validate_json(record) == dialogue
    except ValidationError:
        return False


def _used_bits(before: Turn, after: Turn) -> float:
    """Return the bits of a hint if the next attempt differs from the last one and respects all of the hint."""
    bits = before.hint_bits or 0.0
    return bits if (after.bits_used or 0.0) >= bits and after.attempt != before.attempt else 0.0


def _dialogue_row(event: DialogueEvent, turns: Sequence[Row]) -> Row:
    dialogue = event.dialogue
    advantages = [turn.advantage for turn in dialogue.turns if turn.advantage is not None]
    used = [_used_bits(*pair) for pair in pairwise(dialogue.turns) if pair[1].bits_used is not None]
    checked = any(row["leak_checked"] for row in turns)
    return {
        **{name: getattr(dialogue, name) for name in ("group", "index", "policy", "seed", "solved_at", "reward")},
        **{name: getattr(event, name) for name in ("phase", "stage", "step", "checkpoint", "time")},
        "event_id": event.id,
        "dialogue_id": dialogue.id,
        "task": event.task.id,
        "bits_used": sum(used) if used else None,
        "tokens": sum(len(turn.token_ids) for turn in dialogue.turns),
        "environment": event.task.environment,
        "level": event.task.level,
        "condition": event.setting,
        "stop_reason": dialogue.stop_reason.value,
        "error": None if dialogue.error is None else clean(dialogue.error),
        "length": len(turns),
        "outcomes": "".join(turn.verdict.outcome for turn in dialogue.turns),
        "advantage": sum(advantages) / len(advantages) if advantages else None,
        "leak_state": 0 if not checked else LEAKED if any(row["leak_found"] for row in turns) else 1,
    }


def _turn_row(turn: Turn, policy: str) -> Row:
    hint = turn.hint
    leak = (hint.leak if hint else None) or LeakReport(leaked=False, error="no detector checked it")
    return {
        "index": turn.index,
        "correct": turn.verdict.correct,
        "reward": turn.known_reward,
        "teacher": hint.teacher if hint else None,
        "is_eligible": hint_counts.is_eligible(hint, policy),
        "leak_checked": leak.is_complete,
        "leak_found": leak.leaked,
        "leak_read": hint is not None and hint.read_leak,
        "detector": leak.detector if leak.leaked else None,
        "leak_distance": rescores.leak_distance(leak),
        "planted": hint.planted if hint else None,
        "hint_bits": turn.hint_bits,
        "determines_answer": turn.determines_answer,
    }


def insert_batch(session: Session, run: Run, prepared: Iterable[Prepared]) -> None:
    """Insert a batch of a run's events, each at most once, and update the run's own columns."""
    items = list(prepared)
    _insert_dialogues(session, run, [item for item in items if isinstance(item, DialogueRows)])
    _insert_metrics(session, run, [item for item in items if isinstance(item, MetricEvent)])
    hint_values.insert(session, run, [item for item in items if isinstance(item, HintValueEvent)])
    rescores.insert(session, run, [item for item in items if isinstance(item, LeakEvent | LeakRescoreEvent)])
    for item in items:
        if isinstance(item, LogEvent):
            add_log(session, run, item.id, item.level, item.text, item.time)
        elif isinstance(item, CheckpointEvent) and session.get(Checkpoint, (run.id, item.name)) is None:
            session.add(Checkpoint(run_id=_id(run), **item.model_dump(include={*Checkpoint.model_fields} - {"run_id"})))
            session.flush()


def _id(run: Run) -> int:
    assert run.id is not None
    return run.id


def add_log(session: Session, run: Run, event_id: str, level: str, message: str, time: float) -> None:
    """Insert a log message of the run, unless it is stored already."""
    stored = select(col(Log.id)).where(col(Log.run_id) == run.id, col(Log.event_id) == event_id)
    if session.execute(stored).first() is None:
        session.add(Log(run_id=_id(run), event_id=event_id, level=level, text=clean(message), time=time))
        session.flush()


def _insert_dialogues(session: Session, run: Run, items: list[DialogueRows]) -> None:
    new: dict[str, DialogueRows] = {}
    for item in items:
        new.setdefault(item.dialogue["event_id"], item)
    stored = (col(DialogueRow.run_id) == run.id, col(DialogueRow.event_id).in_(new))
    for event_id in session.scalars(select(col(DialogueRow.event_id)).where(*stored)):
        del new[event_id]
    if not new:
        return
    task_ids = _task_ids(session, run, [item.task for item in new.values()])
    label_counts = _label_counts(session, run)
    ids = _new_ids(session, DialogueRow, len(new))
    turn_ids = iter(_new_ids(session, TurnRow, sum(len(item.turns) for item in new.values())))
    dialogues, records, turns, texts = [], [], [], []
    for row_id, (event_id, item) in zip(ids, new.items(), strict=True):
        more = {"id": row_id, "run_id": run.id, "task_id": task_ids[item.task["task"]]}
        dialogues.append({**item.dialogue, **more, "label_count": label_counts.get(event_id, 0)})
        records.append({"dialogue_id": row_id, "content": item.record})
        turns += [{**row, "id": next(turn_ids), "dialogue_id": row_id} for row in item.turns]
        texts.append({**item.texts, "rowid": row_id})
    for table, rows in ((table_of(DialogueRow), dialogues), (table_of(RecordRow), records), (table_of(TurnRow), turns),
                        (TEXTS, texts)):  # fmt: skip
        _insert_rows(session, table, rows)
    hint_counts.add(session, _id(run), [(item.dialogue, item.task, item.turns) for item in new.values()])
    hint_values.apply_to_new(session, run, list(new))


def _insert_rows(session: Session, table: TableClause, rows: list[Row]) -> None:
    """Insert rows with equal keys and JSON as text. On SQLite, bypass SQLAlchemy, which halves the time."""
    if not rows:
        return
    names = list(rows[0])
    if session.get_bind().dialect.name != "sqlite":
        for name in (name for name in names if isinstance(table.c[name].type, JSON)):
            for row in rows:
                row[name] = None if row[name] is None else json.loads(row[name])
        session.connection().execute(insert(table), rows)
        return
    columns = ", ".join(f'"{name}"' for name in names)
    into = f'INSERT INTO "{table.name}" ({columns}) VALUES ({", ".join("?" * len(names))})'
    session.connection().exec_driver_sql(into, [tuple(row.values()) for row in rows])


def _task_ids(session: Session, run: Run, rows: list[Row]) -> dict[str, int]:
    """Return the row id of each task; insert the tasks that the run does not have yet."""
    new = {row["task"]: row for row in reversed(rows)}
    query = select(col(TaskRow.task), col(TaskRow.id)).where(col(TaskRow.run_id) == run.id, col(TaskRow.task).in_(new))
    ids = {task: row_id for task, row_id in session.execute(query) if row_id is not None}
    missing = [task for task in new if task not in ids]
    new_ids = dict(zip(missing, _new_ids(session, TaskRow, len(missing)), strict=True))
    _insert_rows(session, table_of(TaskRow), [{**new[task], "id": i, "run_id": run.id} for task, i in new_ids.items()])
    return ids | new_ids


def _label_counts(session: Session, run: Run) -> dict[str, int]:
    """Return the number of labeled hints per event: labels may be older than a rebuilt dialogue."""
    count = func.count(func.distinct(LeakLabel.turn))
    query = select(col(LeakLabel.event_id), count).where(col(LeakLabel.run_id) == run.id)
    return {row[0]: row[1] for row in session.execute(query.group_by(col(LeakLabel.event_id)))}


def _new_ids(session: Session, model: type[SQLModel], count: int) -> list[int]:
    """Return ids for new rows; the transaction's write lock keeps other writers from using them."""
    if count == 0:
        return []
    table = table_of(model)
    if session.get_bind().dialect.name == "postgresql":
        query = text("SELECT nextval(pg_get_serial_sequence(:name, 'id')) FROM generate_series(1, :count)")
        return list(session.scalars(query, {"name": f'"{table.name}"', "count": count}))
    last = session.scalar(select(func.max(table.c.id))) or 0
    return list(range(last + 1, last + 1 + count))


def _insert_metrics(session: Session, run: Run, events: list[MetricEvent]) -> None:
    if not events:
        return
    stages = {s.name: s for s in session.scalars(select(Stage).where(col(Stage.run_id) == run.id))}
    if not stages:
        stages = {stage.name: stage for stage in runs.planned_stages(run)}
        session.add_all(stages.values())
    newest = select(col(Metric.number), col(Metric.tokens)).where(col(Metric.run_id) == run.id)
    last = session.execute(newest.order_by(col(Metric.number).desc()).limit(1)).one_or_none()
    number, tokens = last or (-1, 0.0)
    in_stages = col(Metric.stage).in_({event.stage for event in events})
    steps = select(col(Metric.stage), col(Metric.step)).where(col(Metric.run_id) == run.id, in_stages)
    stored = {(stage, step) for stage, step in session.execute(steps)}
    rows = []
    for event in events:
        if (event.stage, event.step) in stored:
            continue
        stored.add((event.stage, event.step))
        values = {name: value for name, value in event.values.items() if math.isfinite(value)}
        if not event.is_evaluation:
            number += 1
            tokens += values.get("tokens/sampled", 0.0)
            _record_step(session, run, stages, event, values)
        elif not stages and event.stage.endswith(":hints"):
            run.reward = values.get("reward", run.reward)
        place = -1 if event.is_evaluation else number
        row = {"run_id": run.id, "stage": event.stage, "step": event.step, "number": place}
        rows.append({**row, "time": event.time, "tokens": tokens, "values": _encode(values)})
    _insert_rows(session, table_of(Metric), rows)
    run_values.index_metrics(session.connection(), _id(run))
    if stages:
        run.done = float(sum(stage.done for stage in stages.values()))
        run.total = float(sum(stage.steps for stage in stages.values()))


def _record_step(
    session: Session, run: Run, stages: dict[str, Stage], event: MetricEvent, values: dict[str, float]
) -> None:
    """Record a finished step in its stage and in the run."""
    stage = stages.get(event.stage)
    if stage is None:  # the configuration of this run kind lists no stages
        index = max((s.index for s in stages.values()), default=-1) + 1
        stage = Stage(run_id=_id(run), index=index, name=event.stage, method="", steps=event.step)
        session.add(stage)
        stages[event.stage] = stage
    seconds = sum(value for name, value in values.items() if name.startswith("time/"))
    stage.done = max(stage.done, event.step)
    stage.steps = max(stage.steps, event.step)
    if stage.started is None:
        stage.started = event.time - seconds
    if stage.done >= stage.steps:
        stage.ended = stage.ended or event.time
    if DEMONSTRATED not in values:  # rewards of demonstrations are not the student's
        run.reward = values.get("reward", run.reward)
    tokens = values.get("tokens/sampled", values.get(DEMONSTRATED))
    if tokens is not None and seconds > 0:
        run.tokens_per_second = tokens / seconds

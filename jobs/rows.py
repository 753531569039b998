"""Events as rows: what each becomes (`prepare`, outside any transaction), how a batch is kept (`insert_all`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import JSON, Table, func, insert, select, text
from sqlmodel import Session, SQLModel, col

from jobs import halves
from jobs.migrations import FULL_TEXT
from jobs.store import counts, rescans, runs, worth
from jobs.store.dialogues import pack
from jobs.store.metrics import DEMONSTRATED, EVALUATION
from jobs.store.search import clean, text_of
from jobs.tables import (
    Checkpoint,
    Dialogue,
    LeakFinding,
    LeakLabel,
    Log,
    Metric,
    Problem,
    RewardTerm,
    Run,
    Stage,
    Turn,
)
from rl2f_core.events import (
    CheckpointEvent,
    DialogueEvent,
    Event,
    HintValueEvent,
    LeakEvent,
    LeakScanEvent,
    LogEvent,
    MetricEvent,
)
from rl2f_core.types import Turn as CoreTurn

_SMALL, _LONG = 2**31, 2**63
_CHUNK = 500
_encode = json.JSONEncoder(ensure_ascii=False).encode
Row = dict[str, Any]


@dataclass(frozen=True)
class DialogueRows:
    """One dialogue event as rows that lack only numbers: run, dialogue, problem and turn ids."""

    dialogue: Row
    problem: Row
    turns: list[Row]
    terms: list[list[Row]]
    """Of each turn."""
    findings: list[Row | None]
    """Of each turn, where its hint leaked."""
    words: Row
    """Of the full-text index."""


Prepared = DialogueRows | MetricEvent | CheckpointEvent | LogEvent | HintValueEvent | LeakEvent | LeakScanEvent


def prepare(event: Event) -> Prepared | None:
    """What of an event is kept; None for a status. Raises `ValueError` where no database could keep it."""
    if isinstance(event, DialogueEvent):
        return _dialogue_rows(event)
    if isinstance(event, LeakEvent):
        for place in (event.turn, *(event.report.span or ())):
            _fits(place, _SMALL, "turn or span")
        return event
    if isinstance(event, LeakScanEvent):
        return event
    if isinstance(event, MetricEvent | CheckpointEvent | LogEvent):
        _fits(getattr(event, "step", 0), _SMALL, "step")
        return event
    if isinstance(event, HintValueEvent):
        for name in ("turn", "n"):
            _fits(getattr(event, name), _SMALL, name)
        if not all(map(math.isfinite, [event.value, event.low, event.high, event.time, *event.arms.values()])):
            raise ValueError("a value or the time is no finite number")
        return event
    return None


def _fits(value: int, limit: int, name: str) -> None:
    if not -limit <= value < limit:
        raise ValueError(f"{name} {value} is too large")


def _dialogue_rows(event: DialogueEvent) -> DialogueRows:
    said = event.dialogue
    _fits(event.step, _SMALL, "step")
    _fits(said.index, _SMALL, "index")
    _fits(said.seed, _LONG, "seed")
    if [turn.index for turn in said.turns] != list(range(len(said.turns))):
        raise ValueError("the turns are not numbered from 0 on")
    turns = [_turn_row(turn) for turn in said.turns]
    reward = sum(row["reward"] for row in turns)
    advantages = [turn.advantage for turn in said.turns if turn.advantage is not None]
    if not all(map(math.isfinite, [reward, event.time, *advantages])):
        raise ValueError("a reward, an advantage or the time is no finite number")
    hints = [turn.hint for turn in said.turns if turn.hint is not None]
    reports = [hint.leak for hint in hints if hint.leak is not None]
    task = event.task
    public = task.public
    dialogue = {
        "event": event.id,
        "key": said.id,
        "environment": task.environment,
        "level": task.level,
        "phase": event.phase,
        "stage": event.stage,
        "step": event.step,
        "checkpoint": event.checkpoint,
        "control": event.control,
        "group": said.group,
        "index": said.index,
        "stop": said.stop.value,
        "error": None if said.error is None else clean(said.error),
        "policy": said.policy,
        "seed": said.seed,
        "solved_at": said.solved_at,
        "length": len(said.turns),
        "outcomes": "".join(_outcome(turn) for turn in said.turns),
        "reward": reward,
        "advantage": sum(advantages) / len(advantages) if advantages else None,
        "leak": 0 if not reports else 2 if any(report.leaked for report in reports) else 1,
        "time": event.time,
    }
    problem = {
        "task": task.id,
        "environment": task.environment,
        "split": task.split,
        "level": task.level,
        "public": _encode(public),
        "privileged": _encode(task.privileged),
        "content": halves.content(task.environment, task.public, task.privileged),
    }
    words = {
        "problem": clean(text_of(public)),
        "attempts": "\n".join(row["attempt"] for row in turns),
        "hints": "\n".join(row["hint"] for row in turns if row["hint"]),
    }
    terms = [[{"name": t.name, "score": t.score, "weight": t.weight} for t in turn.rewards] for turn in said.turns]
    for named in terms:
        if len({term["name"] for term in named}) < len(named):
            raise ValueError("two reward terms of a turn have the same name")
    return DialogueRows(dialogue, problem, turns, terms, [_finding(turn) for turn in said.turns], words)


def _outcome(turn: CoreTurn) -> str:
    if turn.verdict.correct:
        return "1"
    return "?" if turn.verdict.parsed is None else "0"


def _turn_row(turn: CoreTurn) -> Row:
    hint = turn.hint
    leak = hint.leak if hint else None
    return {
        "index": turn.index,
        "attempt": clean(turn.attempt),
        "stop": turn.stop.value,
        "correct": turn.verdict.correct,
        "parsed": None if turn.verdict.parsed is None else clean(turn.verdict.parsed),
        "verdict": turn.verdict.model_dump_json(),
        "reward": turn.reward,
        "advantage": turn.advantage,
        "hint": clean(hint.text) if hint else None,
        "original": clean(hint.original) if hint and hint.original is not None else None,
        "teacher": hint.teacher if hint else None,
        "source_task": hint.source_task if hint else None,
        "prompt": hint.prompt if hint else None,
        "asked": turn.prompt,
        "usage": hint.usage.model_dump_json() if hint and hint.usage is not None else None,
        "hint_error": clean(hint.error) if hint and hint.error is not None else None,
        "checked": leak is not None,
        "leaked": leak is not None and leak.leaked,
        "tokens": pack(turn.token_ids, turn.logprobs) if turn.token_ids else None,
    }


def _finding(turn: CoreTurn) -> Row | None:
    leak = turn.hint.leak if turn.hint else None
    if leak is None or not leak.leaked:
        return None
    start, end = leak.span or (None, None)
    for place in (start or 0, end or 0):
        _fits(place, _SMALL, "span")
    evidence = clean(leak.evidence)
    return {
        "source": "run", "tier": leak.tier, "start": start, "end": end,
        "share": leak.share, "evidence": evidence, "action": leak.action,
    }  # fmt: skip


def insert_all(session: Session, run: Run, prepared: Iterable[Prepared]) -> None:
    """Keep a batch of a run's events, each once, and what the run itself shows of them."""
    kept = list(prepared)
    _insert_dialogues(session, run, [item for item in kept if isinstance(item, DialogueRows)])
    _insert_metrics(session, run, [item for item in kept if isinstance(item, MetricEvent)])
    worth.keep(session, run, [item for item in kept if isinstance(item, HintValueEvent)])
    rescans.keep(session, run, [item for item in kept if isinstance(item, LeakEvent | LeakScanEvent)])
    for item in kept:
        if isinstance(item, LogEvent):
            add_log(session, run, item.id, item.level, item.text, item.time)
        elif isinstance(item, CheckpointEvent) and session.get(Checkpoint, (run.id, item.name)) is None:
            session.add(Checkpoint(run_id=_id(run), **item.model_dump(include={*Checkpoint.model_fields} - {"run_id"})))
            session.flush()


def _id(run: Run) -> int:
    assert run.id is not None
    return run.id


def add_log(session: Session, run: Run, event: str, level: str, said: str, time: float) -> None:
    """Keep a sentence of the run, once."""
    there = select(col(Log.id)).where(col(Log.run_id) == run.id, col(Log.event) == event)
    if session.execute(there).first() is None:
        session.add(Log(run_id=_id(run), event=event, level=level, text=clean(said), time=time))
        session.flush()


def _insert_dialogues(session: Session, run: Run, found: list[DialogueRows]) -> None:
    fresh: dict[str, DialogueRows] = {}
    for item in found:
        fresh.setdefault(item.dialogue["event"], item)
    for event in _known(session, Dialogue, "event", run, list(fresh)):
        del fresh[event]
    if not fresh:
        return
    problems = _problems(session, run, [item.problem for item in fresh.values()])
    labelled = _labelled(session, run)
    ids = _new_ids(session, Dialogue, len(fresh))
    turn_ids = iter(_new_ids(session, Turn, sum(len(item.turns) for item in fresh.values())))
    dialogues, turns, terms, findings, words = [], [], [], [], []
    for dialogue_id, item in zip(ids, fresh.values(), strict=True):
        event = item.dialogue["event"]
        dialogues.append(
            {
                **item.dialogue,
                "id": dialogue_id,
                "run_id": run.id,
                "problem_id": problems[item.problem["task"]],
                "labels": labelled.get(event, 0),
            }
        )
        words.append({**item.words, "id": dialogue_id})
        for row, named, finding in zip(item.turns, item.terms, item.findings, strict=True):
            turn_id = next(turn_ids)
            turns.append({**row, "id": turn_id, "dialogue_id": dialogue_id})
            terms += [{**term, "turn_id": turn_id} for term in named]
            findings += [{**finding, "turn_id": turn_id}] if finding else []
    for model, made in ((Dialogue, dialogues), (Turn, turns), (RewardTerm, terms), (LeakFinding, findings)):
        _bulk(session, model, made)
    counts.add(session, _id(run), [(item.dialogue, item.problem, item.turns, item.findings) for item in fresh.values()])
    if session.get_bind().dialect.name == "sqlite":
        into = f"INSERT INTO {FULL_TEXT} (rowid, problem, attempts, hints) VALUES (:id, :problem, :attempts, :hints)"
        session.connection().exec_driver_sql(into, words)
    worth.note_new(session, run, list(fresh))
    rescans.attach(session, run, {row["event"]: row["id"] for row in dialogues})


def _bulk(session: Session, model: type[SQLModel], made: list[Row]) -> None:
    """Insert rows that all have the same keys, JSON as text; on SQLite past SQLAlchemy, which took half of the time."""
    if not made:
        return
    table, names = _table(model), list(made[0])
    if session.get_bind().dialect.name != "sqlite":
        for name in (name for name in names if isinstance(table.c[name].type, JSON)):
            for row in made:
                row[name] = None if row[name] is None else json.loads(row[name])
        session.connection().execute(insert(table), made)
        return
    columns = ", ".join(f'"{name}"' for name in names)
    into = f'INSERT INTO "{table.name}" ({columns}) VALUES ({", ".join("?" * len(names))})'
    session.connection().exec_driver_sql(into, [tuple(row.values()) for row in made])


def _table(model: type[SQLModel]) -> Table:
    return model.__table__  # type: ignore[attr-defined, no-any-return]


def _known(session: Session, model: type[Any], name: str, run: Run, values: Sequence[str]) -> list[str]:
    """Those of `values` that rows of the run hold in column `name`."""
    found: list[str] = []
    column = col(getattr(model, name))
    for i in range(0, len(values), _CHUNK):
        query = select(column).where(model.run_id == run.id, column.in_(values[i : i + _CHUNK]))
        found += session.execute(query).scalars()
    return found


def _problems(session: Session, run: Run, rows: list[Row]) -> dict[str, int]:
    """Ids of the tasks, which are kept once a run."""
    fresh = {row["task"]: row for row in reversed(rows)}
    found: dict[str, int] = {}
    tasks = list(fresh)
    for i in range(0, len(tasks), _CHUNK):
        query = select(col(Problem.task), col(Problem.id)).where(
            col(Problem.run_id) == run.id, col(Problem.task).in_(tasks[i : i + _CHUNK])
        )
        found.update({task: i for task, i in session.execute(query) if i is not None})
    missing = [fresh[task] for task in tasks if task not in found]
    ids = _new_ids(session, Problem, len(missing))
    if missing:
        made = [{**row, "id": i, "run_id": run.id} for i, row in zip(ids, missing, strict=True)]
        _bulk(session, Problem, made)
        found.update({row["task"]: row["id"] for row in made})
    return found


def _labelled(session: Session, run: Run) -> dict[str, int]:
    """How many hints of each dialogue carry a label: people's labels are older than a rebuilt dialogue."""
    query = select(col(LeakLabel.event), func.count(func.distinct(LeakLabel.turn))).where(
        col(LeakLabel.run_id) == run.id
    )
    return {row[0]: row[1] for row in session.execute(query.group_by(col(LeakLabel.event)))}


def _new_ids(session: Session, model: type[SQLModel], count: int) -> list[int]:
    """Ids for rows that are inserted in this transaction, which no other writer can take."""
    if count == 0:
        return []
    table = _table(model)
    if session.get_bind().dialect.name == "postgresql":
        asked = text("SELECT nextval(pg_get_serial_sequence(:name, 'id')) FROM generate_series(1, :count)")
        return list(session.execute(asked, {"name": f'"{table.name}"', "count": count}).scalars())
    last = session.execute(select(func.max(table.c.id))).scalar() or 0
    return list(range(last + 1, last + 1 + count))


def _insert_metrics(session: Session, run: Run, found: list[MetricEvent]) -> None:
    if not found:
        return
    stages = {s.name: s for s in session.execute(select(Stage).where(col(Stage.run_id) == run.id)).scalars()}
    if not stages:
        planned = runs.planned_stages(run)
        session.add_all(planned)
        stages = {stage.name: stage for stage in planned}
    newest = select(col(Metric.number), col(Metric.tokens)).where(col(Metric.run_id) == run.id)
    last = session.execute(newest.order_by(col(Metric.number).desc()).limit(1)).one_or_none()
    number, tokens = (last[0], last[1]) if last else (-1, 0.0)
    known = _known_steps(session, run, {event.stage for event in found})
    made = []
    for event in found:
        if (event.stage, event.step) in known:
            continue
        known.add((event.stage, event.step))
        values = {name: value for name, value in event.values.items() if math.isfinite(value)}
        evaluation = event.stage.startswith(EVALUATION)
        if not evaluation:
            number += 1
            tokens += values.get("tokens/student", 0.0)
            _advance(session, run, stages, event, values)
        elif not stages and event.stage.endswith(":hints"):
            run.reward = values.get("reward", run.reward)
        made.append(
            {
                "run_id": run.id,
                "stage": event.stage,
                "step": event.step,
                "number": -1 if evaluation else number,
                "time": event.time,
                "tokens": tokens,
                "values": _encode(values),
            }
        )
    _bulk(session, Metric, made)
    if stages:
        run.done = float(sum(stage.done for stage in stages.values()))
        run.total = float(sum(stage.steps for stage in stages.values()))


def _known_steps(session: Session, run: Run, stages: set[str]) -> set[tuple[str, int]]:
    query = select(col(Metric.stage), col(Metric.step)).where(
        col(Metric.run_id) == run.id, col(Metric.stage).in_(stages)
    )
    return {(stage, step) for stage, step in session.execute(query)}


def _advance(
    session: Session, run: Run, stages: dict[str, Stage], event: MetricEvent, values: dict[str, float]
) -> None:
    """Note a finished step in its stage and in the run."""
    stage = stages.get(event.stage)
    if stage is None:  # a kind of run whose configuration lists no stages
        index = max((s.index for s in stages.values()), default=-1) + 1
        stage = Stage(run_id=_id(run), index=index, name=event.stage, method="", steps=event.step)
        session.add(stage)
        stages[event.stage] = stage
    seconds = sum(value for name, value in values.items() if name.startswith("seconds/"))
    stage.done = max(stage.done, event.step)
    stage.steps = max(stage.steps, event.step)
    if stage.started is None:
        stage.started = event.time - seconds
    if stage.done >= stage.steps:
        stage.ended = stage.ended or event.time
    if DEMONSTRATED not in values:  # those rewards are not the student's
        run.reward = values.get("reward", run.reward)
    shown = values.get("tokens/student", values.get(DEMONSTRATED))
    if shown is not None and seconds > 0:
        run.tokens_per_second = shown / seconds

"""Runs and what belongs to one: stages, checkpoints, log, tags. Only `jobs.queue.queue` changes a run's status."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from sqlalchemy import ColumnElement, String, case, cast, delete, exists, func, or_, select, text
from sqlmodel import Session, col

from jobs.db.engine import SCHEMA_VERSION_KEY, Database
from jobs.db.errors import unknown_run
from jobs.db.models import (
    FULL_TEXT,
    Checkpoint,
    Dialogue,
    HintCount,
    LeakFinding,
    LeakLabel,
    Log,
    Metric,
    Note,
    RewardTerm,
    Run,
    Setting,
    Stage,
    Tag,
    TaskRow,
    Turn,
)
from jobs.db.paging import LIMIT, Key, Page, page_of
from jobs.db.queries import hint_values, rescores
from jobs.db.search import clean, split_terms
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError, DataError

SORTS = ("created", "name", "reward", "ended", "environment")


@dataclass(frozen=True)
class RunFilter:
    """Which runs, in which order. Empty fields filter nothing."""

    search: str = ""
    """Words that must all be found in name, environment, method, model, tags or notes."""
    status: tuple[str, ...] = ()
    kind: str = ""
    environment: str = ""
    method: str = ""
    tag: str = ""
    sort: str = "-created"
    """created, name, reward, ended or environment; `-` before it turns the order round. Unknown values come last."""


def page(db: Database, filter: RunFilter = RunFilter(), cursor: str | None = None, limit: int = LIMIT) -> Page[Run]:
    """One page of runs."""
    where = _where(filter)
    with db.read() as session:
        total = session.execute(select(func.count()).select_from(Run).where(*where)).scalar_one()
        return page_of(session, select(Run).where(*where), _keys(filter.sort), cursor, limit, total)


def _where(filter: RunFilter) -> list[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = []
    if filter.status:
        where.append(col(Run.status).in_(filter.status))
    for column, wanted in ((Run.kind, filter.kind), (Run.environment, filter.environment), (Run.method, filter.method)):
        if wanted:
            where.append(col(column) == wanted)
    if filter.tag:
        where.append(exists().where(Tag.run_id == Run.id, Tag.tag == filter.tag))  # type: ignore[arg-type]
    for word in split_terms(filter.search):
        where.append(
            or_(
                *(col(c).icontains(word, autoescape=True) for c in (Run.name, Run.environment, Run.method, Run.model)),
                exists().where(col(Tag.run_id) == Run.id, col(Tag.tag).icontains(word, autoescape=True)),
                exists().where(col(Note.run_id) == Run.id, col(Note.text).icontains(word, autoescape=True)),
                cast(Run.id, String) == word.removeprefix("#"),
            )
        )
    return where


def _keys(sort: str) -> list[Key]:
    name, down = sort.removeprefix("-"), sort.startswith("-")
    if name not in SORTS:
        raise DataError("Runs cannot be sorted by this.", value=sort, known=SORTS)
    last: list[Key] = []
    if name in ("reward", "ended"):  # runs without one stand at the end either way
        column = _column(name)
        last = [Key(case((column.is_(None), 1), else_=0))]
        by = Key(func.coalesce(column, 0.0), down)
    elif name == "created":
        by = Key(_column("created"), down)
    else:
        by = Key(func.lower(_column(name), type_=String), down)
    return [*last, by, Key(_column("id"), down)]


def _column(name: str) -> ColumnElement[Any]:
    return getattr(Run, name)  # type: ignore[no-any-return]


def get(db: Database, run_id: int) -> Run:
    """A run; raises `UnknownRunError` where there is none."""
    with db.read() as session:
        return get_in_session(session, run_id)


def get_in_session(session: Session, run_id: int) -> Run:
    """A run, inside a transaction; raises `UnknownRunError` where there is none."""
    run = session.get(Run, run_id) if _possible(run_id) else None
    if run is None:
        raise unknown_run(run_id)
    return run


def _possible(run_id: int) -> bool:
    """Whether the number is one that every database can be asked for."""
    return 0 < run_id < 2**31


def find(db: Database, *, folder: str) -> Run | None:
    """The run of a folder below the workspace's `runs/`."""
    with db.read() as session:
        return session.execute(select(Run).where(col(Run.folder) == folder)).scalar_one_or_none()


def of_config(config: BaseRun, yaml_text: str, folder: str, **more: Any) -> Run:
    """A row for a run, not yet added, with the columns that its configuration decides."""
    data = config.model_dump(mode="json")
    stages = data.get("stages") or []
    values: dict[str, Any] = {
        "name": config.name,
        "kind": str(data.get("kind", "train")),
        "config": yaml_text,
        "folder": folder,
        "environment": str(data.get("environment", {}).get("type", "")),
        "model": str((data.get("model") or {}).get("name", "")),
        "method": str(stages[-1]["method"]["type"]) if stages else "",
        "seed": config.seed,
        "created": time.time(),
    }
    return Run(**{**values, **more})


def add(db: Database, run: Run) -> Run:
    """Keep a new run, with the stages that its configuration names."""
    with db.write() as session:
        run.created = run.created or time.time()
        session.add(run)
        session.flush()
        stages_ = planned_stages(run)
        session.add_all(stages_)
        if stages_ and run.total is None:
            run.total = float(sum(stage.steps for stage in stages_))
    return run


def planned_stages(run: Run) -> list[Stage]:
    """The stages that a training run's configuration names; none for another kind, or where it cannot be read."""
    if run.kind != "train" or run.id is None:
        return []
    try:
        stages_ = yaml.safe_load(run.config)["stages"]
        return [
            Stage(run_id=run.id, index=i, name=str(s["name"]), method=_type(s["method"]), steps=int(s["steps"]))
            for i, s in enumerate(stages_)
        ]
    except (yaml.YAMLError, KeyError, TypeError, ValueError):
        return []


def _type(component: Any) -> str:
    return str(component["type"]) if isinstance(component, dict) else str(component)


def update(db: Database, run_id: int, **changes: Any) -> Run:
    """Change columns of a run; its version moves. Raises `UnknownRunError`, or `ConfigError` for an unknown column."""
    unknown = set(changes) - set(Run.model_fields)
    if unknown:
        raise ConfigError("A run has no such column.", value=sorted(unknown))
    with db.write() as session:
        run = get_in_session(session, run_id)
        for name, value in changes.items():
            setattr(run, name, value)
    return run


def remove(db: Database, run_id: int) -> None:
    """Delete a run and everything of it: what events carried, and its labels, notes and tags."""
    with db.write() as session:
        run = get_in_session(session, run_id)
        forget_events(session, run_id)
        for table in (LeakLabel, Note, Tag):
            session.execute(delete(table).where(col(table.run_id) == run_id))  # type: ignore[attr-defined]
        session.delete(run)


def forget_events(session: Session, run_id: int) -> None:
    """Delete everything of a run that its event file can bring back."""
    hint_values.delete_run(session, run_id)
    dialogues = select(col(Dialogue.id)).where(col(Dialogue.run_id) == run_id)
    turns = select(col(Turn.id)).where(col(Turn.dialogue_id).in_(dialogues))
    session.execute(delete(RewardTerm).where(col(RewardTerm.turn_id).in_(turns)))
    session.execute(delete(LeakFinding).where(col(LeakFinding.turn_id).in_(turns)))
    session.execute(delete(Turn).where(col(Turn.dialogue_id).in_(dialogues)))
    rescores.delete_run(session, run_id)
    if session.get_bind().dialect.name == "sqlite":
        wanted = "(SELECT id FROM dialogue WHERE run_id = :run)"
        session.execute(text(f"DELETE FROM {FULL_TEXT} WHERE rowid IN {wanted}"), {"run": run_id})
    for table in (Dialogue, TaskRow, HintCount, Log, Metric, Checkpoint, Stage):
        session.execute(delete(table).where(col(table.run_id) == run_id))  # type: ignore[attr-defined]


def queued(db: Database) -> list[Run]:
    """The queue, in order."""
    with db.read() as session:
        query = select(Run).where(col(Run.status) == "queued").order_by(col(Run.position), col(Run.id))
        return list(session.execute(query).scalars())


def active(db: Database) -> list[Run]:
    """Runs that have a worker."""
    with db.read() as session:
        query = select(Run).where(col(Run.status).in_(("starting", "running", "stopping"))).order_by(col(Run.id))
        return list(session.execute(query).scalars())


def stages(db: Database, run_id: int) -> list[Stage]:
    """The stages of a run, in order."""
    with db.read() as session:
        get_in_session(session, run_id)
        query = select(Stage).where(col(Stage.run_id) == run_id).order_by(col(Stage.index))
        return list(session.execute(query).scalars())


def checkpoints(db: Database, run_id: int) -> list[Checkpoint]:
    """The checkpoints of a run, in the order they were saved."""
    with db.read() as session:
        get_in_session(session, run_id)
        query = select(Checkpoint).where(col(Checkpoint.run_id) == run_id)
        return list(session.execute(query.order_by(col(Checkpoint.time), col(Checkpoint.step))).scalars())


def logs(db: Database, run_id: int, limit: int = 200) -> list[Log]:
    """The newest sentences of a run, oldest first."""
    with db.read() as session:
        get_in_session(session, run_id)
        query = select(Log).where(col(Log.run_id) == run_id).order_by(col(Log.id).desc()).limit(limit)
        return list(session.execute(query).scalars())[::-1]


def tags(db: Database, run_id: int) -> list[str]:
    """The tags of a run, sorted."""
    with db.read() as session:
        get_in_session(session, run_id)
        query = select(col(Tag.tag)).where(col(Tag.run_id) == run_id).order_by(col(Tag.tag))
        return list(session.execute(query).scalars())


def tags_of(db: Database, run_ids: Sequence[int]) -> dict[int, list[str]]:
    """The tags of several runs, sorted."""
    found: dict[int, list[str]] = {run_id: [] for run_id in run_ids}
    with db.read() as session:
        query = select(col(Tag.run_id), col(Tag.tag)).where(col(Tag.run_id).in_(found)).order_by(col(Tag.tag))
        for run_id, tag in session.execute(query):
            found[run_id].append(tag)
    return found


def set_tags(db: Database, run_id: int, tags: Sequence[str]) -> None:
    """Replace the tags of a run; blank ones and repetitions are left out, long ones are cut at 60 characters."""
    wanted = {clean(tag).strip()[:60] for tag in tags if tag.strip()}
    with db.write() as session:
        get_in_session(session, run_id)
        held = {tag.tag: tag for tag in session.execute(select(Tag).where(col(Tag.run_id) == run_id)).scalars()}
        for tag in held.keys() - wanted:
            session.delete(held[tag])
        session.add_all(Tag(run_id=run_id, tag=tag) for tag in wanted - held.keys())


def all_tags(db: Database) -> list[str]:
    """Every tag there is, sorted."""
    with db.read() as session:
        return list(session.execute(select(col(Tag.tag)).distinct().order_by(col(Tag.tag))).scalars())


def facets(db: Database) -> dict[str, list[str]]:
    """What there is to filter by: statuses, kinds, environments, methods, models; each sorted."""
    columns = {"statuses": Run.status, "kinds": Run.kind, "environments": Run.environment, "methods": Run.method}
    with db.read() as session:
        return {
            name: [v for v in session.execute(select(col(column)).distinct().order_by(col(column))).scalars() if v]
            for name, column in {**columns, "models": Run.model}.items()
        }


def version(db: Database, run_id: int | None = None) -> int:
    """A number that moves whenever any run, tag, label, note, schedule or setting changed; or anything of one run.

    Raises `UnknownRunError` where the run is gone.
    """
    with db.read() as session:
        if run_id is None:
            return int(
                session.execute(select(col(Setting.value)).where(col(Setting.name) == SCHEMA_VERSION_KEY)).scalar() or 0
            )
        asked = select(col(Run.version)).where(col(Run.id) == run_id)
        found = session.execute(asked).scalar() if _possible(run_id) else None
        if found is None:
            raise unknown_run(run_id)
        return found

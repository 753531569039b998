"""Runs with their stages, checkpoints, log and tags. Only `jobs.queue.queue` changes a run's status."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any, Literal, TypeVar

import yaml
from pydantic import Field
from sqlalchemy import ColumnElement, Select, String, TableClause, cast, delete, exists, func, or_, select
from sqlmodel import Session, col

from jobs.db.columns import table_of
from jobs.db.dialogue_models import DialogueRow, HintCount, RecordRow, RescoredHint, RescoreSummary, TaskRow, TurnRow
from jobs.db.engine import SCHEMA_VERSION_KEY, Database
from jobs.db.errors import unknown_run
from jobs.db.models import (
    Checkpoint,
    LeakLabel,
    Log,
    Metric,
    Note,
    OpenedHint,
    Run,
    RunStatus,
    RunValue,
    Setting,
    Stage,
    Tag,
)
from jobs.db.paging import LIMIT, Key, Page, page_of
from jobs.db.queries import hint_values, run_queue, run_values
from jobs.db.search import TEXTS, clean, split_terms
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError
from rl2f_core.types import FrozenModel

RunSort = Literal["created", "-created", "name", "-name", "reward", "-reward", "ended", "-ended", "environment",
                  "-environment"]  # fmt: skip
JOB_KINDS = ("export", "model_export", "preflight", "fork", "hint_value", "rescore")
"""Kinds of runs that are jobs of other runs, see `RunFilter.jobs`."""
T = TypeVar("T")
_run = table_of(Run).c


class RunFilter(FrozenModel):
    """Conditions on runs, and their order; an empty field matches all."""

    search: str = Field("", max_length=300)
    """Words that must all occur in name, environment, method, model, tags or notes; a word such as `hint_effect>0.1`,
    `learning_rate<=1e-3` or `tag=good` compares a metric, a setting or a tag."""
    status: Sequence[RunStatus] | None = None
    """Permitted statuses; None permits all."""
    kind: str = Field("", max_length=300)
    """Run kind, e.g. `train`."""
    environment: str = Field("", max_length=300)
    """Environment, e.g. `guess_number`."""
    method: str = Field("", max_length=300)
    """Method of the last stage, e.g. `rl2f`."""
    tag: str = Field("", max_length=300)
    """A tag."""
    jobs: bool = True
    """Include exports, preflights, forks and other jobs of a run."""
    group: str = Field("", max_length=300)
    """Key of a group; see `list_run_groups`."""
    sort: RunSort = "-created"
    """Order, descending with a leading `-`; runs without a value come last."""
    sort_by: str = Field("", max_length=300)
    """Metric or setting that orders the runs instead of `sort`, e.g. `-hint_effect`; runs without it come last."""


def page(db: Database, filter: RunFilter = RunFilter(), cursor: str | None = None, limit: int = LIMIT) -> Page[Run]:
    """Return one page of runs."""
    where = conditions(filter)
    with db.read() as session:
        total = session.scalars(select(func.count()).select_from(Run).where(*where)).one()
        return page_of(session, select(Run).where(*where), _keys(filter), cursor, limit, total)


def matching(db: Database, filter: RunFilter, limit: int | None = None) -> list[Run]:
    """Return the runs of a filter in its order, by default all."""
    query = select(Run).where(*conditions(filter)).order_by(*(key.order() for key in _keys(filter)))
    return db.fetch_all(query.limit(limit))


def newest(db: Database, limit: int, *, without: Collection[str] = ()) -> list[Run]:
    """Return the newest runs, without those of some kinds."""
    query = select(Run).where(_run.kind.not_in(without)).order_by(_run.created.desc(), _run.id.desc())
    return db.fetch_all(query.limit(limit))


def conditions(filter: RunFilter) -> list[ColumnElement[bool]]:
    equal = {"kind": filter.kind, "environment": filter.environment, "method": filter.method}
    where = [_run[name] == value for name, value in equal.items() if value]
    if filter.status:
        where.append(_run.status.in_(filter.status))
    if filter.tag:
        where.append(exists().where(col(Tag.run_id) == _run.id, col(Tag.tag) == filter.tag))
    if not filter.jobs:
        where.append(_run.kind.not_in(JOB_KINDS))
    if filter.group:
        name, sign, _ = filter.group.partition("=")
        where.append(run_values.key_column(name if sign else "seed") == filter.group)
    for word in split_terms(filter.search):
        compared = run_values.condition(word)
        where.append(
            compared
            if compared is not None
            else or_(
                *(_run[name].icontains(word, autoescape=True) for name in ("name", "environment", "method", "model")),
                exists().where(col(Tag.run_id) == Run.id, col(Tag.tag).icontains(word, autoescape=True)),
                exists().where(col(Note.run_id) == Run.id, col(Note.text).icontains(word, autoescape=True)),
                cast(Run.id, String) == word.removeprefix("#"),
            )
        )
    return where


def _keys(filter: RunFilter) -> list[Key]:
    sort = filter.sort_by or filter.sort
    name, down = sort.removeprefix("-"), sort.startswith("-")
    if filter.sort_by:
        number, text = run_values.value_of(name, "number"), run_values.value_of(name, "text")
        return [*run_values.value_keys(number, text, down), Key(_run.id, down)]
    column = _run[name]
    keys = [Key(column, down), Key(_run.id, down)]
    if name in ("reward", "ended"):
        return [*run_values.value_keys(column, None, down), keys[1]]
    return keys if name == "created" else [Key(func.lower(column, type_=String), down), keys[1]]


def get(db: Database, run_id: int) -> Run:
    """Return a run; raises `UnknownRunError`."""
    with db.read() as session:
        return get_in_session(session, run_id)


def get_in_session(session: Session, run_id: int) -> Run:
    """Return a run in a transaction; raises `UnknownRunError`."""
    run = session.get(Run, run_id) if _is_valid_id(run_id) else None
    if run is None:
        raise unknown_run(run_id)
    return run


def _is_valid_id(run_id: int) -> bool:
    """Whether every database can compare the id with its integer column."""
    return 0 < run_id < 2**31


def find(db: Database, *, folder: str) -> Run | None:
    """Return the run of a folder below the workspace's `runs/`."""
    with db.read() as session:
        return session.scalars(select(Run).where(_run.folder == folder)).one_or_none()


def find_named(db: Database, name: str) -> Run | None:
    """Return the newest run whose name or folder is `name`."""
    with db.read() as session:
        named = select(Run).where(or_(_run.name == name, _run.folder == name))
        return session.scalars(named.order_by(_run.id.desc()).limit(1)).first()


def of_config(config: BaseRun, yaml_text: str, folder: str, **columns: Any) -> Run:
    """Create the row of a run from its configuration, without storing it; `columns` take precedence."""
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
    return Run(**{**values, **columns})


def add(db: Database, run: Run) -> Run:
    """Store a new run with the stages of its configuration."""
    with db.write() as session:
        run.created = run.created or time.time()
        add_in_session(session, run)
    return run


def add_in_session(session: Session, run: Run) -> None:
    """Store a new run with the stages and settings of its configuration."""
    session.add(run)
    session.flush()
    planned = planned_stages(run)
    session.add_all(planned)
    run.group_key = run_values.index_config(session.connection(), run.id, run.config)
    if planned and run.total is None:
        run.total = float(sum(stage.steps for stage in planned))


def planned_stages(run: Run) -> list[Stage]:
    """Return the stages of a training run's configuration; none if it is invalid or of another kind."""
    if run.kind != "train" or run.id is None:
        return []
    try:
        return [
            Stage(run_id=run.id, index=i, name=str(s["name"]), method=_type(s["method"]), steps=int(s["steps"]))
            for i, s in enumerate(load_yaml(run.config)["stages"])
        ]
    except (yaml.YAMLError, KeyError, TypeError, ValueError):
        return []


def _type(component: object) -> str:
    return str(component["type"]) if isinstance(component, dict) else str(component)


def update(db: Database, run_id: int, **changes: object) -> Run:
    """Change columns of a run; raises `UnknownRunError`, or `ConfigError` for an unknown column."""
    unknown = set(changes) - set(Run.model_fields)
    if unknown:
        raise ConfigError("A run has no such column.", value=sorted(unknown))
    with db.write() as session:
        run = get_in_session(session, run_id)
        for name, value in changes.items():
            setattr(run, name, value)
    return run


def remove(db: Database, run_id: int) -> None:
    """Delete a run with its labels, opened hints, notes and tags."""
    with db.write() as session:
        run = get_in_session(session, run_id)
        forget_events(session, run_id)
        for model in (LeakLabel, OpenedHint, Note, Tag, RunValue):
            session.execute(delete(model).where(table_of(model).c.run_id == run_id))
        session.delete(run)


def forget_events(session: Session, run_id: int) -> None:
    """Delete all rows of a run that can be rebuilt from its event file."""
    hint_values.delete_run(session, run_id)
    dialogues = select(col(DialogueRow.id)).where(col(DialogueRow.run_id) == run_id)
    tables: tuple[tuple[TableClause, str], ...] = (
        (table_of(TurnRow), "dialogue_id"),
        (table_of(RecordRow), "dialogue_id"),
        (TEXTS, "rowid"),
    )
    for table, key in tables:
        session.execute(delete(table).where(table.c[key].in_(dialogues)))
    for model in (DialogueRow, TaskRow, HintCount, RescoredHint, RescoreSummary, Log, Metric, Checkpoint, Stage):
        session.execute(delete(model).where(table_of(model).c.run_id == run_id))
    session.execute(delete(RunValue).where(col(RunValue.run_id) == run_id, ~col(RunValue.is_setting)))


def queued(db: Database) -> list[Run]:
    """Return the queued runs in queue order."""
    with db.read() as session:
        return run_queue.queued(session)


def active(db: Database) -> list[Run]:
    """Return the runs that have a worker."""
    with db.read() as session:
        return run_queue.active(session)


def stages(db: Database, run_id: int) -> list[Stage]:
    """Return the stages of a run in order."""
    return rows_of(db, run_id, select(Stage).where(col(Stage.run_id) == run_id).order_by(col(Stage.index)))


def checkpoints(db: Database, run_id: int) -> list[Checkpoint]:
    """Return the checkpoints of a run, oldest first."""
    query = select(Checkpoint).where(col(Checkpoint.run_id) == run_id)
    return rows_of(db, run_id, query.order_by(col(Checkpoint.time), col(Checkpoint.step)))


def logs(db: Database, run_id: int, limit: int = 200) -> list[Log]:
    """Return the newest log messages of a run, oldest first."""
    query = select(Log).where(col(Log.run_id) == run_id).order_by(col(Log.id).desc()).limit(limit)
    return rows_of(db, run_id, query)[::-1]


def tags(db: Database, run_id: int) -> list[str]:
    """Return the tags of a run, sorted."""
    return rows_of(db, run_id, select(col(Tag.tag)).where(col(Tag.run_id) == run_id).order_by(col(Tag.tag)))


def rows_of(db: Database, run_id: int, query: Select[T]) -> list[T]:
    """Return the first column of a query about a run; raises `UnknownRunError`."""
    with db.read() as session:
        get_in_session(session, run_id)
        return list(session.scalars(query))


def tags_of(db: Database, run_ids: Sequence[int]) -> dict[int, list[str]]:
    """Return the tags of several runs, sorted."""
    tags_by_run: dict[int, list[str]] = {run_id: [] for run_id in run_ids}
    with db.read() as session:
        query = select(col(Tag.run_id), col(Tag.tag)).where(col(Tag.run_id).in_(tags_by_run)).order_by(col(Tag.tag))
        for run_id, tag in session.execute(query):
            tags_by_run[run_id].append(tag)
    return tags_by_run


def set_tags(db: Database, run_id: int, tags: Sequence[str]) -> None:
    """Replace the tags of a run; blank tags and duplicates are dropped, long ones truncated to 60 characters."""
    new = {clean(tag).strip()[:60] for tag in tags if tag.strip()}
    with db.write() as session:
        get_in_session(session, run_id)
        stored = {tag.tag: tag for tag in session.scalars(select(Tag).where(col(Tag.run_id) == run_id))}
        for tag in stored.keys() - new:
            session.delete(stored[tag])
        session.add_all(Tag(run_id=run_id, tag=tag) for tag in new - stored.keys())


def all_tags(db: Database) -> list[str]:
    """Return all tags, sorted."""
    return db.fetch_all(select(col(Tag.tag)).distinct().order_by(col(Tag.tag)))


def facets(db: Database) -> dict[str, list[str]]:
    """Return the filter choices, sorted: statuses, kinds, environments, methods, models."""
    columns = {"statuses": "status", "kinds": "kind", "environments": "environment", "methods": "method"}
    with db.read() as session:
        return {
            name: [v for v in session.scalars(select(_run[column]).distinct().order_by(_run[column])) if v]
            for name, column in {**columns, "models": "model"}.items()
        }


def version(db: Database, run_id: int | None = None) -> int:
    """Return a number that increases with every change of the run; raises `UnknownRunError`.

    Without a run, it increases with every change of any run, tag, label, note, schedule or setting.
    """
    with db.read() as session:
        if run_id is None:
            return int(session.scalar(select(col(Setting.value)).where(col(Setting.name) == SCHEMA_VERSION_KEY)) or 0)
        query = select(_run.version).where(_run.id == run_id)
        number: int | None = session.scalar(query) if _is_valid_id(run_id) else None
        if number is None:
            raise unknown_run(run_id)
        return number

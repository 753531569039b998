"""Groups of runs, such as the seeds of one configuration, with means over their runs."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, String, func, select
from sqlalchemy.orm import defer

from jobs.db.columns import table_of
from jobs.db.engine import Database
from jobs.db.models import Run, RunValue
from jobs.db.paging import LIMIT, Key, Page, page_of
from jobs.db.queries.run_values import key_column, value_keys, value_of
from jobs.db.queries.runs import RunFilter, conditions
from rl2f_core.types import FrozenModel

_run, _value = table_of(Run).c, table_of(RunValue).c


class GroupMean(FrozenModel):
    """Mean of a value over the runs of a group that have it."""

    mean: float
    """Mean over the runs."""
    sd: float | None
    """Sample standard deviation over the runs; None for one run."""
    count: int
    """Number of runs."""


class RunGroup(FrozenModel):
    """Runs that share a key."""

    key: str
    """Value of `group` of the filter that selects these runs."""
    name: str
    """Name of the newest run."""
    runs: list[int]
    """Numbers of the runs, the newest first."""
    seeds: list[int]
    """Distinct seeds, sorted."""
    statuses: dict[str, int]
    """Number of runs of each status."""
    environment: str
    """Environment of all runs; empty if they differ."""
    method: str
    """Method of all runs; empty if they differ."""
    model: str
    """Base model of all runs; empty if they differ."""
    ended: float | None
    """Last end of a run, in seconds since 1970, UTC."""
    values: dict[str, GroupMean | str]
    """Means of the requested numbers; of other values the text, if it is equal."""


def page(
    db: Database,
    filter: RunFilter = RunFilter(),
    by: str = "seed",
    columns: Collection[str] = (),
    cursor: str | None = None,
    limit: int = LIMIT,
) -> Page[RunGroup]:
    """Return one page of the groups of the runs that match a filter, ordered by means or newest values.

    Args:
        db: The database.
        filter: Which runs.
        by: `seed` for runs that differ only in seed and name, otherwise a setting or metric.
        columns: Names of the values that are returned.
        cursor: `before` or `after` of another page.
        limit: Maximum number of groups.
    """
    key = key_column(by)
    ordered, descending = _order(filter)
    groups = select(key.label("key"), func.max(_run.id).label("newest"), ordered.label("value"))
    listed = groups.where(*conditions(filter)).group_by(key).subquery()
    order = [*_keys(listed.c.value, descending), Key(listed.c.newest, descending)]
    with db.read() as session:
        total = session.scalars(select(func.count()).select_from(listed)).one()
        found = page_of(session, select(listed.c.key), order, cursor, limit, total)
        of_page = [*conditions(filter), key.in_(found.rows)]
        members: dict[str, list[Run]] = defaultdict(list)
        of_groups = select(key, Run).options(defer(Run.config)).where(*of_page)  # type: ignore[arg-type]
        for name, run in session.execute(of_groups.order_by(_run.id.desc())):
            members[name].append(run)
        ids = select(_run.id).where(*of_page)
        query = select(RunValue).where(_value.run_id.in_(ids), _value.name.in_(columns))
        values: dict[int, dict[str, RunValue]] = defaultdict(dict)
        for row in session.scalars(query):
            values[row.run_id][row.name] = row
    rows = [_group(key, members[key], [values[run.id] for run in members[key]]) for key in found.rows]
    return Page(rows, found.total, found.before, found.after, found.first)


def _order(filter: RunFilter) -> tuple[ColumnElement[Any], bool]:
    """Return the aggregate by which groups are ordered, and whether it descends."""
    sort = filter.sort_by or filter.sort
    name, down = sort.removeprefix("-"), sort.startswith("-")
    if filter.sort_by:
        return func.avg(value_of(name, "number")), down
    column = _run[name]
    if name == "reward":
        return func.avg(column), down
    return func.max(column if name in ("created", "ended") else func.lower(column, type_=String)), down


def _keys(value: ColumnElement[Any], down: bool) -> list[Key]:
    return [Key(value, down)] if isinstance(value.type, String) else value_keys(value, None, down)


def _group(key: str, runs: list[Run], values: list[dict[str, RunValue]]) -> RunGroup:
    def shared(name: str) -> str:
        found = {getattr(run, name) for run in runs}
        return found.pop() if len(found) == 1 else ""

    names = sorted({name for row in values for name in row})
    return RunGroup(
        key=key,
        name=runs[0].name,
        runs=[run.id for run in runs],
        seeds=sorted({run.seed for run in runs}),
        statuses=dict(Counter(run.status for run in runs)),
        environment=shared("environment"),
        method=shared("method"),
        model=shared("model"),
        ended=max((run.ended for run in runs if run.ended is not None), default=None),
        values={name: _mean([row[name] for row in values if name in row]) for name in names},
    )


def _mean(rows: list[RunValue]) -> GroupMean | str:
    numbers = [row.number for row in rows if row.number is not None]
    if len(numbers) < len(rows):
        return rows[0].text if len({row.text for row in rows}) == 1 else "…"
    spread = statistics.stdev(numbers) if len(numbers) > 1 else None
    return GroupMean(mean=statistics.fmean(numbers), sd=spread, count=len(numbers))

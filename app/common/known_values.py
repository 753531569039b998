"""Values of filters that exist in a workspace: an unknown one is an error, not an empty result."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import get_args

from jobs.db.engine import Database
from jobs.db.errors import NotFoundError
from jobs.db.models import ACTIVE
from jobs.db.queries import dialogues, runs
from jobs.db.queries.dialogues import DialogueFilter
from jobs.db.queries.runs import RunFilter
from rl2f_core import registry
from rl2f_core.config.evaluation import Condition
from rl2f_core.run.events import OWN_CONDITIONS


def check_known(what: str, value: str, known: Collection[str]) -> None:
    """Raise `NotFoundError` if a value is neither empty nor known."""
    if value and value not in known:
        raise NotFoundError(f"Unknown {what}.", value=value, known=sorted(filter(None, known)))


def check_checkpoint(db: Database, run: int, name: str) -> None:
    """Raise `NotFoundError` if there is no such run, or if it has no such checkpoint."""
    runs.get(db, run)
    known = [row.name for row in runs.checkpoints(db, run)]
    if name not in known:
        raise NotFoundError(f"Run {run} has no such checkpoint.", value=name, known=known)


def check_environment(db: Database, name: str) -> None:
    """Check the environment of a filter: a registered one, or that of a run."""
    if name and name not in registry.names("environment"):
        check_known("environment", name, {*registry.names("environment"), *runs.facets(db)["environments"]})


def check_run_filter(db: Database, filter: RunFilter) -> None:
    """Check kind, environment, method, tag and group of a filter without results."""
    check_environment(db, filter.environment)
    facets = runs.facets(db)
    check_known("kind of run", filter.kind, {*registry.names("run_kind"), *facets["kinds"]})
    check_known("method", filter.method, {*registry.names("method"), *facets["methods"]})
    check_known("tag", filter.tag, runs.all_tags(db))
    if filter.group and not runs.page(db, RunFilter(group=filter.group), limit=1).total:
        raise NotFoundError("Unknown group of runs.", value=filter.group, fix="list_run_groups lists the keys.")


def check_dialogue_filters(db: Database, filters: Iterable[DialogueFilter]) -> None:
    """Check the names in filters without results; those of forks and of active runs may still come."""
    for filter in filters:
        run = None if filter.run is None else runs.get(db, filter.run)
        fields = ("stage", "level", "environment", "checkpoint", "condition", "group", "task")
        names = {name: getattr(filter, name) for name in fields}
        if not any(names.values()) or filter.phase == "fork" or (run is not None and run.status in ACTIVE):
            continue
        known = {name: {*values} for name, values in dialogues.facets(db, filter.run).items() if name[:-1] in names}
        if run is not None:
            known["stages"] |= {stage.name for stage in runs.stages(db, run.id or 0)}
            known["checkpoints"] |= {item.name for item in runs.checkpoints(db, run.id or 0)}
        known["conditions"] |= {*get_args(Condition), *OWN_CONDITIONS}
        check_environment(db, names.pop("environment"))
        for name in ("group", "task"):
            value = names.pop(name)
            every = DialogueFilter(run=filter.run, demonstrations=True, **{name: value})
            if value and not dialogues.page(db, every, limit=1).rows:
                raise NotFoundError(f"Unknown {name}.", value=value, fix="list_dialogues returns those of dialogues.")
        for name, value in names.items():
            check_known(name, value, known[f"{name}s"])

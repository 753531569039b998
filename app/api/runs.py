"""The list of runs as JSON: what runs, waits and ended, the schedules, and what can be done with each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from jobs.db.models import ENDED, JobLog, Run, ScheduledRun
from jobs.db.queries import job_log, metrics, notes, runs, scheduled_runs
from jobs.db.queries.runs import RunFilter
from jobs.queue.slots import read_slots
from rl2f_core.errors import ConfigError, RL2FError

if TYPE_CHECKING:
    from app.common.context import Context

Id = Annotated[int, Field(ge=1, le=2**31 - 1)]
Word = Annotated[str, Query(max_length=200)]
FIELDS = ("id", "name", "kind", "status", "detail", "origin", "parent", "environment", "model", "method", "seed",
          "device", "created", "started", "ended", "phase", "done", "total", "eta", "reward", "tokens_per_second",
          "heartbeat", "version")  # fmt: skip
WAITING = 50
"""Runs of the queue that are shown."""
TROUBLE = 30
"""Lines of the job log that are shown."""


class Ids(BaseModel):
    """Several runs."""

    model_config = ConfigDict(extra="forbid")
    ids: Annotated[list[Id], Field(min_length=1, max_length=500)]


class Tags(BaseModel):
    """All tags of a run."""

    model_config = ConfigDict(extra="forbid")
    tags: Annotated[list[Annotated[str, Field(max_length=60)]], Field(max_length=20)]


class Text(BaseModel):
    """A remark."""

    model_config = ConfigDict(extra="forbid")
    text: Annotated[str, Field(max_length=notes.MAX_CHARS)]


class Place(BaseModel):
    """A place in the queue: before another run, or at the end."""

    model_config = ConfigDict(extra="forbid")
    before: Id | None = None


class Switch(BaseModel):
    """On or off."""

    model_config = ConfigDict(extra="forbid")
    on: bool


def router(context: Context) -> APIRouter:
    """Routes below `/api/runs`."""
    api = APIRouter(prefix="/api/runs")
    db, queue = context.db, context.queue

    @api.get("")
    def listed(
        search: Word = "",
        status: Word = "",
        kind: Word = "",
        environment: Word = "",
        method: Word = "",
        tag: Word = "",
        sort: Word = "-ended",
        cursor: Annotated[str | None, Query(max_length=500)] = None,
        since: int | None = None,
    ) -> dict[str, Any]:
        """Everything the page shows; only `version` where nothing changed after `since`."""
        version = runs.version(db)
        if since == version:
            return {"version": version, "unchanged": True}
        filter = RunFilter(search, _statuses(status), kind, environment, method, tag, sort)
        page = runs.page(db, filter, cursor)
        active, waiting = runs.active(db), runs.queued(db)
        shown = [*active, *waiting[:WAITING], *page.rows]
        ids = [run.id for run in shown if run.id is not None]
        tags, lines = runs.tags_of(db, ids), metrics.sparkline(db, list(dict.fromkeys(ids)))
        marks = {run_id: _remark(context, run_id) for run_id in dict.fromkeys(ids)}

        def row(run: Run) -> dict[str, Any]:
            number = run.id or 0
            return {**_fields(run), "tags": tags[number], "spark": lines.get(number, []), **marks[number]}

        return {
            "version": version,
            "now": time.time(),
            "read_only": context.read_only,
            "paused": queue.paused,
            "slots": _slots(context),
            "active": [row(run) for run in active],
            "queue": [row(run) for run in waiting[:WAITING]],
            "waiting": len(waiting),
            "page": {
                "rows": [row(run) for run in page.rows],
                "total": page.total,
                "before": page.before,
                "after": page.after,
                "first": page.first,
            },
            "facets": runs.facets(db),
            "tags": runs.all_tags(db),
            "schedules": [_schedule(item) for item in scheduled_runs.all_schedules(db)],
            "trouble": [_line(item) for item in job_log.recent(db, 300) if item.outcome in ("missed", "failed")][
                :TROUBLE
            ],
        }

    @api.post("/queue")
    def switch_queue(body: Switch) -> dict[str, bool]:
        """Let the queue start runs, or not."""
        (queue.resume_dispatch if body.on else queue.pause)()
        return {"paused": queue.paused}

    @api.post("/delete")
    def delete_many(body: Ids) -> dict[str, Any]:
        """Delete several runs; those that cannot be deleted stay, and it is said why."""
        deleted, kept = [], []
        for run_id in body.ids:
            try:
                queue.delete(run_id)
            except RL2FError as error:
                kept.append({"id": run_id, "why": str(error)})
            else:
                deleted.append(run_id)
        return {"deleted": deleted, "kept": kept}

    @api.put("/schedules/{schedule_id}")
    def switch_schedule(schedule_id: int, body: Switch) -> dict[str, Any]:
        """Switch a schedule on or off."""
        return _schedule(scheduled_runs.enable(db, schedule_id, body.on))

    @api.delete("/schedules/{schedule_id}")
    def delete_schedule(schedule_id: int) -> dict[str, bool]:
        """Delete a schedule; the runs that it made stay."""
        scheduled_runs.remove(db, schedule_id)
        return {"deleted": True}

    @api.get("/{run_id}/notes")
    def notes_of(run_id: int) -> dict[str, Any]:
        """Tags and remarks of a run, for the dialog that changes them."""
        runs.get(db, run_id)
        found = [note for note in notes.of_run(db, run_id) if note.event_id is None]
        return {
            "tags": runs.tags(db, run_id),
            "notes": [{"id": n.id, "text": n.text, "author": n.author, "time": n.time} for n in found],
        }

    @api.post("/{run_id}/notes")
    def add_note(run_id: int, body: Text) -> dict[str, Any]:
        """Add a remark."""
        return {"id": notes.add(db, run_id, body.text).id}

    @api.delete("/{run_id}/notes/{note_id}")
    def delete_note(run_id: int, note_id: int) -> dict[str, bool]:
        """Delete a remark."""
        notes.delete(db, note_id)
        return {"deleted": True}

    @api.put("/{run_id}/tags")
    def put_tags(run_id: int, body: Tags) -> dict[str, Any]:
        """Replace the tags."""
        runs.set_tags(db, run_id, body.tags)
        return {"tags": runs.tags(db, run_id)}

    @api.post("/{run_id}/move")
    def move(run_id: int, body: Place) -> dict[str, Any]:
        """Another place in the queue."""
        return _fields(queue.move(run_id, body.before))

    @api.post("/{run_id}/{act}")
    def act(run_id: int, act: Literal["stop", "abort", "resume", "delete"]) -> dict[str, Any]:
        """Stop, abort, resume or delete."""
        if act == "delete":
            queue.delete(run_id)
            return {"deleted": True}
        return _fields({"stop": queue.stop, "abort": queue.abort, "resume": queue.resume}[act](run_id))

    return api


def _statuses(text: str) -> tuple[str, ...]:
    """`any` is every status, nothing is those of runs that ended."""
    if text == "any":
        return ()
    return tuple(word for word in text.split(",") if word) or ENDED


def _fields(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in FIELDS}


def _remark(context: Context, run_id: int) -> dict[str, Any]:
    found = [note for note in notes.of_run(context.db, run_id) if note.event_id is None]
    return {"notes": len(found), "note": found[-1].text[:300] if found else ""}


def _slots(context: Context) -> dict[str, Any]:
    try:
        slots = read_slots(context.db)
    except ConfigError as error:
        return {"error": str(error)}
    return {"cpu": slots.cpu, "cuda": list(slots.cuda), "light": slots.light}


def _schedule(item: ScheduledRun) -> dict[str, Any]:
    names = ("id", "name", "when", "timezone", "enabled", "last_run", "next_run")
    trigger = "at" if item.trigger == "date" else item.trigger
    return {**{name: getattr(item, name) for name in names}, "trigger": trigger}


def _line(item: JobLog) -> dict[str, Any]:
    return {name: getattr(item, name) for name in ("id", "time", "job", "outcome", "detail")}

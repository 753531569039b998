"""The label queue's data. What a detector said is sent only once the labeller has answered, or asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from app.api._problem import shown
from app.api._views import finding_json, label_json
from app.api.dialogues import BIG, Number, Text
from jobs.db.errors import NotFoundError
from jobs.db.queries import dialogues, runs
from jobs.labels import annotation_queue, label_queries
from jobs.labels.annotation_queue import HintKey, QueueFilter

if TYPE_CHECKING:
    from app.common.context import Context

Turn = Annotated[int, Field(ge=0, le=10_000)]
Name = Annotated[str, Field(max_length=200)]
_SELECTIONS = {"mixed": "stratified", "audit": "random_unflagged"}
"""Value of `which` → `QueueFilter.selection`, if they differ."""


class Chosen(BaseModel):
    """`LabelFilter` as it stands in an address; other parameters are left to the page."""

    model_config = ConfigDict(extra="ignore")
    which: Annotated[str, Field(max_length=20)] = "all"
    run: Number | None = None
    environment: Text = ""
    todo: bool = False
    size: Number = 200
    seed: Number = 0
    source: Annotated[str, Field(max_length=20)] = "run"

    def filter(self) -> QueueFilter:
        """Convert the query parameters to a filter."""
        return QueueFilter(
            selection=_SELECTIONS.get(self.which, self.which),
            run=self.run,
            environment=self.environment,
            unlabeled_only=self.todo,
            size=self.size,
            seed=self.seed,
            source=self.source,
        )


class Queued(Chosen):
    """A part of the queue: its begin, or what stands beside a hint."""

    labeller: Name = ""
    at_run: Number | None = None
    at_event: Text = ""
    at_turn: Turn = 0
    way: Literal["after", "before"] = "after"
    limit: Annotated[int, Field(ge=1, le=50)] = 20


class Drawn(Chosen):
    """The queue that an answer comes from."""

    model_config = ConfigDict(extra="forbid")


class Given(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid")
    run: Number
    event: Text
    turn: Turn
    labeller: Name
    label: Annotated[str, Field(max_length=20)]
    start: Annotated[int, Field(ge=0, le=BIG)] | None = None
    end: Annotated[int, Field(ge=0, le=BIG)] | None = None
    note: str = ""
    blind: bool = True
    draw: Drawn | None = None
    """Only where it is a random sample that holds the hint does the answer count in estimates for all hints."""


class Undone(BaseModel):
    """Who takes back."""

    model_config = ConfigDict(extra="forbid")
    labeller: Name


def router(context: Context) -> APIRouter:
    """Routes below `/api/labels`."""
    api = APIRouter(prefix="/api/labels")
    db = context.db

    @api.get("/queue")
    def queue(query: Annotated[Queued, Query()]) -> dict[str, Any]:
        """The next hints, with how many the labeller has answered."""
        at = None if query.at_run is None else HintKey(query.at_run, query.at_event, query.at_turn)
        place = {query.way: at} if at else {}
        items = annotation_queue.queue(db, _name(query.labeller), query.filter(), query.limit, **place)
        return {"items": [{**i.key._asdict(), "label": i.label, "level": i.level} for i in items], **_progress(query)}

    @api.get("/progress")
    def progress(query: Annotated[Queued, Query()]) -> dict[str, Any]:
        return _progress(query)

    def _progress(query: Queued) -> dict[str, Any]:
        done, total = annotation_queue.progress(db, _name(query.labeller), query.filter())
        return {"done": done, "total": total, "capped": total > annotation_queue.COUNT_LIMIT}

    @api.get("/hint")
    def hint(
        run: Annotated[Number, Query()],
        event: Annotated[Text, Query()],
        turn: Annotated[Turn, Query()],
        labeller: Annotated[Name, Query()] = "",
        blind: Annotated[bool, Query()] = True,
    ) -> dict[str, Any]:
        """A hint with its dialogue up to it."""
        return _hint(context, HintKey(run, event, turn), labeller, blind)

    @api.put("")
    def put(body: Given) -> dict[str, Any]:
        """Store an answer; what the detectors said comes back with it."""
        answer = label_queries.LabelAnswer(body.label, body.start, body.end, body.note, body.blind)
        draw = body.draw.filter() if body.draw else None
        label_queries.put(db, body.run, body.event, body.turn, body.labeller, answer, draw)
        return _hint(context, HintKey(body.run, body.event, body.turn), body.labeller, blind=True)

    @api.post("/undo")
    def undo(body: Undone) -> dict[str, Any]:
        """Take back the labeller's last change; `undone` is null where nothing is left."""
        taken = label_queries.undo(db, body.labeller)
        if taken is None:
            return {"undone": None}
        now = [label_json(row) for row in label_queries.of_hint(db, taken.run_id, taken.event_id, taken.turn)]
        return {"undone": label_json(taken), "labels": now}

    @api.get("/facets")
    def facets() -> dict[str, Any]:
        """Runs, environments and labellers to choose from."""
        listed = runs.page(db, limit=200).rows
        return {
            "runs": [{"id": row.id, "name": row.name, "environment": row.environment} for row in listed],
            "environments": runs.facets(db)["environments"],
            "labellers": label_queries.annotators(db),
        }

    return api


def _name(labeller: str) -> str:
    """The name as it is kept; nobody's answers where there is none yet."""
    return label_queries.annotator_name(labeller) if labeller.strip() else ""


def _hint(context: Context, key: HintKey, labeller: str, blind: bool) -> dict[str, Any]:
    view = dialogues.get(context.db, key.run, key.event)
    if key.turn >= len(view.turns) or view.turns[key.turn].row.hint is None:
        raise NotFoundError("There is no such hint.", value=tuple(key), fix="Start the queue anew.")
    turn = view.turns[key.turn]
    name = _name(labeller)
    mine = next((label_json(label) for label in turn.labels if label.annotator == name), None)
    open_ = mine is not None or not blind
    problem = shown(runs.get(context.db, key.run), view.task)
    return {
        **key._asdict(),
        "key": view.row.dialogue_id,
        "environment": view.row.environment,
        "level": view.row.level,
        "length": view.row.length,
        "problem": {"text": problem.text, "system": problem.system, "rendered": problem.rendered},
        "before": [
            {
                "index": each.row.index,
                "attempt": each.row.attempt,
                "sign": "1" if each.row.correct else "?" if each.row.parsed is None else "0",
                "hint": each.row.hint if each.row.index < key.turn else None,
            }
            for each in view.turns[: key.turn + 1]
        ],
        "hint": turn.row.hint if turn.row.feedback is None else turn.row.feedback,
        "teacher": turn.row.teacher,
        "mine": mine,
        "open": open_,
        "finding": finding_json(turn) if open_ else None,
        "read": turn.row.hint if open_ else None,
        "others": [label_json(label) for label in turn.labels if label.annotator != name] if open_ else None,
    }

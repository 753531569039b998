"""The dialogue browser's data: lists by filter, one dialogue, its group, its tokens, its privileged half, notes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from app.api import _problem
from app.api._views import dialogue_json, note_json, row_json
from jobs.db.errors import NotFoundError
from jobs.db.paging import cursor_after
from jobs.db.queries import dialogues, notes, runs
from jobs.db.queries.dialogues import DialogueFilter

if TYPE_CHECKING:
    from app.common.context import Context
    from jobs.db.models import Dialogue, Run

BIG = 2**31 - 1
Number = Annotated[int, Field(ge=0, le=BIG)]
Text = Annotated[str, Field(max_length=1000)]
Reward = Annotated[float, Field(allow_inf_nan=False)]
MAX_NOTE = 20_000
_FILTER_FIELDS = {"control": "condition", "leak": "leak_state", "labelled": "labeled"}
"""Query parameter → field of `DialogueFilter`, if they differ."""
_ORDERS = {"played": "played", "worth": "hint_value", "-worth": "-hint_value"}
WALK = 50
"""Pages that are looked through for the next step."""


class Filters(BaseModel):
    """`DialogueFilter` as it stands in an address; other parameters are left to the page."""

    model_config = ConfigDict(extra="ignore")
    run: Number | None = None
    phase: Text = ""
    stage: Text = ""
    step_from: Number | None = None
    step_to: Number | None = None
    environment: Text = ""
    level: Text = ""
    checkpoint: Text = ""
    control: Text = ""
    solved: Annotated[str, Field(pattern=r"^(never|any|[1-9][0-9]{0,3})?$")] = ""
    reward_from: Reward | None = None
    reward_to: Reward | None = None
    leak: Annotated[int, Field(ge=0, le=2)] | None = None
    labelled: bool | None = None
    error: bool = False
    group: Text = ""
    task: Text = ""
    order: Literal["played", "worth", "-worth"] = "played"
    search: Text = ""

    def filter(self) -> DialogueFilter:
        """Convert the query parameters to a filter."""
        values = {_FILTER_FIELDS.get(name, name): getattr(self, name) for name in Filters.model_fields}
        return DialogueFilter(**{**values, "order": _ORDERS[self.order]})


class Listed(Filters):
    """A page of the list."""

    cursor: Text | None = None
    newest_first: bool = False


class Placed(Filters):
    """A dialogue and the list that it stands in."""

    dialogue: Text
    of: Number
    """The run of the dialogue, where the list holds all runs."""


class Moved(Placed):
    """Somewhere else in the list."""

    to: Literal["first", "last", "next_step", "previous_step"]


class NewNote(BaseModel):
    """A remark to keep."""

    model_config = ConfigDict(extra="forbid")
    run: Number
    dialogue: Text
    turn: Annotated[int, Field(ge=0, le=10_000)] | None = None
    text: Annotated[str, Field(max_length=MAX_NOTE)]
    author: Annotated[str, Field(max_length=60)] = ""


def router(context: Context) -> APIRouter:
    """Routes below `/api/dialogues`. A dialogue is named by its run and its event's id."""
    api = APIRouter(prefix="/api/dialogues")
    db = context.db

    @api.get("")
    def page(query: Annotated[Listed, Query()]) -> dict[str, Any]:
        return _page(dialogues.page(db, query.filter(), query.cursor, newest_first=query.newest_first))

    @api.get("/locate")
    def locate(query: Annotated[Placed, Query()]) -> dict[str, Any]:
        """The page of the list that holds a dialogue."""
        return _page(dialogues.page_containing(db, replace(query.filter(), run=query.of), query.dialogue))

    @api.get("/move")
    def move(query: Annotated[Moved, Query()]) -> dict[str, Any]:
        """The first or last dialogue of the list, or the first one of another step; null where there is none."""
        if query.to in ("first", "last"):
            found = dialogues.page(db, query.filter(), limit=1, newest_first=query.to == "last").rows
        else:
            here = dialogues.get(db, query.of, query.dialogue).row
            found = beside(context, query.filter(), here, 1 if query.to == "next_step" else -1)
        return {"row": row_json(found[0]) if found else None}

    @api.get("/facets")
    def facets(run: Annotated[Number | None, Query()] = None) -> dict[str, Any]:
        """What there is to choose from in the filters, and the newest runs."""
        if run is not None:
            runs.get(db, run)
        listed = runs.page(db, limit=200).rows
        choices = dialogues.facets(db, run)
        choices["controls"] = choices.pop("conditions")
        return {
            "facets": choices,
            "runs": [_run(row) for row in listed],
            "version": runs.version(db) if run is None else runs.version(db, run),
        }

    @api.get("/one")
    def one(run: Annotated[Number, Query()], dialogue: Annotated[Text, Query()]) -> dict[str, Any]:
        view = dialogues.get(db, run, dialogue)
        return {**dialogue_json(runs.get(db, run), view), "siblings": _siblings(view.row)}

    def _siblings(row: Dialogue) -> list[dict[str, Any]]:
        """The group in short, in the order it was played."""
        same = DialogueFilter(
            run=row.run_id,
            phase=row.phase,
            stage=row.stage,
            step_from=row.step,
            step_to=row.step,
            checkpoint=row.checkpoint or "",
            condition=row.condition or "",
            group=row.group,
        )
        rows = dialogues.page(db, same, limit=100).rows
        return [{"event": r.event_id, "index": r.index, "solved_at": r.solved_at, "reward": r.reward} for r in rows]

    @api.get("/group")
    def group(run: Annotated[Number, Query()], dialogue: Annotated[Text, Query()]) -> dict[str, Any]:
        """A dialogue with its siblings."""
        view, owner = dialogues.get(db, run, dialogue), runs.get(db, run)
        return {"dialogues": [dialogue_json(owner, each) for each in dialogues.group(db, run, view.row)]}

    @api.get("/privileged")
    def privileged(run: Annotated[Number, Query()], dialogue: Annotated[Text, Query()]) -> dict[str, Any]:
        """What the student never sees: answer, solution, and the verifier's words on each attempt."""
        view = dialogues.get(db, run, dialogue)
        return {
            "answer": _problem.answer(runs.get(db, run), view.task),
            "privileged": view.task.privileged,
            "details": [turn.row.verdict.get("detail", "") for turn in view.turns],
        }

    @api.get("/tokens")
    def tokens(
        run: Annotated[Number, Query()], dialogue: Annotated[Text, Query()], turn: Annotated[Number, Query()]
    ) -> dict[str, Any]:
        """The student's tokens of a turn: id, text (null without a tokenizer), log-probability in nats (or null)."""
        view, owner = dialogues.get(db, run, dialogue), runs.get(db, run)
        if turn >= len(view.turns):
            raise NotFoundError("There is no such turn.", value=turn, known=map(str, range(len(view.turns))))
        ids, logprobs = dialogues.tokens(view.turns[turn].row.tokens)
        texts = _problem.texts(owner.model, ids)
        listed = [
            {"id": id, "text": texts[i] if texts else None, "logprob": logprobs[i] if logprobs else None}
            for i, id in enumerate(ids)
        ]
        return {"tokens": listed, "model": owner.model}

    @api.get("/version")
    def version(run: Annotated[Number | None, Query()] = None) -> dict[str, int]:
        """A number that moves when something changed."""
        return {"version": runs.version(db) if run is None else runs.version(db, run)}

    @api.post("/notes")
    def add_note(body: NewNote) -> dict[str, Any]:
        return note_json(notes.add(db, body.run, body.text, body.author, body.dialogue, body.turn))

    @api.delete("/notes/{note}")
    def delete_note(note: Number) -> dict[str, Any]:
        notes.delete(db, note)
        return {}

    return api


def beside(context: Context, filter: DialogueFilter, here: Dialogue, way: int) -> list[Dialogue]:
    """The first dialogue of the next (way = 1) or the previous step of the list, in the order they were played.

    At most one. A step ends where phase, stage, step, checkpoint or control changes.
    """
    found: Dialogue | None = None
    for row in _walk(context, replace(filter, run=here.run_id, order="played"), here, back=way < 0):
        if _step(row) == _step(here):
            continue
        if way > 0:
            return [row]
        if found is not None and _step(row) != _step(found):
            break
        found = row
    return [] if found is None else [found]


def _step(row: Dialogue) -> tuple[Any, ...]:
    return row.phase, row.stage, row.step, row.checkpoint, row.condition


def _walk(context: Context, filter: DialogueFilter, here: Dialogue, back: bool) -> Iterator[Dialogue]:
    """The list's dialogues after (or before) one, at most `WALK` pages of them."""
    cursor: str | None = cursor_after(0, [here.id])
    for _ in range(WALK):
        page = dialogues.page(context.db, filter, cursor, limit=500, newest_first=back)
        yield from page.rows
        cursor = page.after
        if cursor is None:
            return


def _page(page: Any) -> dict[str, Any]:
    return {
        "rows": [row_json(row) for row in page.rows],
        "total": page.total,
        "before": page.before,
        "after": page.after,
        "first": page.first,
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "environment": run.environment,
        "kind": run.kind,
        "method": run.method,
    }

"""The detector board's data. Figures of the test half are sent only in answer to an opening, which is noted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from app.api.dialogues import Number, Text
from app.api.labels import Name
from jobs.estimates import labels_for, more_labels
from jobs.store import board
from jobs.store.board import Scope

if TYPE_CHECKING:
    from app.context import Context

MAX_DISPUTES = 200


class Asked(BaseModel):
    """What a board is about, as it stands in an address; other parameters are left to the page."""

    model_config = ConfigDict(extra="ignore")
    run: Number | None = None
    environment: Text = ""
    source: Annotated[str, Field(max_length=20)] = "run"
    by: Annotated[str, Field(max_length=20)] = "tier"

    def scope(self, *, test: bool) -> Scope:
        """As the store takes it."""
        return Scope(self.run, self.environment, self.source, test)


class Opened(Asked):
    """Who opens the test half, and of what."""

    model_config = ConfigDict(extra="forbid")
    who: Name


def router(context: Context) -> APIRouter:
    """Routes below `/api/labels/board`."""
    api = APIRouter(prefix="/api/labels/board")
    db = context.db

    @api.get("")
    def read(query: Annotated[Asked, Query()]) -> dict[str, Any]:
        """The board of the half that detectors are tuned on."""
        return shown(context, query, test=False)

    @api.post("/test")
    def test(body: Opened) -> dict[str, Any]:
        """Note who looks, and send the board of the test half."""
        board.open_test(db, body.scope(test=True), body.who)
        return shown(context, body, test=True)

    @api.get("/sources")
    def sources() -> list[dict[str, Any]]:
        """Whose findings can be judged."""
        return [{"name": each.name, "detectors": each.detectors, "time": each.time} for each in board.sources(db)]

    return api


def shown(context: Context, asked: Asked, *, test: bool) -> dict[str, Any]:
    """The board with what is missing to ± .05, and who opened the test half."""
    found = board.read(context.db, asked.scope(test=test), asked.by)
    total = found.total.estimates
    opened = board.openings(context.db)
    data = found.model_dump(mode="json")
    return {
        **data,
        "half": "test" if test else "dev",
        "disputes": data["disputes"][-MAX_DISPUTES:][::-1],
        "disputed": len(data["disputes"]),
        "more": {
            "precision": more_labels(total.precision, total.n_flagged),
            "recall": more_labels(total.recall, total.n_flagged + total.n_unflagged),
            "first": labels_for(),
        },
        "openings": {
            "n": len(opened),
            "last": [
                each.model_dump(include={"time", "who", "source", "run_id", "environment"}) for each in opened[:5]
            ],
        },
    }

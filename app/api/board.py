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
from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    from app.context import Context
    from jobs.board import Board

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
        return _shown(context, board.read(db, query.scope(test=False), query.by), test=False)

    @api.post("/test")
    def test(body: Opened) -> dict[str, Any]:
        """Note who looks, and send the board of the test half with every breakdown, so that it is one look."""
        found = board.read_all(db, body.scope(test=True))
        if body.by not in found:
            raise ConfigError("There is no such breakdown.", value=body.by, known=list(found))
        board.open_test(db, body.scope(test=True), body.who)
        every = {name: each.model_dump(mode="json", include={"rows", "hidden"}) for name, each in found.items()}
        return {**_shown(context, found[body.by], test=True), "breakdowns": every}

    @api.get("/sources")
    def sources() -> list[dict[str, Any]]:
        """Whose findings can be judged."""
        return [{"name": each.name, "detectors": each.detectors, "time": each.time} for each in board.sources(db)]

    return api


def _shown(context: Context, found: Board, *, test: bool) -> dict[str, Any]:
    """The board with what is missing to ± .05, and who opened the test half."""
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

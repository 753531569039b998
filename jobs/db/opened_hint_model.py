"""The table of hints whose findings an annotator has opened."""

from __future__ import annotations

from sqlmodel import Field, SQLModel


class OpenedHint(SQLModel, table=True):
    """A hint whose findings, or the labels of others on it, an annotator has seen."""

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    event_id: str = Field(primary_key=True)
    turn: int = Field(primary_key=True)
    annotator: str = Field(primary_key=True)
    time: float
    """Of the first time."""

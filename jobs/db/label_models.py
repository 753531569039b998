"""Tables beside the labels: hint counts, opened findings, accesses to the test set."""

from __future__ import annotations

from sqlalchemy import Column, Text
from sqlmodel import Field, SQLModel


class HintCount(SQLModel, table=True):
    """Number of hints per group of the detector report, without contentless hints.

    The ingester updates the counts, so that the report reads no turns.
    """

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    environment: str = Field(primary_key=True)
    teacher: str = Field(primary_key=True)
    stage: str = Field(primary_key=True)
    bucket: int = Field(primary_key=True)
    """`jobs.labels.hint_counts.bucket` of the step."""
    checkpoint: str = Field(primary_key=True)
    """Evaluated checkpoint; empty in training."""
    condition: str = Field(primary_key=True)
    test: bool = Field(primary_key=True)
    """The task is in the test set."""
    checked: bool = Field(primary_key=True)
    flagged: bool = Field(primary_key=True)
    detector: str = Field(primary_key=True)
    n: int = 0
    known: int = 0
    """Hints with `TurnRow.hint_bits`."""
    bits: float = 0.0
    """Sum of their `TurnRow.hint_bits`."""
    determining: int = 0
    """Hints with `TurnRow.determines_answer`."""


class OpenedHint(SQLModel, table=True):
    """A hint whose findings, or the labels of others on it, an annotator has seen."""

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    event_id: str = Field(primary_key=True)
    turn: int = Field(primary_key=True)
    annotator: str = Field(primary_key=True)
    time: float
    """Of the first time."""


class TestSetAccess(SQLModel, table=True):
    """A logged access to detector figures on the test set."""

    __test__ = False  # pytest collects classes with this prefix
    id: int | None = Field(default=None, primary_key=True)
    time: float
    annotator: str
    source: str
    """Source of the findings: run, or the id of a rescore run."""
    detectors: str = Field(default="", sa_column=Column(Text, nullable=False))
    run_id: int | None = None
    """The run, if the report covered one run; the run may be deleted."""
    environment: str = ""

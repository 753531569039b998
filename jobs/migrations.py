"""The schema's history: numbered steps, each in one transaction, from an empty database to the newest version.

A step that was once in a release is never changed; what the tables need next is a new step at the end. The number of
the steps that a database has taken is its setting `schema.version`.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlmodel import SQLModel

from jobs import _schema_1, _schema_board, tables
from jobs._schema_1 import columns
from jobs.errors import StoreError, StoreVersionError

NAME = "schema.version"
FULL_TEXT = "dialogue_text"
"""SQLite's full-text table of dialogues; its rows have the ids of the dialogues."""
_setting = sa.table("setting", sa.column("name", sa.String), sa.column("value", sa.String))


def _first(op: Operations) -> None:
    _schema_1.create(op)
    op.execute(_setting.insert().values(name="store.version", value="0"))
    op.execute(_setting.insert().values(name=NAME, value="0"))


def _order_of_steps(op: Operations) -> None:
    """The newest steps of a run, and a few of many for a sparkline, without reading all of them."""
    op.create_index("ix_metric_run_number", "metric", ["run_id", "number"])


def _worth_of_hints(op: Operations) -> None:
    """What hints were worth, and dialogues in this order."""
    op.create_table(
        "hintworth",
        *columns(
            "run_id:int event:str turn:int checkpoint:str source:str value:float low:float high:float n:int turns:int? "
            "arms:json time:float"
        ),
        sa.PrimaryKeyConstraint("run_id", "event", "turn", "checkpoint"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    )
    op.create_index("ix_hintworth_source", "hintworth", ["source", "event"])
    op.add_column("dialogue", sa.Column("worth", sa.Float))
    op.create_index("ix_dialogue_run_worth", "dialogue", ["run_id", "worth", "id"])
    op.create_index("ix_dialogue_worth", "dialogue", ["worth", "id"])


def _leak_scans(op: Operations) -> None:
    """Which runs asked detectors again about which."""
    op.create_table(
        "leakscan",
        *columns("run_id:int target_run_id:int detectors:text checked:int flagged:int time:float"),
        sa.PrimaryKeyConstraint("run_id", "target_run_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
        sa.ForeignKeyConstraint(["target_run_id"], ["run.id"]),
    )


def _detector_board(op: Operations) -> None:
    """What the detector board counts: random draws, task halves, hints by what divides them, openings."""
    _schema_board.create(op)
    _schema_board.fill(op.get_bind())


def _hints_of_models(op: Operations) -> None:
    """How a model teacher was asked, what its message cost, and why there was none."""
    op.add_column("turn", sa.Column("prompt", sa.String(), nullable=True))
    op.add_column("turn", sa.Column("usage", sa.JSON(), nullable=True))
    op.add_column("turn", sa.Column("hint_error", sa.Text(), nullable=True))


def _rescans(op: Operations) -> None:
    """What rescoring runs found, by what names a hint for good, so that the order of ingestion does not matter."""
    op.create_table(
        "rescan",
        *columns("run_id:int target:str detectors:text checked:int flagged:int time:float"),
        sa.PrimaryKeyConstraint("run_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    )
    op.create_index("ix_rescan_target", "rescan", ["target"])
    op.create_table(
        "rescanfinding",
        *columns("run_id:int event:str turn:int target:str tier:str? start:int? end:int? share:float evidence:text"),
        sa.PrimaryKeyConstraint("run_id", "event", "turn"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    )


def _fresh_prompts(op: Operations) -> None:
    """Which template asked for an attempt."""
    op.add_column("turn", sa.Column("asked", sa.String(), nullable=True))


def _places_of_workers(op: Operations) -> None:
    """Where a worker is, where it is not on this machine."""
    op.add_column("run", sa.Column("place", sa.Text(), nullable=False, server_default=""))


STEPS: tuple[Callable[[Operations], None], ...] = (
    _first, _order_of_steps, _worth_of_hints, _leak_scans, _detector_board, _hints_of_models, _rescans,
    _fresh_prompts, _places_of_workers,
)  # fmt: skip
NEWEST = len(STEPS)


def version(connection: sa.Connection) -> int:
    """How many steps the database has taken; 0 where it is empty.

    Raises `StoreError` where there are tables of something else.
    """
    names = sa.inspect(connection).get_table_names()
    if "setting" in names:
        found = connection.execute(sa.select(_setting.c.value).where(_setting.c.name == NAME)).scalar()
        if found is not None:
            return int(found)
    if set(names) & set(SQLModel.metadata.tables):
        raise StoreError("The database holds tables of something else.", fix="Give the studio a database of its own.")
    return 0


def step(connection: sa.Connection, name: str, newest: int = NEWEST) -> bool:
    """Take the next step in the connection's transaction; False where the database is at `newest`.

    Raises `StoreVersionError` where the database is newer than this program.
    """
    if connection.dialect.name == "postgresql":  # two servers that start at once take turns
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7245)")
    now = version(connection)
    _refuse_newer(now, name)
    if now >= newest:
        return False
    STEPS[now](Operations(MigrationContext.configure(connection)))
    if connection.dialect.name == "sqlite":
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if broken:
            raise StoreError(f"Step {now + 1} of the schema left rows that point nowhere.", value=broken[:3])
    connection.execute(_setting.update().where(_setting.c.name == NAME).values(value=str(now + 1)))
    return True


def check_readable(connection: sa.Connection, name: str) -> None:
    """Raises `StoreVersionError` where this program cannot read the database as it is."""
    now = version(connection)
    _refuse_newer(now, name)
    if now < NEWEST:
        raise StoreVersionError(
            f"The database has version {now}, and this program reads version {NEWEST}.",
            value=name,
            fix="Start a server that writes: it brings the database up to date.",
        )


def _refuse_newer(now: int, name: str) -> None:
    if now > NEWEST:
        raise StoreVersionError(
            f"The database was made by a newer version of RL2F Studio (schema {now}, this program knows {NEWEST}).",
            value=name,
            fix="Install the newer version, or restore a backup.",
        )


def differences(connection: sa.Connection) -> list[object]:
    """What the database's schema and the models disagree in; empty where they agree."""
    assert tables.Run.metadata is SQLModel.metadata

    def ours(obj: sa.schema.SchemaItem, name: str | None, kind: str, reflected: bool, other: object) -> bool:
        return not (kind == "table" and reflected and str(name).startswith(FULL_TEXT))

    options = {"include_object": ours, "compare_type": True}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), SQLModel.metadata))

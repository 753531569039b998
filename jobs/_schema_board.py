"""The step of the schema that brought the detector board, as it was: never changed again."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations

from jobs._schema_1 import columns

_COUNTED = (
    "run_id environment teacher stage bucket checkpoint control test checked flagged tier".split()
)  # fmt: skip


def create(op: Operations) -> None:
    """Tables and columns."""
    op.add_column("leaklabel", sa.Column("drawn", sa.String(), nullable=True))
    op.add_column("problem", sa.Column("content", sa.String(), nullable=False, server_default=""))
    words, numbers, signs = sa.String(), sa.Integer(), sa.Boolean()
    kinds: dict[str, Any] = {"run_id": numbers, "bucket": numbers, "test": signs, "checked": signs, "flagged": signs}
    op.create_table(
        "hintcount",
        *(sa.Column(name, kinds.get(name, words), nullable=False) for name in _COUNTED),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint(*_COUNTED),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    )
    op.create_table(
        "testopening",
        *columns("id:int time:float who:str source:str detectors:text run_id:int? environment:str"),
        sa.PrimaryKeyConstraint("id"),
    )


def fill(connection: sa.Connection) -> None:
    """The content of every task that is there, and the counts of every hint."""
    words, numbers, signs = sa.String, sa.Integer, sa.Boolean
    problem = sa.table(
        "problem", sa.column("id", numbers), sa.column("environment", words), sa.column("public", sa.JSON),
        sa.column("privileged", sa.JSON), sa.column("content", words),
    )  # fmt: skip
    last, into = 0, problem.update().where(problem.c.id == sa.bindparam("row")).values(content=sa.bindparam("hash"))
    asked = sa.select(problem.c.id, problem.c.environment, problem.c.public, problem.c.privileged)
    while rows := connection.execute(asked.where(problem.c.id > last).order_by(problem.c.id).limit(2000)).all():
        connection.execute(into, [{"row": row[0], "hash": _content(list(row[1:]))} for row in rows])
        last = rows[-1][0]
    dialogue = sa.table(
        "dialogue", *(sa.column(name, words) for name in ("environment", "stage", "checkpoint", "control")),
        *(sa.column(name, numbers) for name in ("id", "run_id", "problem_id", "step")),
    )  # fmt: skip
    turn = sa.table(
        "turn", *(sa.column(name, numbers) for name in ("id", "dialogue_id")),
        *(sa.column(name, words) for name in ("hint", "teacher")),
        *(sa.column(name, signs) for name in ("checked", "leaked")),
    )  # fmt: skip
    finding = sa.table(
        "leakfinding", sa.column("turn_id", numbers), sa.column("source", words), sa.column("tier", words)
    )
    count = sa.table("hintcount", *(sa.column(name) for name in (*_COUNTED, "n")))
    d, t = dialogue.c, turn.c
    empty: sa.ColumnElement[str] = sa.literal_column("''")
    teacher = sa.func.coalesce(t.teacher, empty)
    divided = [
        d.run_id, d.environment, teacher, d.stage, (d.step + 9) // sa.literal_column("10"),
        sa.func.coalesce(d.checkpoint, empty), sa.func.coalesce(d.control, empty),
        sa.func.substr(problem.c.content, 1, 1) < sa.literal_column("'8'"), t.checked, t.leaked,
        sa.func.coalesce(finding.c.tier, empty),
    ]  # fmt: skip
    counted = (
        sa.select(*divided, sa.func.count())
        .select_from(turn)
        .join(dialogue, d.id == t.dialogue_id)
        .join(problem, problem.c.id == d.problem_id)
        .outerjoin(finding, (finding.c.turn_id == t.id) & (finding.c.source == "run"))
        .where(t.hint.is_not(None), teacher != "contentless")
        .group_by(*divided)
    )
    connection.execute(count.insert().from_select([*_COUNTED, "n"], counted))


def _content(halves: list[Any]) -> str:
    text = json.dumps(halves, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""Fields of tables, and the base of rows that programs receive."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict
from sqlalchemy import JSON, BigInteger, Column, Table, Text
from sqlmodel import Field, SQLModel


class Summary(SQLModel):
    """The fields of a row that programs receive; all of them have a docstring, which their schema contains."""

    model_config = ConfigDict(use_attribute_docstrings=True, serialize_by_alias=True)  # type: ignore[assignment]


def table_of(model: type[SQLModel]) -> Table:
    """Return the table of a model."""
    return SQLModel.metadata.tables[str(model.__tablename__)]


def json_column() -> Any:
    """Return the field of a JSON object."""
    return Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


def text_column(**options: Any) -> Any:
    """Return the field of a long text."""
    return Field(default="", sa_column=Column(Text, nullable=False), **options)


def run_column(**options: Any) -> Any:
    """Return the column of a run; JSON calls it `run`."""
    return Field(foreign_key="run.id", serialization_alias="run", **options)


def long_column() -> Any:
    """Return the field of a 64-bit integer."""
    return Field(default=0, sa_column=Column(BigInteger, nullable=False))

"""Keyset pagination: a page begins after the last key of another, so all pages cost the same."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Select, String, TypeDecorator, and_, or_
from sqlalchemy.orm import Session

from rl2f_core.errors import DataError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
LIMIT = 50


@dataclass(frozen=True)
class Page(Generic[T_co]):
    """Consecutive rows of a list."""

    rows: Sequence[T_co]
    """The rows."""
    total: int | None
    """Number of rows of the list."""
    before: str | None
    """Cursor of the previous page; None on the first page."""
    after: str | None
    """Cursor of the next page; None on the last page."""
    first: int = 1
    """1-based position of the first row in the list, as of the first page."""


@dataclass(frozen=True)
class Key:
    """A sort key of a list; never null."""

    column: ColumnElement[Any]
    descending: bool = False

    def order(self, forward: bool = True) -> ColumnElement[Any]:
        """Return the order of a list with this key, reversed if not `forward`."""
        return self.column.desc() if self.descending == forward else self.column.asc()


@dataclass(frozen=True)
class _Cursor:
    forward: bool
    position: int
    """1-based position of the cursor's row."""
    values: tuple[object, ...]

    def text(self) -> str:
        data = json.dumps([int(self.forward), self.position, *self.values], ensure_ascii=False)
        return base64.urlsafe_b64encode(data.encode()).decode().rstrip("=")


def _is_comparable(column: ColumnElement[Any], value: object) -> bool:
    """Whether every database can compare the value with the column."""
    kind = column.type.impl if isinstance(column.type, TypeDecorator) else column.type  # SQLModel decorates texts
    if isinstance(kind, String):
        return isinstance(value, str)
    return isinstance(value, int | float) and abs(value) < 2**63  # False for NaN


def _parse(text: str, keys: Sequence[Key]) -> _Cursor:
    try:
        data = json.loads(base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)))
        forward, position, *values = data
        if not all(_is_comparable(key.column, value) for key, value in zip(keys, values, strict=True)):
            raise ValueError(text)
        return _Cursor(bool(forward), int(position), tuple(values))
    except (ValueError, TypeError, binascii.Error) as error:
        raise DataError("The cursor of the list is invalid.", value=text, fix="Open the list again.") from error


def page_of(
    session: Session, query: Select[T], keys: Sequence[Key], cursor: str | None, limit: int, total: int | None
) -> Page[T]:
    """Return one page of a query.

    Args:
        session: A transaction.
        query: Selects one entity, filtered and unordered.
        keys: Sort keys of the list; unique together.
        cursor: `before` or `after` of another page of the list; None for the first page.
        limit: Maximum number of rows.
        total: Number of rows of the list, if known.

    Raises `DataError` if the cursor does not belong to such a list.
    """
    at = _parse(cursor, keys) if cursor else None
    forward = at is None or at.forward
    if at is not None:
        query = query.where(after_key(keys, at.values, forward))
    keyed = query.add_columns(*(key.column for key in keys))
    keyed = keyed.order_by(*(key.order(forward) for key in keys))
    rows = list(session.execute(keyed.limit(limit + 1)))
    more, rows = len(rows) > limit, rows[:limit]
    if not rows:
        return Page([], total, None, None)
    if not forward:
        rows.reverse()
    first = 1
    if at is not None:
        first = at.position + 1 if forward else max(1, at.position - len(rows))
    start = _Cursor(False, first, tuple(rows[0][1:])).text()
    end = cursor_after(first + len(rows) - 1, rows[-1][1:])
    has_before, has_after = (at is not None, more) if forward else (more, True)
    return Page([row[0] for row in rows], total, start if has_before else None, end if has_after else None, first)


def cursor_after(position: int, values: Sequence[object]) -> str:
    """Return the cursor of the page after the row at `position` (1-based) with these key values."""
    return _Cursor(True, position, tuple(values)).text()


def after_key(keys: Sequence[Key], values: Sequence[object], forward: bool = True) -> ColumnElement[bool]:
    """Return the condition for rows strictly after the key values, or before them."""
    cases = []
    for i, key in enumerate(keys):
        same = [keys[j].column == values[j] for j in range(i)]
        past = key.column < values[i] if key.descending == forward else key.column > values[i]
        cases.append(and_(*same, past))
    return or_(*cases)

"""Pages by keyset: a page begins where another ended, so that deep pages cost what the first one costs."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Select, String, and_, or_
from sqlalchemy.orm import Session

from rl2f_core.errors import DataError

T = TypeVar("T")
LIMIT = 50


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some rows of a list, in order."""

    rows: list[T]
    total: int | None
    """Rows of the whole list."""
    before: str | None
    """Cursor of the page before this one, None at the start."""
    after: str | None
    """Cursor of the page after this one, None at the end."""
    first: int = 1
    """1-based position of the first row in the whole list, as it was when paging began."""


@dataclass(frozen=True)
class Key:
    """One expression that a list is ordered by; never null."""

    column: ColumnElement[Any]
    descending: bool = False


@dataclass(frozen=True)
class _Cursor:
    forward: bool
    position: int
    """1-based position of the row that the cursor stands at."""
    values: tuple[Any, ...]

    def text(self) -> str:
        data = json.dumps([int(self.forward), self.position, *self.values], ensure_ascii=False)
        return base64.urlsafe_b64encode(data.encode()).decode().rstrip("=")


def _fits(column: ColumnElement[Any], value: object) -> bool:
    """Whether a value may be compared with the column in any database."""
    if isinstance(column.type, String):
        return isinstance(value, str)
    return isinstance(value, int | float) and abs(value) < 2**63  # nan is less than nothing


def _parse(text: str, keys: Sequence[Key]) -> _Cursor:
    try:
        data = json.loads(base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)))
        forward, position, *values = data
        if not all(_fits(key.column, value) for key, value in zip(keys, values, strict=True)):
            raise ValueError(text)
        return _Cursor(bool(forward), int(position), tuple(values))
    except (ValueError, TypeError, binascii.Error) as error:
        raise DataError("The place in the list cannot be read.", value=text, fix="Open the list anew.") from error


def page_of(
    session: Session, query: Select[Any], keys: Sequence[Key], cursor: str | None, limit: int, total: int | None
) -> Page[Any]:
    """The rows of one page.

    Args:
        query: Selects one entity, filtered, without an order.
        keys: What the list is ordered by; together unique.
        cursor: `before` or `after` of another page of the same list, or None for the first page.
        limit: Most rows.
        total: Rows of the whole list, where known.

    Raises `DataError` where the cursor is of no such list.
    """
    limit = max(1, min(int(limit), 500))
    at = _parse(cursor, keys) if cursor else None
    forward = at is None or at.forward
    if at is not None:
        query = query.where(after_key(keys, at.values, forward))
    query = query.add_columns(*(key.column for key in keys))
    query = query.order_by(*(k.column.desc() if k.descending == forward else k.column.asc() for k in keys))
    found = list(session.execute(query.limit(limit + 1)))
    more, found = len(found) > limit, found[:limit]
    if not forward:
        found.reverse()
    if not found:
        return Page([], total, None, None)
    if at is None:
        first = 1
    else:
        first = at.position + 1 if forward else max(1, at.position - len(found))
    start = _Cursor(False, first, tuple(found[0][1:])).text()
    end = _Cursor(True, first + len(found) - 1, tuple(found[-1][1:])).text()
    has_before, has_after = (at is not None, more) if forward else (more, True)
    return Page([row[0] for row in found], total, start if has_before else None, end if has_after else None, first)


def cursor_after(position: int, values: Sequence[Any]) -> str:
    """The cursor of the page that begins after the row at `position` (1-based) with these key values."""
    return _Cursor(True, position, tuple(values)).text()


def after_key(keys: Sequence[Key], values: Sequence[Any], forward: bool = True) -> ColumnElement[bool]:
    """Rows that come strictly after the values (or before them, backwards)."""
    cases = []
    for i, key in enumerate(keys):
        same = [keys[j].column == values[j] for j in range(i)]
        past = key.column < values[i] if key.descending == forward else key.column > values[i]
        cases.append(and_(*same, past))
    return or_(*cases)

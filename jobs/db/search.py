"""Search terms, in a form that every database accepts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlalchemy import ColumnElement, String, bindparam, cast, exists, literal_column, or_
from sqlmodel import col

from jobs.db.models import FULL_TEXT, Dialogue, TaskRow, Turn

MAX_TERMS = 20
"""Number of terms of a search that are used."""
MIN_PREFIX_CHARS = 3
_TERM = re.compile(r'"([^"]*)"?|(\S+)')


def clean(value: str) -> str:
    """Replace characters that databases reject: null characters and lone surrogates."""
    if value.isascii() and "\0" not in value:
        return value
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def split_terms(search: str) -> list[str]:
    """Split a search into words and double-quoted phrases, without the quotes."""
    terms = (phrase.strip() or word for phrase, word in _TERM.findall(clean(search)))
    return [term.replace('"', "") for term in terms if term.strip('" ')][:MAX_TERMS]


def fts_query(search: str) -> str:
    """Build a query of SQLite's full-text search that matches all terms.

    The last word matches as a prefix if it has at least `MIN_PREFIX_CHARS` characters.
    """
    terms = [term for term in split_terms(search) if any(ch.isalnum() for ch in term)]
    if not terms:
        return '""'
    is_prefix = search[-1].isalnum() and len(terms[-1]) >= MIN_PREFIX_CHARS
    return " ".join(f'"{term}"' for term in terms) + ("*" if is_prefix else "")


def matches(search: str) -> ColumnElement[bool]:
    """Return the full-text condition of a search, for SQLite."""
    return literal_column(FULL_TEXT, String).bool_op("MATCH")(bindparam("words", fts_query(search)))


def like_clause(search: str) -> list[ColumnElement[bool]]:
    """Return one condition per term, for other databases: an attempt, a hint or the task contains it."""
    conditions: list[ColumnElement[bool]] = []
    for term in split_terms(search):
        in_turn = or_(*(col(c).icontains(term, autoescape=True) for c in (Turn.attempt, Turn.hint)))
        in_task = cast(TaskRow.public, String).icontains(term, autoescape=True)
        matches_turn = exists().where(col(Turn.dialogue_id) == Dialogue.id, in_turn)
        conditions.append(matches_turn | exists().where(col(TaskRow.id) == Dialogue.task_id, in_task))
    return conditions


def join_leaves(value: object) -> str:
    """Join all keys and values of nested JSON data, for the full-text index."""
    return "\n".join(_leaves(value))


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        yield " ".join(part for item in value for part in _leaves(item))
    elif value is not None:
        yield str(value)

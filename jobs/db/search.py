"""Search terms, in a form that every database accepts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    String,
    Text,
    and_,
    bindparam,
    column,
    literal_column,
    or_,
    select,
)
from sqlalchemy import table as table_

from jobs.db.dialogue_models import FULL_TEXT

TEXTS = table_(FULL_TEXT, column("rowid", Integer), *(column(name, Text) for name in ("task", "attempts", "hints")))
"""The texts of dialogues; `rowid` is the dialogue's id."""
MAX_TERMS = 20
"""Number of terms of a search that are used."""
MIN_PREFIX_CHARS = 3
_NULL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""The escape of a null character after an even number of backslashes."""
_TERM = re.compile(r'"([^"]*)"?|(\S+)')


def clean(value: str) -> str:
    """Replace characters that databases reject: null characters and lone surrogates."""
    if value.isascii() and "\0" not in value:
        return value
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def clean_json(text: str) -> str:
    """Replace null characters in JSON text, see `clean`; a parsed JSON text has no lone surrogates."""
    return _NULL.sub(r"\1\\ufffd", text) if r"\u0000" in text else text


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


def matching_dialogues(search: str, *, has_index: bool) -> Select[int]:
    """Select the ids of dialogues whose task, attempts or hints contain all terms of a search.

    Args:
        search: Words and quoted phrases.
        has_index: The table of texts is SQLite's full-text index.
    """
    condition: ColumnElement[bool]
    if has_index:
        condition = literal_column(FULL_TEXT, String).bool_op("MATCH")(bindparam("words", fts_query(search)))
    else:
        texts = [TEXTS.c[name] for name in ("task", "attempts", "hints")]
        terms = split_terms(search)
        condition = and_(True, *(or_(*(text.icontains(term, autoescape=True) for text in texts)) for term in terms))
    return select(TEXTS.c.rowid).where(condition)


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

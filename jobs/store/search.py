"""Words that people search for, in a form that no database can misread."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, String, bindparam, cast, exists, or_, text
from sqlmodel import col

from jobs.migrations import FULL_TEXT
from jobs.tables import Dialogue, Problem, Turn

MOST = 20
"""Words of a search that are looked at."""
SHORTEST_BEGINNING = 3
_PARTS = re.compile(r'"([^"]*)"?|(\S+)')


def clean(words: str) -> str:
    """Text that every database takes: no null characters, no halves of surrogate pairs."""
    if words.isascii() and "\0" not in words:
        return words
    return words.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def words(search: str) -> list[str]:
    """The words of a search, and its phrases in double quotes, without the quotes."""
    found = (phrase.strip() or word for phrase, word in _PARTS.findall(clean(search)))
    return [part.replace('"', "") for part in found if part.strip('" ')][:MOST]


def match(search: str) -> str:
    """A query of SQLite's full-text search that asks for all words and phrases.

    The last word may be unfinished from its third letter on: shorter beginnings stand for too many words.
    """
    wanted = [word for word in words(search) if any(ch.isalnum() for ch in word)]
    if not wanted:
        return '""'
    ends_open = search[-1].isalnum() and len(wanted[-1]) >= SHORTEST_BEGINNING
    return " ".join(f'"{word}"' for word in wanted) + ("*" if ends_open else "")


def matches(search: str) -> ColumnElement[bool]:
    """For SQLite: the full-text rows of the dialogues that hold all words."""
    return text(f"{FULL_TEXT} MATCH :words").bindparams(bindparam("words", match(search)))  # type: ignore[return-value]


def contains(search: str) -> list[ColumnElement[bool]]:
    """For other databases: each word is somewhere in the dialogue's attempts, hints or problem."""
    made: list[ColumnElement[bool]] = []
    for word in words(search):
        in_turn = or_(*(col(c).icontains(word, autoescape=True) for c in (Turn.attempt, Turn.hint)))
        problem = cast(Problem.public, String).icontains(word, autoescape=True)
        made.append(
            or_(
                exists().where(col(Turn.dialogue_id) == Dialogue.id, in_turn),
                exists().where(col(Problem.id) == Dialogue.problem_id, problem),
            )
        )
    return made


def text_of(value: Any) -> str:
    """All words and numbers of a task's public half, for the full-text index."""
    return "\n".join(_leaves(value))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        yield " ".join(part for item in value for part in _leaves(item))
    elif value is not None:
        yield str(value)

"""Chats and their message trees. An edit adds a new message beside the original."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from sqlalchemy import delete, func, or_, select
from sqlmodel import Session

from jobs.db.columns import table_of
from jobs.db.errors import NotFoundError
from jobs.db.models import Chat, ChatMessage
from jobs.db.paging import Key, Page, page_of
from rl2f_core.errors import DataError
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from jobs.db.engine import Database

Choice = Literal["better", "worse", "tie"]
OPPOSITE: dict[str, str] = {"better": "worse", "worse": "better", "tie": "tie"}
MAX_TITLE = 120
_chat = table_of(Chat).c
_message = table_of(ChatMessage).c


class UnknownChatError(NotFoundError, DataError):
    """The chat or message does not exist."""


def page(db: Database, search: str = "", cursor: str | None = None, limit: int = 50) -> Page[Chat]:
    """Return a page of chats, last changed first; `search` matches titles and messages."""
    query = select(Chat)
    if search := search.strip():
        in_message = select(_message.chat_id).where(_message.content.icontains(search, autoescape=True))
        query = query.where(or_(_chat.title.icontains(search, autoescape=True), _chat.id.in_(in_message)))
    with db.read() as session:
        total = session.scalar(select(func.count()).select_from(query.subquery()))
        keys = [Key(_chat.changed, descending=True), Key(_chat.id, descending=True)]
        return page_of(session, query, keys, cursor, limit, total)


def get(db: Database, chat_id: int) -> Chat:
    """Return a chat; raises `UnknownChatError`."""
    with db.read() as session:
        return _get_in_session(session, chat_id)


def _get_in_session(session: Session, chat_id: int) -> Chat:
    chat = session.get(Chat, chat_id)
    if chat is None:
        raise UnknownChatError(f"There is no chat {chat_id}.", fix="It may have been deleted; pick another.")
    return chat


def messages(db: Database, chat_id: int) -> list[ChatMessage]:
    """Return all messages of a chat in the order of their creation."""
    return db.fetch_all(select(ChatMessage).where(_message.chat_id == chat_id).order_by(_message.id))


def create(
    db: Database, title: str, mode: str, settings: JsonObject, task: JsonObject | None = None,
    opening: str | None = None,
) -> Chat:  # fmt: skip
    """Create a chat; `opening` is its first message, the problem of an interactive task."""
    now = time.time()
    chat = Chat(title=title[:MAX_TITLE], mode=mode, settings=settings, task=task, created=now, changed=now)
    with db.write() as session:
        session.add(chat)
        session.flush()
        if opening is not None and chat.id is not None:
            session.add(ChatMessage(chat_id=chat.id, role="user", content=opening, time=now))
    return chat


def change(db: Database, chat_id: int, *, title: str | None = None, settings: JsonObject | None = None) -> Chat:
    """Change title or settings; raises `UnknownChatError`, or `DataError` for an empty title."""
    clean = None if title is None else " ".join(title.split())[:MAX_TITLE]
    if clean == "":
        raise DataError("A chat's name cannot be empty.", fix="Type a name.")
    with db.write() as session:
        chat = _get_in_session(session, chat_id)
        if clean is not None:
            chat.title = clean
        if settings is not None:
            chat.settings = settings
    return chat


def remove(db: Database, chat_id: int) -> None:
    """Delete a chat with its messages, but not its recorded dialogues. Raises `UnknownChatError`."""
    with db.write() as session:
        chat = _get_in_session(session, chat_id)
        session.execute(delete(ChatMessage).where(_message.chat_id == chat_id))
        session.delete(chat)


def add(db: Database, chat_id: int, new: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Append messages; raises `UnknownChatError`."""
    with db.write() as session:
        chat = _get_in_session(session, chat_id)
        chat.changed = time.time()
        for row in new:
            row.chat_id = chat_id
            session.add(row)
            session.flush()  # ids in this order
    return list(new)


def write(
    db: Database,
    message_id: int,
    *,
    content: str | None = None,
    status: str | None = None,
    detail: JsonObject | None = None,
) -> ChatMessage | None:
    """Change a message, `detail` per key; None if it no longer exists."""
    with db.write() as session:
        row = session.get(ChatMessage, message_id)
        if row is None:
            return None
        if content is not None:
            row.content = content
        if status is not None:
            row.status = status
        if detail is not None:
            row.detail = {**row.detail, **detail}
    return row


def prefer(db: Database, one: int, other: int, choice: Choice | None) -> list[ChatMessage]:
    """Store that response `one` is better or worse than `other`, or a tie; None deletes it. Return both messages.

    Raises `UnknownChatError` if one does not exist any more.
    """
    opposite = None if choice is None else OPPOSITE[choice]
    with db.write() as session:
        rows = [session.get(ChatMessage, number) for number in (one, other)]
        pair = [row for row in rows if row is not None]
        if len(pair) < 2:
            raise UnknownChatError("There is no such response.", value=[one, other], fix="Reload the page.")
        for row, compared, preference in ((pair[0], pair[1], choice), (pair[1], pair[0], opposite)):
            preferences = {k: v for k, v in row.detail.get("preferences", {}).items() if k != str(compared.id)}
            if preference is not None:
                preferences[str(compared.id)] = preference
            row.detail = {**row.detail, "preferences": preferences}
    return pair


def close_abandoned(db: Database) -> None:
    """Mark streaming messages as failed. Only for the server with the lock, before it generates responses."""
    error = {"what": "The studio ended while this was being written.", "fix": "Ask again."}
    with db.write() as session:
        for row in session.scalars(select(ChatMessage).where(_message.status == "streaming")):
            row.status = "failed"
            row.detail = {**row.detail, "error": error}

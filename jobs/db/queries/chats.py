"""Conversations and their trees of messages. An edit is a new message beside the original, which stays."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import delete, func, or_, select

from jobs.db.errors import NotFoundError
from jobs.db.models import Chat, ChatMessage
from jobs.db.paging import Key, Page, page_of
from rl2f_core.errors import DataError

if TYPE_CHECKING:
    from jobs.db.engine import Database

Choice = Literal["better", "worse", "tie"]
OPPOSITE: dict[str, str] = {"better": "worse", "worse": "better", "tie": "tie"}
MAX_TITLE = 120
_chat: Any = Chat.__table__  # type: ignore[attr-defined]
_message: Any = ChatMessage.__table__  # type: ignore[attr-defined]


class UnknownChatError(NotFoundError, DataError):
    """There is no chat, or no message, of this number."""


def page(db: Database, search: str = "", cursor: str | None = None, limit: int = 50) -> Page[Chat]:
    """Conversations, the last changed first; `search` looks into titles and messages."""
    query = select(Chat)
    if search.strip():
        like = f"%{_escaped(search.strip())}%"
        inside = select(_message.c.chat_id).where(_message.c.content.ilike(like, escape="\\"))
        query = query.where(or_(_chat.c.title.ilike(like, escape="\\"), _chat.c.id.in_(inside)))
    with db.read() as session:
        total = int(session.scalar(select(func.count()).select_from(query.subquery())) or 0)
        keys = [Key(_chat.c.changed, descending=True), Key(_chat.c.id, descending=True)]
        return page_of(session, query, keys, cursor, limit, total)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def get(db: Database, chat_id: int) -> Chat:
    """A conversation; raises `UnknownChatError`."""
    with db.read() as session:
        chat = session.get(Chat, chat_id)
    if chat is None:
        raise UnknownChatError(f"There is no chat {chat_id}.", fix="It may have been deleted; pick another.")
    return chat


def messages(db: Database, chat_id: int) -> list[ChatMessage]:
    """All messages of a conversation, in the order they were made."""
    with db.read() as session:
        return list(session.scalars(select(ChatMessage).where(_message.c.chat_id == chat_id).order_by(_message.c.id)))


def message(db: Database, chat_id: int, message_id: int) -> ChatMessage:
    """One message of a conversation; raises `UnknownChatError`."""
    with db.read() as session:
        found = session.get(ChatMessage, message_id)
    if found is None or found.chat_id != chat_id:
        raise UnknownChatError(f"There is no message {message_id} in chat {chat_id}.", fix="Reload the page.")
    return found


def create(
    db: Database, title: str, mode: str, settings: dict[str, Any], task: dict[str, Any] | None = None,
    opening: str | None = None,
) -> Chat:  # fmt: skip
    """A new conversation; `opening` is a played task's problem, its first message."""
    now = time.time()
    chat = Chat(title=title[:MAX_TITLE], mode=mode, settings=settings, task=task, created=now, changed=now)
    with db.write() as session:
        session.add(chat)
        session.flush()
        if opening is not None and chat.id is not None:
            session.add(ChatMessage(chat_id=chat.id, role="user", content=opening, time=now))
    return chat


def change(db: Database, chat_id: int, *, title: str | None = None, settings: dict[str, Any] | None = None) -> Chat:
    """Rename, or set other settings; raises `UnknownChatError`, or `DataError` for an empty title."""
    clean = None if title is None else " ".join(title.split())[:MAX_TITLE]
    if clean == "":
        raise DataError("A chat's name cannot be empty.", fix="Type a name.")
    with db.write() as session:
        chat = session.get(Chat, chat_id)
        if chat is None:
            raise UnknownChatError(f"There is no chat {chat_id}.", fix="It may have been deleted; pick another.")
        if clean is not None:
            chat.title = clean
        if settings is not None:
            chat.settings = settings
    return chat


def remove(db: Database, chat_id: int) -> None:
    """Delete a conversation with its messages; dialogues that were kept of it stay. Raises `UnknownChatError`."""
    with db.write() as session:
        chat = session.get(Chat, chat_id)
        if chat is None:
            raise UnknownChatError(f"There is no chat {chat_id}.", fix="It may have been deleted already.")
        session.execute(delete(ChatMessage).where(_message.c.chat_id == chat_id))
        session.flush()
        session.delete(chat)


def add(db: Database, chat_id: int, made: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Append messages; raises `UnknownChatError` where the conversation is gone."""
    with db.write() as session:
        chat = session.get(Chat, chat_id)
        if chat is None:
            raise UnknownChatError(f"There is no chat {chat_id}.", fix="It may have been deleted; pick another.")
        chat.changed = time.time()
        for item in made:
            item.chat_id = chat_id
            session.add(item)
            session.flush()  # ids in this order
    return list(made)


def write(
    db: Database,
    message_id: int,
    *,
    content: str | None = None,
    status: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> ChatMessage | None:
    """Change a message that is being written, `detail` by its keys; None where it is gone."""
    with db.write() as session:
        found = session.get(ChatMessage, message_id)
        if found is None:
            return None
        if content is not None:
            found.content = content
        if status is not None:
            found.status = status
        if detail is not None:
            found.detail = {**found.detail, **detail}
    return found


def prefer(db: Database, chat_id: int, one: int, other: int, choice: Choice | None) -> list[ChatMessage]:
    """Say that answer `one` is better or worse than `other`, or as good; None takes it back. Both rows are returned.

    Raises `DataError` where the two are not finished answers to the same message.
    """
    if choice is not None and choice not in OPPOSITE:
        raise DataError("There is no such judgement.", value=choice, known=OPPOSITE)
    with db.write() as session:
        pair = [session.get(ChatMessage, number) for number in (one, other)]
        first, second = pair
        fits = (
            first is not None
            and second is not None
            and one != other
            and all(m.chat_id == chat_id and m.role == "assistant" and m.status != "streaming" for m in (first, second))
            and first.parent == second.parent
        )
        if not fits or first is None or second is None:
            raise DataError("Only two answers to the same message can be compared.", value=[one, other])
        for mine, theirs, said in ((first, second, choice), (second, first, OPPOSITE.get(choice or ""))):
            held = {k: v for k, v in mine.detail.get("preferences", {}).items() if k != str(theirs.id)}
            if said is not None:
                held[str(theirs.id)] = said
            mine.detail = {**mine.detail, "preferences": held}
    return [first, second]


def close_abandoned(db: Database, alive: Sequence[int] = ()) -> int:
    """Mark as failed what says that it is being written and is in nobody's hands; `alive` are chats that are."""
    told = {"error": {"what": "The studio ended while this was being written.", "fix": "Ask again."}}
    with db.write() as session:
        query = select(ChatMessage).where(_message.c.status == "streaming", _message.c.chat_id.not_in(alive))
        left = list(session.scalars(query))
        for found in left:
            found.status = "failed"
            found.detail = {**found.detail, **told}
    return len(left)


def count(db: Database) -> int:
    """How many conversations there are."""
    with db.read() as session:
        return int(session.scalar(select(func.count()).select_from(Chat)) or 0)

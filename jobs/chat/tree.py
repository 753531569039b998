"""Message tree of a chat.

In a conversation, each user message is the child of the previous one. The responses of the checkpoints are children of
the user message, and `detail.after` of the next user message names the responses that it continues. An interactive
task is one chain per checkpoint: prompt, attempt, hint, attempt, hint …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from jobs.db.models import ChatMessage, MessageSummary
from rl2f_core.errors import DataError
from rl2f_core.types import Hint, Message, Turn

Messages = Mapping[int, ChatMessage]
M = TypeVar("M", bound=MessageSummary)


def by_id(messages: Sequence[ChatMessage]) -> dict[int, ChatMessage]:
    """Return the messages by id."""
    return {m.id: m for m in messages if m.id is not None}


def responses(messages: Messages, parent: int, checkpoint: str) -> list[ChatMessage]:
    """Return the responses of a checkpoint to a message, oldest first, with regenerated and edited ones."""
    return [m for m in messages.values() if m.parent == parent and m.role == "assistant" and m.checkpoint == checkpoint]


def can_continue(message: MessageSummary) -> bool:
    """Return whether a conversation can continue a message."""
    return message.role == "assistant" and message.status in ("done", "stopped")


def is_finished(message: MessageSummary) -> bool:
    """Return whether a message is a response that can be rated: not failed, and not stopped before its first text."""
    return can_continue(message) and (message.status == "done" or bool(message.content))


def are_comparable(messages: Mapping[int, MessageSummary], one: MessageSummary, other: MessageSummary) -> bool:
    """Return whether two messages are finished responses to the same prompt."""
    if one.id == other.id or one.parent != other.parent or not (is_finished(one) and is_finished(other)):
        return False
    parent = messages[one.parent or 0]
    if parent.role == "teacher":
        return True
    first, second = (chat_prompt(messages, parent, m.checkpoint, m.detail.get("system", "")) for m in (one, other))
    return first == second


def conversation(messages: Mapping[int, M], user: M, checkpoint: str) -> list[M]:
    """Return the prompt of `checkpoint` for a response to `user`: user, assistant, user … with `user` last.

    A checkpoint that was added later continues the responses of the first one before.
    """
    chain = [user]
    while chain[-1].parent is not None:
        after: dict[str, int] = chain[-1].detail.get("after", {})
        number = after.get(checkpoint, next(iter(after.values()), None))
        response = messages.get(number) if number is not None else None
        if response is None or response.parent is None or response.parent not in messages:
            raise DataError("The conversation is broken before this message.", value=chain[-1].id)
        checkpoint = response.checkpoint
        chain += [response, messages[response.parent]]
    return chain[::-1]


def chat_prompt(messages: Mapping[int, M], user: M, checkpoint: str, system: str) -> list[Message]:
    """Return what a checkpoint reads before its response to a message of a conversation."""
    head = [Message(role="system", content=system)] if system else []
    return head + [Message(role=m.role, content=m.content) for m in conversation(messages, user, checkpoint)]


def chain(messages: Messages, leaf: ChatMessage) -> list[ChatMessage]:
    """Return the messages of an interactive task from its prompt to `leaf`."""
    path = [leaf]
    while (parent := path[-1].parent) is not None:
        if parent not in messages or len(path) > len(messages):
            raise DataError("The dialogue is broken before this message.", value=path[-1].id)
        path.append(messages[parent])
    return path[::-1]


def turns(messages: Sequence[ChatMessage]) -> list[Turn]:
    """Return the turns of an interactive task from its `chain`; the last one may have no hint."""
    result: list[Turn] = []
    for message in messages:
        if message.role == "assistant":
            result.append(Turn.model_validate(message.detail["turn"]))
        elif message.role == "teacher":
            hint = Hint.model_validate(message.detail["hint"])
            result[-1] = result[-1].model_copy(update={"hint": hint})
    return result


def without_tokens(message: ChatMessage) -> MessageSummary:
    """Return a message for the browser, without tokens."""
    omitted = ("token_ids", "logprobs")
    detail = {k: v for k, v in message.detail.items() if k not in omitted}
    if isinstance(turn := detail.get("turn"), dict):
        detail["turn"] = {k: v for k, v in turn.items() if k not in omitted}
    return MessageSummary(**{**dict(message), "detail": detail})

"""What a message answers: the tree of a conversation, read backwards.

A conversation is a spine of user messages, each the child of the one before it; the answers of the speakers hang on the
user message they answer, and `detail.after` of the next user message says which of them it goes on from. A played task
is a plain chain for each speaker: problem, attempt, hint, attempt, hint …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.tables import ChatMessage
from rl2f_core.errors import DataError
from rl2f_core.types import Hint, Turn

Messages = Mapping[int, ChatMessage]


def by_id(messages: Sequence[ChatMessage]) -> dict[int, ChatMessage]:
    """Messages by their number."""
    return {m.id: m for m in messages if m.id is not None}


def answers_to(messages: Messages, parent: int, speaker: str) -> list[ChatMessage]:
    """The answers of one speaker to a message, oldest first: regenerated and edited ones beside the first."""
    return [m for m in messages.values() if m.parent == parent and m.role == "assistant" and m.speaker == speaker]


def usable(message: ChatMessage) -> bool:
    """Whether a conversation can go on from an answer."""
    return message.role == "assistant" and message.status in ("done", "stopped")


def newest(messages: Messages, parent: int, speaker: str) -> ChatMessage | None:
    """The last answer of a speaker from which a conversation can go on."""
    found = [m for m in answers_to(messages, parent, speaker) if usable(m)]
    return found[-1] if found else None


def conversation(messages: Messages, user: ChatMessage, speaker: str) -> list[ChatMessage]:
    """What `speaker` has before it when it answers `user`: user, assistant, user … with `user` last.

    A speaker that was not there before takes over the words of the first one that was.
    """
    chain = [user]
    while chain[-1].parent is not None:
        after: dict[str, int] = chain[-1].detail.get("after", {})
        number = after.get(speaker, next(iter(after.values()), None))
        said = messages.get(number) if number is not None else None
        if said is None or said.parent is None or said.parent not in messages:
            raise DataError("The conversation is broken before this message.", value=chain[-1].id)
        speaker = said.speaker
        chain += [said, messages[said.parent]]
    return chain[::-1]


def chain(messages: Messages, leaf: ChatMessage) -> list[ChatMessage]:
    """A played dialogue from its problem to `leaf`."""
    found = [leaf]
    while (parent := found[-1].parent) is not None:
        if parent not in messages or len(found) > len(messages):
            raise DataError("The dialogue is broken before this message.", value=found[-1].id)
        found.append(messages[parent])
    return found[::-1]


def turns(played: Sequence[ChatMessage]) -> list[Turn]:
    """The turns of a played dialogue, from `chain`; the last has no hint where none was given."""
    found: list[Turn] = []
    for message in played:
        if message.role == "assistant":
            found.append(Turn.model_validate(message.detail["turn"]))
        elif message.role == "teacher":
            hint = Hint.model_validate(message.detail["hint"])
            found[-1] = found[-1].model_copy(update={"hint": hint})
    return found


def shown(message: ChatMessage) -> dict[str, Any]:
    """A message as the browser gets it: without the tokens, which it does not need."""
    heavy = ("token_ids", "logprobs")
    detail = {k: v for k, v in message.detail.items() if k not in heavy}
    if isinstance(turn := detail.get("turn"), dict):
        detail["turn"] = {k: v for k, v in turn.items() if k not in heavy}
    data = message.model_dump(exclude={"detail"})
    return {**data, "detail": detail}

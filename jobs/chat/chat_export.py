"""Export of a chat as JSON lines: messages in OpenAI's format, or preference pairs in TRL's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from jobs.chat import tree
from jobs.db.models import Chat, ChatMessage
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.rollout.build import build_environment
from rl2f_core.errors import ConfigError
from rl2f_core.types import JsonObject, Message, join_reply

FORMATS = ("messages", "preference")


def lines(chat: Chat, messages: Sequence[ChatMessage], kind: str) -> Iterator[str]:
    """Yield JSON lines: one per branch (`messages`), or one per preference without ties."""
    if kind not in FORMATS:
        raise ConfigError("There is no such format.", value=kind, known=FORMATS)
    known = tree.by_id(messages)
    rows = _dialogues(chat, known) if kind == "messages" else _pairs(chat, known)
    for row in rows:
        yield json.dumps(row, ensure_ascii=False) + "\n"


def _before(chat: Chat, known: tree.Messages, response: ChatMessage) -> list[Message]:
    """Return the prompt of a response with the system message."""
    assert response.parent is not None
    parent = known[response.parent]
    past = tree.chain(known, parent) if chat.mode == "play" else tree.conversation(known, parent, response.checkpoint)
    system = _system(chat)
    head = [Message(role="system", content=system)] if system else []
    return head + [Message(role="user" if m.role == "teacher" else m.role, content=_text(known, m)) for m in past]


def _text(known: tree.Messages, message: ChatMessage) -> str:
    """Return the text of a message; a hint follows the observation of a stateful environment."""
    if message.role != "teacher" or message.parent is None:
        return message.content
    verdict = known[message.parent].detail.get("turn", {}).get("verdict", {})
    return join_reply(verdict.get("observation"), message.content)


def _system(chat: Chat) -> str:
    if chat.mode == "chat":
        return str(chat.settings.get("system", ""))
    return build_environment(BaseRun.model_validate(chat.settings["config"]).environment).system_prompt()


def _dialogues(chat: Chat, known: tree.Messages) -> Iterator[JsonObject]:
    """Yield every branch with its last response."""
    continued = {number for m in known.values() for number in m.detail.get("after", {}).values()}
    continued |= {m.parent for m in known.values() if m.role == "teacher" and m.parent is not None}
    for response in known.values():
        if tree.can_continue(response) and response.id not in continued and response.parent in known:
            verdict = response.detail.get("turn", {}).get("verdict")
            yield {
                "messages": [*_before(chat, known, response), Message(role="assistant", content=response.content)],
                "checkpoint": response.checkpoint,
                "chat": chat.id,
                "message": response.id,
                **({"correct": verdict["correct"]} if verdict else {}),
            }


def _pairs(chat: Chat, known: tree.Messages) -> Iterator[JsonObject]:
    """Yield each pair with a preferred response."""
    for chosen in known.values():
        for number, choice in chosen.detail.get("preferences", {}).items():
            rejected = known.get(int(number))
            if choice == "better" and rejected is not None:
                yield {
                    "prompt": _before(chat, known, chosen),
                    "chosen": [{"role": "assistant", "content": chosen.content}],
                    "rejected": [{"role": "assistant", "content": rejected.content}],
                    "checkpoints": [chosen.checkpoint, rejected.checkpoint],
                    "chat": chat.id,
                }

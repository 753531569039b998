"""A conversation as lines of JSON: messages in OpenAI's form, or the judgements as preference pairs, in TRL's types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from jobs.chat import tree
from jobs.tables import Chat, ChatMessage
from rl2f_core.errors import ConfigError
from rl2f_core.types import Message

FORMATS = ("messages", "preference")


def lines(chat: Chat, messages: Sequence[ChatMessage], kind: str) -> Iterator[str]:
    """JSON lines; every branch of a conversation is one line of `messages`, every judgement that is no tie one pair."""
    if kind not in FORMATS:
        raise ConfigError("There is no such format.", value=kind, known=FORMATS)
    known = tree.by_id(messages)
    rows = _dialogues(chat, known) if kind == "messages" else _pairs(chat, known)
    for row in rows:
        yield json.dumps(row, ensure_ascii=False) + "\n"


def _before(chat: Chat, known: tree.Messages, answer: ChatMessage) -> list[Message]:
    """System message and everything before an answer."""
    assert answer.parent is not None
    parent = known[answer.parent]
    play = chat.mode == "play"
    past = tree.chain(known, parent) if play else tree.conversation(known, parent, answer.speaker)
    system = _system(chat)
    head: list[Message] = [{"role": "system", "content": system}] if system else []
    return head + [Message(role="user" if m.role == "teacher" else m.role, content=m.content) for m in past]


def _system(chat: Chat) -> str:
    if chat.mode == "chat":
        return str(chat.settings.get("system", ""))
    from rl2f_core.config import BaseRun
    from rl2f_core.rollout.build import build_environment

    return build_environment(BaseRun.model_validate(chat.settings["config"]).environment).system()


def _dialogues(chat: Chat, known: tree.Messages) -> Iterator[dict[str, Any]]:
    """Every branch, at its last answer."""
    gone_on = {number for m in known.values() for number in m.detail.get("after", {}).values()}
    gone_on |= {m.parent for m in known.values() if m.role == "teacher" and m.parent is not None}
    for answer in known.values():
        if tree.usable(answer) and answer.id not in gone_on and answer.parent in known:
            said: Message = {"role": "assistant", "content": answer.content}
            verdict = answer.detail.get("turn", {}).get("verdict")
            row = {"messages": [*_before(chat, known, answer), said], "speaker": answer.speaker, "chat": chat.id}
            yield {**row, "message": answer.id, **({"correct": verdict["correct"]} if verdict else {})}


def _pairs(chat: Chat, known: tree.Messages) -> Iterator[dict[str, Any]]:
    """Every pair of which one was called better, once."""
    for chosen in known.values():
        for number, choice in chosen.detail.get("preferences", {}).items():
            rejected = known.get(int(number))
            if choice == "better" and rejected is not None:
                yield {
                    "prompt": _before(chat, known, chosen),
                    "chosen": [{"role": "assistant", "content": chosen.content}],
                    "rejected": [{"role": "assistant", "content": rejected.content}],
                    "speakers": [chosen.speaker, rejected.speaker],
                    "chat": chat.id,
                }

"""Export of a chat as JSON lines: messages in OpenAI's format, or preference pairs in TRL's.

A row has the prompt that the model read: with the system message of that time, and with `prompting: reprompt` the
reprompt, so that each attempt is a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from jobs.chat import tree
from jobs.db.models import Chat, ChatMessage
from jobs.model_server.tasks import with_text_actions
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.rollout.build import build_environment
from rl2f_core.dialogue.rollout.prompting import load_reprompt_template, reprompt_text
from rl2f_core.errors import ConfigError
from rl2f_core.types import EDITED, JsonObject, Message

FORMATS = ("messages", "preference")


def lines(chat: Chat, messages: Sequence[ChatMessage], kind: str) -> Iterator[str]:
    """Yield JSON lines: one per branch (`messages`), or one per preference between responses to the same prompt."""
    if kind not in FORMATS:
        raise ConfigError("There is no such format.", value=kind, known=FORMATS)
    known = tree.by_id(messages)
    prompts = _TaskPrompts(chat, known) if chat.mode == "play" else _ChatPrompts(chat, known)
    rows = _dialogues(chat, prompts) if kind == "messages" else _pairs(chat, prompts)
    for row in rows:
        yield json.dumps(row, ensure_ascii=False) + "\n"


class _ChatPrompts:
    """What the checkpoints of a chat read before their responses."""

    def __init__(self, chat: Chat, known: tree.Messages) -> None:
        self.chat, self.known = chat, known

    def history(self, response: ChatMessage) -> list[ChatMessage]:
        """Return the messages before a response that its prompt contains."""
        return tree.conversation(self.known, self.known[response.parent or 0], response.checkpoint)

    def prompt(self, response: ChatMessage) -> list[Message] | None:
        """Return the prompt of a response; None if it is unknown."""
        system = str(response.detail.get("system", self.chat.settings.get("system", "")))
        return tree.chat_prompt(self.known, self.known[response.parent or 0], response.checkpoint, system)


class _TaskPrompts(_ChatPrompts):
    """What the checkpoints of an interactive task read before their attempts."""

    def __init__(self, chat: Chat, known: tree.Messages) -> None:
        super().__init__(chat, known)
        config = with_text_actions(BaseRun.model_validate(chat.settings["config"]))
        self.system = build_environment(config.environment).system_prompt()
        self.template = load_reprompt_template(config.rollout)

    def history(self, response: ChatMessage) -> list[ChatMessage]:
        path = tree.chain(self.known, self.known[response.parent or 0])
        return path if self.template is None else path[:1]

    def prompt(self, response: ChatMessage) -> list[Message] | None:
        path = tree.chain(self.known, self.known[response.parent or 0])
        problem, turns, template = path[0].content, tree.turns(path), self.template
        prompt = [Message(role="system", content=self.system)] if self.system else []
        if template is not None and turns:
            if response.detail.get("turn", {}).get("prompt_template") != template.version:
                return None
            return [*prompt, Message(role="user", content=reprompt_text(template, problem, turns[-1]))]
        prompt.append(Message(role="user", content=problem))
        for turn in turns:
            prompt += [Message(role="assistant", content=turn.attempt), Message(role="user", content=turn.reply)]
        return prompt


def _dialogues(chat: Chat, prompts: _ChatPrompts) -> Iterator[JsonObject]:
    """Yield every branch with its last response."""
    responses = [m for m in prompts.known.values() if tree.is_finished(m) and m.parent in prompts.known]
    earlier = {response.id: prompts.history(response) for response in responses}
    continued = {message.id for history in earlier.values() for message in history}
    for response in responses:
        prompt = None if response.id in continued else prompts.prompt(response)
        if prompt is not None:
            verdict = response.detail.get("turn", {}).get("verdict")
            yield {
                "messages": [*prompt, Message(role="assistant", content=response.content)],
                "checkpoint": _policy(response.checkpoint, [*earlier[response.id], response]),
                "chat": chat.id,
                "message": response.id,
                **({"correct": verdict["correct"]} if verdict else {}),
            }


def _pairs(chat: Chat, prompts: _ChatPrompts) -> Iterator[JsonObject]:
    """Yield each pair with a preferred response; earlier versions rated responses to different prompts, too."""
    for chosen in prompts.known.values():
        for number, choice in chosen.detail.get("preferences", {}).items():
            rejected = prompts.known.get(int(number))
            if choice == "better" and rejected and tree.are_comparable(prompts.known, chosen, rejected):
                yield {
                    "prompt": prompts.prompt(chosen),
                    "chosen": [{"role": "assistant", "content": chosen.content}],
                    "rejected": [{"role": "assistant", "content": rejected.content}],
                    "checkpoints": [_policy(m.checkpoint, [m]) for m in (chosen, rejected)],
                    "chat": chat.id,
                }


def _policy(checkpoint: str, messages: Iterable[ChatMessage]) -> str:
    """Return the author of messages as recorded dialogues name it: with a mark if a person edited one."""
    return checkpoint + EDITED if any(message.detail.get("edited") for message in messages) else checkpoint

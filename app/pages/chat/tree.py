"""Branches of a chat: which of several alternative messages a tab shows."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from jobs.chat.tree import can_continue
from jobs.db.models import MessageSummary


@dataclass(frozen=True)
class ChatTurn:
    """A user message with the shown response of each checkpoint."""

    user: MessageSummary
    responses: dict[str, MessageSummary]


class MessageTree:
    """Messages of a chat, and the selected one of each group of alternatives.

    Args:
        messages: All messages, oldest first.
        checkpoints: The checkpoints of the chat, in the order of their columns.
    """

    def __init__(self, messages: Iterable[MessageSummary] = (), checkpoints: Sequence[str] = ()) -> None:
        self.messages: dict[int, MessageSummary] = {}
        self.checkpoints = list(checkpoints)
        self._children: dict[int | None, list[int]] = {}
        self._selected: dict[Hashable, int] = {}
        for message in messages:
            self._add(message)

    @property
    def prompt(self) -> MessageSummary | None:
        """The first user message: the prompt of an interactive task."""
        return next(iter(self._find(None, "user")), None)

    def put(self, message: MessageSummary) -> None:
        """Add a message and select it, or replace a message."""
        is_new = message.id not in self.messages
        self._add(message)
        if is_new:
            self.select(message.id)

    def select(self, number: int) -> None:
        """Show the branch that contains a message."""
        message = self.messages.get(number)
        for _ in range(len(self.messages) + 1):
            if message is None:
                return
            self._selected[_group(message)] = message.id
            for response in message.detail.get("after", {}).values():
                if response in self.messages:
                    self._selected[_group(self.messages[response])] = response
            message = None if message.parent is None else self.messages.get(message.parent)

    def siblings(self, message: MessageSummary) -> list[MessageSummary]:
        """Return the alternatives of a message with itself, oldest first."""
        group = _group(message)
        same_parent = (self.messages[number] for number in self._children.get(message.parent, []))
        return [message for message in same_parent if _group(message) == group]

    def turns(self) -> list[ChatTurn]:
        """Return the turns of the shown branch of a chat."""
        turns: list[ChatTurn] = []
        parent: int | None = None
        responses: dict[str, MessageSummary] = {}
        while len(turns) <= len(self.messages):
            following = [message for message in self._find(parent, "user") if _continues(message, responses)]
            if not following:
                break
            # of continuations of different responses, the newer group is shown
            newest = list(dict.fromkeys(_group(message) for message in following))[-1]
            user = self._shown([message for message in following if _group(message) == newest])
            parent = user.id
            names = self.responding(parent)
            responses = {name: self._shown(self._find(parent, "assistant", name)) for name in names}
            turns.append(ChatTurn(user, responses))
        return turns

    def chain(self, checkpoint: str) -> list[MessageSummary]:
        """Return the shown attempts and hints of a checkpoint in an interactive task."""
        chain: list[MessageSummary] = []
        last = self.prompt
        while last is not None and len(chain) <= len(self.messages):
            role = "teacher" if last.role == "assistant" else "assistant"
            found = self._find(last.id, role, checkpoint)
            last = self._shown(found) if found else None
            if last is not None:
                chain.append(last)
        return chain

    def attempted(self) -> list[str]:
        """Return the checkpoints that have attempts at an interactive task."""
        return [] if self.prompt is None else self.responding(self.prompt.id)

    def responding(self, parent: int) -> list[str]:
        """Return the checkpoints of the responses to a message, those of the chat first."""
        found = dict.fromkeys(message.checkpoint for message in self._find(parent, "assistant"))
        return [*(c for c in self.checkpoints if c in found), *(c for c in found if c not in self.checkpoints)]

    def waiting(self) -> dict[str, MessageSummary]:
        """Return checkpoint → its last attempt, which waits for a hint."""
        last = {checkpoint: self.chain(checkpoint)[-1] for checkpoint in self.attempted()}
        return {checkpoint: message for checkpoint, message in last.items() if waits_for_hint(message)}

    def continued(self) -> tuple[int | None, dict[str, int]]:
        """Return the last user message, and checkpoint → the shown response that the next message continues.

        These may be responses of checkpoints that are not selected any more. A failed one is skipped, unless it has an
        alternative, which the next message must not continue instead.
        """
        turns = self.turns()
        if not turns:
            return None, {}
        responses = turns[-1].responses.items()
        after = {
            name: response.id
            for name, response in responses
            if can_continue(response) or (name in self.checkpoints and any(map(can_continue, self.siblings(response))))
        }
        return turns[-1].user.id, after

    def _add(self, message: MessageSummary) -> None:
        if message.id not in self.messages:
            self._children.setdefault(message.parent, []).append(message.id)
        self.messages[message.id] = message

    def _find(self, parent: int | None, role: str, checkpoint: str | None = None) -> list[MessageSummary]:
        found = (self.messages[number] for number in self._children.get(parent, []))
        return [message for message in found if message.role == role and checkpoint in (None, message.checkpoint)]

    def _shown(self, alternatives: list[MessageSummary]) -> MessageSummary:
        selected = self._selected.get(_group(alternatives[0]))
        return next((alternative for alternative in alternatives if alternative.id == selected), alternatives[-1])


def waits_for_hint(message: MessageSummary) -> bool:
    """Return whether a message is an incorrect attempt that can receive a hint."""
    detail = message.detail
    is_attempt = message.role == "assistant" and message.status != "streaming" and bool(detail.get("turn"))
    return is_attempt and not detail.get("ended")


def _group(message: MessageSummary) -> Hashable:
    if message.role == "assistant":
        return "assistant", message.parent, message.checkpoint
    if message.role == "teacher":
        return "teacher", message.parent
    return "user", message.parent, tuple(sorted(message.detail.get("after", {}).items()))


def _continues(user: MessageSummary, responses: dict[str, MessageSummary]) -> bool:
    after: dict[str, int] = user.detail.get("after", {})
    return all(name not in responses or responses[name].id == number for name, number in after.items())

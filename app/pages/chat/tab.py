"""What one browser tab shows of the page Chat."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from app.endpoints.chat import ChatEndpoints, ChatInfo, ChatMemory, ChatPage, ChatState, TaskAnswer
from app.pages.chat.tree import MessageTree
from jobs.chat.checkpoints import ChatRun, ChatSettings
from jobs.chat.turn import TurnUpdate
from jobs.db.models import MessageSummary
from rl2f_core.errors import RL2FError
from rl2f_core.types import PERSON, JsonObject

Mode = Literal["chat", "play"]
"""A chat, or an interactive task."""


class FollowedTurn:
    """A turn that a thread follows, so that no request of a browser waits for responses.

    Args:
        updates: Updates of the turn. The first one starts the turn and raises the errors of its start.
    """

    def __init__(self, updates: Iterator[TurnUpdate]) -> None:
        self.update = next(updates)
        """The newest update."""
        self.shown: TurnUpdate | None = None
        """The update that the browser shows."""
        threading.Thread(target=self._follow, args=[updates], name="chat-turn", daemon=True).start()

    def _follow(self, updates: Iterator[TurnUpdate]) -> None:
        error: JsonObject | None = self.update.error
        try:
            for update in updates:
                self.update, error = update, update.error
        except RL2FError as raised:
            error = describe(raised)
        finally:
            self.update = self.update.model_copy(update={"error": error, "ended": True})


@dataclass
class ChatTab:
    """State of one browser tab: the open chat or the settings of a new one, and the list of chats."""

    is_writable: bool = True
    """The server changes the workspace."""
    mode: Mode = "chat"
    chat: ChatInfo | None = None
    """None for a new chat."""
    tree: MessageTree = field(default_factory=MessageTree)
    is_missing: bool = False
    """The address names a chat that does not exist; `error` says so."""
    turn: FollowedTurn | None = None
    """The turn that is being sampled."""
    status: str = ""
    error: JsonObject | None = None
    answer: TaskAnswer | None = None
    actions: list[str] | None = None
    """Valid actions of the person in a stateful interactive task; None for any other chat."""
    editing: int | Literal["title"] | None = None
    """The message that is being edited, or the title."""
    sent_after: int | None = None
    """Number of messages before the text of the message field was sent; the next message clears the field."""
    without_hint: set[str] = field(default_factory=set)
    """Checkpoints that do not receive the next hint."""
    models: list[str] = field(default_factory=list)
    runs: list[ChatRun] = field(default_factory=list)
    chats: ChatPage = field(default_factory=ChatPage)
    search: str = ""
    cursor: str | None = None
    memory: ChatMemory = field(default_factory=ChatMemory)

    @property
    def id(self) -> int:
        """The open chat."""
        assert self.chat is not None
        return self.chat.id

    @property
    def is_task(self) -> bool:
        """The tab shows an interactive task."""
        return self.mode == "play"

    @property
    def is_busy(self) -> bool:
        """Responses are being sampled."""
        return self.turn is not None

    @property
    def is_over(self) -> bool:
        """Every dialogue of the interactive task has ended."""
        attempted = self.tree.attempted()
        return bool(attempted) and all(self.tree.chain(message)[-1].detail.get("ended") for message in attempted)

    def sampled(self) -> list[str]:
        """Return the checkpoints that have attempts at an interactive task, without the person."""
        return [name for name in self.tree.attempted() if name != PERSON]

    def targets(self) -> dict[str, int]:
        """Return checkpoint → the attempt that receives the next hint."""
        without = {PERSON, *self.without_hint}
        return {name: m.id for name, m in self.tree.waiting().items() if name not in without}

    def last_attempt(self) -> MessageSummary | None:
        """Return the person's last attempt on the shown branch."""
        attempts = [message for message in self.tree.chain(PERSON) if message.role == "assistant"]
        return attempts[-1] if attempts else None

    def checkpoint_name(self, checkpoint: str) -> str:
        """Return a checkpoint with the name of its run; `You` for the person."""
        if checkpoint == PERSON:
            return "You"
        number = checkpoint.partition(":")[0]
        name = next((run.name for run in self.runs if str(run.run) == number), "")
        return f"{checkpoint} · {name}" if name else checkpoint

    # -- changes ---------------------------------------------------------------------------------------------------
    def start_draft(self, mode: Mode = "chat") -> None:
        """Show the settings of a new chat."""
        self._leave()
        self.mode, self.chat, self.tree = mode, None, MessageTree()

    def fail(self, error: RL2FError) -> None:
        """Show why a chat cannot be opened."""
        self.start_draft()
        self.is_missing, self.error = True, describe(error)

    def open(self, state: ChatState, message: int | None = None) -> None:
        """Show a chat, on the branch of a message or the newest one."""
        self._leave()
        self.update(state)
        if self.tree.messages:
            self.tree.select(message if message in self.tree.messages else max(self.tree.messages))

    def update(self, state: ChatState) -> None:
        """Take over a chat as it is in the database; messages that are new to this tab are shown."""
        known = self.tree if self.chat is not None and self.chat.id == state.chat.id else MessageTree()
        self.chat = state.chat.model_copy(update={"settings": complete(state.chat.settings)})
        self.is_missing, self.mode = False, "play" if state.chat.mode == "play" else "chat"
        known.checkpoints = list(self.chat.settings["checkpoints"])
        for message in state.messages:
            known.put(message)
        self.tree = known

    def _leave(self) -> None:
        self.is_missing = False
        self.turn, self.status, self.error, self.answer, self.actions = None, "", None, None, None
        self.editing, self.sent_after, self.without_hint = None, None, set()

    # -- turns -----------------------------------------------------------------------------------------------------
    def follow(self, chat: ChatEndpoints, updates: Iterator[TurnUpdate]) -> None:
        """Follow a turn; an error of its start is shown."""
        self.error = None
        try:
            self.turn = FollowedTurn(updates)
        except RL2FError as error:
            self._note(describe(error))
        else:
            self.reload(chat)
            self.read_turn(chat)

    def read_turn(self, chat: ChatEndpoints) -> bool:
        """Read the newest update of the turn; return whether more than the text of responses has changed."""
        turn, tree = self.turn, self.tree
        if turn is None:
            return True
        update, shown, turn.shown = turn.update, turn.shown, turn.update
        for message in update.messages:
            tree.put(message)
        if self.turn is not turn:  # another request of the tab has left the chat
            return True
        self.status = update.status
        self._note(update.error)
        if update.ended:
            self.turn = None
            self.reload(chat)
        return update.ended or shown is None or _outline(shown) != _outline(update)

    def reload(self, chat: ChatEndpoints) -> None:
        """Read the open chat, the list and the memory again."""
        try:
            self.update(chat.get_chat(self.id))
        except RL2FError as error:  # deleted in another tab
            self._note(describe(error))
        if self.actions is not None:
            self.read_actions(chat)
        self.read_list(chat)
        self.read_memory(chat)

    def read_memory(self, chat: ChatEndpoints) -> None:
        """Read the state of the model process, which a read-only server does not have."""
        if self.is_writable:
            self.memory = chat.chat_memory()

    def read_actions(self, chat: ChatEndpoints) -> None:
        """Read the valid actions after the person's last attempt; none after the end."""
        last = self.last_attempt()
        if self.is_task and self.chat is not None:
            ended = last is not None and last.detail.get("ended")
            try:
                self.actions = [] if ended else chat.list_task_actions(self.id, last.id if last else None)
            except RL2FError as error:
                self._note(describe(error))

    def act(self, chat: ChatEndpoints, action: str) -> None:
        """Take an action as the student; an action of an older state is not taken."""
        if action not in (self.actions or ()):
            return
        last = self.last_attempt()
        for message in chat.take_task_action(self.id, action, last.id if last else None):
            self.tree.put(message)
        self.read_actions(chat)

    def read_list(self, chat: ChatEndpoints) -> None:
        """Read the page of the list of chats again."""
        self.chats = chat.list_chats(self.search, self.cursor)

    def _note(self, error: JsonObject | None) -> None:
        """Show an error that no message shows."""
        shown = [message.detail.get("error") or {} for message in self.tree.messages.values()]
        if error is not None and not any(
            isinstance(item, dict) and item.get("what") == error["what"] for item in shown
        ):
            self.error = error


def _outline(update: TurnUpdate) -> tuple[object, ...]:
    """Return messages with their status, and whether the progress of the turn is shown."""
    return bool(update.status), [(message.id, message.status) for message in update.messages]


def complete(settings: JsonObject) -> JsonObject:
    """Return the settings of a chat with defaults for what an earlier version did not store."""
    defaults = ChatSettings(model="?").model_dump(mode="json", exclude={"config"})
    sampling = {**defaults["sampling"], **settings.get("sampling", {})}
    return {**defaults, **settings, "sampling": sampling}


def describe(error: RL2FError) -> JsonObject:
    """Return an error as JSON."""
    known = None if error.known is None else [str(item) for item in error.known]
    return {"what": error.what, "value": error.value, "known": known, "fix": error.fix}

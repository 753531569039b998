"""What one browser tab shows of the page Chat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from app.endpoints.chat import (
    ChatEndpoints,
    ChatInfo,
    ChatMemory,
    ChatPage,
    ChatRun,
    ChatState,
    ReplyUpdate,
    TaskAnswer,
)
from app.pages._chat_tree import MessageTree
from jobs.chat.checkpoints import ChatSettings
from rl2f_core.errors import RL2FError
from rl2f_core.types import JsonObject

Mode = Literal["chat", "play"]
NO_CHATS: ChatPage = {"chats": [], "total": 0, "before": None, "after": None}
NO_MEMORY: ChatMemory = {"running": False, "busy": False, "pid": None, "model": None, "starts": 0}


@dataclass
class ChatTab:
    """State of one browser tab: the open chat or the settings of a new one, and the list of chats."""

    mode: Mode = "chat"
    chat: ChatInfo | None = None
    """None for a new chat."""
    tree: MessageTree = field(default_factory=MessageTree)
    is_missing: bool = False
    """The address names a chat that does not exist; `error` says so."""
    is_streaming: bool = False
    """Responses were being sampled when the chat was opened."""
    is_busy: bool = False
    """The tab follows responses."""
    turn: int = 0
    """Number of the turn that the tab follows; a stream of another number has been left."""
    status: str = ""
    error: JsonObject | None = None
    answer: TaskAnswer | None = None
    editing: int | Literal["title"] | None = None
    """The message that is being edited, or the title."""
    without_hint: set[str] = field(default_factory=set)
    """Checkpoints that do not receive the next hint."""
    models: list[str] = field(default_factory=list)
    runs: list[ChatRun] = field(default_factory=list)
    chats: ChatPage = field(default_factory=lambda: NO_CHATS)
    search: str = ""
    cursor: str | None = None
    memory: ChatMemory = field(default_factory=lambda: NO_MEMORY)
    request: Callable[[], Iterator[ReplyUpdate]] | None = None
    """Starts the turn that an action requested."""
    requests: int = 0
    """Number of requested turns."""
    clears_field: bool = False
    """The text of the message field becomes a message of the requested turn."""

    @property
    def id(self) -> int:
        """The open chat."""
        assert self.chat is not None
        return self.chat["id"]

    @property
    def is_over(self) -> bool:
        """Every dialogue of the interactive task has ended."""
        players = self.tree.players()
        return bool(players) and all(self.tree.chain(each)[-1]["detail"].get("ended") for each in players)

    def targets(self) -> dict[str, int]:
        """Return checkpoint → the attempt that receives the next hint."""
        return {name: m["id"] for name, m in self.tree.waiting().items() if name not in self.without_hint}

    def checkpoint_name(self, checkpoint: str) -> str:
        """Return a checkpoint with the name of its run."""
        number = checkpoint.partition(":")[0]
        name = next((run["name"] for run in self.runs if str(run["run"]) == number), "")
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
        self.is_streaming = state["streaming"]
        if self.tree.messages:
            self.tree.select(message if message in self.tree.messages else max(self.tree.messages))

    def start(self, request: Callable[[], Iterator[ReplyUpdate]], *, clears_field: bool = False) -> None:
        """Request a turn; the tab follows it when the browser has seen that `requests` changed."""
        self.request, self.clears_field = request, clears_field
        self.requests += 1

    def update(self, state: ChatState) -> None:
        """Take over a chat as it is in the database; messages that are new to this tab are shown."""
        known = self.tree if self.chat is not None and self.chat["id"] == state["chat"]["id"] else MessageTree()
        self.chat, self.is_missing = {**state["chat"], "settings": complete(state["chat"]["settings"])}, False
        self.mode = "play" if state["chat"]["mode"] == "play" else "chat"
        known.checkpoints = list(self.chat["settings"]["checkpoints"])
        for message in state["messages"]:
            known.put(message)
        self.tree = known

    def _leave(self) -> None:
        self.turn += 1
        self.is_busy = self.is_missing = False
        self.status, self.error, self.answer, self.editing, self.request = "", None, None, None, None
        self.without_hint = set()

    # -- following -------------------------------------------------------------------------------------------------
    def follow(self, chat: ChatEndpoints, updates: Iterator[ReplyUpdate]) -> Iterator[bool]:
        """Follow a turn until it ends, or until the tab shows something else.

        Yields True if more than the text of responses has changed.
        """
        self.turn += 1
        turn = self.turn
        self.is_busy, self.status, self.error = True, "", None
        yield True
        known: list[tuple[int, str]] = []
        try:
            for update in updates:
                if self.turn != turn:
                    yield True  # the browser may have received an update of this turn after the other content
                    return
                for message in update["messages"]:
                    self.tree.put(message)
                if not known:
                    self._read_title(chat)
                found = [(message["id"], message["status"]) for message in update["messages"]]
                has_changed = found != known or (self.status != "" and update["status"] == "")
                known, self.status = found, update["status"]
                self._note(update["error"])
                if not update["ended"]:
                    yield has_changed
        except RL2FError as error:
            self._note(describe(error))
        if self.turn == turn:
            self.is_busy, self.status = False, ""
            self.reload(chat)
            yield True

    def reload(self, chat: ChatEndpoints) -> None:
        """Read the open chat, the list and the memory again."""
        try:
            self.update(chat.get_chat(self.id))
        except RL2FError as error:  # deleted in another tab
            self._note(describe(error))
        self.read_list(chat)
        self.memory = chat.chat_memory()

    def read_list(self, chat: ChatEndpoints) -> None:
        """Read the page of the list of chats again."""
        self.chats = chat.list_chats(self.search, self.cursor)

    def _read_title(self, chat: ChatEndpoints) -> None:
        """Read the list; a chat's first message becomes its title."""
        self.read_list(chat)
        title = next((row["title"] for row in self.chats["chats"] if row["id"] == self.id), None)
        if self.chat is not None and title is not None:
            self.chat = {**self.chat, "title": title}

    def _note(self, error: JsonObject | None) -> None:
        """Show an error that no message shows."""
        shown = [message["detail"].get("error") or {} for message in self.tree.messages.values()]
        if error is not None and not any(
            isinstance(each, dict) and each.get("what") == error["what"] for each in shown
        ):
            self.error = error


def complete(settings: JsonObject) -> JsonObject:
    """Return the settings of a chat with defaults for what an earlier version did not store."""
    defaults = ChatSettings(model="?").model_dump(mode="json", exclude={"config"})
    sampling = {**defaults["sampling"], **settings.get("sampling", {})}
    return {**defaults, **settings, "sampling": sampling}


def describe(error: RL2FError) -> JsonObject:
    """Return an error as JSON."""
    known = None if error.known is None else [str(each) for each in error.known]
    return {"what": error.what, "value": error.value, "known": known, "fix": error.fix}

"""Chats with base models and checkpoints, and interactive tasks: a person solves a task with the model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Literal, cast

from pydantic import Field
from typing_extensions import TypedDict

from app.common.context import Context
from app.endpoints.endpoint import endpoint
from app.endpoints.types import ShortText
from jobs.chat import tree
from jobs.chat.chat_export import lines
from jobs.chat.checkpoints import MAX_CHECKPOINTS, MAX_TEXT, ChatSampling, ChatSettings, known_models, run_choices
from jobs.chat.service import ChatService
from jobs.chat.turn import Turn
from jobs.db.models import Chat, ChatMessage
from jobs.db.queries import chats
from rl2f_core.types import JsonObject

STREAM_INTERVAL_SECONDS = 0.04
"""Minimum interval of two updates of a growing response."""

ChatId = Annotated[int, Field(ge=1, le=2**31 - 1)]
MessageId = Annotated[int, Field(ge=1, le=2**31 - 1)]
Device = Literal["auto", "cpu", "cuda", "mps"]
Split = Literal["train", "validation", "test"]


class ChatRun(TypedDict):
    """A run with the checkpoints that can chat."""

    run: int
    name: str
    model: str
    """Base model of its checkpoints."""
    environment: str
    checkpoints: list[str]
    """Names for `RUN:CHECKPOINT`, e.g. `17:rl2f@20`."""


class ChatModels(TypedDict):
    """Base models and checkpoints that can chat."""

    models: list[str]
    runs: list[ChatRun]


class ChatLimits(TypedDict):
    """Limits of the settings of a chat."""

    sampling: dict[str, JsonObject]
    """Sampling parameter → JSON schema with default, limits and description."""
    max_turns: JsonObject
    """JSON schema of the attempts at an interactive task."""
    max_text: int
    """Maximum characters of a message."""
    max_checkpoints: int


class ChatSummary(TypedDict):
    """A chat in the list."""

    id: int
    title: str
    mode: str
    created: float
    changed: float


class ChatPage(TypedDict):
    """A page of chats, last changed first; `before` and `after` are cursors of the neighboring pages."""

    chats: list[ChatSummary]
    total: int | None
    before: str | None
    after: str | None


class ChatInfo(ChatSummary):
    """A chat with its settings."""

    settings: JsonObject
    """Fields of `jobs.chat.checkpoints.ChatSettings` except `config`."""
    environment: JsonObject | None
    """Configuration of the environment of an interactive task."""
    task: JsonObject | None
    """The interactive task without privileged data."""


class ChatMessageInfo(TypedDict):
    """A message of a chat; messages form a tree (see `jobs.chat.tree`)."""

    id: int
    chat_id: int
    parent: int | None
    role: str
    """user, assistant, or teacher (a hint)."""
    checkpoint: str
    content: str
    status: str
    """done, streaming, stopped or failed."""
    detail: JsonObject
    """Verdict, hint, leak report, token count, seconds, error."""
    time: float


class ChatState(TypedDict):
    """A chat with all its messages."""

    chat: ChatInfo
    messages: list[ChatMessageInfo]
    streaming: bool
    """Responses are being sampled."""


class TurnUpdate(TypedDict):
    """State of a turn of a chat. Each update contains the whole text so far."""

    status: str
    """Progress before the first token, e.g. `Loading tiny …`."""
    messages: list[ChatMessageInfo]
    """Messages that the turn has added, one response per checkpoint."""
    error: JsonObject | None
    """what, value, known, fix; responses that had not ended are `failed`."""
    ended: bool
    """This is the last update."""


class TaskAnswer(TypedDict):
    """Data that the student does not see."""

    answer: str
    privileged: JsonObject


class ChatMemory(TypedDict):
    """State of the model process."""

    running: bool
    busy: bool
    """Responses are being sampled."""
    pid: int | None
    model: str | None
    """Base model in memory."""
    starts: int
    """Number of process starts."""
    served: list[str] | None
    """Names of the models that OpenAI clients can use."""
    url: str | None
    """Base URL of OpenAI clients, on this machine."""
    requests: int | None
    """Requests of OpenAI clients since the start."""
    bytes: int | None
    """Memory of the process."""


class ServedModels(TypedDict):
    """Models that OpenAI clients can use."""

    url: str
    """Base URL."""
    api_key: str
    models: list[str]
    """Names of models, `RUN@CHECKPOINT` with the folder of the run."""


class ChatEndpoints:
    """Endpoints of the page *Chat*.

    A chat samples one turn at a time. The responses of a turn continue if nobody follows them; `follow_chat` attaches
    to them from any position.

    Args:
        context: The workspace and its services.
        service: Chats of this workspace; by default a new service with its own model process.
    """

    def __init__(self, context: Context, service: ChatService | None = None) -> None:
        self._context = context
        self._service = service or ChatService(context.db, context.workspace, context.chat_limits)

    def close(self) -> None:
        """End the model process."""
        self._service.close()

    # -- chats -----------------------------------------------------------------------------------------------------
    @endpoint("read")
    def list_chat_models(self) -> ChatModels:
        """List the base models and the checkpoints that can chat."""
        choices = run_choices(self._context.db, self._context.workspace)
        runs = [cast(ChatRun, asdict(choice)) for choice in choices]
        return {"models": known_models(self._context.db), "runs": runs}

    @endpoint("read")
    def chat_limits(self) -> ChatLimits:
        """Return the limits of sampling parameters, turns, messages and checkpoints."""
        fields = ChatSampling.model_json_schema()["properties"]
        return {
            "sampling": {name: {**field, "title": None} for name, field in fields.items()},
            "max_turns": ChatSettings.model_json_schema()["properties"]["max_turns"],
            "max_text": MAX_TEXT,
            "max_checkpoints": MAX_CHECKPOINTS,
        }

    @endpoint("read")
    def list_chats(
        self, search: ShortText = "", cursor: ShortText | None = None, limit: Annotated[int, Field(ge=1, le=100)] = 40
    ) -> ChatPage:
        """List chats, last changed first.

        Args:
            search: Words of a title or a message.
            cursor: `before` or `after` of another page.
            limit: Chats per page.
        """
        page = chats.page(self._context.db, search, cursor, limit)
        rows = [_summary(row) for row in page.rows]
        return {"chats": rows, "total": page.total, "before": page.before, "after": page.after}

    @endpoint("read")
    def get_chat(self, chat: ChatId) -> ChatState:
        """Return a chat with all its messages."""
        row, messages = self._service.read(chat)
        shown = [_message(message) for message in messages]
        return {"chat": _info(row), "messages": shown, "streaming": self._service.live(chat) is not None}

    @endpoint("run")
    def start_chat(
        self,
        model: str,
        checkpoints: list[str] | None = None,
        sampling: JsonObject | None = None,
        system: str = "",
        device: Device = "auto",
    ) -> ChatInfo:
        """Start a chat; `send_message` sends its first message.

        Args:
            model: Base model, see `list_chat_models`.
            checkpoints: `base` and checkpoints such as `17:rl2f@20`; by default `["base"]`. All respond side by side.
            sampling: max_new_tokens, temperature, top_p and seed, see `chat_limits`.
            system: System message.
            device: Where the model runs.
        """
        settings = {"model": model, "checkpoints": checkpoints or ["base"], "sampling": sampling or {}}
        return _info(self._service.create({**settings, "system": system, "device": device}))

    @endpoint("run")
    def start_task_chat(
        self,
        source: Annotated[str, Field(min_length=1, max_length=300)],
        model: str,
        checkpoints: list[str] | None = None,
        split: Split = "test",
        index: Annotated[int, Field(ge=0, lt=2**31)] | None = None,
        sampling: JsonObject | None = None,
        max_turns: Annotated[int, Field(ge=1, le=64)] | None = None,
        device: Device = "auto",
    ) -> ChatInfo:
        """Start an interactive task; `continue_task_chat` samples the first attempts.

        Args:
            source: Run or preset whose environment sets the task: `run:17` or `preset:quickstart`.
            model: Base model, see `list_chat_models`.
            checkpoints: `base` and checkpoints such as `17:rl2f@20`; by default `["base"]`.
            split: Split of the task.
            index: Position of the task in the split; by default random.
            sampling: max_new_tokens, temperature, top_p and seed; by default those of the source's rollout.
            max_turns: Maximum attempts; by default that of the source's rollout.
            device: Where the model runs.
        """
        settings: JsonObject = {"model": model, "checkpoints": checkpoints or ["base"], "device": device}
        settings |= {"source": source, "split": split, "index": index, "sampling": sampling}
        return _info(self._service.create(settings if max_turns is None else {**settings, "max_turns": max_turns}))

    @endpoint("run")
    def change_chat(self, chat: ChatId, title: str | None = None, settings: JsonObject | None = None) -> ChatInfo:
        """Rename a chat, or change its settings.

        Args:
            chat: The chat.
            title: New title.
            settings: New model, checkpoints, sampling, system or device.
        """
        return _info(self._service.change(chat, title=title, changes=settings))

    @endpoint("run")
    def delete_chat(self, chat: ChatId) -> None:
        """Delete a chat with its messages; recorded dialogues of interactive tasks remain."""
        self._service.remove(chat)

    @endpoint("read")
    def export_chat(self, chat: ChatId, format: Literal["messages", "preference"] = "messages") -> str:
        """Return a chat as JSON lines: one per branch (`messages`), or one per rated pair (`preference`)."""
        row, messages = self._service.read(chat)
        return "".join(lines(row, messages, format))

    # -- turns -----------------------------------------------------------------------------------------------------
    @endpoint("run")
    def send_message(
        self, chat: ChatId, text: str, parent: MessageId | None = None, after: dict[str, MessageId] | None = None
    ) -> Iterator[TurnUpdate]:
        """Send a message, and stream the responses of all checkpoints.

        Args:
            chat: A chat that is not an interactive task.
            text: The message.
            parent: The previous user message; None at the start of a chat.
            after: Checkpoint → the response that it continues; by default its newest.
        """
        yield from _updates(self._service.send(chat, text, parent, after))

    @endpoint("run")
    def continue_task_chat(
        self,
        chat: ChatId,
        after: dict[str, MessageId] | None = None,
        hint_by: Literal["scripted", "person"] = "scripted",
        hint: str = "",
    ) -> Iterator[TurnUpdate]:
        """Give a hint on the last attempts of an interactive task, and stream the next attempts.

        Args:
            chat: An interactive task.
            after: Checkpoint → its incorrect attempt that receives the hint; None samples the first attempts.
            hint_by: The scripted teacher of the environment, or a person.
            hint: The person's hint; the leak detectors check it.
        """
        yield from _updates(self._service.play_turn(chat, after or {}, hint_by, hint))

    @endpoint("run")
    def retry_response(self, chat: ChatId, response: MessageId) -> Iterator[TurnUpdate]:
        """Sample an alternative to a response or attempt with another seed, and stream it."""
        yield from _updates(self._service.regenerate(chat, response))

    @endpoint("run")
    def edit_message(self, chat: ChatId, message: MessageId, text: str) -> Iterator[TurnUpdate]:
        """Add an edited copy of a message, and stream the responses to it.

        An edited attempt of an interactive task is verified. An edited response or attempt has no further responses.
        """
        made = self._service.edit(chat, message, text)
        if isinstance(made, ChatMessage):
            yield {"status": "", "messages": [_message(made)], "error": None, "ended": True}
        else:
            yield from _updates(made)

    @endpoint("read")
    def follow_chat(self, chat: ChatId) -> Iterator[TurnUpdate]:
        """Stream the responses that are being sampled; without any, yield one update that has `ended`."""
        turn = self._service.live(chat)
        if turn is None:
            yield {"status": "", "messages": [], "error": None, "ended": True}
        else:
            yield from _updates(turn)

    @endpoint("run")
    def stop_responses(self, chat: ChatId) -> None:
        """Stop the responses of a chat after their current token; their text is kept."""
        self._service.stop(chat)

    @endpoint("run")
    def rate_response(
        self,
        chat: ChatId,
        response: MessageId,
        other: MessageId,
        choice: Literal["better", "worse", "tie"] | None = None,
    ) -> list[ChatMessageInfo]:
        """Rate a response against another one to the same message, and return both.

        Args:
            chat: The chat.
            response: The rated response.
            other: The response that it is compared with.
            choice: Whether `response` is better; None removes the rating.
        """
        return [_message(message) for message in chats.prefer(self._context.db, chat, response, other, choice)]

    # -- interactive tasks -----------------------------------------------------------------------------------------
    @endpoint("read")
    def list_task_actions(self, chat: ChatId, after: MessageId | None = None) -> list[str] | None:
        """List the valid actions of a person in a stateful interactive task; None if its environment has no state.

        Args:
            chat: An interactive task.
            after: The person's last attempt; None at the start.
        """
        return self._service.actions(chat, after)

    @endpoint("run")
    def take_task_action(
        self, chat: ChatId, action: ShortText, after: MessageId | None = None
    ) -> list[ChatMessageInfo]:
        """Take an action as the student of a stateful interactive task, without a model.

        Returns the new messages: an empty hint after an earlier attempt, and the attempt with its observation.

        Args:
            chat: An interactive task.
            action: The action. An invalid one uses an attempt.
            after: The person's last attempt; None at the start.
        """
        return [_message(message) for message in self._service.act(chat, action, after)]

    @endpoint("run")
    def end_task_chat(self, chat: ChatId, attempt: MessageId) -> ChatMessageInfo:
        """End an unsolved interactive task at its last attempt, and record the dialogue."""
        return _message(self._service.finish(chat, attempt))

    @endpoint("read")
    def get_task_answer(self, chat: ChatId) -> TaskAnswer:
        """Return the gold answer and the privileged data of an interactive task."""
        return cast(TaskAnswer, self._service.answer(chat))

    # -- the model process -----------------------------------------------------------------------------------------
    @endpoint("read")
    def chat_memory(self) -> ChatMemory:
        """Return which model is in memory for chats."""
        state = self._service.process.state()
        state["busy"] = state["running"] and self._service.is_busy
        return cast(ChatMemory, {name: state.get(name) for name in ChatMemory.__annotations__})

    @property
    def api_key(self) -> str | None:
        """API key of the OpenAI clients of served checkpoints; None if the model process is not running."""
        return self._service.process.api_key

    @endpoint("run")
    def serve_checkpoint(
        self, run: Annotated[int, Field(ge=1, le=2**31 - 1)], checkpoint: Annotated[str, Field(max_length=100)]
    ) -> ServedModels:
        """Serve a checkpoint and its base model to OpenAI clients on this machine, beside the chats.

        They stay served until `unload_chat_model`; while nobody sends requests, the model is unloaded.

        Args:
            run: A run.
            checkpoint: One of its checkpoints, e.g. `rl2f@20`.
        """
        self._service.serve(run, checkpoint)
        memory = self.chat_memory()
        return {"url": memory["url"] or "", "api_key": self.api_key or "", "models": memory["served"] or []}

    @endpoint("run")
    def unload_chat_model(self) -> ChatMemory:
        """End the model process, which frees its memory and serves no checkpoint; the next message starts it again."""
        self._service.process.unload()
        return self.chat_memory()


def _updates(turn: Turn) -> Iterator[TurnUpdate]:
    """Yield the state of a turn at once and after each change, until it ends."""
    shown, ended = -1, False
    while not ended:
        if turn.version != shown:
            shown, update = turn.version, cast(TurnUpdate, turn.state())
            ended = update["ended"]
            yield update
        if not ended:
            time.sleep(STREAM_INTERVAL_SECONDS)


def _message(message: ChatMessage) -> ChatMessageInfo:
    return cast(ChatMessageInfo, tree.to_json(message))


def _summary(chat: Chat) -> ChatSummary:
    return cast(ChatSummary, chat.model_dump(include=set(ChatSummary.__annotations__)))


def _info(chat: Chat) -> ChatInfo:
    """Return a chat without the privileged data of its task."""
    return {
        **_summary(chat),
        "settings": {name: value for name, value in chat.settings.items() if name != "config"},
        "environment": chat.settings.get("config", {}).get("environment"),
        "task": None if chat.task is None else {k: v for k, v in chat.task.items() if k != "privileged"},
    }

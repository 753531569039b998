"""Chats with base models and checkpoints, and interactive tasks: a person solves a task with the model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from app.common.known_values import check_checkpoint
from app.endpoints.endpoint import Endpoints, endpoint
from app.endpoints.types import RunId, ShortText, from_row
from jobs.chat.chat_export import lines
from jobs.chat.checkpoints import (
    MAX_CHECKPOINTS,
    MAX_TEXT,
    ChatRun,
    ChatSampling,
    ChatSettings,
    known_models,
    run_choices,
)
from jobs.chat.service import ChatService
from jobs.chat.tree import without_tokens
from jobs.chat.turn import Turn, TurnUpdate
from jobs.db.models import Chat, ChatMessage, ChatSummary, MessageSummary
from jobs.db.queries import chats
from rl2f_core.types import FrozenModel, JsonObject, Split

STREAM_INTERVAL_SECONDS = 0.04
"""Minimum interval of two updates of a growing response."""

ChatId = Annotated[int, Field(ge=1, le=2**31 - 1, description="Number of a chat.")]
MessageId = Annotated[int, Field(ge=1, le=2**31 - 1, description="Number of a message.")]
Device = Literal["auto", "cpu", "cuda", "mps"]


class ChatModels(FrozenModel):
    """Base models and checkpoints that can chat."""

    models: list[str]
    """Names of the base models."""
    runs: list[ChatRun]
    """The newest training runs with checkpoints."""


class ChatLimits(FrozenModel):
    """Limits of the settings of a chat."""

    sampling: dict[str, JsonObject]
    """Sampling parameter → JSON schema with default, limits and description."""
    max_turns: JsonObject
    """JSON schema of the attempts at an interactive task."""
    max_text: int
    """Maximum characters of a message."""
    max_checkpoints: int
    """Maximum number of checkpoints."""


class ChatPage(FrozenModel):
    """A page of chats, last changed first; `before` and `after` are cursors of the neighboring pages."""

    chats: Sequence[ChatSummary] = ()
    """The chats of the page."""
    total: int | None = 0
    """Number of all chats that match."""
    before: str | None = None
    """Cursor of the previous page."""
    after: str | None = None
    """Cursor of the next page."""


class ChatInfo(ChatSummary):
    """A chat with its settings."""

    settings: JsonObject
    """Model, checkpoints, sampling, system message and device; of an interactive task also source, split and index."""
    environment: JsonObject | None
    """Configuration of the environment of an interactive task."""
    task: JsonObject | None
    """The interactive task without privileged data."""


class ChatState(FrozenModel):
    """A chat with all its messages."""

    chat: ChatInfo
    """The chat."""
    messages: list[MessageSummary]
    """Its messages, oldest first."""
    streaming: bool
    """Responses are being sampled."""


class TaskAnswer(FrozenModel):
    """Data that the student does not see."""

    answer: str
    """The gold answer."""
    privileged: JsonObject
    """The task's privileged data."""


class ChatMemory(FrozenModel):
    """State of the model process."""

    running: bool = False
    """The process runs."""
    busy: bool = False
    """Responses are being sampled."""
    pid: int | None = None
    """Number of the process."""
    model: str | None = None
    """Base model in memory."""
    starts: int = 0
    """Number of process starts."""
    served: list[str] | None = None
    """Names of the models that OpenAI clients can use."""
    url: str | None = None
    """Base URL of OpenAI clients, on this machine."""
    requests: int | None = None
    """Requests of OpenAI clients since the start."""
    bytes: int | None = None
    """Memory of the process."""


class ServedModels(FrozenModel):
    """Models that OpenAI clients can use."""

    url: str
    """Base URL."""
    api_key: str
    """Key of the requests."""
    models: list[str]
    """Names of models, `RUN@CHECKPOINT` with the folder of the run."""


class ChatEndpoints(Endpoints):
    """Endpoints of the page *Chat*.

    A chat samples one turn at a time. The responses of a turn continue if nobody follows them; `follow_chat` attaches
    to them from any position.
    """

    @property
    def _service(self) -> ChatService:
        return self._context.chat_service

    # -- chats -----------------------------------------------------------------------------------------------------
    @endpoint("read")
    def list_chat_models(self) -> ChatModels:
        """List the base models and the checkpoints that can chat."""
        db = self._context.db
        return ChatModels(models=known_models(db), runs=run_choices(db, self._context.workspace))

    @endpoint("read")
    def chat_limits(self) -> ChatLimits:
        """Return the limits of sampling parameters, turns, messages and checkpoints."""
        fields = ChatSampling.model_json_schema()["properties"]
        return ChatLimits(
            sampling={name: {**field, "title": None} for name, field in fields.items()},
            max_turns=ChatSettings.model_json_schema()["properties"]["max_turns"],
            max_text=MAX_TEXT,
            max_checkpoints=MAX_CHECKPOINTS,
        )

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
        return ChatPage(chats=page.rows, total=page.total, before=page.before, after=page.after)

    @endpoint("read")
    def get_chat(self, chat: ChatId) -> ChatState:
        """Return a chat with all its messages."""
        row, messages = self._service.read(chat)
        shown = list(map(without_tokens, messages))
        streaming = self._service.live(chat) is not None or any(message.status == "streaming" for message in messages)
        return ChatState(chat=_info(row), messages=shown, streaming=streaming)

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
            title: New title.
            settings: New model, checkpoints, sampling, system or device. Other sampling parameters are kept.
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
    @endpoint("run", uses_models=True)
    def send_message(
        self, chat: ChatId, text: str, parent: MessageId | None = None, after: dict[str, MessageId] | None = None
    ) -> Iterator[TurnUpdate]:
        """Send a message, and stream the responses of all checkpoints.

        Args:
            chat: A chat that is not an interactive task.
            text: The message.
            parent: The previous user message; None at the start of a chat.
            after: Checkpoint, also one that is not selected any more → the response that it continues; by default its
                newest. A checkpoint without a response continues the first of these.
        """
        yield from _updates(self._service.send(chat, text, parent, after))

    @endpoint("run", uses_models=True)
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

    @endpoint("run", uses_models=True)
    def retry_response(self, chat: ChatId, response: MessageId) -> Iterator[TurnUpdate]:
        """Sample an alternative to a response or attempt with another seed, and stream it."""
        yield from _updates(self._service.regenerate(chat, response))

    @endpoint("run", uses_models=True)
    def edit_message(self, chat: ChatId, message: MessageId, text: str) -> Iterator[TurnUpdate]:
        """Add an edited copy of a message, and stream the responses to it.

        An edited attempt of an interactive task is verified. An edited response or attempt has no further responses.
        """
        made = self._service.edit(chat, message, text)
        if isinstance(made, ChatMessage):
            yield TurnUpdate(status="", messages=[without_tokens(made)], error=None, ended=True)
        else:
            yield from _updates(made)

    @endpoint("read", uses_models=True)
    def follow_chat(self, chat: ChatId) -> Iterator[TurnUpdate]:
        """Stream the responses that are being sampled; without any, yield one update that has `ended`."""
        chats.get(self._context.db, chat)
        turn = self._service.live(chat)
        if turn is None:
            yield TurnUpdate(status="", messages=[], error=None, ended=True)
        else:
            yield from _updates(turn)

    @endpoint("run", uses_models=True)
    def stop_responses(self, chat: ChatId) -> None:
        """Stop the responses of a chat after their current token; their text is kept."""
        chats.get(self._context.db, chat)
        self._service.stop(chat)

    @endpoint("run")
    def rate_response(
        self,
        chat: ChatId,
        response: MessageId,
        other: MessageId,
        choice: Literal["better", "worse", "tie"] | None = None,
    ) -> list[MessageSummary]:
        """Rate a finished response against another one to the same prompt, and return both.

        Args:
            response: The rated response.
            other: The response that it is compared with.
            choice: Whether `response` is better; None removes the rating.
        """
        return list(map(without_tokens, self._service.rate(chat, response, other, choice)))

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
    def take_task_action(self, chat: ChatId, action: ShortText, after: MessageId | None = None) -> list[MessageSummary]:
        """Take an action as the student of a stateful interactive task, without a model.

        Returns the new messages: an empty hint after an earlier attempt, and the attempt with its observation.

        Args:
            chat: An interactive task.
            action: The action. An invalid one uses an attempt.
            after: The person's last attempt; None at the start.
        """
        return list(map(without_tokens, self._service.act(chat, action, after)))

    @endpoint("run")
    def end_task_chat(self, chat: ChatId, attempt: MessageId) -> MessageSummary:
        """End an unsolved interactive task at its last attempt, and record the dialogue."""
        return without_tokens(self._service.finish(chat, attempt))

    @endpoint("read")
    def get_task_answer(self, chat: ChatId) -> TaskAnswer:
        """Return the gold answer and the privileged data of an interactive task."""
        return TaskAnswer(**self._service.answer(chat))

    # -- the model process -----------------------------------------------------------------------------------------
    @endpoint("read", uses_models=True)
    def chat_memory(self) -> ChatMemory:
        """Return which model is in memory for chats."""
        state = self._service.process.state()
        state["busy"] = state["running"] and self._service.is_busy
        return ChatMemory(**{name: state[name] for name in ChatMemory.model_fields if name in state})

    @property
    def api_key(self) -> str | None:
        """API key of the OpenAI clients of served checkpoints; None if the model process is not running."""
        return self._service.process.api_key

    @endpoint("run", uses_models=True)
    def serve_checkpoint(self, run: RunId, checkpoint: Annotated[str, Field(max_length=100)]) -> ServedModels:
        """Serve a checkpoint and its base model to OpenAI clients on this machine, beside the chats.

        They stay served until `unload_chat_model`; while nobody sends requests, the model is unloaded.

        Args:
            checkpoint: One of its checkpoints, e.g. `rl2f@20`.
        """
        check_checkpoint(self._context.db, run, checkpoint)
        self._service.serve(run, checkpoint)
        memory = self.chat_memory()
        return ServedModels(url=memory.url or "", api_key=self.api_key or "", models=memory.served or [])

    @endpoint("run", uses_models=True)
    def unload_chat_model(self) -> ChatMemory:
        """End the model process, which frees its memory and serves no checkpoint; the next message starts it again."""
        self._service.process.unload()
        return self.chat_memory()


def _updates(turn: Turn) -> Iterator[TurnUpdate]:
    """Yield the state of a turn at once and after each change, until it ends."""
    shown, ended = -1, False
    while not ended:
        if turn.version != shown:
            shown, update = turn.version, turn.state()
            ended = update.ended
            yield update
        if not ended:
            time.sleep(STREAM_INTERVAL_SECONDS)


def _info(chat: Chat) -> ChatInfo:
    """Return a chat without the privileged data of its task."""
    return from_row(
        ChatInfo,
        chat,
        settings={name: value for name, value in chat.settings.items() if name != "config"},
        environment=chat.settings.get("config", {}).get("environment"),
        task=None if chat.task is None else {k: v for k, v in chat.task.items() if k != "privileged"},
    )

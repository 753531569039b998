"""Chats: each operation validates, writes its rows, and starts inference in a thread."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jobs.chat import dialogue_log, tree
from jobs.chat.checkpoints import MAX_TEXT, ChatSettings, ResolvedCheckpoints, parse_settings, resolve_checkpoints
from jobs.chat.interactive_task import InteractiveTask, make_task, shared_fields
from jobs.chat.turn import ResponseSlot, Turn
from jobs.db.errors import NotFoundError
from jobs.db.models import Chat, ChatMessage
from jobs.db.queries import chats, runs
from jobs.model_server.limits import STUDIO_LIMITS, ServerLimits
from jobs.model_server.models import base_name
from jobs.model_server.process import ModelProcess
from rl2f_core import types
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config.loading import parse_recorded
from rl2f_core.config.presets import preset, presets
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.rollout.dialogue_builder import stop_reason
from rl2f_core.dialogue.rollout.engine import derive_seed, turn_seed
from rl2f_core.errors import ConfigError, DataError, RL2FError, RunError, nearest_names, shorten
from rl2f_core.types import PERSON, Hint, JsonObject, StopReason, Task

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.workspace import Workspace

CHANGEABLE = ("model", "checkpoints", "sampling", "system", "device")
"""Settings of a chat that can be changed later."""
MAX_KNOWN = 20
"""Newest messages that an error about an unknown one lists."""


@dataclass
class _OpenChat:
    """A chat with its settings and messages."""

    row: Chat
    messages: dict[int, ChatMessage]
    settings: ChatSettings

    @property
    def id(self) -> int:
        assert self.row.id is not None
        return self.row.id

    @property
    def task(self) -> InteractiveTask:
        """The interactive task; raises `RunError` if the chat is a conversation."""
        if self.row.task is None:
            raise RunError("This chat is not an interactive task.", fix="Reload the page.")
        return InteractiveTask(self.settings.config, Task.model_validate(self.row.task))

    def turns(self, leaf: ChatMessage) -> list[types.Turn]:
        """Return the turns of an interactive task until a message."""
        return tree.turns(tree.chain(self.messages, leaf))

    def seed(self, alternative: int) -> int:
        """Return the chat's seed, or a derived one for the n-th alternative of a response."""
        seed = self.settings.sampling.seed
        return seed if alternative == 0 else derive_seed(seed, "again", alternative)

    def message(self, number: int, role: str | None = None) -> ChatMessage:
        """Return a message; raises `UnknownChatError` if there is none with this role."""
        message = self.messages.get(number)
        if message is None or role not in (None, message.role):
            what = "response" if role == "assistant" else "message"
            raise self._unknown(what, number, [m for m in self.messages.values() if role in (None, m.role)])
        return message

    def _unknown(self, what: str, number: int, known: Iterable[ChatMessage]) -> chats.UnknownChatError:
        ids = [str(message.id) for message in known][-MAX_KNOWN:]
        return chats.UnknownChatError(f"There is no such {what}.", value=number, known=ids, fix="Reload the page.")

    def open_attempt(self, number: int, checkpoint: str | None = None) -> ChatMessage:
        """Return an attempt whose dialogue continues; raises `UnknownChatError` or `RunError`."""
        attempts = {
            id: m for id, m in self.messages.items() if "turn" in m.detail and checkpoint in (None, m.checkpoint)
        }
        if (message := attempts.get(number)) is None:
            raise self._unknown("attempt", number, attempts.values())
        if message.detail.get("ended"):
            raise RunError(
                f"This dialogue has ended already ({message.detail['ended']}).", fix="Branch at an earlier message."
            )
        return message


class ChatService:
    """All chats of a workspace and their model process."""

    def __init__(self, db: Database, workspace: Workspace, limits: ServerLimits = STUDIO_LIMITS) -> None:
        self.db = db
        self.workspace = workspace
        self.process = ModelProcess(workspace.root / "chat.log", limits)
        self._live: dict[int, Turn] = {}

    # -- chats -------------------------------------------------------------------------------------------------
    def create(self, data: JsonObject) -> Chat:
        """Create a chat. With `source` it is an interactive task; `index` None samples one.

        Raises `ConfigError` for a wrong setting, and the errors of `resolve_checkpoints`.
        """
        if "config" in data:
            raise ConfigError(
                "The configuration of a task comes from its source.", fix="Name a run or a preset as source."
            )
        if not data.get("source"):
            settings = parse_settings(data)
            self._resolve(settings)
            return chats.create(self.db, "New chat", "chat", settings.model_dump(mode="json"))
        config = self._source_config(str(data["source"]))
        rollout = config.rollout
        index = random.randrange(10_000) if data.get("index") is None else data["index"]
        sampling = rollout.model_dump(include={"max_new_tokens", "temperature", "top_p"}) | (data.get("sampling") or {})
        shared = shared_fields(config)
        settings = parse_settings(
            {"max_turns": rollout.max_turns, **data, "index": index, "sampling": sampling, "config": shared}
        )
        self._resolve(settings)
        task, problem = make_task(settings.config, settings.split, settings.index)
        dumped = settings.model_dump(mode="json")
        return chats.create(self.db, f"Play {task.id}", "play", dumped, task.model_dump(mode="json"), problem)

    def _source_config(self, source: str) -> BaseRun:
        kind, _, name = source.partition(":")
        if kind == "preset":
            if name not in (known := [item.name for item in presets()]):
                raise NotFoundError("There is no such preset.", value=name, known=nearest_names(name, known))
            return preset(name).config()
        if kind == "run" and re.fullmatch(r"[1-9][0-9]{0,11}", name):
            return parse_recorded(load_yaml(runs.get(self.db, int(name)).config))
        raise ConfigError("Unknown source of a task.", value=source, known=["run:NUMBER", "preset:NAME"])

    def change(self, chat_id: int, *, title: str | None = None, changes: JsonObject | None = None) -> Chat:
        """Change the title, checkpoints, sampling or system message."""
        dumped: JsonObject | None = None
        if changes is not None:
            if unknown := sorted(set(changes) - set(CHANGEABLE)):
                raise ConfigError("This cannot be changed in a chat.", value=unknown[0], known=CHANGEABLE)
            old = chats.get(self.db, chat_id).settings
            if isinstance(sampling := changes.get("sampling"), dict):
                changes = {**changes, "sampling": {**old.get("sampling", {}), **sampling}}
            settings = parse_settings({**old, **changes})
            self._resolve(settings)
            dumped = settings.model_dump(mode="json")
        return chats.change(self.db, chat_id, title=title, settings=dumped)

    def _resolve(self, settings: ChatSettings) -> ResolvedCheckpoints:
        return resolve_checkpoints(self.db, self.workspace, settings)

    def _sources(self, chat: _OpenChat, checkpoints: Sequence[str]) -> ResolvedCheckpoints:
        """Return the weights of checkpoints, which the chat may have selected earlier."""
        return self._resolve(parse_settings({**chat.row.settings, "checkpoints": checkpoints}))

    def remove(self, chat_id: int) -> None:
        """Delete a chat; cancels its current turn."""
        chats.remove(self.db, chat_id)
        self.stop(chat_id)

    def read(self, chat_id: int) -> tuple[Chat, list[ChatMessage]]:
        """Return a chat with all its messages."""
        return chats.get(self.db, chat_id), chats.messages(self.db, chat_id)

    def answer(self, chat_id: int) -> JsonObject:
        """Return the gold answer and the privileged data of an interactive task."""
        task = self._open(chat_id).task
        return {"answer": task.environment.gold_answer(task.task), "privileged": task.task.privileged}

    def serve(self, run: int, checkpoint: str) -> None:
        """Serve a checkpoint and its base model to OpenAI clients until the model process ends.

        Raises the errors of `resolve_checkpoints`, and `ApiError` if the process cannot start.
        """
        row, name = runs.get(self.db, run), f"{run}:{checkpoint}"
        sources = self._resolve(parse_settings({"model": row.model, "checkpoints": ["base", name]}))
        base, adapter = sources["base"][1], sources[name][1]
        self.process.serve({f"{row.folder}@{checkpoint}": adapter, base_name(base): base})

    # -- turns -------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """End the model process."""
        self.process.close()

    @property
    def is_busy(self) -> bool:
        """Responses are being generated."""
        return bool(self._live)

    def live(self, chat_id: int) -> Turn | None:
        """Return the current turn."""
        return self._live.get(chat_id)

    def stop(self, chat_id: int) -> None:
        """Stop the responses of the current turn after their current token."""
        if (turn := self.live(chat_id)) is not None:
            turn.stop()

    def send(self, chat_id: int, text: str, parent: int | None, after: dict[str, int] | None = None) -> Turn:
        """Add a user message and start the responses of all checkpoints.

        Args:
            chat_id: A chat that is not an interactive task.
            text: At most `MAX_TEXT` characters.
            parent: The previous user message, None at the start.
            after: Checkpoint, also one that is not selected any more → the response that it continues; by default its
                newest. A checkpoint without a response continues the first of these.
        """
        check_text(text, "message")
        chat = self._open(chat_id, "chat")
        if parent is None and after:
            raise DataError("The first message continues no response.", value=after, fix="Name the parent, too.")
        history = {} if parent is None else _continued_responses(chat, parent, after or {})
        checkpoints = [
            c
            for c in chat.settings.checkpoints
            if parent is None or c in history or not tree.responses(chat.messages, parent, c)
        ]
        if not checkpoints or (parent is not None and not history):
            raise RunError("There is no response to continue.", fix="Regenerate a failed response first.")
        detail = {"after": history} if history else {}
        user = ChatMessage(chat_id=chat_id, parent=parent, role="user", content=text, detail=detail, time=time.time())
        return self._respond(chat, user, checkpoints)

    def _respond(self, chat: _OpenChat, user: ChatMessage, checkpoints: Sequence[str]) -> Turn:
        """Start the responses of these checkpoints to a user message, which may be new."""
        settings, sources, slots = chat.settings, self._sources(chat, checkpoints), []
        for checkpoint in checkpoints:
            messages = tree.chat_prompt(chat.messages, user, checkpoint, settings.system)
            alternative = len(tree.responses(chat.messages, user.id or 0, checkpoint))
            seed = turn_seed(chat.seed(alternative), sum(m["role"] == "assistant" for m in messages))
            slots.append(_new_slot(chat, sources, checkpoint, user.id, seed, {"messages": messages}))
            slots[-1].detail["system"] = settings.system
        return self._start(chat, slots, user)

    def play_turn(self, chat_id: int, after: dict[str, int], by: str = "scripted", text: str = "") -> Turn:
        """Start the next attempt of each checkpoint after a hint on its last one; without `after` the first attempts.

        Args:
            chat_id: An interactive task.
            after: Checkpoint → its incorrect attempt that receives the hint.
            by: `scripted` or `person`.
            text: The person's hint.
        """
        hint: JsonObject = {}
        if after:
            if by not in ("scripted", "person"):
                raise ConfigError("There is no such teacher.", value=by, known=["scripted", "person"])
            if by == "person":
                check_text(text, "hint")
            hint = {"hint_by": by, "hint": text if by == "person" else ""}
        chat = self._open(chat_id, "play")
        leaves = {checkpoint: chat.open_attempt(number, checkpoint) for checkpoint, number in after.items()}
        if not after:
            problem = next(iter(chat.messages.values()))
            checkpoints = chat.settings.checkpoints
            leaves = {c: problem for c in checkpoints if not tree.responses(chat.messages, problem.id or 0, c)}
        if not leaves:
            raise RunError("The task has attempts already.", fix="Give a hint, or regenerate an attempt.")
        return self._play(chat, leaves, hint)

    def _play(self, chat: _OpenChat, leaves: Mapping[str, ChatMessage], hint: JsonObject, alternative: int = 0) -> Turn:
        settings, sources, slots = chat.settings, self._sources(chat, list(leaves)), []
        for checkpoint, leaf in leaves.items():
            messages = tree.chain(chat.messages, leaf)
            is_same = all(m.detail.get("model", settings.model) == settings.model for m in messages)
            foreign = set() if is_same else {"token_ids", "logprobs"}  # of another tokenizer
            turns = [turn.model_dump(mode="json", exclude=foreign) for turn in tree.turns(messages)]
            body = {"config": settings.config, "task": chat.row.task, "turns": turns, "max_turns": settings.max_turns}
            seed = chat.seed(alternative)
            slots.append(_new_slot(chat, sources, checkpoint, leaf.id, seed, {**body, **hint}))
        return self._start(chat, slots)

    def actions(self, chat_id: int, after: int | None = None) -> list[str] | None:
        """Return the valid actions after a person's last attempt; None if the environment has no state."""
        chat, leaf = self._open_person(chat_id, after)
        return chat.task.valid_actions(chat.turns(leaf))

    def act(self, chat_id: int, action: str, after: int | None = None) -> list[ChatMessage]:
        """Verify a person's action and return the new messages: an empty hint on the last attempt, and the attempt."""
        check_text(action, "action")
        chat, leaf = self._open_person(chat_id, after)
        turn = chat.task.taken_action(chat.turns(leaf), action)
        slot, added = ResponseSlot(PERSON, leaf.id), []
        if turn.index:
            detail = {"hint": Hint(text="", teacher="contentless").model_dump(mode="json"), "by": "environment"}
            added = chats.add(self.db, chat.id, [slot.new_message(chat.id, "teacher", detail=detail)])
            slot.parent = added[0].id
        return [*added, self._add_attempt(chat, slot, turn, {})]

    def _open_person(self, chat_id: int, after: int | None) -> tuple[_OpenChat, ChatMessage]:
        """Return a task, and the message before the person's next attempt (without `after` the prompt)."""
        chat = self._open(chat_id, "play")
        return chat, next(iter(chat.messages.values())) if after is None else chat.open_attempt(after, PERSON)

    def _add_attempt(self, chat: _OpenChat, slot: ResponseSlot, turn: types.Turn, detail: JsonObject) -> ChatMessage:
        """Add a person's attempt; it may end the dialogue."""
        detail = {**detail, "turn": turn.model_dump(mode="json")}
        (attempt,) = chats.add(self.db, chat.id, [slot.new_message(chat.id, content=turn.attempt, detail=detail)])
        stop = stop_reason(turn, chat.settings.max_turns)
        return attempt if stop is None else self._end(attempt, stop)

    # -- branches ----------------------------------------------------------------------------------------------
    def regenerate(self, chat_id: int, message_id: int) -> Turn:
        """Sample an alternative response or attempt with another seed."""
        chat = self._open(chat_id)
        old = chat.message(message_id, "assistant")
        parent = chat.message(old.parent or 0)
        checkpoint = old.checkpoint
        if chat.row.mode == "chat":
            return self._respond(chat, parent, [checkpoint])
        alternative = len(tree.responses(chat.messages, parent.id or 0, checkpoint))
        return self._play(chat, {checkpoint: parent}, {}, alternative)

    def edit(self, chat_id: int, message_id: int, text: str) -> Turn | ChatMessage:
        """Add an edited copy of a message.

        Starts new responses to a user message or hint, and verifies an attempt. Returns the new message if nothing is
        being sampled.
        """
        check_text(text, "message")
        chat = self._open(chat_id)
        old = chat.message(message_id)
        if old.role == "assistant":
            return self._edit_response(chat, old, text)
        if chat.row.mode == "chat":
            return self.send(chat_id, text, old.parent, old.detail.get("after"))
        if old.role == "teacher" and old.parent is not None:
            return self.play_turn(chat_id, {old.checkpoint: old.parent}, "person", text)
        raise RunError("The prompt of the task cannot be changed.", fix="Start another task.")

    def _edit_response(self, chat: _OpenChat, old: ChatMessage, text: str) -> ChatMessage:
        read = {name: old.detail[name] for name in ("system",) if name in old.detail}
        detail: JsonObject = {**read, "edited": True, "of": old.id}
        slot = ResponseSlot(old.checkpoint, old.parent)
        if chat.row.mode == "play":
            turn = chat.task.written_attempt(chat.turns(chat.message(old.parent or 0)), text)
            return self._add_attempt(chat, slot, turn, detail)
        (message,) = chats.add(self.db, chat.id, [slot.new_message(chat.id, content=text, detail=detail)])
        return message

    def rate(self, chat_id: int, one: int, other: int, choice: chats.Choice | None) -> list[ChatMessage]:
        """Store that response `one` is better or worse than `other`, or a tie; None deletes it. Return both.

        Raises `DataError` if the two are not finished responses to the same prompt.
        """
        chat = self._open(chat_id)
        pair = [chat.message(number, "assistant") for number in (one, other)]
        if choice is not None and not tree.are_comparable(chat.messages, *pair):
            raise DataError(
                "Only two finished responses to the same prompt can be compared: conversation and system message.",
                value=[one, other],
                fix="Regenerate one of them, or compare the first responses that differ.",
            )
        return chats.prefer(self.db, one, other, choice)

    def finish(self, chat_id: int, message_id: int) -> ChatMessage:
        """End an unsolved interactive task at its last message, and record the dialogue."""
        return self._end(self._open(chat_id, "play").open_attempt(message_id), StopReason.EXHAUSTED)

    def _end(self, leaf: ChatMessage, stop: StopReason) -> ChatMessage:
        """Note the end of a dialogue in its last message."""
        assert leaf.id is not None
        return chats.write(self.db, leaf.id, detail={"ended": str(stop), **self._record(leaf, stop)}) or leaf

    def _record(self, leaf: ChatMessage, stop: str) -> JsonObject:
        """Record the dialogue that ends at `leaf`; returns its run and event, or the error."""
        try:
            chat = self._open(leaf.chat_id)
            event = chat.task.dialogue_event(
                leaf,
                chat.turns(leaf),
                StopReason(stop),
                index=sum(m.checkpoint == leaf.checkpoint and "recorded" in m.detail for m in chat.messages.values()),
                seed=chat.settings.sampling.seed,
                edited=any(m.detail.get("edited") for m in tree.chain(chat.messages, leaf)),
            )
            run = dialogue_log.record(self.db, self.workspace, event)
        except RL2FError as error:
            return {"not_recorded": str(error)}
        return {"recorded": {"run": run.id, "event": event.id}}

    # -- internals ---------------------------------------------------------------------------------------------
    def _open(self, chat_id: int, mode: Literal["chat", "play"] | None = None) -> _OpenChat:
        chat, messages = self.read(chat_id)
        if mode is not None and chat.mode != mode:
            what = "an interactive task" if chat.mode == "play" else "not an interactive task"
            raise RunError(f"This chat is {what}.", fix="Reload the page.")
        return _OpenChat(chat, tree.by_id(messages), parse_settings(chat.settings))

    def _start(self, chat: _OpenChat, slots: list[ResponseSlot], user: ChatMessage | None = None) -> Turn:
        """Start a turn of a chat, which is locked until its end; responses to a user message get their rows first."""
        turn = Turn(self.db, self.process, chat.id, slots, self._record)
        if self._live.setdefault(chat.id, turn) is not turn:
            raise RunError("A response is being written in this chat.", fix="Wait for it, or stop it.")

        def work() -> None:
            try:
                turn.run()
            finally:
                del self._live[chat.id]
                turn.end()

        try:
            if user is not None:
                turn.add_messages(user)
            if not chat.messages and user is not None:
                chats.change(self.db, chat.id, title=" ".join(user.content.split())[:60])
        except BaseException:
            del self._live[chat.id]
            raise
        threading.Thread(target=work, name=f"chat-{chat.id}", daemon=True).start()
        return turn


def check_text(text: str, what: str) -> None:
    """Raise `DataError` if a text is empty or too long."""
    if not text.strip():
        raise DataError(f"The {what} is empty.", fix="Type something.")
    if len(text) > MAX_TEXT:
        raise DataError(
            f"The {what} has {len(text):,} characters, and at most {MAX_TEXT:,} are taken.",
            value=shorten(text, 40),
            fix="Shorten it.",
        )


def _continued_responses(chat: _OpenChat, parent: int, after: Mapping[str, int]) -> dict[str, int]:
    """Return checkpoint → the response to `parent` that it continues: that of `after`, by default the newest one.

    Raises `DataError` if a response of `after` is not a response of its checkpoint, or cannot be continued.
    """
    chat.message(parent, "user")
    usable = [m for m in chat.messages.values() if m.parent == parent and tree.can_continue(m)]
    for checkpoint, number in after.items():
        response = chat.message(number, "assistant")
        if response.checkpoint != checkpoint or response not in usable:
            known = [f"{m.checkpoint}: {m.id}" for m in usable]
            fix = "Choose another response of this checkpoint, or regenerate it."
            raise DataError("There is no such response to continue.", value={checkpoint: number}, known=known, fix=fix)
    newest = {m.checkpoint: m.id or 0 for m in usable}
    history = {**after, **{c: newest[c] for c in chat.settings.checkpoints if c in newest and c not in after}}
    # if no current checkpoint has responded, all continue another one
    return history or dict(list(newest.items())[:1])


def _new_slot(
    chat: _OpenChat, sources: ResolvedCheckpoints, checkpoint: str, parent: int | None, seed: int, body: JsonObject
) -> ResponseSlot:
    """Return the slot of a checkpoint with its request: `body` and the fields that all requests share."""
    model, source = sources[checkpoint]
    sampling = chat.settings.sampling
    shared = {
        "model": model,
        "source": source.model_dump(),
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": seed,
        "prompt_cache_key": f"chat-{chat.id}-{checkpoint}",
        "return_token_ids": True,
    }
    return ResponseSlot(checkpoint, parent, {**shared, **body}, {"seed": seed, "model": chat.settings.model})

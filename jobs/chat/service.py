"""Chats: each operation validates, writes its rows, and starts inference in a thread."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from jobs.chat import dialogue_log, interactive_task, tree
from jobs.chat.checkpoints import ChatSettings, ResolvedCheckpoints, resolve_checkpoints, settings_from
from jobs.chat.model_process.client import Limits, ModelProcess
from jobs.chat.model_process.protocol import (
    DEFAULT_IDLE_SECONDS,
    MAX_TEXT,
    ChatCompletionRequest,
    HintRequest,
    InputMessage,
    TaskTurnRequest,
)
from jobs.chat.response_stream import ResponseStream
from jobs.chat.stream_writer import ResponseSlot, StreamWriter
from jobs.db import settings
from jobs.db.models import Chat, ChatMessage
from jobs.db.queries import chats, runs
from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError, DataError, RL2FError, RunError, shorten
from rl2f_core.rollout.engine import derive_seed, turn_seed
from rl2f_core.types import StopReason, Task

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.workspace import Workspace


class ChatService:
    """All chats of a workspace, and their model process, which ends after `idle_seconds` without a request."""

    def __init__(self, db: Database, workspace: Workspace, idle_seconds: float = DEFAULT_IDLE_SECONDS) -> None:
        self.db = db
        self.workspace = workspace
        self.idle_seconds = idle_seconds
        self.process = ModelProcess(workspace.root / "chat.log")
        self._live: dict[int, ResponseStream] = {}
        self._lock = threading.Lock()
        self._checked = False

    # -- chats -------------------------------------------------------------------------------------------------
    def create(self, data: dict[str, Any]) -> Chat:
        """Create a chat. With `source` it is an interactive task; `index` None samples one.

        Raises `ConfigError` for a wrong setting, and the errors of `resolve_checkpoints`.
        """
        if "config" in data:
            raise ConfigError(
                "The configuration of a task comes from its source.", fix="Name a run or a preset as source."
            )
        data = dict(data)
        if not data.get("source"):
            held = settings_from(data)
            resolve_checkpoints(self.db, self.workspace, held)
            return chats.create(self.db, "New chat", "chat", held.model_dump(mode="json"))
        config = self._source(str(data["source"]))
        if data.get("index") is None:
            data["index"] = random.randrange(10_000)
        rollout = config.rollout
        sampling = {name: getattr(rollout, name) for name in ("max_new_tokens", "temperature", "top_p")}
        sampling |= data.get("sampling") or {}
        shared = interactive_task.shared_fields(config)
        held = settings_from({"max_turns": rollout.max_turns, **data, "sampling": sampling, "config": shared})
        resolve_checkpoints(self.db, self.workspace, held)
        task, problem = interactive_task.make_task(held.config, held.split, held.index)
        dumped = held.model_dump(mode="json")
        return chats.create(self.db, f"Play {task.id}", "play", dumped, task.model_dump(mode="json"), problem)

    def _source(self, source: str) -> BaseRun:
        kind, _, name = source.partition(":")
        if kind == "preset":
            return interactive_task.preset(name)
        if kind == "run" and re.fullmatch(r"[1-9][0-9]{0,11}", name):
            return parse_config(yaml.safe_load(runs.get(self.db, int(name)).config))
        raise ConfigError("Unknown source of a task.", value=source, known=["run:NUMBER", "preset:NAME"])

    def change(self, chat_id: int, *, title: str | None = None, changes: dict[str, Any] | None = None) -> Chat:
        """Change the title, checkpoints, sampling or system message."""
        held: dict[str, Any] | None = None
        if changes is not None:
            allowed = ("model", "speakers", "sampling", "system", "device")
            if unknown := sorted(set(changes) - set(allowed)):
                raise ConfigError("This cannot be changed in a chat.", value=unknown[0], known=allowed)
            merged = settings_from({**chats.get(self.db, chat_id).settings, **changes})
            resolve_checkpoints(self.db, self.workspace, merged)
            held = merged.model_dump(mode="json")
        return chats.change(self.db, chat_id, title=title, settings=held)

    def remove(self, chat_id: int) -> None:
        """Delete a chat; cancels its current turn."""
        chats.remove(self.db, chat_id)
        self.stop(chat_id)

    def read(self, chat_id: int) -> tuple[Chat, list[ChatMessage]]:
        """Return a chat with all its messages."""
        self._close_abandoned()
        return chats.get(self.db, chat_id), chats.messages(self.db, chat_id)

    def _close_abandoned(self) -> None:
        """Close, once per start, the responses that an earlier server left unfinished."""
        with self._lock:
            first, self._checked = not self._checked, True
            alive = list(self._live)
        if first and not self.db.read_only:
            chats.close_abandoned(self.db, alive)
            dialogue_log.restore(self.db, self.workspace)

    # -- turns -------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """End the model process."""
        self.process.close()

    def answer(self, chat_id: int) -> dict[str, Any]:
        """Return the gold answer and the privileged data of an interactive task."""
        chat = chats.get(self.db, chat_id)
        if chat.task is None:
            raise RunError("This chat is no interactive task.", fix="Reload the page.")
        return {
            "answer": interactive_task.answer(chat.settings["config"], chat.task),
            "privileged": chat.task["privileged"],
        }

    def live(self, chat_id: int) -> ResponseStream | None:
        """Return the stream of the current turn."""
        with self._lock:
            return self._live.get(chat_id)

    def stop(self, chat_id: int) -> None:
        """Stop the responses of the current turn after their current token."""
        turn = self.live(chat_id)
        if turn is not None:
            self.process.stop(turn.id)

    def send(self, chat_id: int, text: str, parent: int | None, after: dict[str, int] | None = None) -> ResponseStream:
        """Add a user message and start the responses of all checkpoints.

        Args:
            chat_id: A chat that is no interactive task.
            text: At most `MAX_TEXT` characters.
            parent: The previous user message, None at the start.
            after: Checkpoint → the response that it continues; by default its newest.
        """
        check_text(text, "message")
        chat, messages = self._open(chat_id, "chat")
        held = settings_from(chat.settings)
        found = resolve_checkpoints(self.db, self.workspace, held)
        known = tree.by_id(messages)
        history = self._history(known, parent, after, held)
        columns = [s for s in held.speakers if parent is None or s in history or not tree.answers_to(known, parent, s)]
        if not columns or (parent is not None and not history):
            raise RunError("There is no response to continue.", fix="Regenerate a failed response first.")
        detail = {"after": history} if history else {}
        user = ChatMessage(chat_id=chat_id, parent=parent, role="user", content=text, detail=detail, time=time.time())
        title = " ".join(text.split())[:60] if not messages else None
        with self._turn(chat_id) as turn:
            (user,) = chats.add(self.db, chat_id, [user])
            turn.emit({"type": "message", "message": tree.shown(user)})
            if title:
                chats.change(self.db, chat_id, title=title)
            known = tree.by_id([*messages, user])
            self._answer(turn, held, found, known, user, columns)
        return turn

    def _history(
        self, known: tree.Messages, parent: int | None, after: dict[str, int] | None, held: ChatSettings
    ) -> dict[str, int]:
        """Return checkpoint → the response to `parent` that it continues."""
        if parent is None:
            return {}
        if parent not in known or known[parent].role != "user":
            raise DataError("There is no such message to continue.", value=parent, fix="Reload the page.")
        history = {}
        for speaker in held.speakers:
            response = known.get((after or {}).get(speaker, 0)) or tree.newest(known, parent, speaker)
            if response is not None and (response.parent != parent or response.checkpoint != speaker):
                raise DataError(
                    "A response does not belong to this message.", value=response.id, fix="Reload the page."
                )
            if response is not None and tree.can_continue(response) and response.id is not None:
                history[speaker] = response.id
        if not history:  # none of the current checkpoints responded: they continue the first other response
            others = [m for m in known.values() if m.parent == parent and tree.can_continue(m) and m.id is not None]
            history = {m.checkpoint: m.id for m in others[:1] if m.id is not None}
        return history

    def _answer(
        self,
        turn: ResponseStream,
        held: ChatSettings,
        found: ResolvedCheckpoints,
        known: tree.Messages,
        user: ChatMessage,
        speakers: list[str],
    ) -> None:
        """Start the responses of these checkpoints to a user message."""
        requests, columns = [], []
        head = [InputMessage(role="system", content=held.system)] if held.system else []
        for speaker in speakers:
            before = tree.conversation(known, user, speaker)
            again = len(tree.answers_to(known, user.id or 0, speaker))
            seed = turn_seed(_seed(held, again), len(before) // 2)
            messages = [
                InputMessage(
                    role="user" if m.role == "user" else "assistant",
                    content=m.content,
                    token_ids=m.detail.get("token_ids", ()) if m.detail.get("model") == held.model else (),
                )
                for m in before
            ]
            shared = _shared_fields(held, found, turn.chat, speaker, seed)
            requests.append(ChatCompletionRequest(**shared, messages=(*head, *messages)))
            columns.append(ResponseSlot(speaker, user.id, {"seed": seed, "model": held.model}))
        fresh = [column.new_message(turn.chat) for column in columns]
        for column, message in zip(columns, chats.add(self.db, turn.chat, fresh), strict=True):
            column.message = message
            turn.emit({"type": "message", "message": tree.shown(message)})
        self._start(turn, requests, columns)

    def play_turn(self, chat_id: int, after: dict[str, int], by: str = "scripted", text: str = "") -> ResponseStream:
        """Start the next attempt of each checkpoint after a hint on its last one; without `after` the first attempts.

        Args:
            chat_id: An interactive task.
            after: Checkpoint → its incorrect attempt that receives the hint.
            by: `scripted` or `person`.
            text: The person's hint.
        """
        if after and by not in ("scripted", "person"):
            raise ConfigError("There is no such teacher.", value=by, known=["scripted", "person"])
        if after and by == "person":
            check_text(text, "hint")
        chat, messages = self._open(chat_id, "play")
        known = tree.by_id(messages)
        held = settings_from(chat.settings)
        root = messages[0]
        leaves = {s: self._attempt(known, number, s) for s, number in after.items()}
        if not after:
            leaves = {s: root for s in held.speakers if not tree.answers_to(known, root.id or 0, s)}
        if not leaves:
            raise RunError("The task has attempts already.", fix="Give a hint, or regenerate an attempt.")
        hint = HintRequest.model_validate({"by": by, "text": text if by == "person" else ""}) if after else None
        with self._turn(chat_id) as turn:
            self._play(turn, chat, held, known, leaves, hint)
        return turn

    def _attempt(self, known: tree.Messages, number: int, speaker: str) -> ChatMessage:
        found = known.get(number)
        if found is None or found.role != "assistant" or found.checkpoint != speaker or "turn" not in found.detail:
            raise DataError("There is no such attempt to hint on.", value=number, fix="Reload the page.")
        if found.detail.get("ended"):
            raise RunError(f"This dialogue has ended ({found.detail['ended']}).", fix="Branch at an earlier message.")
        return found

    def _play(
        self,
        turn: ResponseStream,
        chat: Chat,
        held: ChatSettings,
        known: tree.Messages,
        leaves: dict[str, ChatMessage],
        hint: HintRequest | None,
        again: int = 0,
    ) -> None:
        found = resolve_checkpoints(self.db, self.workspace, held)
        requests, columns = [], []
        for speaker, leaf in leaves.items():
            seed = _seed(held, again)
            request = TaskTurnRequest(
                **_shared_fields(held, found, turn.chat, speaker, seed),
                config=held.config,
                task=chat.task or {},
                turns=tuple(t.model_dump(mode="json") for t in tree.turns(tree.chain(known, leaf))),
                hint=hint,
                max_turns=held.max_turns,
            )
            requests.append(request)
            detail = {"seed": seed, "model": held.model}
            columns.append(ResponseSlot(speaker, leaf.id, detail, hint_by=hint.by if hint else ""))
        self._start(turn, requests, columns)

    # -- branches ----------------------------------------------------------------------------------------------
    def regenerate(self, chat_id: int, message_id: int) -> ResponseStream:
        """Sample an alternative response or attempt with another seed."""
        chat, messages = self._open(chat_id)
        known = tree.by_id(messages)
        old = known.get(message_id)
        if old is None or old.role != "assistant" or old.parent not in known:
            raise DataError("There is no such response.", value=message_id, fix="Reload the page.")
        held = settings_from({**chat.settings, "speakers": [old.checkpoint]})
        parent = known[old.parent]
        with self._turn(chat_id) as turn:
            if chat.mode == "chat":
                self._answer(
                    turn, held, resolve_checkpoints(self.db, self.workspace, held), known, parent, [old.checkpoint]
                )
            else:
                again = len(tree.answers_to(known, old.parent, old.checkpoint))
                self._play(turn, chat, held, known, {old.checkpoint: parent}, None, again)
        return turn

    def edit(self, chat_id: int, message_id: int, text: str) -> ResponseStream | ChatMessage:
        """Add an edited copy of a message.

        Starts new responses to a user message or hint, and verifies an attempt. Returns the new message if nothing is
        being sampled.
        """
        check_text(text, "message")
        chat, messages = self._open(chat_id)
        known = tree.by_id(messages)
        old = known.get(message_id)
        if old is None:
            raise DataError("There is no such message.", value=message_id, fix="Reload the page.")
        if old.role == "assistant":
            return self._edit_answer(chat, known, old, text)
        if chat.mode == "chat":
            return self.send(chat_id, text, old.parent, old.detail.get("after"))
        if old.role == "teacher" and old.parent is not None:
            return self.play_turn(chat_id, {old.checkpoint: old.parent}, "person", text)
        raise RunError("The prompt of the task cannot be changed.", fix="Start another task.")

    def _edit_answer(self, chat: Chat, known: tree.Messages, old: ChatMessage, text: str) -> ChatMessage:
        detail: dict[str, Any] = {"edited": True, "of": old.id}
        stop = None
        if chat.mode == "play" and old.parent is not None and chat.task is not None:
            held = settings_from(chat.settings)
            before = tree.turns(tree.chain(known, known[old.parent]))
            turn = interactive_task.written_attempt(held.config, Task.model_validate(chat.task), before, text)
            detail["turn"] = turn.model_dump(mode="json")
            last = len(before) + 1 >= held.max_turns
            stop = StopReason.SOLVED if turn.verdict.correct else StopReason.EXHAUSTED if last else None
        fresh = ResponseSlot(old.checkpoint, old.parent).new_message(old.chat_id, content=text, detail=detail)
        (fresh,) = chats.add(self.db, old.chat_id, [fresh])
        if stop is not None and fresh.id is not None:
            noted = {"ended": str(stop), **self._keep(fresh, stop)}
            fresh = chats.write(self.db, fresh.id, detail=noted) or fresh
        return fresh

    def finish(self, chat_id: int, message_id: int) -> ChatMessage:
        """End an unsolved interactive task at its last message, and record the dialogue."""
        _, messages = self._open(chat_id, "play")
        leaf = tree.by_id(messages).get(message_id)
        if leaf is None or "turn" not in leaf.detail:
            raise DataError("There is no such attempt.", value=message_id, fix="Reload the page.")
        if leaf.detail.get("ended"):
            raise RunError(f"This dialogue has ended already ({leaf.detail['ended']}).")
        stop = StopReason.EXHAUSTED
        return chats.write(self.db, message_id, detail={"ended": str(stop), **self._keep(leaf, stop)}) or leaf

    def _keep(self, leaf: ChatMessage, stop: str) -> dict[str, Any]:
        """Record the dialogue that ends here; returns where, or the error."""
        try:
            chat, messages = chats.get(self.db, leaf.chat_id), chats.messages(self.db, leaf.chat_id)
            played = tree.chain(tree.by_id(messages), leaf)
            event = interactive_task.dialogue_event(
                leaf,
                settings_from(chat.settings),
                Task.model_validate(chat.task),
                tree.turns(played),
                StopReason(stop),
                index=sum(m.checkpoint == leaf.checkpoint and "recorded" in m.detail for m in messages),
                edited=any(m.detail.get("edited") for m in played),
            )
            run = dialogue_log.keep(self.db, self.workspace, event)
        except RL2FError as error:
            return {"not_recorded": str(error)}
        return {"recorded": {"run": run.id, "event": event.id}}

    # -- internals ---------------------------------------------------------------------------------------------
    def _open(self, chat_id: int, mode: str | None = None) -> tuple[Chat, list[ChatMessage]]:
        chat, messages = self.read(chat_id)
        if mode is not None and chat.mode != mode:
            what = "an interactive task" if chat.mode == "play" else "no interactive task"
            raise RunError(f"This chat is {what}.", fix="Reload the page.")
        return chat, messages

    @contextlib.contextmanager
    def _turn(self, chat_id: int) -> Iterator[ResponseStream]:
        """Lock the chat for one turn while it starts; an error unlocks it."""
        turn = ResponseStream(uuid.uuid4().hex, chat_id)
        with self._lock:
            if chat_id in self._live:
                raise RunError("A response is being written in this chat.", fix="Wait for it, or stop it.")
            self._live[chat_id] = turn
        try:
            yield turn
        except BaseException:
            self._forget(turn)
            raise

    def _start(
        self,
        turn: ResponseStream,
        requests: Sequence[ChatCompletionRequest | TaskTurnRequest],
        columns: list[ResponseSlot],
    ) -> None:
        self.process.limits = self._limits()
        pump = StreamWriter(self.db, turn, columns, self._keep)

        def work() -> None:
            try:
                pump.run(self.process.stream(requests, turn.id))
            finally:
                self._forget(turn)

        threading.Thread(target=work, name=f"chat-{turn.chat}", daemon=True).start()

    def _forget(self, turn: ResponseStream) -> None:
        with self._lock:
            if self._live.get(turn.chat) is turn:
                del self._live[turn.chat]

    def _limits(self) -> Limits:
        memory, reserve = (
            int(_number(settings.get(self.db, name), default) * 1e9)
            for name, default in (("chat.memory_gb", 0.0), ("chat.reserve_gb", 0.5))
        )
        return Limits(self.idle_seconds, memory_bytes=memory, reserve_bytes=reserve)


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


def _seed(held: ChatSettings, again: int) -> int:
    """Return the chat's seed, or a derived one for the n-th alternative."""
    return held.sampling.seed if again == 0 else derive_seed(held.sampling.seed, "again", again)


def _shared_fields(
    held: ChatSettings, found: ResolvedCheckpoints, chat: int, speaker: str, seed: int
) -> dict[str, Any]:
    """Return the common fields of a checkpoint's requests."""
    model, source = found[speaker]
    sampling = held.sampling
    return {
        "model": model,
        "source": source,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": seed,
        "prompt_cache_key": f"chat-{chat}-{speaker}",
    }


def _number(text: str, default: float) -> float:
    try:
        value = float(text)
    except ValueError:
        return default
    return value if 0 <= value < 1e9 else default

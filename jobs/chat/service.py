"""Conversations as the browser uses them: every operation checks, writes, and starts what takes long in a thread."""

from __future__ import annotations

import random
import re
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import yaml

from jobs.chat import play, record, tree
from jobs.chat.client import Limits, ModelProcess
from jobs.chat.live import LiveTurn
from jobs.chat.protocol import MAX_TEXT
from jobs.chat.speakers import Cast, ChatSettings, cast, settings_from
from jobs.chat.turns import Column, Pump
from jobs.store import chats, runs, settings
from jobs.tables import Chat, ChatMessage
from rl2f_core.config import BaseRun, parse_config
from rl2f_core.errors import ConfigError, DataError, RL2FError, RunError, shorten
from rl2f_core.rollout.engine import derive_seed, turn_seed
from rl2f_core.types import StopReason, Task

if TYPE_CHECKING:
    from jobs.database import Database
    from jobs.studio import Studio


class ChatService:
    """All conversations of a studio, and the one model process behind them."""

    def __init__(self, db: Database, studio: Studio) -> None:
        self.db = db
        self.studio = studio
        self.process = ModelProcess(studio.root / "chat.log")
        self._live: dict[int, LiveTurn] = {}
        self._lock = threading.Lock()
        self._checked = False

    # -- conversations -----------------------------------------------------------------------------------------
    def create(self, data: dict[str, Any]) -> Chat:
        """A new conversation. With `source` it is a played task; `index` None draws one.

        Raises `ConfigError` where a setting is wrong, and what `cast` raises.
        """
        if "config" in data:
            raise ConfigError("A task's configuration is that of its source.", fix="Name a run or a preset as source.")
        data = dict(data)
        if not data.get("source"):
            held = settings_from(data)
            cast(self.db, self.studio, held)
            return chats.create(self.db, "New chat", "chat", held.model_dump(mode="json"))
        config = self._source(str(data["source"]))
        if data.get("index") is None:
            data["index"] = random.randrange(10_000)
        rollout = config.rollout
        sampling = {
            "max_new_tokens": rollout.max_new_tokens, "temperature": rollout.temperature, "top_p": rollout.top_p,
            **(data.get("sampling") or {}),
        }  # fmt: skip
        filled = {"max_turns": rollout.max_turns, **data, "sampling": sampling, "config": play.shared_fields(config)}
        held = settings_from(filled)
        cast(self.db, self.studio, held)
        task, problem = play.make_task(held.config, held.split, held.index)
        dumped = held.model_dump(mode="json")
        return chats.create(self.db, f"Play {task.id}", "play", dumped, task.model_dump(mode="json"), problem)

    def _source(self, source: str) -> BaseRun:
        kind, _, name = source.partition(":")
        if kind == "preset":
            return play.preset(name)
        if kind == "run" and re.fullmatch(r"[1-9][0-9]{0,11}", name):
            return parse_config(yaml.safe_load(runs.get(self.db, int(name)).config))
        raise ConfigError("This is no source of a task.", value=source, known=["run:NUMBER", "preset:NAME"])

    def change(self, chat_id: int, *, title: str | None = None, changes: dict[str, Any] | None = None) -> Chat:
        """Rename, or go on with other speakers, sampling or system message."""
        held: dict[str, Any] | None = None
        if changes is not None:
            allowed = ("model", "speakers", "sampling", "system", "device")
            if unknown := sorted(set(changes) - set(allowed)):
                raise ConfigError("This cannot be changed in a chat.", value=unknown[0], known=allowed)
            merged = settings_from({**chats.get(self.db, chat_id).settings, **changes})
            cast(self.db, self.studio, merged)
            held = merged.model_dump(mode="json")
        return chats.change(self.db, chat_id, title=title, settings=held)

    def remove(self, chat_id: int) -> None:
        """Delete a conversation; what is being written ends."""
        chats.remove(self.db, chat_id)
        self.stop(chat_id)

    def read(self, chat_id: int) -> tuple[Chat, list[ChatMessage]]:
        """A conversation with all its messages."""
        self._close_abandoned()
        return chats.get(self.db, chat_id), chats.messages(self.db, chat_id)

    def _close_abandoned(self) -> None:
        """Once after the start: what an earlier server left unfinished is not being written any more."""
        with self._lock:
            first, self._checked = not self._checked, True
            alive = list(self._live)
        if first and not self.db.read_only:
            chats.close_abandoned(self.db, alive)
            record.restore(self.db, self.studio)

    # -- turns -------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """End the model process."""
        self.process.close()

    def answer(self, chat_id: int) -> dict[str, Any]:
        """A played task's right answer and its privileged half, for a person who asks for them."""
        chat = chats.get(self.db, chat_id)
        if chat.task is None:
            raise RunError("This chat is no played task.", fix="Reload the page.")
        return {"answer": play.answer(chat.settings["config"], chat.task), "privileged": chat.task["privileged"]}

    def live(self, chat_id: int) -> LiveTurn | None:
        """The turn that is being written."""
        with self._lock:
            return self._live.get(chat_id)

    def stop(self, chat_id: int) -> None:
        """End the answers after their current token; nothing where none is written."""
        turn = self.live(chat_id)
        if turn is not None:
            self.process.stop(turn.id)

    def send(self, chat_id: int, text: str, parent: int | None, after: dict[str, int] | None = None) -> LiveTurn:
        """A person's message, and the answers of all speakers to it.

        Args:
            chat_id: A conversation, no played task.
            text: Up to `MAX_TEXT` characters.
            parent: The user message before it, None at the start.
            after: Speaker → the answer it goes on from; by default the newest of each.
        """
        check_text(text, "message")
        chat, messages = self._open(chat_id, "chat")
        held = settings_from(chat.settings)
        found = cast(self.db, self.studio, held)
        known = tree.by_id(messages)
        history = self._history(known, parent, after, held)
        columns = [s for s in held.speakers if parent is None or s in history or not self._answered(known, parent, s)]
        if not columns or (parent is not None and not history):
            raise RunError("No answer is there to go on from.", fix="Ask again for an answer that failed first.")
        user = ChatMessage(chat_id=chat_id, parent=parent, role="user", content=text, time=time.time(),
                           detail={"after": history} if history else {})  # fmt: skip
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
        """Speaker → the answer to `parent` that its next one goes on from."""
        if parent is None:
            return {}
        if parent not in known or known[parent].role != "user":
            raise DataError("There is no such message to go on from.", value=parent, fix="Reload the page.")
        history = {}
        for speaker in held.speakers:
            said = known.get((after or {}).get(speaker, 0)) or tree.newest(known, parent, speaker)
            if said is not None and (said.parent != parent or said.speaker != speaker):
                raise DataError("An answer does not belong to this message.", value=said.id, fix="Reload the page.")
            if said is not None and tree.usable(said) and said.id is not None:
                history[speaker] = said.id
        if not history:  # none of today's speakers was there: they take over the words of one who was
            others = [m for m in known.values() if m.parent == parent and tree.usable(m) and m.id is not None]
            history = {m.speaker: m.id for m in others[:1] if m.id is not None}
        return history

    @staticmethod
    def _answered(known: tree.Messages, parent: int, speaker: str) -> bool:
        return bool(tree.answers_to(known, parent, speaker))

    def _answer(
        self, turn: LiveTurn, held: ChatSettings, found: Cast, known: tree.Messages, user: ChatMessage,
        speakers: list[str],
    ) -> None:  # fmt: skip
        """Ask the model for answers of these speakers to a user message."""
        rows, columns = [], []
        for speaker in speakers:
            before = tree.conversation(known, user, speaker)
            again = len(tree.answers_to(known, user.id or 0, speaker))
            seed = turn_seed(_seed(held, again), len(before) // 2)
            pieces = [
                {
                    "role": m.role,
                    "text": m.content,
                    "token_ids": m.detail.get("token_ids", []) if m.detail.get("model") == held.model else [],
                }
                for m in before
            ]
            key = f"chat-{turn.chat}-{speaker}"
            rows.append({"key": key, "adapter": found.adapters[speaker], "seed": seed, "pieces": pieces})
            columns.append(Column(speaker, user.id, {"seed": seed, "model": held.model}))
        fresh = [
            ChatMessage(chat_id=turn.chat, parent=user.id, role="assistant", speaker=c.speaker, status="streaming",
                        detail=c.detail, time=time.time()) for c in columns
        ]  # fmt: skip
        for column, message in zip(columns, chats.add(self.db, turn.chat, fresh), strict=True):
            column.message = message
            turn.emit({"type": "message", "message": tree.shown(message)})
        payload = {
            "op": "generate", "model": found.model.model_dump(), "system": held.system,
            "sampling": held.sampling.model_dump(), "rows": rows,
        }  # fmt: skip
        self._start(turn, payload, columns)

    def play_turn(self, chat_id: int, after: dict[str, int], by: str = "scripted", text: str = "") -> LiveTurn:
        """The next attempt of the speakers, each after a hint on its last one; without `after` the first of all.

        Args:
            chat_id: A played task.
            after: Speaker → its wrong attempt, which the hint is on.
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
            leaves = {s: root for s in held.speakers if not self._answered(known, root.id or 0, s)}
        if not leaves:
            raise RunError("The task is being played already.", fix="Give a hint, or ask again for an attempt.")
        hint = {"by": by, "text": text if by == "person" else ""} if after else None
        with self._turn(chat_id) as turn:
            self._play(turn, chat, held, known, leaves, hint)
        return turn

    def _attempt(self, known: tree.Messages, number: int, speaker: str) -> ChatMessage:
        found = known.get(number)
        if found is None or found.role != "assistant" or found.speaker != speaker or "turn" not in found.detail:
            raise DataError("There is no such attempt to hint on.", value=number, fix="Reload the page.")
        if found.detail.get("ended"):
            raise RunError(f"This dialogue has ended ({found.detail['ended']}).", fix="Branch at an earlier message.")
        return found

    def _play(
        self, turn: LiveTurn, chat: Chat, held: ChatSettings, known: tree.Messages, leaves: dict[str, ChatMessage],
        hint: dict[str, str] | None, again: int = 0,
    ) -> None:  # fmt: skip
        found = cast(self.db, self.studio, held)
        rows, columns = [], []
        for speaker, leaf in leaves.items():
            turns = [t.model_dump(mode="json") for t in tree.turns(tree.chain(known, leaf))]
            seed = _seed(held, again)
            key = f"chat-{turn.chat}-{speaker}"
            rows.append({"key": key, "adapter": found.adapters[speaker], "seed": seed, "turns": turns, "hint": hint})
            detail = {"seed": seed, "model": held.model}
            columns.append(Column(speaker, leaf.id, detail, hint_by=hint["by"] if hint else ""))
        payload = {
            "op": "play", "model": found.model.model_dump(), "config": held.config, "task": chat.task,
            "sampling": held.sampling.model_dump(), "max_turns": held.max_turns, "rows": rows,
        }  # fmt: skip
        self._start(turn, payload, columns)

    # -- branches ----------------------------------------------------------------------------------------------
    def regenerate(self, chat_id: int, message_id: int) -> LiveTurn:
        """Another answer or attempt beside the one there is, drawn with another seed."""
        chat, messages = self._open(chat_id)
        known = tree.by_id(messages)
        old = known.get(message_id)
        if old is None or old.role != "assistant" or old.parent not in known:
            raise DataError("There is no such answer.", value=message_id, fix="Reload the page.")
        held = settings_from({**chat.settings, "speakers": [old.speaker]})
        parent = known[old.parent]
        with self._turn(chat_id) as turn:
            if chat.mode == "chat":
                self._answer(turn, held, cast(self.db, self.studio, held), known, parent, [old.speaker])
            else:
                again = len(tree.answers_to(known, old.parent, old.speaker))
                self._play(turn, chat, held, known, {old.speaker: parent}, None, again)
        return turn

    def edit(self, chat_id: int, message_id: int, text: str) -> LiveTurn | ChatMessage:
        """A changed copy beside a message. A person's words are answered anew; a student's are judged where there is a
        verifier; the new message is returned where nothing is being written."""
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
            return self.play_turn(chat_id, {old.speaker: old.parent}, "person", text)
        raise RunError("The problem is the environment's and cannot be changed.", fix="Play another task.")

    def _edit_answer(self, chat: Chat, known: tree.Messages, old: ChatMessage, text: str) -> ChatMessage:
        detail: dict[str, Any] = {"edited": True, "of": old.id}
        stop = None
        if chat.mode == "play" and old.parent is not None and chat.task is not None:
            held = settings_from(chat.settings)
            before = tree.turns(tree.chain(known, known[old.parent]))
            turn = play.written_attempt(held.config, Task.model_validate(chat.task), before, text)
            detail["turn"] = turn.model_dump(mode="json")
            last = len(before) + 1 >= held.max_turns
            stop = StopReason.SOLVED if turn.verdict.correct else StopReason.EXHAUSTED if last else None
        fresh = ChatMessage(chat_id=old.chat_id, parent=old.parent, role="assistant", speaker=old.speaker, content=text,
                            detail=detail, time=time.time())  # fmt: skip
        (fresh,) = chats.add(self.db, old.chat_id, [fresh])
        if stop is not None and fresh.id is not None:
            noted = {"ended": str(stop), **self._keep(fresh, stop)}
            fresh = chats.write(self.db, fresh.id, detail=noted) or fresh
        return fresh

    def finish(self, chat_id: int, message_id: int) -> ChatMessage:
        """End a played dialogue at its last message before it is solved, and keep it."""
        _, messages = self._open(chat_id, "play")
        leaf = tree.by_id(messages).get(message_id)
        if leaf is None or "turn" not in leaf.detail:
            raise DataError("There is no such attempt.", value=message_id, fix="Reload the page.")
        if leaf.detail.get("ended"):
            raise RunError(f"This dialogue has ended already ({leaf.detail['ended']}).")
        stop = StopReason.EXHAUSTED
        return chats.write(self.db, message_id, detail={"ended": str(stop), **self._keep(leaf, stop)}) or leaf

    def _keep(self, leaf: ChatMessage, stop: str) -> dict[str, Any]:
        """Keep the dialogue that ends here; returns where, or why it could not be kept."""
        try:
            chat, messages = chats.get(self.db, leaf.chat_id), chats.messages(self.db, leaf.chat_id)
            played = tree.chain(tree.by_id(messages), leaf)
            held = settings_from(chat.settings)
            event = play.dialogue_event(
                chat=leaf.chat_id,
                leaf=leaf.id or 0,
                index=sum(m.speaker == leaf.speaker and "recorded" in m.detail for m in messages),
                speaker=leaf.speaker,
                edited=any(m.detail.get("edited") for m in played),
                seed=held.sampling.seed,
                task=Task.model_validate(chat.task),
                config=held.config,
                turns=tree.turns(played),
                stop=StopReason(stop),
            )
            run = record.keep(self.db, self.studio, event)
        except RL2FError as error:
            return {"not_recorded": str(error)}
        return {"recorded": {"run": run.id, "event": event.id}}

    # -- inside ------------------------------------------------------------------------------------------------
    def _open(self, chat_id: int, mode: str | None = None) -> tuple[Chat, list[ChatMessage]]:
        chat, messages = self.read(chat_id)
        if mode is not None and chat.mode != mode:
            what = "a played task" if chat.mode == "play" else "no played task"
            raise RunError(f"This chat is {what}.", fix="Reload the page.")
        return chat, messages

    def _turn(self, chat_id: int) -> _Starting:
        return _Starting(self, chat_id)

    def _start(self, turn: LiveTurn, payload: dict[str, Any], columns: list[Column]) -> None:
        self.process.limits = self._limits()
        pump = Pump(self.db, turn, columns, self._keep)

        def work() -> None:
            try:
                pump.run(self.process.request(payload, turn.id))
            finally:
                self._forget(turn)

        threading.Thread(target=work, name=f"chat-{turn.chat}", daemon=True).start()

    def _forget(self, turn: LiveTurn) -> None:
        with self._lock:
            if self._live.get(turn.chat) is turn:
                del self._live[turn.chat]

    def _limits(self) -> Limits:
        def number(name: str, default: float) -> float:
            return _number(settings.get(self.db, name), default)

        return Limits(
            idle_seconds=number("chat.idle_seconds", 600),
            memory_bytes=int(number("chat.memory_gb", 0) * 1e9),
            reserve_bytes=int(number("chat.reserve_gb", 0.5) * 1e9),
        )


class _Starting:
    """Holds the conversation for one turn while it is being started; a failure lets go of it."""

    def __init__(self, service: ChatService, chat_id: int) -> None:
        self.service = service
        self.turn = LiveTurn(uuid.uuid4().hex, chat_id)

    def __enter__(self) -> LiveTurn:
        with self.service._lock:
            if self.turn.chat in self.service._live:
                raise RunError("An answer is being written in this chat.", fix="Wait for it, or stop it.")
            self.service._live[self.turn.chat] = self.turn
        return self.turn

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.service._forget(self.turn)


def check_text(text: str, what: str) -> None:
    """Raises `DataError` where a person's words are none, or too many."""
    if not text.strip():
        raise DataError(f"The {what} is empty.", fix="Type something.")
    if len(text) > MAX_TEXT:
        raise DataError(
            f"The {what} has {len(text):,} characters, and at most {MAX_TEXT:,} are taken.",
            value=shorten(text, 40),
            fix="Shorten it.",
        )


def _seed(held: ChatSettings, again: int) -> int:
    """The chat's seed, and others for answers that are drawn again."""
    return held.sampling.seed if again == 0 else derive_seed(held.sampling.seed, "again", again)


def _number(text: str, default: float) -> float:
    try:
        value = float(text)
    except ValueError:
        return default
    return value if 0 <= value < 1e9 else default

"""JSON routes of the chat. What takes long goes on in a thread; a tab follows it by server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict

from app.common.context import Context
from jobs.chat import interactive_task, tree
from jobs.chat.chat_export import lines
from jobs.chat.checkpoints import ChatSettings, known_models, run_choices
from jobs.chat.model_process.protocol import MAX_CHECKPOINTS, MAX_TEXT, ChatSampling
from jobs.chat.service import ChatService
from jobs.db.errors import StoreReadOnlyError
from jobs.db.models import Chat, ChatMessage
from jobs.db.queries import chats

LOOK = 0.04
"""Seconds between two looks at an answer that grows."""
PING = 15.0
"""Seconds after which a silent stream says that it is alive."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewChat(_Body):
    """Settings of a new conversation (`jobs.chat.checkpoints.ChatSettings`)."""

    settings: dict[str, Any]


class ChangedChat(_Body):
    """Another name, or other settings."""

    title: str | None = None
    settings: dict[str, Any] | None = None


class Said(_Body):
    """A person's message."""

    text: str
    parent: int | None = None
    after: dict[str, int] = {}


class Hinted(_Body):
    """Hints on the last attempts of some checkpoints; none starts the task."""

    after: dict[str, int] = {}
    by: str = "scripted"
    text: str = ""


class Edited(_Body):
    """Other words for a message."""

    text: str


class Judged(_Body):
    """`one` is better or worse than `other`, or a tie; null takes it back."""

    one: int
    other: int
    choice: str | None = None


def router(context: Context) -> APIRouter:
    """The routes below `/api/chat`."""
    service = context.chat_service

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    routes = APIRouter(prefix="/api/chat", lifespan=lifespan)
    _add_reading(routes, context, service)
    _add_changing(routes, context, service)
    return routes


def _add_reading(routes: APIRouter, context: Context, service: ChatService) -> None:
    @routes.get("/options")
    def options() -> dict[str, Any]:
        fields = ChatSampling.model_json_schema()["properties"]
        return {
            "models": known_models(context.db),
            "runs": [vars(choice) for choice in run_choices(context.db, context.workspace)],
            "presets": interactive_task.preset_names(),
            "sampling": {name: {**field, "title": None} for name, field in fields.items()},
            "turns": ChatSettings.model_json_schema()["properties"]["max_turns"],
            "max_text": MAX_TEXT,
            "max_checkpoints": MAX_CHECKPOINTS,
            "model": service.process.state(),
        }

    @routes.get("/chats")
    def listing(search: str = "", cursor: str | None = None, limit: int = 40) -> dict[str, Any]:
        page = chats.page(context.db, search[:200], cursor, max(1, min(limit, 100)))
        rows = [row.model_dump(include={"id", "title", "mode", "created", "changed"}) for row in page.rows]
        return {"rows": rows, "total": page.total, "before": page.before, "after": page.after}

    @routes.get("/chats/{chat}")
    def read(chat: int) -> dict[str, Any]:
        row, messages = service.read(chat)
        shown = [tree.to_json(message) for message in messages]
        return {"chat": _shown(row), "messages": shown, "live": service.live(chat) is not None}

    @routes.get("/chats/{chat}/answer")
    def answer(chat: int) -> dict[str, Any]:
        return service.answer(chat)

    @routes.get("/chats/{chat}/stream")
    async def stream(chat: int, request: Request) -> StreamingResponse:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_follow(service, chat, request), media_type="text/event-stream", headers=headers)

    @routes.get("/chats/{chat}/export")
    def export(chat: int, format: str = "messages") -> PlainTextResponse:
        row, messages = service.read(chat)
        text = "".join(lines(row, messages, format))
        named = f'attachment; filename="chat-{chat}-{format}.jsonl"'
        return PlainTextResponse(text, media_type="application/jsonl", headers={"Content-Disposition": named})

    @routes.get("/model")
    def model() -> dict[str, Any]:
        return service.process.state()


def _add_changing(routes: APIRouter, context: Context, service: ChatService) -> None:
    def writable() -> None:
        if context.read_only or context.db.read_only:
            raise StoreReadOnlyError(
                "This server is read-only: another one holds the workspace.", fix="Chat there, or stop it."
            )

    @routes.post("/chats")
    def create(body: NewChat) -> dict[str, Any]:
        writable()
        return {"chat": _shown(service.create(body.settings))}

    @routes.patch("/chats/{chat}")
    def change(chat: int, body: ChangedChat) -> dict[str, Any]:
        writable()
        return {"chat": _shown(service.change(chat, title=body.title, changes=body.settings))}

    @routes.delete("/chats/{chat}")
    def remove(chat: int) -> dict[str, Any]:
        writable()
        service.remove(chat)
        return {}

    @routes.post("/chats/{chat}/send")
    def send(chat: int, body: Said) -> dict[str, Any]:
        writable()
        return {"turn": service.send(chat, body.text, body.parent, body.after).id}

    @routes.post("/chats/{chat}/play")
    def hint(chat: int, body: Hinted) -> dict[str, Any]:
        writable()
        return {"turn": service.play_turn(chat, body.after, body.by, body.text).id}

    @routes.post("/chats/{chat}/stop")
    def stop(chat: int) -> dict[str, Any]:
        service.stop(chat)
        return {}

    @routes.post("/chats/{chat}/messages/{message}/regenerate")
    def regenerate(chat: int, message: int) -> dict[str, Any]:
        writable()
        return {"turn": service.regenerate(chat, message).id}

    @routes.post("/chats/{chat}/messages/{message}/edit")
    def edit(chat: int, message: int, body: Edited) -> dict[str, Any]:
        writable()
        made = service.edit(chat, message, body.text)
        return {"message": tree.to_json(made)} if isinstance(made, ChatMessage) else {"turn": made.id}

    @routes.post("/chats/{chat}/messages/{message}/finish")
    def finish(chat: int, message: int) -> dict[str, Any]:
        writable()
        return {"message": tree.to_json(service.finish(chat, message))}

    @routes.post("/chats/{chat}/prefer")
    def prefer(chat: int, body: Judged) -> dict[str, Any]:
        writable()
        pair = chats.prefer(context.db, chat, body.one, body.other, body.choice)  # type: ignore[arg-type]
        return {"messages": [tree.to_json(message) for message in pair]}

    @routes.post("/model/unload")
    def unload() -> dict[str, Any]:
        service.process.unload()
        return service.process.state()


def _shown(chat: Chat) -> dict[str, Any]:
    """A conversation as the browser gets it: the privileged half of a task only when it is asked for."""
    data = chat.model_dump(exclude={"task"})
    data["settings"] = {k: v for k, v in chat.settings.items() if k != "config"}
    data["environment"] = chat.settings.get("config", {}).get("environment")
    data["task"] = None if chat.task is None else {k: v for k, v in chat.task.items() if k != "privileged"}
    return data


async def _follow(service: ChatService, chat: int, request: Request) -> AsyncIterator[str]:
    """What is being written in a chat, from now to its end."""

    def line(event: dict[str, Any]) -> str:
        return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"

    turn = service.live(chat)
    if turn is None:
        yield line({"type": "end"})
        return
    events, position = turn.follow()
    said = time.monotonic()
    while True:
        for event in events:
            yield line(event)
            said = time.monotonic()
        events, position = turn.since(position)
        if events:
            continue
        if turn.ended or await request.is_disconnected():
            break
        if time.monotonic() - said > PING:
            yield ": still here\n\n"
            said = time.monotonic()
        await asyncio.sleep(LOOK)
    yield line({"type": "end"})

"""Routes of files: the JavaScript modules of the components, the files of finished exports, and chats."""

from __future__ import annotations

import gzip
import re
from functools import cache
from typing import Annotated, Literal

from fastapi import APIRouter, Header, HTTPException, Response
from fastapi.responses import FileResponse

from app.common.context import Context
from app.components.module import FOLDER, URL
from jobs.chat.chat_export import lines
from jobs.export import catalog

CACHED = {"Cache-Control": "public, max-age=31536000, immutable"}
"""Addresses contain a version, so browsers keep what they have for a year."""
_MODULE = re.compile(r"(?:[a-z_]+/)?[a-z_]+\.js")


@cache
def plotly_script() -> bytes:
    """Return plotly.js of the installed package."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().encode()


@cache
def compressed_plotly_script() -> bytes:
    """Return plotly.js compressed: a third of its size."""
    return gzip.compress(plotly_script(), 3)


def router(context: Context) -> APIRouter:
    """Return the routes."""
    api = APIRouter()

    @api.get(URL + "/plotly.min.js")
    def plotly(accept_encoding: Annotated[str, Header()] = "") -> Response:
        """Return plotly.js of the installed package."""
        headers = {**CACHED, "Vary": "Accept-Encoding"}
        if "gzip" not in accept_encoding:
            return Response(plotly_script(), media_type="text/javascript", headers=headers)
        headers["Content-Encoding"] = "gzip"
        return Response(compressed_plotly_script(), media_type="text/javascript", headers=headers)

    @api.get(URL + "/{name:path}")
    def component_module(name: str) -> FileResponse:
        """Return a JavaScript module."""
        if not _MODULE.fullmatch(name) or not (FOLDER / name).is_file():
            raise HTTPException(404)
        return FileResponse(FOLDER / name, media_type="text/javascript", headers=CACHED)

    @api.get("/exports/{folder}/{name}")
    def export_file(folder: str, name: str) -> FileResponse:
        """Return a file of a finished export for download; its content never runs in the browser."""
        return FileResponse(
            catalog.file(context.workspace, folder, name),
            media_type="application/octet-stream",
            filename=f"{folder}-{name}",
            headers={"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"},
        )

    @api.get("/chats/{chat}/{format}.jsonl")
    def chat_file(chat: int, format: Literal["messages", "preference"]) -> Response:
        """Return a chat as JSON lines for download."""
        text = "".join(lines(*context.chat_service.read(chat), format))
        headers = {"Content-Disposition": f'attachment; filename="chat-{chat}-{format}.jsonl"'}
        return Response(text, media_type="application/jsonl", headers=headers)

    return api

"""Nonces of Gradio's inline scripts, caching of its other scripts, and the page of unknown addresses."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.files import CACHED

NOT_FOUND = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Not found · RL2F Studio</title>
<link rel="stylesheet" href="/static/theme.css"></head><body><main class="rl-page" style="padding: 24px">
<div class="rl-empty" role="alert"><p class="rl-empty-title">There is no page {path}.</p>
<nav class="rl-actions" aria-label="pages">{links}</nav></div></main></body></html>"""
"""Page of an unknown address; the middleware fills in the links to all pages."""


class PageResponses:
    """ASGI middleware: add the nonce of the content security policy to the scripts of a page, and show missing pages.

    Gradio escapes `<` in the settings that its page contains, so every `<script` is a tag.

    Args:
        app: The application.
        pages: Title and address of the pages to offer.
    """

    def __init__(self, app: ASGIApp, pages: Mapping[str, str]) -> None:
        self.app, self.pages = app, pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request; change only HTML, and a missing page that a browser opens."""
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"].startswith("/gradio_api/"):
            await self.app(scope, receive, send)
            return
        if b"view=api" in scope["query_string"].split(b"&"):  # Gradio's address of its own description
            await RedirectResponse("/api")(scope, receive, send)
            return
        nonce = escape(scope.get("state", {}).get("rl2f_nonce", "")).encode()
        if "." not in scope["path"]:  # a page, which must not be compressed here; files have a suffix
            scope["headers"] = [(n, v) for n, v in scope["headers"] if n.lower() != b"accept-encoding"]
        start: Message | None = None
        body = bytearray()

        async def send_page(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_page(scope, message):
                start = message
            elif start is None or message["type"] != "http.response.body":
                if message["type"] == "http.response.start" and message["status"] == 200:
                    message = _cached(scope, message)
                await send(message)
            else:
                body.extend(message.get("body", b""))
                if not message.get("more_body"):
                    await send_html(start)

        async def send_html(start: Message) -> None:
            content = bytes(body).replace(b"<script", b'<script nonce="' + nonce + b'"')
            headers = MutableHeaders(raw=list(start["headers"]))
            if start["status"] == 404:
                links = "".join(f'<a class="rl-button" href="{url}">{title}</a>' for title, url in self.pages.items())
                content = NOT_FOUND.format(path=escape(scope["path"][:100]), links=links).encode()
                headers["content-type"] = "text/html; charset=utf-8"
            headers["content-length"] = str(len(content))
            headers["cache-control"] = "no-store"
            await send({**start, "headers": headers.raw})
            await send({"type": "http.response.body", "body": content})

        await self.app(scope, receive, send_page)


def _cached(scope: Scope, start: Message) -> Message:
    """Let browsers keep Gradio's scripts, whose names contain a hash of their content, without asking again."""
    if not scope["path"].startswith("/assets/"):
        return start
    headers = MutableHeaders(raw=list(start["headers"]))
    headers.update(CACHED)
    return {**start, "headers": headers.raw}


def _is_page(scope: Scope, start: Message) -> bool:
    """Return whether a response is HTML, or a 404 of an address that a browser opens."""
    if start["status"] == 404:
        return "text/html" in ",".join(Headers(scope=scope).getlist("accept"))
    return Headers(raw=start["headers"]).get("content-type", "").startswith("text/html")

"""The frame around every page: head, navigation, banner. It is in the first answer, before any script has run."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from html import escape
from typing import Any

from app.common.errors import missing
from app.web.page_registry import STATIC, PageInfo
from app.web.security import Message, Receive, Scope, Send

HELD = "Another server has this workspace."
READ_ONLY = (
    "So this one is read-only: it shows everything and changes nothing. "
    "Stop the other server, then start this one again."
)
FIRST_PAINT = (
    "(function(){var t=null;try{t=localStorage.getItem('rl2f.theme')}catch(e){}"
    "if(t!=='dark'&&t!=='light')t=matchMedia('(prefers-color-scheme: dark)').matches?'dark':'light';"
    "document.documentElement.dataset.theme=t})();"
)


class Shell:
    """ASGI middleware that puts the frame into Gradio's HTML and a nonce on its scripts."""

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        *,
        pages: list[PageInfo],
        read_only: bool = False,
        holder: str = "",
    ) -> None:
        self.app = app
        self.pages = {f"/{page.path}": page for page in pages}
        self.read_only = read_only
        self.holder = holder or HELD
        self.versions = {file.name: _version(file.read_bytes()) for file in STATIC.iterdir() if file.is_file()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on; HTML of a page is held until it is whole, then framed."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        page = self.pages.get(scope["path"])
        if page is None:
            await self.app(scope, receive, self._lost(scope, send) if _wants_page(scope) else send)
            return
        scope["headers"] = [(n, v) for n, v in scope["headers"] if n.lower() != b"accept-encoding"]
        start: Message = {}
        body = bytearray()

        async def held(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if message["type"] != "http.response.body":
                await send(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            raw = bytes(body)
            if _is_html(start):
                raw = self.frame(raw.decode(), page, scope.get("state", {})).encode()
            headers = [(n, v) for n, v in start["headers"] if n.lower() not in (b"content-length", b"cache-control")]
            headers += [(b"content-length", str(len(raw)).encode()), (b"cache-control", b"no-store")]
            await send({**start, "headers": headers})
            await send({"type": "http.response.body", "body": raw})

        await self.app(scope, receive, held)

    def _lost(self, scope: Scope, send: Send) -> Send:
        """For people who follow a wrong link: a page that says so, instead of JSON."""
        replaced = False

        async def send_page(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start" and message["status"] == 404:
                replaced = True
                raw = self.not_found(scope).encode()
                headers = [
                    (b"content-type", b"text/html; charset=utf-8"),
                    (b"content-length", str(len(raw)).encode()),
                    (b"cache-control", b"no-store"),
                ]
                await send({"type": "http.response.start", "status": 404, "headers": headers})
                await send({"type": "http.response.body", "body": raw})
            elif not (replaced and message["type"] == "http.response.body"):
                await send(message)

        return send_page

    def not_found(self, scope: Scope) -> str:
        """The page for an address that is none."""
        text = missing(f"There is no page {scope['path'][:100]}.", "/", "Go to the runs")
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8" />'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"{self._head('Not found', scope.get('state', {}))}"
            f'<link rel="stylesheet" href="{self._file("app.css")}"></head>'
            f'<body style="margin: 0">{self.navigation(None)}<main class="rl-page" style="padding: 24px">{text}</main>'
            "</body></html>"
        ).replace("<script", f'<script nonce="{escape(scope.get("state", {}).get("rl2f_nonce", ""))}"')

    def frame(self, html: str, page: PageInfo, state: dict[str, Any]) -> str:
        """The page with our head and navigation."""
        nonce = escape(state.get("rl2f_nonce", ""))
        # ours come last, so that they win over Gradio's of the same weight
        tail = f'<link rel="stylesheet" href="{self._file("app.css")}">'
        tail += "".join(f'<link rel="stylesheet" href="{self._file(name)}">' for name in page.styles)
        tail += "".join(f'<script defer src="{self._file(name)}"></script>' for name in page.scripts)
        html = html.replace('<meta charset="utf-8" />', f'<meta charset="utf-8" />{self._head(page.title, state)}', 1)
        html = html.replace("</head>", f"{tail}</head>", 1)
        html = html.replace("<gradio-app", f"{self.navigation(page)}<gradio-app", 1)
        # `<` in Gradio's embedded settings is written \u003c, so every `<script` here is a tag of the template or ours
        return html.replace("<script", f'<script nonce="{nonce}"')

    def _head(self, title: str, state: dict[str, Any]) -> str:
        return (
            f"<title>{escape(title)} · RL2F Studio</title>"
            f'<meta name="rl2f-secret" content="{escape(state.get("rl2f_secret", ""))}">'
            f'<meta name="rl2f-read-only" content="{"1" if self.read_only else ""}">'
            '<meta name="color-scheme" content="light dark">'
            f"<script>{FIRST_PAINT}</script>"
            '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">'
            f'<script src="{self._file("app.js")}"></script>'
        )

    def _file(self, name: str) -> str:
        return f"/static/{escape(name)}?v={self.versions.get(name, '0')}"

    def navigation(self, current: PageInfo | None) -> str:
        """Links to all pages, the theme switch and the key list."""
        links = "".join(
            f'<a href="{escape(path)}"{" aria-current=page" if page is current else ""}>{escape(page.title)}</a>'
            for path, page in self.pages.items()
        )
        said = escape(f"{self.holder} {READ_ONLY}")
        banner = f'<div class="rl-banner" role="status">{said}</div>' if self.read_only else ""
        return (
            '<a class="rl-skip" href="#rl-main">Skip to the page</a>'
            '<header class="rl-top"><a class="rl-brand" href="/"><img src="/static/icon.svg" alt="" width="18" '
            'height="18"><span>RL2F Studio</span></a>'
            f'<nav class="rl-nav" aria-label="Pages">{links}</nav><span class="rl-top-tools">'
            '<button type="button" class="rl-icon" data-rl-act="keys" title="Keys (?)" aria-label="Keys">?</button>'
            '<button type="button" class="rl-icon" data-rl-act="theme" title="Light or dark" '
            'aria-label="Light or dark"><span class="rl-sun">☀</span><span class="rl-moon">☾</span></button>'
            f"</span></header>{banner}"
            '<div id="rl-main"></div>'
        )


def _wants_page(scope: Scope) -> bool:
    """A browser's address bar or a link, not a script."""
    accepts = b",".join(value for name, value in scope["headers"] if name.lower() == b"accept")
    return b"text/html" in accepts and not scope["path"].startswith(("/api/", "/gradio_api/"))


def _version(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:10]


def _is_html(start: Message) -> bool:
    return start["status"] == 200 and any(
        name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in start["headers"]
    )

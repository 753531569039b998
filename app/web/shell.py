"""Frame of every page: head, navigation and banner, inserted into the first response."""

from __future__ import annotations

import hashlib
from html import escape

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.page_registry import STATIC, PageInfo

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
    """ASGI middleware that inserts the frame into Gradio's HTML, and a nonce into its scripts."""

    def __init__(self, app: ASGIApp, *, pages: list[PageInfo], read_only: bool = False, holder: str = "") -> None:
        self.app = app
        self.pages = {f"/{page.path}": page for page in pages}
        self.read_only = read_only
        self.holder = holder or HELD
        self.versions = {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:10] for file in STATIC.iterdir() if file.is_file()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request; collect the HTML of a page and add the frame."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        page = self.pages.get(scope["path"])
        if page is None:
            await self.app(scope, receive, self._with_not_found(scope, receive, send) if _wants_page(scope) else send)
            return
        scope["headers"] = [(n, v) for n, v in scope["headers"] if n.lower() != b"accept-encoding"]
        start: Message = {}
        body = bytearray()

        async def send_framed(message: Message) -> None:
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
            headers, content = MutableHeaders(raw=list(start["headers"])), bytes(body)
            if start["status"] == 200 and headers.get("content-type", "").startswith("text/html"):
                content = self.frame(content.decode(), page, scope.get("state", {})).encode()
            headers["content-length"] = str(len(content))
            headers["cache-control"] = "no-store"
            await send({**start, "headers": headers.raw})
            await send({"type": "http.response.body", "body": content})

        await self.app(scope, receive, send_framed)

    def _with_not_found(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """Replace a 404 response by a page, for visitors who follow a wrong link."""
        replaced = False

        async def send_page(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start" and message["status"] == 404:
                replaced = True
                response = HTMLResponse(self.not_found(scope), 404, {"cache-control": "no-store"})
                await response(scope, receive, send)
            elif not (replaced and message["type"] == "http.response.body"):
                await send(message)

        return send_page

    def not_found(self, scope: Scope) -> str:
        """Return the page for an unknown address."""
        text = f"There is no page {escape(scope['path'][:100])}."
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8" />'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"{self._head('Not found', scope.get('state', {}))}"
            f'<link rel="stylesheet" href="{self._file("app.css")}"></head>'
            f'<body style="margin: 0">{self.navigation(None)}<main class="rl-page" style="padding: 24px">'
            f'<div class="rl-empty" role="alert"><p class="rl-empty-title">{text}</p>'
            '<p><a class="rl-button" href="/">Go to the runs</a></p></div></main></body></html>'
        ).replace("<script", f'<script nonce="{escape(scope.get("state", {}).get("rl2f_nonce", ""))}"')

    def frame(self, html: str, page: PageInfo, state: dict[str, str]) -> str:
        """Add head and navigation to a page."""
        nonce = escape(state.get("rl2f_nonce", ""))
        # last, to take precedence over Gradio's rules of equal specificity
        tail = "".join(f'<link rel="stylesheet" href="{self._file(name)}">' for name in ("app.css", *page.styles))
        tail += "".join(f'<script defer src="{self._file(name)}"></script>' for name in page.scripts)
        html = html.replace('<meta charset="utf-8" />', f'<meta charset="utf-8" />{self._head(page.title, state)}', 1)
        html = html.replace("</head>", f"{tail}</head>", 1)
        html = html.replace("<gradio-app", f"{self.navigation(page)}<gradio-app", 1)
        # Gradio escapes `<` in its embedded settings as \u003c, so every `<script` is a tag
        return html.replace("<script", f'<script nonce="{nonce}"')

    def _head(self, title: str, state: dict[str, str]) -> str:
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
        """Return links to all pages, the theme switch and the key list."""
        links = "".join(
            f'<a href="{escape(path)}"{" aria-current=page" if page is current else ""}>{escape(page.title)}</a>'
            for path, page in self.pages.items()
            if page.in_navigation or page is current
        )
        notice = escape(f"{self.holder} {READ_ONLY}")
        banner = f'<div class="rl-banner" role="status">{notice}</div>' if self.read_only else ""
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
    """Return whether a browser requests a page, not a script."""
    accepts = ",".join(Headers(scope=scope).getlist("accept"))
    return "text/html" in accepts and not scope["path"].startswith(("/api/", "/gradio_api/"))

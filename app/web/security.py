"""Who may ask what of the server: one ASGI middleware before every route, Gradio's private endpoints included.

- Host must be a loopback name, the bound address, or a name given at the start: a foreign name that resolves to this
  machine (DNS rebinding) is refused.
- Pages of other origins may link here and do nothing else: no embedding, no framing, no requests.
- A change needs a secret of two halves, both derived from the workspace's secret file: a cookie that comes
  with a page (`SameSite=Strict`, unreadable for scripts) and a header that `app.js` puts on every request of ours and
  of Gradio's. A program without a browser has neither.
- Bodies are limited. Routes of Gradio that nothing here uses do not exist.
- Beyond loopback every route asks for the password (HTTP Basic, compared in constant time).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from rl2f_core.errors import RL2FError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
SAFE = ("GET", "HEAD", "OPTIONS")
BODY_LIMIT = 2_000_000
"""Bytes of a request's body."""
DRAIN_LIMIT = 32_000_000
"""Bytes of a body too large that are still read, so that the browser hears the answer instead of a broken pipe."""
HEADER = "x-rl2f-secret"
CLOSED = re.compile(
    r"^/(gradio_api/)?(proxy=|monitoring|login|logout|token|dev/|run-history|runs/?$|mcp|vibe-|undo-vibe-|profiling|"
    r"process_recording|startup-events|custom_component|deep_link|openapi\.json|info/?$)"
)
"""Gradio's routes that the studio does not use."""


class ServerError(RL2FError, RuntimeError):
    """The web server cannot start as asked."""


def is_loopback(host: str) -> bool:
    """A name or address that only this machine reaches."""
    if host.lower() in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_binding(host: str, password: str | None) -> None:
    """Raises `ServerError` where others could reach the server and no password was given."""
    if not is_loopback(host) and not password:
        raise ServerError(
            "The studio is to be reached from other machines, so it needs a password.",
            value=host,
            fix="Put one into the environment and name its variable: "
            f"RL2F_PASSWORD=… rl2f serve --host {host} --password-env RL2F_PASSWORD. "
            "Or stay on this machine: leave --host away and use an SSH tunnel.",
        )


def load_secret(path: Path) -> bytes:
    """The workspace's secret, made at the first start, so that an open tab outlives a restart of the server."""
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        found = path.read_bytes()
        if len(found) < 32:
            raise ServerError(
                "The workspace's secret file is damaged.",
                value=str(path),
                fix="Remove it; the next start makes a new one.",
            ) from None
        return found
    with os.fdopen(made, "wb") as file:
        secret = secrets.token_bytes(48)
        file.write(secret)
    return secret


def own_names(host: str) -> set[str]:
    """Names and addresses of a server bound to `host`: loopback's and, bound to all, this machine's."""
    names = {*LOOPBACK, host.lower()}
    if host in ("0.0.0.0", "::", ""):
        import psutil

        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        names |= {a.address.partition("%")[0].lower() for each in psutil.net_if_addrs().values() for a in each}
    return names


def host_name(value: str) -> str:
    """The name in a Host header or origin's authority, without port and brackets."""
    value = value.strip().lower()
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.partition(":")[0]


class Security:
    """The middleware. See the module's docstring."""

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        *,
        secret: bytes,
        host: str,
        port: int,
        password: str | None = None,
        names: Iterable[str] = (),
        body_limit: int = BODY_LIMIT,
    ) -> None:
        check_binding(host, password)
        self.app = app
        self.names = own_names(host) | {name.lower() for name in names}
        self.password = password
        self.body_limit = body_limit
        self.cookie_name = f"rl2f_{port}"
        self.cookie = hmac.new(secret, b"cookie", hashlib.sha256).hexdigest()
        self.header = hmac.new(secret, b"header", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or hand on with headers added and the body counted."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # nothing here speaks over web sockets
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = _headers(scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            status, what, fix = refusal
            if status == 413:
                await _drain(receive)
            await _answer(scope, send, status, what, fix)
            return
        scope.setdefault("state", {})["rl2f_secret"] = self.header
        nonce = secrets.token_urlsafe(16)
        scope["state"]["rl2f_nonce"] = nonce
        await self._pass(scope, receive, send, nonce)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str, str] | None:
        host = headers.get("host", "")
        if host_name(host) not in self.names:
            return 421, f"This server does not answer to the name {host[:100]!r}.", (
                "Open it by the address it printed at the start, or name it with rl2f serve --allow-host."
            )  # fmt: skip
        if self.password is not None and not self._knows_password(headers):
            return 401, "This studio asks for its password.", "Any user name, and the password it was started with."
        path = unquote(scope["path"])
        if CLOSED.match(path):
            return 404, "There is no such address.", "Go back to /."
        safe = scope["method"] in SAFE
        if not self._same_site(scope, headers, safe):
            return 403, "The request came from another site.", "Open the studio itself and do it there."
        if safe:
            return None
        cookie_ok = hmac.compare_digest(_cookie(headers, self.cookie_name).encode(), self.cookie.encode())
        header_ok = hmac.compare_digest(headers.get(HEADER, "").encode(), self.header.encode())
        if not (cookie_ok and header_ok):
            return 403, "The request does not carry this workspace's secret.", "Reload the page, then try again."
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self.body_limit:
            return self._too_large()
        return None

    def _too_large(self) -> tuple[int, str, str]:
        limit = f"{self.body_limit / 1e6:g} MB"
        return 413, f"The message is too large: at most {limit} are taken.", "Send less at once."

    def _knows_password(self, headers: dict[str, str]) -> bool:
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            given = base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
        # digests of equal length: the time of the comparison tells not even how long the password is
        wanted = (self.password or "").encode()
        return hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(wanted).digest())

    def _same_site(self, scope: Scope, headers: dict[str, str], safe: bool) -> bool:
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
            return False
        site = headers.get("sec-fetch-site", "")
        if site in ("", "same-origin", "none"):
            return True
        # a link from elsewhere may open a page, nothing more
        return safe and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"

    async def _pass(self, scope: Scope, receive: Receive, send: Send, nonce: str) -> None:
        taken = 0
        started = refused = False

        async def counted() -> Message:
            nonlocal taken, refused
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.body_limit and not refused:
                refused = True
                if message.get("more_body"):
                    await _drain(receive)
                if not started:
                    await _answer(scope, send, *self._too_large())
                return {"type": "http.disconnect"}
            return message

        async def adding(message: Message) -> None:
            nonlocal started
            if refused:
                return
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = self._with_headers(scope, list(message.get("headers", [])), nonce)
            await send(message)

        try:
            await self.app(scope, counted, adding)
        except Exception:
            if not refused:  # the refusal was the answer; that the route below saw its client go is no fault
                raise

    def _with_headers(self, scope: Scope, headers: list[tuple[bytes, bytes]], nonce: str) -> list[tuple[bytes, bytes]]:
        html = any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in headers)
        drop = {b"access-control-allow-origin", b"access-control-allow-credentials"}
        headers = [(name, value) for name, value in headers if name.lower() not in drop]
        headers += _guards(nonce)
        if html:
            cookie = f"{self.cookie_name}={self.cookie}; Path=/; SameSite=Strict; HttpOnly"
            headers.append((b"set-cookie", (cookie + ("; Secure" if scope.get("scheme") == "https" else "")).encode()))
        return headers


def _guards(nonce: str) -> list[tuple[bytes, bytes]]:
    policy = (
        "default-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; "
        f"script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; media-src 'self' data: blob:; worker-src 'self' blob:; "
        "connect-src 'self' data: blob:"
    )
    return [
        (b"content-security-policy", policy.encode()),
        (b"x-frame-options", b"DENY"),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
    ]


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _cookie(headers: dict[str, str], name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


async def _drain(receive: Receive) -> None:
    taken, more = 0, True
    while more and taken < DRAIN_LIMIT:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        taken += len(message.get("body", b""))
        more = message.get("more_body", False)


async def _answer(scope: Scope, send: Send, status: int, what: str, fix: str) -> None:
    if scope["path"].startswith("/api/"):
        body: Any = {"error": {"what": what, "value": None, "known": None, "fix": fix}}
    else:  # Gradio's page shows `detail` or `error` as they are
        body = {"error": f"{what} {fix}", "detail": f"{what} {fix}"}
    raw = json.dumps(body, ensure_ascii=False).encode()
    headers = [
        (b"content-type", b"application/json; charset=utf-8"),
        (b"content-length", str(len(raw)).encode()),
        (b"cache-control", b"no-store"),
        *_guards("none"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="RL2F Studio", charset="UTF-8"'))
    if status == 413:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else raw})

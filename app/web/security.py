"""Access control: one ASGI middleware before every route, including Gradio's private endpoints.

- Host must be a loopback name, the bound address, or a configured name; this prevents DNS rebinding.
- Pages of other origins may link here, but not embed, frame or request anything.
- A browser needs the cookie that is set with a page (`SameSite=Strict`, `HttpOnly`, derived from the workspace's secret
  file) for every change and for Gradio's own routes. A change also needs an `Origin` equal to the Host, or
  `Sec-Fetch-Site: same-origin`: browsers share cookies between the ports of a host, but not these headers.
- A program needs an API token (`Authorization: Bearer`), which permits only calls of endpoints; see `program_access`.
  MCP always needs a token.
- Request bodies are limited, and `call_limits` limits the calls of a token. Unused routes of Gradio return 404.
- Beyond loopback every route requires the password (HTTP Basic, compared in constant time) or a token.
- Wrong passwords and tokens delay the next attempts (`jobs.http_access`). Browsers with the cookie and programs with a
  valid token are not delayed, so that nobody can exclude them; a token cannot be guessed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
import os
import re
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.common.http_status import STATUS
from app.forms.own_data import MAX_FILE_BYTES
from app.web.call_limits import CallLimits
from app.web.program_access import ProgramAccess, Refusal
from jobs.db.errors import StoreError
from jobs.db.models import ApiToken
from jobs.http_access import LOOPBACK, FailureLimit, host_name, is_loopback
from rl2f_core.common.file_io import checked_path
from rl2f_core.errors import DataError, RL2FError
from rl2f_core.types import JsonObject

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
LENGTH_HEADERS = (b"content-length", b"transfer-encoding")
MIN_SECRET_CHARACTERS = 12
"""Minimum length of a password or key that protects a server beyond loopback."""
MAX_BODY_BYTES, MAX_READ_BODY_BYTES = 2_000_000, 500_000
"""Maximum body of a request, and of one with a token that does not permit changes."""
MAX_UPLOAD_BYTES = MAX_FILE_BYTES + 10_000
"""Maximum body of an uploaded file, which has a boundary and headers of its own."""
UPLOAD_ROUTE = "/gradio_api/upload"
FILE_ROUTE = re.compile(r"/gradio_api/file[=/](.+)", re.DOTALL)
MAX_DRAINED_BYTES = 32_000_000
"""Bytes of a too large body that are still read, so that the browser receives the response, not a broken pipe."""
CLOSED_ROUTES = re.compile(
    r"^/(gradio_api/)?(proxy=|monitoring|login|logout|token|dev/|run-history|runs/?$|mcp|vibe-|undo-vibe-|profiling|"
    r"process_recording|startup-events|custom_component|deep_link|openapi\.json|info/?$|_endpoints)"
)
"""Gradio's routes that the studio does not use."""
COOKIE_ROUTES = re.compile(r"^/(config|gradio_api|exports/[^/]+)(/|$)")
"""Routes that need the cookie also for reading. A page itself does not: it sets the cookie."""


class ServerError(RL2FError, RuntimeError):
    """The web server cannot start with these options."""


def check_binding(host: str, password: str | None) -> None:
    """Raise `ServerError` if other machines can reach the server and there is no password, or a short one."""
    check_secret(
        host,
        password,
        "The studio can be reached from other machines, so it needs a password",
        "Put one into the environment and name its variable: "
        f"RL2F_PASSWORD=… rl2f serve --host {host} --password-env RL2F_PASSWORD. "
        "Or stay on this machine: leave --host away and use an SSH tunnel.",
    )


def check_secret(host: str, secret: str | None, what: str, fix: str) -> None:
    """Raise `ServerError` if other machines can reach a server and its password or key is missing or too short."""
    length = len((secret or "").strip())
    if not is_loopback(host) and length < MIN_SECRET_CHARACTERS:
        what += f" of at least {MIN_SECRET_CHARACTERS} characters"
        raise ServerError(f"{what}.", value=f"{length} characters at {host}" if length else host, fix=fix)


def load_secret(path: Path) -> bytes:
    """Return the workspace's secret, created at the first start, so that open pages stay valid after a restart."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        secret = path.read_bytes()
        if len(secret) < 32:
            raise ServerError(
                "The workspace's secret file is damaged.",
                value=str(path),
                fix="Remove it; the next start makes a new one.",
            ) from None
        return secret
    with os.fdopen(descriptor, "wb") as file:
        secret = secrets.token_bytes(48)
        file.write(secret)
    return secret


def own_names(host: str) -> set[str]:
    """Return the host names of a server bound to `host`: loopback, and all of this machine if bound to all."""
    names = {*LOOPBACK, host.lower()}
    if host in ("0.0.0.0", "::", ""):
        import psutil

        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        names |= {
            a.address.partition("%")[0].lower() for addresses in psutil.net_if_addrs().values() for a in addresses
        }
    return names


class Security:
    """Access control as ASGI middleware; see the module's docstring."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        secret: bytes,
        port: int,
        programs: ProgramAccess,
        password: str | None = None,
        names: Iterable[str] = LOOPBACK,
        limits: CallLimits | None = None,
        exports: Path | None = None,
    ) -> None:
        self.app = app
        self.names = {name.lower() for name in names}
        self.password = password
        self.programs = programs
        self.limits = limits or CallLimits()
        self.exports = exports
        self.failures = FailureLimit()
        self.cookie_name = f"rl2f_{port}"
        self.cookie = hmac.new(secret, b"cookie" + (password or "").encode(), hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or forward it with response headers added and the body size limited."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no route uses web sockets
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = _headers(scope)
        token: ApiToken | None = None
        refusal = self._refuse_origin(scope, headers)
        bearer = _bearer_token(headers)
        if refusal is None and bearer is None:
            refusal = self._refuse_browser(scope, headers)
        elif refusal is None and bearer is not None:
            token, refusal = await self._admit_program(scope, bearer)
        number = None if token is None else token.id
        refusal = refusal or self.limits.refuse(scope, number) or self._refuse_file(scope["path"])
        if refusal is not None:
            await self._refuse(scope, receive, send, *refusal)
            return
        async with self.limits.slot(scope, number):
            await self._forward(scope, receive, send, token)

    async def _forward(self, scope: Scope, receive: Receive, send: Send, token: ApiToken | None) -> None:
        """Forward a request with its whole body, or refuse the body."""
        limit = MAX_UPLOAD_BYTES if scope["path"] == UPLOAD_ROUTE else MAX_BODY_BYTES
        if token is not None and "run" not in token.scopes.split():
            limit = min(limit, MAX_READ_BODY_BYTES)
        body = await self._read_body(receive, limit)
        if isinstance(body, bytes) and scope["method"] == "POST":
            body = await run_in_threadpool(self.programs.check_call, token, scope["path"], body)
        if not isinstance(body, bytes):
            await self._refuse(scope, receive, send, *body)
            return
        scope, receive = _with_body(scope, receive, body)
        nonce = secrets.token_urlsafe(16)
        scope.setdefault("state", {}).update(rl2f_nonce=nonce, rl2f_token=token)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] == 500:  # Gradio's answer to every error
                    message["status"] = scope["state"].get(STATUS, 500)
                message["headers"] = self._with_headers(scope, list(message.get("headers", [])), nonce)
            await send(message)

        await self.app(scope, receive, send_with_headers)

    def _refuse_file(self, path: str) -> Refusal | None:
        """Refuse a link in the exports that leads out of them, which Gradio would follow."""
        route = FILE_ROUTE.fullmatch(path)
        if route is None or self.exports is None:
            return None
        file = Path(os.path.abspath(route[1]))
        try:
            if file.is_relative_to(self.exports):
                checked_path(self.exports, str(file.relative_to(self.exports)))
        except (DataError, ValueError):
            return 404, "There is no such file.", "See the list of exports."
        return None

    def _refuse_origin(self, scope: Scope, headers: dict[str, str]) -> Refusal | None:
        host = headers.get("host", "")
        if host_name(host) not in self.names:
            fix = "Open it by the address it printed at the start, or name it with rl2f serve --allow-host."
            return 421, f"This server does not answer to the name {host[:100]!r}.", fix
        if not _is_same_site(headers, scope["method"] in SAFE_METHODS):
            origin = headers.get("origin", "").partition("://")[2]
            if host_name(origin) == host_name(host):
                fix = "Behind a proxy, forward the Host with its port; in nginx: proxy_set_header Host $http_host;"
                what = f"The request came from another site: its Origin is {origin[:100]!r}, the Host {host[:100]!r}."
                return 403, what, fix
            return 403, "The request came from another site.", "Open the studio itself and do it there."
        return None

    def _refuse_browser(self, scope: Scope, headers: dict[str, str]) -> Refusal | None:
        path, safe = unquote(scope["path"]), scope["method"] in SAFE_METHODS
        cookie_ok = hmac.compare_digest(_cookies(headers).get(self.cookie_name, "").encode(), self.cookie.encode())
        if self.password is not None:
            is_attempt = "authorization" in headers
            if is_attempt and not cookie_ok and (refusal := self._refuse_attempt(scope)):
                return refusal
            if not self._knows_password(headers):
                if is_attempt:
                    self.failures.add(_address(scope))
                return 401, "This studio requires its password.", "Any user name, and the password it was started with."
        if not cookie_ok and (not safe or COOKIE_ROUTES.match(path)):
            fix = "In a browser, reload the page. In a program, send a token: rl2f token new --help."
            return 403, "The request has neither the cookie of this studio nor an API token.", fix
        if not safe and "origin" not in headers and headers.get("sec-fetch-site") != "same-origin":
            fix = "Use a current browser. In a program, send a token: rl2f token new --help."
            return 403, "The request does not name its origin.", fix
        if CLOSED_ROUTES.match(path):
            return 404, "There is no such address.", "Go back to /."
        return None

    async def _admit_program(self, scope: Scope, bearer: str) -> tuple[ApiToken | None, Refusal | None]:
        """Return the token of a program, and why its request is refused."""
        try:
            token = await run_in_threadpool(self.programs.find, bearer)
        except StoreError as error:
            return None, (503, error.what, error.fix or "Try again.")
        if token is None:
            refusal = self._refuse_attempt(scope)
            if refusal is None:
                self.failures.add(_address(scope))
            return None, refusal or (
                401,
                "The API token is unknown or was revoked.",
                "Create one: rl2f token new --scope read",
            )
        return token, self.programs.refuse_route(scope["method"], scope["path"])

    def _refuse_attempt(self, scope: Scope) -> Refusal | None:
        """Return why an address may not try a password or a token now."""
        if not (seconds := self.failures.seconds_left(_address(scope))):
            return None
        return 429, "There were too many wrong passwords or tokens.", f"Try again in {math.ceil(seconds)} seconds."

    async def _read_body(self, receive: Receive, max_bytes: int) -> bytes | Refusal:
        """Return the body of a request, or a refusal if it is too large."""
        body, received, more = bytearray(), 0, True
        while more and received < MAX_DRAINED_BYTES:
            message = await receive()
            piece = message.get("body", b"")
            received += len(piece)
            if received <= max_bytes:
                body += piece
            more = message.get("more_body", False)
        if received <= max_bytes:
            return bytes(body)
        limit = f"{max_bytes / 1e6:.3g} MB"
        return 413, f"The message is too large: at most {limit} are taken.", "Send less at once."

    def _knows_password(self, headers: dict[str, str]) -> bool:
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            given = base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
        # digests have equal lengths, so the comparison time does not reveal the length of the password
        password = (self.password or "").encode()
        return hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(password).digest())

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, status: int, what: str, fix: str) -> None:
        body: JsonObject = {"error": f"{what} {fix}", "detail": f"{what} {fix}"}  # Gradio's page shows either
        if "gradio_client" in _headers(scope).get("user-agent", ""):
            status, body = _for_gradio_client(scope["path"], status, body)
        content = json.dumps(body, ensure_ascii=False).encode()
        response = Response(content, status, media_type="application/json; charset=utf-8")
        response.raw_headers += [(b"cache-control", b"no-store"), *_security_headers("none")]
        if status == 401:
            basic = 'Basic realm="RL2F Studio", charset="UTF-8"'
            response.headers["www-authenticate"] = 'Bearer realm="RL2F Studio"' if self.password is None else basic
        if status == 429:
            response.headers["retry-after"] = str(max(1, math.ceil(self.failures.seconds_left(_address(scope)))))
        if status == 413:
            response.headers["connection"] = "close"
        if scope["method"] == "HEAD":
            response.body = b""
        await response(scope, receive, send)

    def _with_headers(self, scope: Scope, headers: list[tuple[bytes, bytes]], nonce: str) -> list[tuple[bytes, bytes]]:
        html = any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in headers)
        drop = {b"access-control-allow-origin", b"access-control-allow-credentials"}
        headers = [(name, value) for name, value in headers if name.lower() not in drop]
        headers += _security_headers(nonce)
        if html:
            cookie = f"{self.cookie_name}={self.cookie}; Path=/; SameSite=Strict; HttpOnly"
            headers.append((b"set-cookie", (cookie + ("; Secure" if scope.get("scheme") == "https" else "")).encode()))
        return headers


def _for_gradio_client(path: str, status: int, body: JsonObject) -> tuple[int, JsonObject]:
    """Return the refusal in the form whose text `gradio_client` shows; of others it shows the status only.

    The request of `/config` receives a configuration without endpoints; the client then raises the text of the refusal
    of its next request. A refused call is an invalid parameter.
    """
    if path == "/config":
        config = {"version": "6.0", "protocol": "sse_v3", "api_prefix": "/gradio_api", "dependencies": []}
        return 200, config
    if path == "/gradio_api/queue/join":
        invalid = {"__type__": "validate", "is_valid": False, "parameter_name": "request", "message": body["error"]}
        return 422, {**body, "detail": [invalid]}
    return status, {"error": body["error"]}


def _is_same_site(headers: dict[str, str], safe: bool) -> bool:
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        return False
    if headers.get("sec-fetch-site", "") in ("", "same-origin", "none"):
        return True
    # a link on another site may only open a page
    return safe and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _security_headers(nonce: str) -> list[tuple[bytes, bytes]]:
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


def _cookies(headers: dict[str, str]) -> dict[str, str]:
    return cookie_parser(headers.get("cookie", ""))


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def _bearer_token(headers: dict[str, str]) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def _with_body(scope: Scope, receive: Receive, body: bytes) -> tuple[Scope, Receive]:
    """Return the scope of a request with this body, and a `receive` that yields it and then the original messages."""
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in LENGTH_HEADERS]
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}, replay

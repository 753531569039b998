"""A local OpenAI-compatible server for tests: a real socket, a model or a script behind it, and every way to fail."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rl2f_core.models.backends.base import Backend, SamplingParams
from rl2f_core.models.llms.base import ChatRequest
from rl2f_core.models.llms.local import complete_local


@dataclass(frozen=True)
class Say:
    """What one request is answered with."""

    text: str = ""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    raw: bytes | None = None
    """The body as it is, in place of a message."""
    cut: bool = False
    """The connection ends after half of the body."""
    reset: bool = False
    """The connection is reset before anything is said."""
    delay: float = 0.0
    finish: str = "stop"
    usage: tuple[int, int] = (11, 7)


Script = Callable[[int, dict[str, Any]], Say]
"""From the number of the request (0, 1, …) and its body to the answer."""


def in_turn(*answers: Say) -> Script:
    """These answers one after the other, the last again and again."""
    return lambda number, body: answers[min(number, len(answers) - 1)]


@dataclass
class FakeEndpoint:
    """What the server was asked, and what it said."""

    script: Script
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """Texts that were sent whole."""
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    server: ThreadingHTTPServer | None = None

    def kill(self) -> None:
        """From now on nobody answers at the address."""
        if self.server is not None:
            server, self.server = self.server, None
            server.shutdown()
            server.server_close()

    def kill_soon(self) -> None:
        """`kill` from within an answer, which may still be sent or not."""
        threading.Thread(target=self.kill, daemon=True).start()


@contextmanager
def serving(script: Script) -> Iterator[FakeEndpoint]:
    """A server on a port of its own until the block ends."""
    endpoint = FakeEndpoint(script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if endpoint.server is None:  # killed: connections that were kept open die too
                self.close_connection = True
                return
            with endpoint.lock:
                number = len(endpoint.requests)
                endpoint.requests.append(body)
                endpoint.headers.append({k.lower(): v for k, v in self.headers.items()})
            said = endpoint.script(number, body)
            time.sleep(said.delay)
            if said.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.connection.close()
                self.close_connection = True
                return
            data = said.raw if said.raw is not None else json.dumps(message(said)).encode()
            self.send_response(said.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            for name, value in said.headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if said.cut else data)
            if said.cut:
                self.close_connection = True
            elif said.status == 200 and said.raw is None:
                with endpoint.lock:
                    endpoint.said.append(said.text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    endpoint.server, endpoint.url = server, f"http://127.0.0.1:{server.server_address[1]}/v1"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield endpoint
    finally:
        endpoint.kill()


def message(said: Say) -> dict[str, Any]:
    """The body of an answer."""
    counts = {"prompt_tokens": said.usage[0], "completion_tokens": said.usage[1]}
    choice = {"index": 0, "finish_reason": said.finish, "message": {"role": "assistant", "content": said.text}}
    return {"id": "x", "object": "chat.completion", "choices": [choice], "usage": counts}


def over(backend: Backend) -> Script:
    """Answers of a model of this project's own."""
    one_at_a_time = threading.Lock()

    def script(number: int, body: dict[str, Any]) -> Say:
        messages: Sequence[Any] = body["messages"]
        sampling = SamplingParams(body["max_tokens"], max(body["temperature"], 1e-3))
        with one_at_a_time:
            (told,) = complete_local(backend, None, [ChatRequest(tuple(messages), body.get("seed", 0))], sampling)
        counts = (told.usage.prompt_tokens, told.usage.completion_tokens)
        return Say(told.text or "…", finish=told.finish_reason, usage=counts)

    return script

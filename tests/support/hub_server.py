"""A local model hub: repositories, preupload, the Xet store and commits, as `huggingface_hub` speaks to them."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LFS_BYTES = 20_000
"""Larger files go to the Xet store, smaller ones into the commit."""


class HubServer(ThreadingHTTPServer):
    """What was uploaded."""

    def __init__(self, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token = token
        self.repositories: list[dict[str, Any]] = []
        self.commits: list[dict[str, Any]] = []
        """Per commit: the summary, and per file the content, or the SHA-256 of one in the Xet store."""
        self.stored_bytes = 0
        """Size of the compressed content in the Xet store."""

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def _answer(self) -> None:
        body = self._body()
        if not self.path.startswith(("/cas", "/v1")) and self.headers["authorization"] != f"Bearer {self.server.token}":
            return self._send({"error": "Invalid credentials"}, 401)
        if self.path == "/api/repos/create":
            self.server.repositories.append(json.loads(body))
            return self._send({"url": f"{self.server.url}/lab/model", "id": "1"})
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            modes = {f["path"]: "lfs" if f["size"] > LFS_BYTES else "regular" for f in files}
            return self._send(
                {"files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]}
            )
        if "/xet-write-token/" in self.path:
            expiry = int(time.time()) + 3600
            return self._send({"accessToken": "store", "exp": expiry, "casUrl": f"{self.server.url}/cas"})
        if "/v1/xorbs/" in self.path:
            self.server.stored_bytes += len(body)
            return self._send({"was_inserted": True})
        if "/shards" in self.path:
            return self._send({"type": "result"})
        if "/commit/" in self.path:
            self.server.commits.append(_commit([json.loads(line) for line in body.splitlines()]))
            return self._send({"commitUrl": f"{self.server.url}/lab/model/commit/1", "commitOid": "1" * 40})
        return self._send({}, 404 if self.path.startswith("/cas") else 200)

    do_GET = do_POST = do_PUT = do_HEAD = _answer

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, data: object, status: int = 200) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def _commit(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return summary and files of a commit."""
    files: dict[str, Any] = {}
    for line in lines[1:]:
        value = line["value"]
        files[value["path"]] = value["oid"] if line["key"] == "lfsFile" else base64.b64decode(value["content"])
    return {"summary": lines[0]["value"]["summary"], "files": files}


@contextmanager
def serve_hub(token: str = "hf_test") -> Iterator[HubServer]:
    """Serve a hub that accepts one token."""
    with HubServer(token) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()

"""The studio's model process: a `ModelServer` of its own, started on demand and restarted after its end.

`ModelProcess` binds a free port of the loopback interface and passes the listening socket to
`python -m jobs.model_server.process --fd N`, so that requests can be sent before the server is ready. The environment
variable `TOKENS_VARIABLE` passes the studio's token and the API key of served models. The process ends after an idle
time without served models, and when its standard input is closed, i.e. when its parent ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2

from jobs.model_server.limits import STUDIO_LIMITS, ServerLimits
from jobs.model_server.protocol import ApiError, ModelSource
from rl2f_core.common.paths import ROOT
from rl2f_core.types import JsonObject

TOKENS_VARIABLE = "RL2F_MODEL_PROCESS_TOKENS"
MAX_LOG_BYTES = 1_000_000
"""Size above which the log is deleted when a process starts."""
EXIT_SECONDS = 10.0
"""A process that broke a connection has to end within this time."""
STATE_SECONDS = 5.0
"""Time after which a process that does not report its state counts as busy."""


@dataclass
class RunningProcess:
    """A started model process."""

    popen: subprocess.Popen[bytes]
    url: str
    token: str
    """Bearer token of the studio's requests."""
    api_key: str
    """Bearer token of other clients."""
    idle_seconds: float | None
    is_ready: bool = False
    """It has responded to a request."""
    is_unloaded: bool = False

    def failure(self) -> ApiError:
        """Return why the connection to the process broke."""
        try:
            code = self.popen.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            code = self.popen.wait()
        if self.is_unloaded:
            return process_error("The model process ended: it was unloaded.")
        if code == 0:
            return process_error(f"The model process ended: idle for {self.idle_seconds:.0f} s.")
        how, why = f"ended with code {code}", ""
        if code < 0:
            how = f"was killed ({signal.Signals(-code).name})"
            why = " The system does that when memory runs out." if -code == signal.SIGKILL else ""
        what = f"The model process {how}, so there is no response.{why} The next message starts it again."
        return process_error(what)

    def options(self, timeout: float | None = None) -> JsonObject:
        """Return the options of a client without proxies and certificates; loading a model can take minutes."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return {"base_url": self.url, "headers": headers, "timeout": timeout, "trust_env": False, "verify": False}


class ModelProcess:
    """Requests to the model process. Thread-safe; the process starts with the first request.

    Args:
        log: File of its output.
        limits: Its limits.
    """

    def __init__(self, log: Path, limits: ServerLimits = STUDIO_LIMITS) -> None:
        self.log, self.limits = log, limits
        self.starts = 0
        """Number of process starts."""
        self._process: RunningProcess | None = None
        self._lock = threading.Lock()

    async def stream(self, path: str, body: JsonObject) -> AsyncIterator[JsonObject | str]:
        """Send a request and yield its progress messages and chunks. Closing the iterator cancels the request.

        Raises `ApiError`, also if the process ends.
        """
        for may_retry in (True, False):
            process = self.running_process()
            try:
                async with httpx2.AsyncClient(**process.options()) as http:
                    async with http.stream("POST", path, json={**body, "stream": True}) as response:
                        process.is_ready, may_retry = True, False
                        if response.status_code != 200:
                            raise _parse_error(json.loads(await response.aread()))
                        async for line in response.aiter_lines():
                            if line.startswith(":"):
                                yield line[1:].strip()
                            elif line.startswith("data: {"):
                                data = json.loads(line[6:])
                                if "error" in data:
                                    raise _parse_error(data)
                                yield data
                return
            except httpx2.TransportError:
                error = await asyncio.to_thread(process.failure)
                if not may_retry or process.is_unloaded or process.popen.returncode != 0:
                    raise error from None
                # it ended for being idle just as the request was sent

    def serve(self, models: Mapping[str, ModelSource]) -> RunningProcess:
        """Serve models by name to other clients until the process ends. Raises `ApiError`."""
        process = self.running_process()
        with httpx2.Client(**process.options()) as http:
            body = {name: source.model_dump(mode="json") for name, source in models.items()}
            http.post("/models", json=body).raise_for_status()
        process.is_ready = True
        return process

    @property
    def api_key(self) -> str | None:
        """Bearer token of other clients; None if the process is not running."""
        process = self._process
        return process.api_key if process is not None and process.popen.poll() is None else None

    def state(self) -> JsonObject:
        """Return whether it runs, its pid, URL and number of starts, and if it is ready the result of `GET /state`."""
        process, state = self._process, {}
        if process is None or process.popen.poll() is not None:
            return {"running": False, "pid": None, "starts": self.starts}
        if process.is_ready:
            with httpx2.Client(**process.options(STATE_SECONDS)) as http:
                with contextlib.suppress(httpx2.TransportError):  # it is ending
                    state = http.get("/state").json()
        return {"running": True, "pid": process.popen.pid, "url": f"{process.url}/v1", "starts": self.starts, **state}

    def unload(self) -> None:
        """End the process, which frees its memory; pending requests fail."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.popen.poll() is None:
            process.is_unloaded = True
            process.popen.kill()
            process.popen.wait(timeout=30)

    close = unload

    def running_process(self) -> RunningProcess:
        """Return the process, started if necessary. Raises `ApiError` if it cannot start."""
        with self._lock:
            if self._process is None or self._process.popen.poll() is not None:
                try:
                    self._process = self._start()
                except OSError as error:
                    raise process_error(f"The model process cannot be started: {error}.") from error
            return self._process

    def _start(self) -> RunningProcess:
        if sys.platform == "win32":
            raise OSError("Windows cannot pass a socket to a process; run the studio in WSL")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES:
            self.log.unlink()
        token, api_key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener, open(self.log, "ab") as log:
            command = [sys.executable, "-m", "jobs.model_server.process", "--fd", str(listener.fileno())]
            popen = subprocess.Popen(
                [*command, "--limits", self.limits.model_dump_json()],
                stdin=subprocess.PIPE,  # the process ends when this pipe closes
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                start_new_session=True,  # Ctrl-C ends the server, which ends this process
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
                    TOKENS_VARIABLE: f"{token} {api_key}",
                },
            )
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=popen.wait, name="model-process", daemon=True).start()  # leaves no zombie
        self.starts += 1
        return RunningProcess(popen, url, token, api_key, self.limits.idle_seconds)


def process_error(what: str) -> ApiError:
    """Return the error of a process that cannot respond."""
    return ApiError(what, status=502, code="process")


def _parse_error(data: JsonObject) -> ApiError:
    """Return the error of a response."""
    error = data["error"]
    details = {name: error.get(name) for name in ("value", "known", "fix")}
    return ApiError(error["message"], code=error["code"], param=error["param"], **details)


# -- the process -----------------------------------------------------------------------------------------------------
def _end_with_parent() -> None:
    """End the process when its parent ends, which closes the pipe to standard input."""
    sys.stdin.buffer.read()
    os._exit(0)


def _limit_memory(gigabytes: float) -> None:
    """Limit the memory of this process; 0 means no limit."""
    if gigabytes and sys.platform == "linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (int(gigabytes * 1e9), hard))


def main() -> None:
    """Entry point."""
    import uvicorn

    from jobs.model_server.server import ModelServer

    parser = argparse.ArgumentParser(description="The studio's model process.")
    parser.add_argument("--fd", type=int, required=True, help="Inherited listening socket.")
    parser.add_argument("--limits", type=ServerLimits.model_validate_json, required=True, help="ServerLimits as JSON.")
    options = parser.parse_args()
    token, api_key = os.environ.pop(TOKENS_VARIABLE).split()  # child processes must not inherit them
    _limit_memory(options.limits.memory_gb)
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} model process {os.getpid()} started", file=sys.stderr, flush=True)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    # skips the libraries' shutdown, which takes seconds
    server = ModelServer(options.limits, {}, api_key, token, on_idle=lambda: os._exit(0))
    config = uvicorn.Config(server.app(), log_level="warning", access_log=False, ws="none", lifespan="off")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=options.fd)])
    os._exit(1)


if __name__ == "__main__":
    main()

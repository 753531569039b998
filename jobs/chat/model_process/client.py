"""Client of the model process: starts it on demand, streams from it, and restarts it after its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from jobs.chat.limits import ChatLimits
from jobs.chat.model_process.protocol import (
    TOKEN_VARIABLE,
    Completion,
    ErrorBody,
    ModelRequest,
    Stats,
    TaskTurnRequest,
)
from rl2f_core.common.paths import ROOT
from rl2f_core.types import JsonObject

Frame = JsonObject
MAX_LOG_BYTES = 1_000_000
"""Size above which the log is deleted when a process starts."""
EXIT_SECONDS = 10.0
"""A process that broke a connection has to end within this time."""
STOP_REASONS = {"stop": "eos", "length": "length"}
"""OpenAI's `finish_reason` → `rl2f_core.types.FinishReason`."""


@dataclass
class RunningProcess:
    """A started model process."""

    popen: subprocess.Popen[bytes]
    url: str
    token: str
    """Bearer token of every request."""
    idle_seconds: float
    is_unloaded: bool = False

    def failure(self) -> ErrorBody:
        """Return why the connection to the process broke."""
        try:
            code = self.popen.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            code = self.popen.wait()
        if self.is_unloaded:
            return ErrorBody.of("process", "The model process ended: it was unloaded.")
        if code == 0:
            return ErrorBody.of("process", f"The model process ended: idle for {self.idle_seconds:.0f} s.")
        how, why = f"ended with code {code}", ""
        if code < 0:
            how = f"was killed ({signal.Signals(-code).name})"
            why = " The system does that when memory runs out." if -code == signal.SIGKILL else ""
        what = f"The model process {how}, so there is no response.{why} The next message starts it again."
        return ErrorBody.of("process", what)


class _ResponseReader:
    """One row of a turn: reads its stream and puts frames into the queue of the turn."""

    def __init__(self, row: int, turn: _Turn) -> None:
        self.row, self.turn = row, turn
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.stats = Stats(prompt_tokens=0)
        self.is_finished = False

    async def read(self, http: httpx2.AsyncClient, request: ModelRequest) -> None:
        """Send the request and read its stream to the end."""
        path = "/v1/tasks/turns" if isinstance(request, TaskTurnRequest) else "/v1/chat/completions"
        body = {**request.model_dump(mode="json"), "stream": True, "logprobs": True, "return_token_ids": True}
        async with http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                self._fail(json.loads(await response.aread()))
                return
            async for line in response.aiter_lines():
                if line.startswith(": "):
                    self._put(type="status", text=line[2:])
                elif line.startswith("data: {"):
                    data = json.loads(line[6:])
                    if "error" in data:
                        self._fail(data)
                        return
                    self._process(Completion.model_validate(data))

    def _put(self, **frame: object) -> None:
        self.turn.frames.put(frame)

    def _fail(self, data: JsonObject) -> None:
        body = ErrorBody.model_validate(data["error"])
        if body.code == "context":
            self.finish("failed", **error_frame(body))
        else:
            self.turn.error = self.turn.error or body
            self.turn.stop()

    def _process(self, chunk: Completion) -> None:
        self.stats = chunk.stats or self.stats
        if chunk.task is not None and chunk.task.hint is not None:
            self._put(type="hint", row=self.row, hint=chunk.task.hint, error=chunk.task.hint_error)
        result: JsonObject = {} if chunk.task is None else chunk.task.model_dump(include={"turn", "ended"})
        for choice in chunk.choices:
            if choice.delta is not None and choice.delta.role is not None:
                self._put(type="status", text="")
            self.token_ids += choice.token_ids or ()
            self.logprobs += [token.logprob for token in choice.logprobs.content] if choice.logprobs else ()
            if choice.delta is not None and choice.delta.content:
                self.text += choice.delta.content
                self._put(type="delta", row=self.row, text=choice.delta.content)
            if choice.finish_reason is not None:
                self.finish("done", stop=STOP_REASONS[choice.finish_reason], **result)
        if not chunk.choices and chunk.task is not None and chunk.task.ended is not None:
            self.is_finished = True
            self._put(type="done", row=self.row, status="done", **result)

    def finish(self, status: str, **more: object) -> None:
        """Put the last frame of the row."""
        self.is_finished = True
        response: JsonObject = {
            "text": self.text,
            "token_ids": self.token_ids,
            "logprobs": self.logprobs,
            "stop": None,
            "first": self.stats.first_token_seconds,
            "seconds": self.stats.seconds,
            "prompt_tokens": self.stats.prompt_tokens,
        }
        self._put(**{**response, **more, "type": "done", "row": self.row, "status": status})


@dataclass
class _Turn:
    """The requests that one call of `stream` runs side by side."""

    loop: asyncio.AbstractEventLoop
    frames: queue.SimpleQueue[Frame | None] = field(default_factory=queue.SimpleQueue)
    """`None` is the last entry."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    is_stopped: bool = False
    error: ErrorBody | None = None
    """Why all rows failed."""

    def stop(self) -> None:
        """Close the streams."""
        self.is_stopped = True
        for task in self.tasks:
            task.cancel()


class ModelProcess:
    """Requests to the model process. Thread-safe; the process starts with the first request."""

    def __init__(self, log: Path, limits: ChatLimits | None = None) -> None:
        self.log = log
        self.limits = limits or ChatLimits()
        self.starts = 0
        """Number of process starts."""
        self.last: Frame = {}
        """Loaded models at the end of the last request."""
        self._process: RunningProcess | None = None
        self._turns: dict[str, _Turn] = {}
        self._lock = threading.Lock()

    # -- requests ----------------------------------------------------------------------------------------------
    def stream(self, requests: Sequence[ModelRequest], name: str | None = None) -> Iterator[Frame]:
        """Run requests concurrently and yield frames; `row` is the position of a frame's request.

        Frames: `status`, `delta` (more text of a row), `hint` (a task's screened hint), `done` (a row is finished), and
        finally `end` or `error`. A row that exceeds the context fails alone, in its `done`; other failures end all.
        Failures of the process are frames, not exceptions.

        Args:
            requests: One for each row.
            name: Names the call for `stop`.
        """
        name = name or uuid.uuid4().hex
        for is_last_try in (False, True):
            try:
                process = self.running_process()
            except OSError as error:
                yield error_frame(ErrorBody.of("process", f"The model process cannot be started: {error}."))
                return
            frames = self._stream_from(process, requests, name)
            first = next(frames)
            if first["type"] == "error" and process.popen.poll() == 0 and not process.is_unloaded and not is_last_try:
                continue  # it ended for being idle just as the request was sent
            yield first
            yield from frames
            return

    def _stream_from(self, process: RunningProcess, requests: Sequence[ModelRequest], name: str) -> Iterator[Frame]:
        # The event loop runs in a thread of its own: the caller's thread can already have a running loop (Jupyter).
        turn = self._turns[name] = _Turn(asyncio.new_event_loop())
        with ThreadPoolExecutor(1, "chat-stream") as pool:
            streams = pool.submit(self._run, process, turn, requests)
            try:
                while (frame := turn.frames.get()) is not None:
                    yield frame
                streams.result()
            finally:
                self.stop(name)  # without effect at the end of the streams
                self._turns.pop(name, None)

    def _run(self, process: RunningProcess, turn: _Turn, requests: Sequence[ModelRequest]) -> None:
        with asyncio.Runner(loop_factory=lambda: turn.loop) as runner:
            try:
                runner.run(self._exchange(process, turn, requests))
            finally:
                turn.frames.put(None)

    async def _exchange(self, process: RunningProcess, turn: _Turn, requests: Sequence[ModelRequest]) -> None:
        readers = [_ResponseReader(row, turn) for row in range(len(requests))]
        try:
            async with _http(process) as http:
                async with asyncio.TaskGroup() as group:
                    for reader, request in zip(readers, requests, strict=True):
                        turn.tasks.append(group.create_task(reader.read(http, request)))
                    if turn.is_stopped:
                        turn.stop()
                if turn.error is not None:
                    turn.frames.put(error_frame(turn.error))
                    return
                for reader in readers:
                    if not reader.is_finished:  # its stream was closed
                        reader.finish("stopped")
                self.last = (await http.get("/health")).json()["loaded"]
                turn.frames.put({"type": "end", **self.last})
        except* httpx2.TransportError:
            turn.frames.put(error_frame(process.failure()))

    def stop(self, name: str) -> None:
        """Close the streams of a call; its rows keep the received text."""
        turn = self._turns.get(name)
        if turn is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                turn.loop.call_soon_threadsafe(turn.stop)

    def unload(self) -> None:
        """End the process, which frees its memory; pending requests fail."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.popen.poll() is None:
            process.is_unloaded = True
            process.popen.kill()
            process.popen.wait(timeout=30)

    close = unload

    def state(self) -> Frame:
        """Return whether it runs, its pid, the loaded models, and the number of starts."""
        with self._lock:
            process = self._process
        if process is None or process.popen.poll() is not None:
            return {"running": False, "busy": False, "pid": None, "starts": self.starts}
        busy = bool(self._turns)
        return {"running": True, "busy": busy, "pid": process.popen.pid, "starts": self.starts, **self.last}

    # -- the process -------------------------------------------------------------------------------------------
    def running_process(self) -> RunningProcess:
        """Return the process, started if necessary; raises `OSError`."""
        with self._lock:
            if self._process is None or self._process.popen.poll() is not None:
                self._process = self._start()
            return self._process

    def _start(self) -> RunningProcess:
        if sys.platform == "win32":
            raise OSError("Windows cannot pass a socket to a process; run the studio in WSL")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES:
            self.log.unlink()
        limits, token = self.limits, secrets.token_urlsafe(32)
        paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener, open(self.log, "ab") as log:
            command = [sys.executable, "-m", "jobs.chat.model_process.server", "--fd", str(listener.fileno())]
            command += ["--idle", str(limits.idle_seconds), "--limit", str(int(limits.memory_gb * 1e9))]
            command += ["--reserve", str(int(limits.reserve_gb * 1e9))]
            popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # the process ends when this pipe closes
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), TOKEN_VARIABLE: token},
            )
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=popen.wait, name="chat-model", daemon=True).start()  # an ended process leaves no zombie
        self.starts += 1
        self.last = {}
        return RunningProcess(popen, url, token, limits.idle_seconds)


def _http(process: RunningProcess) -> httpx2.AsyncClient:
    """Return a client without proxies, certificates and timeouts: loading a model can take minutes."""
    return httpx2.AsyncClient(
        base_url=process.url,
        headers={"Authorization": f"Bearer {process.token}"},
        transport=httpx2.AsyncHTTPTransport(verify=False),
        timeout=None,
    )


def error_frame(body: ErrorBody) -> Frame:
    """Return a failure as a frame."""
    error = {"what": body.message, "value": body.value, "known": body.known, "fix": body.fix}
    return {"type": "error", "kind": body.code, "error": error}

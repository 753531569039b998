"""The studio's end of the model process: starts it on demand, notices at once when it is gone, starts it again."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.chat.protocol import error_frame

Frame = dict[str, Any]
MAX_LOG = 1_000_000
"""Bytes of the log that are kept when a process starts."""


@dataclass
class Limits:
    """How the model process may behave."""

    idle_seconds: float = 600
    """It leaves after so long without a request."""
    memory_bytes: int = 0
    """Memory it may take; 0 is no limit."""
    reserve_bytes: int = 500_000_000
    """Memory that must stay free when a model is loaded."""


@dataclass
class _Process:
    """One life of the model process."""

    popen: subprocess.Popen[bytes]
    connection: socket.socket
    waiting: dict[str, queue.Queue[Frame]] = field(default_factory=dict)
    farewell: str | None = None
    """Why it was meant to go."""
    idle: bool = False
    """It left on its own accord."""
    ended: bool = False


class ModelProcess:
    """Requests to the model process. Safe to use from several threads; starting is lazy."""

    def __init__(self, log: Path, limits: Limits | None = None) -> None:
        self.log = log
        self.limits = limits or Limits()
        self.starts = 0
        """How often a process was started."""
        self.last: Frame = {}
        """What was loaded when the last request ended."""
        self._process: _Process | None = None
        self._lock = threading.Lock()

    # -- requests ----------------------------------------------------------------------------------------------
    def request(self, payload: Frame, name: str | None = None) -> Iterator[Frame]:
        """The frames that answer a request; the last one is `end` or `error`. Never raises for what the process does.

        Args:
            payload: Without its `id`.
            name: Its id, by which `stop` finds it.
        """
        name = name or uuid.uuid4().hex
        line = json.dumps({**payload, "id": name}).encode() + b"\n"
        for last_try in (False, True):
            answers: queue.Queue[Frame] = queue.Queue()
            try:
                process = self._send(name, line, answers)
            except OSError as error:
                yield error_frame("process", f"The model process cannot be started: {error}.")
                return
            heard = False
            while True:
                frame = answers.get()
                if frame["type"] == "error" and frame.get("left") and not heard and not last_try:
                    break  # it left for being idle just as the request came: ask a new one
                heard = True
                if frame["type"] == "end":
                    self.last = {k: v for k, v in frame.items() if k not in ("type", "id")}
                yield frame
                if frame["type"] in ("end", "error"):
                    process.waiting.pop(name, None)
                    return

    def stop(self, name: str) -> None:
        """End a request after its current token."""
        with self._lock:
            process = self._process
            if process is not None and not process.ended and name in process.waiting:
                with contextlib.suppress(OSError):
                    process.connection.sendall(json.dumps({"op": "stop", "target": name}).encode() + b"\n")

    def unload(self) -> None:
        """End the process, which frees the memory; requests that wait are told."""
        with self._lock:
            process = self._process
        if process is not None and not process.ended:
            process.farewell = "it was unloaded"
            with contextlib.suppress(ProcessLookupError):
                process.popen.kill()
            process.popen.wait(timeout=30)
            self._wait_ended(process)

    close = unload

    def state(self) -> Frame:
        """Whether it runs, its pid, what was loaded when it last answered, and how often it was started."""
        with self._lock:
            process = self._process
            alive = process is not None and not process.ended and process.popen.poll() is None
            busy = bool(alive and process is not None and process.waiting)
            pid = process.popen.pid if alive and process is not None else None
        return {"running": alive, "busy": busy, "pid": pid, "starts": self.starts, **(self.last if alive else {})}

    # -- the process -------------------------------------------------------------------------------------------
    def _send(self, name: str, line: bytes, answers: queue.Queue[Frame]) -> _Process:
        with self._lock:
            process = self._process
            if process is None or process.ended or process.popen.poll() is not None:
                process = self._process = self._start()
            process.waiting[name] = answers
            try:
                process.connection.sendall(line)
            except OSError:
                pass  # it has just ended: the reader tells everybody who waits
            if process.ended:  # the reader has told its waiting list before we were on it
                answers.put(self._gone(process))
            return process

    def _start(self) -> _Process:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > MAX_LOG:
            self.log.unlink()
        ours, theirs = socket.socketpair()
        limits = self.limits
        command = [
            sys.executable, "-m", "jobs.chat.server", "--fd", str(theirs.fileno()), "--idle", str(limits.idle_seconds),
            "--limit", str(limits.memory_bytes), "--reserve", str(limits.reserve_bytes),
        ]  # fmt: skip
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        with theirs, open(self.log, "ab") as log:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
            )
        self.starts += 1
        self.last = {}
        process = _Process(popen, ours)
        threading.Thread(target=self._read, args=(process,), name="chat-model", daemon=True).start()
        return process

    def _read(self, process: _Process) -> None:
        """Hand frames to those who wait; when the process is gone, tell all of them."""
        try:
            with process.connection.makefile("rb") as lines:
                for line in lines:
                    frame = json.loads(line)
                    if frame["type"] == "bye":
                        process.farewell, process.idle = frame["reason"], True
                    elif (answers := process.waiting.get(frame["id"])) is not None:
                        answers.put(frame)
        except (OSError, ValueError):
            pass  # a torn line or a reset connection: it is gone either way
        process.popen.wait()
        with self._lock:
            process.ended = True
            left = list(process.waiting.values())
            process.connection.close()
        for answers in left:
            answers.put(self._gone(process))

    def _gone(self, process: _Process) -> Frame:
        code = process.popen.returncode
        if process.farewell is not None:
            return error_frame("process", f"The model process left: {process.farewell}.", left=process.idle)
        if code is not None and code < 0:
            how = f"was killed ({signal.Signals(-code).name})"
            why = " The system does that when memory runs out." if -code == signal.SIGKILL else ""
        else:
            how, why = f"ended with code {code}", ""
        told = f"The model process {how}, so there is no answer.{why} The next message starts it again."
        return error_frame("process", told)

    @staticmethod
    def _wait_ended(process: _Process, seconds: float = 10) -> None:
        end = time.monotonic() + seconds
        while not process.ended and time.monotonic() < end:
            time.sleep(0.01)

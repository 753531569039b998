"""The model process: `python -m jobs.chat.server --fd N`, started by `jobs.chat.client` and by nothing else.

It speaks over an inherited socket that nobody else can open, answers one request after the other, and leaves when it
was idle for a while or when the other end is gone, so that the model is never in memory without a use.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from jobs.chat import memory
from jobs.chat.host import Host
from jobs.chat.protocol import ErrorKind, GenerateRequest, PlayRequest, error_frame
from rl2f_core.errors import AdapterError, ModelError, RL2FError

Frame = dict[str, Any]


class Server:
    """Reads requests in one thread, answers them in the main one."""

    def __init__(self, connection: socket.socket, host: Host, idle: float) -> None:
        self.connection = connection
        self.host = host
        self.idle = idle
        self.requests: queue.Queue[Frame] = queue.Queue()
        self.stopped: set[str] = set()
        self._sending = threading.Lock()

    def send(self, frame: Frame) -> None:
        """One frame to the client; where that is gone, so are we."""
        data = json.dumps(frame).encode() + b"\n"
        try:
            with self._sending:
                self.connection.sendall(data)
        except OSError:
            os._exit(0)

    def read(self) -> None:
        """Take requests until the other end is closed."""
        with self.connection.makefile("rb") as lines:
            for line in lines:
                request = json.loads(line)
                if request["op"] == "stop":
                    self.stopped.add(request["target"])
                elif request["op"] == "state":
                    self.send({"type": "end", "id": request["id"], **self.host.state()})
                else:
                    if self.requests.qsize() or self._busy:
                        self.send({"type": "status", "id": request["id"], "text": "Waiting for another answer …"})
                    self.requests.put(request)
        os._exit(0)  # the studio is gone: nobody reads what is being written

    _busy = False

    def run(self) -> None:
        """Answer until idle for too long."""
        threading.Thread(target=self.read, name="requests", daemon=True).start()
        while True:
            try:
                request = self.requests.get(timeout=self.idle)
            except queue.Empty:
                self.send({"type": "bye", "reason": f"idle for {self.idle:.0f} s"})
                return
            self._busy = True
            self.answer(request)
            self._busy = False

    def answer(self, request: Frame) -> None:
        """All frames of one request. The boundary at which every failure becomes a typed error."""
        name = str(request.get("id", ""))
        try:
            for frame in self.frames(request):
                self.send({**frame, "id": name})
            self.send({"type": "end", "id": name, **self.host.state()})
        except Exception as error:
            kind, told = classify(error)
            if kind == "bug":
                traceback.print_exc()
            if kind in ("memory", "bug"):
                error.__traceback__ = None  # it holds the tensors of the aborted answer
                memory.give_back(self.host.backend)
            self.send({**error_frame(kind, told), "id": name})
        finally:
            self.stopped.discard(name)

    def frames(self, request: Frame) -> Iterator[Frame]:
        """What the host says to a request."""
        name = str(request.get("id", ""))
        if request["op"] == "generate":
            return self.host.generate(GenerateRequest.model_validate(request), lambda: name in self.stopped)
        if request["op"] == "play":
            return self.host.play(PlayRequest.model_validate(request), lambda: name in self.stopped)
        raise RL2FError("The model process knows no such request.", value=request["op"], known=["generate", "play"])


def classify(error: Exception) -> tuple[ErrorKind, RL2FError | str]:
    """Which kind of failure an exception is, and what to say of it."""
    if memory.out_of_memory(error):
        return "memory", RL2FError(
            "The model ran out of memory, so there is no answer.",
            fix="Start a shorter chat, allow fewer new tokens, use fewer speakers, or free memory.",
        )
    if isinstance(error, AdapterError):
        return "adapter", error
    if isinstance(error, ModelError):
        return ("memory" if "not enough free" in error.what else "model"), error
    if isinstance(error, ValidationError):
        where = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        return "request", f"The request is not well-formed: {where}."
    if isinstance(error, RL2FError):
        return "request", error
    return "bug", f"The model process met an unexpected error ({type(error).__name__}: {error}); its log says where."


def main(arguments: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="The model process of the chat.")
    parser.add_argument("--fd", type=int, required=True, help="Inherited socket.")
    parser.add_argument("--idle", type=float, default=600, help="Seconds without a request after which it leaves.")
    parser.add_argument("--limit", type=int, default=0, help="Bytes of memory it may take; 0 is no limit.")
    parser.add_argument("--reserve", type=int, default=0, help="Bytes that must stay free when a model is loaded.")
    options = parser.parse_args(arguments)
    connection = socket.socket(fileno=options.fd)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the keyboard's signals are for the studio
    memory.limit_process(options.limit)
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} model process {os.getpid()} started", file=sys.stderr, flush=True)
    Server(connection, Host(options.reserve), options.idle).run()
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    sys.stderr.flush()
    os._exit(0)  # nothing is left to write, and tearing the libraries down takes seconds


if __name__ == "__main__":
    main()

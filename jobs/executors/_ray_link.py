"""The server's end of the process that holds the connection to a Ray cluster (`_ray_agent`).

It starts that process when it is first asked, notices at once when it is gone, and starts it again, but not more often
than every `PAUSE` seconds where there is no cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from pathlib import Path
from typing import Any

from rl2f_core.errors import RunError

CONNECT_SECONDS = 60.0
"""How long a connection may take."""
PAUSE = 10.0
"""Seconds after a failed connection before the next is tried."""
LAST_WORDS = 5.0
"""Seconds that a process which could not connect gets to end by itself."""
MAX_LOG = 1_000_000
"""Bytes of the log that are kept when a process starts."""


class UnreachableError(RunError):
    """The cluster does not answer."""


class Link:
    """Requests to one cluster. Safe to use from several threads.

    Args:
        address: HOST:PORT of the cluster's head, or auto.
        log: Gets what Ray says.
    """

    def __init__(self, address: str, log: Path) -> None:
        self.address, self.log = address, log
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[int, Future[Any]] = {}
        self._number = 0
        self._starting, self._lock = threading.Lock(), threading.Lock()
        self._failed: tuple[float, str] | None = None
        """When the last connection failed, and why."""

    def ask(self, do: str, seconds: float = 20.0, **values: Any) -> Any:
        """The answer to a request.

        Raises `UnreachableError` where there is none, and the `RunError` that the other end tells of.
        """
        process = self._connected()
        future: Future[Any] = Future()
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = future
        try:
            assert process.stdin is not None
            with self._lock:
                process.stdin.write(json.dumps({"id": number, "do": do, **values}).encode() + b"\n")
                process.stdin.flush()
            return future.result(seconds)
        except TooLate:
            raise UnreachableError(
                f"The Ray cluster did not answer within {seconds:g} s.", value=self.address
            ) from None
        except OSError:
            raise UnreachableError("The connection to the Ray cluster was lost.", value=self.address) from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def close(self) -> None:
        """End the process; runs go on."""
        with self._starting:
            process, self._process = self._process, None
            if process is not None:
                process.kill()
                process.wait()

    def _connected(self) -> subprocess.Popen[bytes]:
        with self._starting:
            if self._process is not None and self._process.poll() is None:
                return self._process
            if self._failed is not None and time.monotonic() - self._failed[0] < PAUSE:
                raise self._no_cluster(self._failed[1])
            self._process = None
            try:
                self._process = self._start()
            except UnreachableError as error:
                self._failed = time.monotonic(), str(error.value)
                raise
            self._failed = None
            return self._process

    def _start(self) -> subprocess.Popen[bytes]:
        if self.log.exists() and self.log.stat().st_size > MAX_LOG:
            self.log.unlink()
        packages = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (packages, os.environ.get("PYTHONPATH"))))
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "jobs.executors._ray_agent", self.address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        hello: Future[Any] = Future()
        waiting: dict[int, Future[Any]] = {0: hello}
        with self._lock:
            self._waiting = waiting
        threading.Thread(target=self._read, args=(process, waiting), name="ray", daemon=True).start()
        try:
            self.address = hello.result(CONNECT_SECONDS)["address"]
        except TooLate:
            process.kill()
            raise self._no_cluster(f"no answer within {CONNECT_SECONDS:g} s") from None
        except RunError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LAST_WORDS)  # to the log
            process.kill()
            raise self._no_cluster(error.what) from None
        return process

    def _read(self, process: subprocess.Popen[bytes], waiting: dict[int, Future[Any]]) -> None:
        """Hand answers to those who wait; when the process is gone, tell all of them."""
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in process.stdout:
                data = json.loads(line)
                with self._lock:
                    future = waiting.pop(data["id"], None)
                if future is None:
                    continue
                if "error" in data:
                    error = data["error"]
                    future.set_exception(RunError(error["what"], value=error.get("value"), fix=error.get("fix")))
                else:
                    future.set_result(data["value"])
        process.wait()
        with self._lock:
            left = list(waiting.values())
            waiting.clear()
        for future in left:
            future.set_exception(UnreachableError("The connection to the Ray cluster was lost.", value=self.address))

    def _no_cluster(self, why: str) -> UnreachableError:
        return UnreachableError(f"No Ray cluster answers at {self.address}.", value=why,
                                fix="Start one (ray start --head), join it with this machine (ray start "
                                "--address=HOST:PORT), and set RAY_ADDRESS=HOST:PORT.")  # fmt: skip

"""Judging in worker processes under a time limit: what hangs or crashes is killed, replaced, and said so.

A worker is a fresh program and no fork, so threads and locks of this process do not matter to it; it ends when its
pipe closes. Replies are values, never exceptions: what a model wrote must not break a run.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

START_SECONDS = 120.0
"""Allowed for a worker's imports, on a machine that is busy with other things."""
_PROGRAM = Path(__file__).with_name("_worker.py")
_NEEDS = {"math": "math", "gym": "gym", "score": "gym"}
_MORE = 8
"""Jobs in a batch that are worth another worker."""
_KEPT = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class Job(NamedTuple):
    """What to do: the name of a job of `_worker` and its arguments."""

    name: str
    args: dict[str, Any]


class Reply(NamedTuple):
    """What came of a job."""

    value: Any = None
    error: str = ""
    """Why there is no value: what was raised, or that the worker hung or crashed."""
    lost: bool = False
    """The worker hung or crashed and was replaced."""


class _Worker:
    """One process."""

    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environment |= {
            "PYTHONHASHSEED": "0",  # data sets that walk over sets are then the same in every process
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MPLBACKEND": "Agg",
            "MPLCONFIGDIR": os.path.join(tempfile.gettempdir(), "rl2f-matplotlib"),
            "PYTHONIOENCODING": "utf-8",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-s", str(_PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=environment, cwd=tempfile.gettempdir(),
        )  # fmt: skip
        self.ready: set[str] = set()

    def ask(self, job: Job, limit: float) -> Reply:
        """The reply to a job within `limit` seconds; the start of the process and its imports are not counted."""
        needs = _NEEDS.get(job.name, "nothing")
        if needs not in self.ready:
            reply = self._exchange(Job("warm", {"what": needs}), START_SECONDS)
            if reply.error:
                return reply
            self.ready.add(needs)
        return self._exchange(job, limit)

    def _exchange(self, job: Job, limit: float) -> Reply:
        assert self.process.stdin is not None and self.process.stdout is not None
        line = json.dumps({"job": job.name, "args": job.args, "limit": limit}) + "\n"
        end, told = time.monotonic() + limit, bytearray()
        try:
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(self.process.stdout, selectors.EVENT_READ)
                while not told.endswith(b"\n"):
                    if not selector.select(max(0.0, end - time.monotonic())):
                        return Reply(error=f"no verdict within {limit:g} s", lost=True)
                    part = os.read(self.process.stdout.fileno(), 1 << 16)
                    if not part:
                        return Reply(error="the worker process crashed", lost=True)
                    told += part
        except OSError:
            return Reply(error="the worker process crashed", lost=True)
        reply = json.loads(told)
        return Reply(reply.get("value"), reply.get("error", ""))

    def end(self) -> None:
        """Kill the process and wait for it."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.process.wait()


class WorkerPool:
    """Up to `size` workers, started when they are needed. Safe to use from several threads.

    Args:
        size: Most workers at a time; None is the number of processors, at most 4.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = size or max(1, min(4, os.cpu_count() or 1))
        self._free: list[_Worker] = []
        self._slots = threading.Semaphore(self.size)
        self._lock = threading.Lock()
        self.replaced = 0
        """Workers that were lost."""

    def run(self, jobs: Sequence[Job], limit: float) -> list[Reply]:
        """The replies to all jobs, in order. `limit` is seconds for each job; no job is tried twice."""
        replies = [Reply(error="not judged")] * len(jobs)
        waiting = deque(enumerate(jobs))
        hands = min(self.size, 1 + (len(jobs) - 1) // _MORE)
        if hands <= 1:
            self._work(waiting, replies, limit)
            return replies
        threads = [threading.Thread(target=self._work, args=(waiting, replies, limit)) for _ in range(hands)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return replies

    def ask(self, job: str, limit: float, /, **args: Any) -> Reply:
        """The reply to one job."""
        return self.run([Job(job, args)], limit)[0]

    def _work(self, waiting: deque[tuple[int, Job]], replies: list[Reply], limit: float) -> None:
        with self._slots:
            worker: _Worker | None = None
            while True:
                try:
                    index, job = waiting.popleft()
                except IndexError:
                    break
                worker = worker or self._take()
                replies[index] = worker.ask(job, limit)
                if replies[index].lost:
                    worker.end()
                    worker = None
                    self.replaced += 1
            if worker is not None:
                with self._lock:
                    self._free.append(worker)

    def _take(self) -> _Worker:
        with self._lock:
            worker = self._free.pop() if self._free else None
        return worker or _Worker()

    def close(self) -> None:
        """End all workers that are not at work."""
        with self._lock:
            free, self._free = self._free, []
        for worker in free:
            worker.end()


_pools: dict[int, WorkerPool] = {}


def pool() -> WorkerPool:
    """This process's pool. A forked child gets one of its own, as pipes cannot be shared."""
    held = _pools.get(os.getpid())
    if held is None:
        held = _pools[os.getpid()] = WorkerPool()
        atexit.register(held.close)
    return held

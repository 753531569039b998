"""Worker processes with a time limit: a worker that hangs or crashes is killed and replaced.

A worker is a separate program, not a fork, so it shares no threads or locks with this process.  It exits when its pipe
closes.  Errors are returned as replies, never raised: model output must not break a run.

`multiprocessing` pools, and `pebble` on top of them, do not fit.  They import the caller's script again in each worker,
which fails without a `__main__` guard, pass on the environment with its API keys, and unpickle the replies.
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rl2f_core.common.processes import kill_group
from rl2f_core.errors import RunError
from rl2f_core.types import JsonObject

START_SECONDS = 120.0
"""Time limit of a worker's imports, long enough for a busy machine."""
WORKER_PROGRAM = Path(__file__).with_name("worker.py")
CODE_WORKER_PROGRAM = Path(__file__).with_name("code_worker.py")
_IMPORTS = {"math": "math", "gym": "gym", "score": "gym"}
JOBS_PER_WORKER = 8
"""Jobs in a batch of short jobs that justify one more worker."""
MAX_CACHED = 20_000
"""Replies in a cache of `run_cached`, which is cleared beyond."""
K = TypeVar("K")
_INHERITED = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class Job(NamedTuple):
    """The name of a job of `sandbox.worker` and its arguments."""

    name: str
    args: JsonObject


class Reply(NamedTuple):
    """The result of a job."""

    value: Any = None
    error: str = ""
    """The exception of the job, or that the worker hung or crashed; empty on success."""
    lost: bool = False
    """The worker hung or crashed and was replaced."""


def judge_command() -> tuple[list[str], dict[str, str]]:
    """Return command line and environment of the worker for math and reasoning-gym."""
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment |= {
        "PYTHONHASHSEED": "0",  # data sets that iterate over sets are then the same in every process
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": os.path.join(tempfile.gettempdir(), "rl2f-matplotlib"),
        "PYTHONIOENCODING": "utf-8",
    }
    return [sys.executable, "-P", "-s", str(WORKER_PROGRAM)], environment


def code_command() -> tuple[list[str], dict[str, str]]:
    """Return command line and environment of the worker for untrusted functions."""
    return [sys.executable, "-P", "-s", "-S", str(CODE_WORKER_PROGRAM)], {"PYTHONHASHSEED": "0"}


class _Worker:
    """One process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], own_group: bool = False) -> None:
        if sys.platform == "win32":
            raise RunError("Windows has no sandbox for this environment.", fix="Run the experiment in WSL.")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=tempfile.gettempdir(),
            start_new_session=own_group,
        )
        self.own_group = own_group
        self.imported: set[str] = set()

    def ask(self, job: Job, limit: float) -> Reply:
        """Run a job within `limit` seconds, not counting the start of the process and its imports."""
        packages = _IMPORTS.get(job.name, "nothing")
        if packages not in self.imported:
            reply = self._exchange(Job("warm", {"packages": packages}), START_SECONDS)
            if reply.error:
                return reply
            self.imported.add(packages)
        return self._exchange(job, limit)

    def _exchange(self, job: Job, limit: float) -> Reply:
        assert self.process.stdin is not None and self.process.stdout is not None
        request = json.dumps({"job": job.name, "args": job.args, "limit": limit}) + "\n"
        deadline, response = time.monotonic() + limit, bytearray()
        try:
            self.process.stdin.write(request.encode())
            self.process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(self.process.stdout, selectors.EVENT_READ)
                while not response.endswith(b"\n"):
                    if not selector.select(max(0.0, deadline - time.monotonic())):
                        return Reply(error=f"no verdict within {limit:g} s", lost=True)
                    chunk = os.read(self.process.stdout.fileno(), 1 << 16)
                    if not chunk:
                        return Reply(error="the worker process crashed", lost=True)
                    response += chunk
        except OSError:
            return Reply(error="the worker process crashed", lost=True)
        try:
            reply = json.loads(response)
        except ValueError:
            return Reply(error="the worker process sent no JSON", lost=True)
        return Reply(reply.get("value"), reply.get("error", ""))

    def end(self) -> None:
        """Kill the process, with its group if it is its own, and wait for it."""
        if self.own_group:
            kill_group(self.process.pid)
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.process.wait()


class WorkerPool:
    """Up to `size` workers, started on demand. Thread-safe.

    Args:
        size: Maximum number of workers; None is the number of processors, at most 4.
        command: Returns the command line and the environment variables of a worker.
        jobs_per_worker: Jobs in a batch that justify one more worker.
        own_group: Start each worker in a process group of its own, which ends with it. Such a worker must end when its
            pipe closes, also during a job.
    """

    def __init__(
        self,
        size: int | None = None,
        command: Callable[[], tuple[list[str], dict[str, str]]] = judge_command,
        jobs_per_worker: int = JOBS_PER_WORKER,
        own_group: bool = False,
    ) -> None:
        self.size = size or max(1, min(4, os.cpu_count() or 1))
        self._command = command
        self._jobs_per_worker = jobs_per_worker
        self._own_group = own_group
        self._idle: list[_Worker] = []
        self._slots = threading.Semaphore(self.size)
        self._lock = threading.Lock()
        self.replaced = 0
        """Number of lost workers."""

    def run(self, jobs: Sequence[Job], limit: float) -> list[Reply]:
        """Run all jobs, `limit` seconds each, and return the replies in order. A lost job is run once more."""
        num_workers = min(self.size, 1 + (len(jobs) - 1) // self._jobs_per_worker)
        if num_workers <= 1:
            return [self._run_one(job, limit) for job in jobs]
        with ThreadPoolExecutor(num_workers) as threads:
            return list(threads.map(lambda job: self._run_one(job, limit), jobs))

    def run_cached(self, jobs: Mapping[K, Job], limit: float, cache: dict[K, Reply]) -> dict[K, Reply]:
        """Run the jobs without a reply in `cache` and return the replies to all; lost ones are not cached."""
        if len(cache) > MAX_CACHED:
            cache.clear()
        new = [key for key in jobs if key not in cache]
        replies = dict(zip(new, self.run([jobs[key] for key in new], limit), strict=True))
        cache.update((key, reply) for key, reply in replies.items() if not reply.lost)
        return {key: cache[key] if key in cache else replies[key] for key in jobs}

    def ask(self, job: str, limit: float, /, **args: object) -> Reply:
        """Run one job; a lost one is run once more."""
        return self._run_one(Job(job, args), limit)

    def _run_one(self, job: Job, limit: float) -> Reply:
        reply = self._try(job, limit)
        return self._try(job, limit) if reply.lost else reply

    def _try(self, job: Job, limit: float) -> Reply:
        with self._slots:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            worker = worker or _Worker(*self._command(), self._own_group)
            reply = worker.ask(job, limit)
            if reply.lost:
                worker.end()
            with self._lock:
                if reply.lost:
                    self.replaced += 1
                else:
                    self._idle.append(worker)
        return reply

    def close(self) -> None:
        """Stop all idle workers."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()


_pools: dict[tuple[int, str], WorkerPool] = {}


def pool() -> WorkerPool:
    """The pool of this process for math-verify and reasoning-gym."""
    return pool_of("judge", WorkerPool)


def code_pool() -> WorkerPool:
    """The pool of this process for untrusted functions."""
    return pool_of("code", lambda: WorkerPool(command=code_command, jobs_per_worker=1))


def pool_of(name: str, make: Callable[[], WorkerPool]) -> WorkerPool:
    """Return a pool of this process; a forked child cannot share its pipes."""
    key = (os.getpid(), name)
    if key not in _pools:
        _pools[key] = make()
        atexit.register(_pools[key].close)
    return _pools[key]

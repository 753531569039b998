"""A taskset of the package verifiers, loaded and scored in a worker process with an environment of its own."""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rl2f_core.common.paths import ROOT
from rl2f_core.environments.sandbox import pool
from rl2f_core.errors import ConfigError, shorten
from rl2f_core.types import JsonObject

PYTHON = "RL2F_VERIFIERS_PYTHON"
"""Environment variable with the Python that has verifiers."""
DEFAULT_PYTHON = ROOT / ".venv-verifiers" / "bin" / "python"
WORKER_PROGRAM = Path(__file__).with_name("worker.py")
SETUP = f"Run `make setup-verifiers`, or set {PYTHON} to a Python with verifiers 0.4."
MAX_BATCH = 16
"""Replies in one scoring job."""
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class TextTask(NamedTuple):
    """One task."""

    system: str
    """System message; empty without one."""
    prompt: str
    key: str
    """Hash of its content, by verifiers."""
    data: JsonObject
    """Its other fields."""


class Reply(NamedTuple):
    """A reply to a task: the task's position and key, and the text."""

    position: int
    key: str
    text: str


class Score(NamedTuple):
    """The reward of a reply and its terms, or an error."""

    reward: float
    terms: dict[str, float | None]
    error: str = ""


class Taskset:
    """The first tasks of a taskset and its rubric.

    Args:
        name: Id of the taskset.
        settings: Fields of its configuration, a JSON object.
        file_settings: More fields, which may name paths; a JSON object.
        max_tasks: Number of tasks that are read.
        load_limit: Time limit of reading them, in seconds.
    """

    def __init__(self, name: str, settings: str, file_settings: str, max_tasks: int, load_limit: float) -> None:
        self._spec = {"name": name, "settings": settings, "file_settings": file_settings, "max_tasks": max_tasks}
        start = time.monotonic()
        reply = self._workers().ask("load", load_limit, **self._spec)
        self._load_seconds = time.monotonic() - start
        if reply.error:
            self._workers().close()
            missing = "No module named 'verifiers'" in reply.error
            raise ConfigError(
                f"Taskset {name} cannot be used: {shorten(reply.error, 500)}.",
                value=str(python()),
                fix=SETUP if missing else "Install it into this Python's environment, or correct its settings.",
            )
        self.tasks = [_text_task(**task) for task in reply.value]
        systems = {task.system for task in self.tasks}
        self.system = systems.pop() if len(systems) == 1 else None
        """System message of all tasks; None if they differ."""
        self._scores: dict[Reply, Score] = {}

    def _workers(self) -> pool.WorkerPool:
        """Return the worker of this process and taskset; it starts on demand."""
        make = functools.partial(pool.WorkerPool, 1, _command, own_group=True)
        return pool.pool_of(f"verifiers {python()} {sorted(self._spec.items())}", make)

    def score(self, reply: Reply, limit: float) -> Score:
        """Return the score of one reply within `limit` seconds."""
        return self._scores.get(reply) or self._run([reply], limit)[0]

    def prefetch(self, replies: Sequence[Reply], limit: float) -> None:
        """Score replies in batches. If a batch gets no result, `score` scores its replies one by one."""
        new = [reply for reply in dict.fromkeys(replies) if reply not in self._scores]
        for start in range(0, len(new), MAX_BATCH):
            self._run(new[start : start + MAX_BATCH], limit)

    def _run(self, replies: Sequence[Reply], limit: float) -> list[Score]:
        """Score replies in one job and cache rewards, not errors; empty if a job of several replies fails."""
        if len(self._scores) > pool.MAX_CACHED:
            self._scores.clear()
        arguments = {**self._spec, "replies": [reply._asdict() for reply in replies]}
        # a worker that replaced a lost one reads the tasks first
        result = self._workers().ask("score", limit + self._load_seconds, **arguments)
        if result.error and len(replies) > 1:
            return []
        found: list[JsonObject] = [{"error": result.error}] if result.error else result.value
        scores = [Score(reply.get("reward", 0.0), reply.get("terms", {}), reply.get("error", "")) for reply in found]
        self._scores.update((reply, score) for reply, score in zip(replies, scores, strict=True) if not score.error)
        return scores


@functools.lru_cache(16)
def open_taskset(name: str, settings: str, file_settings: str, max_tasks: int, load_limit: float) -> Taskset:
    """Return the taskset with these settings, shared by all environments of this process that use it.

    Raises `ConfigError` if it cannot be used.
    """
    return Taskset(name, settings, file_settings, max_tasks, load_limit)


def python() -> Path:
    """Return the Python with verifiers. Raises `ConfigError` if there is none."""
    named = os.environ.get(PYTHON)
    found = shutil.which(named or DEFAULT_PYTHON)
    if found is None:
        raise ConfigError(
            "There is no Python with the package verifiers.", value=named or str(DEFAULT_PYTHON), fix=SETUP
        )
    return Path(found)


def _command() -> tuple[list[str], dict[str, str]]:
    """Return command line and environment variables of the worker. Judges read API keys from the variables."""
    variables = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return [str(python()), "-P", "-s", str(WORKER_PROGRAM)], variables | {"OMP_NUM_THREADS": "1"}


def _text_task(messages: list[dict[str, str]], key: str, data: JsonObject) -> TextTask:
    leading = messages[0]["content"] if messages[0]["role"] == "system" else ""
    others = messages[1:] if leading else messages
    single = len(others) == 1 and others[0]["role"] == "user"
    prompt = others[0]["content"] if single else "\n\n".join(f"[{m['role']}]\n{m['content']}" for m in others)
    return TextTask(leading, prompt, key, data)

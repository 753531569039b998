"""Tasks for the sandbox of `code`, and its worker program with changes."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rl2f_core.environments.base import new_task
from rl2f_core.environments.code.environment import Code
from rl2f_core.environments.code.judging import missing_parts
from rl2f_core.environments.sandbox import pool as pools
from rl2f_core.environments.sandbox.pool import CODE_WORKER_PROGRAM, WorkerPool, code_command
from rl2f_core.types import Task

WEAKER = ('call("unshare", 0x10000000)', 'raise Missing("unshare: Operation not permitted")')
"""Change of the worker program that takes all namespaces from it."""


def task_of(outputs: Sequence[object]) -> Task:
    """A task with the hidden tests solve(0) == outputs[0] and so on."""
    tests = json.dumps([[f"({i},)", repr(value)] for i, value in enumerate(outputs)])
    public = {"problem": "def solve(n):\n    pass", "function": "solve", "examples": 0}
    privileged = {"answer": "def solve(n):\n    return n + 1", "tests": tests, "behavior": "k"}
    return new_task(Code(Code.Config()), "test", public, privileged)


@contextlib.contextmanager
def changed_pool(*changes: tuple[str, str]) -> Iterator[WorkerPool]:
    """Start one worker whose program has other texts; each pair is an old text and a new one."""
    source = CODE_WORKER_PROGRAM.read_text()
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    with public_folder() as folder:
        (folder / "code_worker.py").write_text(source)
        command, variables = code_command()
        pool = WorkerPool(1, lambda: ([*command[:-1], str(folder / "code_worker.py")], variables), 1)
        with contextlib.closing(pool):
            yield pool


@contextlib.contextmanager
def use_pool(pool: WorkerPool) -> Iterator[None]:
    """Judge programs in the workers of a pool."""
    missing_parts.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "_pools", {(os.getpid(), "code"): pool})
        try:
            yield
        finally:
            missing_parts.cache_clear()


@contextlib.contextmanager
def changed_worker(*changes: tuple[str, str]) -> Iterator[None]:
    """Judge programs in one worker whose program has other texts."""
    with changed_pool(*changes) as pool, use_pool(pool):
        yield


@contextlib.contextmanager
def public_folder() -> Iterator[Path]:
    """Make a folder that every user can write, with the files `keep` and `module.py` and the folder `empty`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in (folder / "keep", folder / "module.py"):
            file.write_text("secret = 1\n")
            file.chmod(0o666)
        (folder / "empty").mkdir()
        (folder / "empty").chmod(0o777)
        folder.chmod(0o777)
        yield folder

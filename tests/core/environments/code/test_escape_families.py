"""Ten families of programs that attack the sandbox of `code`: none is correct or leaves a trace, in both modes."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from escape_families import FAMILIES, GUARDS, SECRET_ATTEMPT, SECRETS, WEAKER
from escape_programs import ESCAPES, FORGERIES

from rl2f_core.environments.base import new_task, wrap_answer
from rl2f_core.environments.code.environment import Code
from rl2f_core.environments.code.judging import Program, missing_parts
from rl2f_core.environments.sandbox import pool as pools
from rl2f_core.environments.sandbox.pool import WorkerPool, code_command, code_pool
from rl2f_core.types import Task

pytestmark = pytest.mark.xdist_group("workers")


def task_of(outputs: list[int]) -> Task:
    """A task with the hidden tests solve(0) == outputs[0] and so on."""
    tests = json.dumps([[f"({i},)", str(value)] for i, value in enumerate(outputs)])
    public = {"problem": "def solve(n):\n    pass", "function": "solve", "examples": 0}
    privileged = {"answer": "def solve(n):\n    return n", "tests": tests, "behavior": "k"}
    return new_task(Code(Code.Config()), "test", public, privileged)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can write."""
    folder = Path(tempfile.mkdtemp())
    (folder / "keep").write_text("secret = 1\n")
    (folder / "module.py").write_text("secret = 1\n")
    (folder / "empty").mkdir()
    for path in (folder, *folder.iterdir()):
        path.chmod(0o777 if path.is_dir() else 0o666)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[tuple[str, str]]], Code]]:
    """Returns an environment with one worker, whose program has changes."""

    def start(changes: list[tuple[str, str]]) -> Code:
        source = pools.CODE_WORKER_PROGRAM.read_text()
        for old, new in changes:
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        path = tmp_path / "code_worker.py"
        path.write_text(source)
        monkeypatch.setattr(pools, "CODE_WORKER_PROGRAM", path)
        monkeypatch.setattr(pools, "_pools", {(os.getpid(), "code"): WorkerPool(1, code_command, 1)})
        missing_parts.cache_clear()
        return Code(Code.Config(allow_weaker_sandbox=True, time_limit=1))

    yield start
    code_pool().close()
    missing_parts.cache_clear()


def succeeds(environment: Code, family: str, code: str, folder: Path) -> bool:
    """Return whether a program is judged correct."""
    code = code.replace("{folder}", str(folder)).replace("{canary}", str(folder / "keep"))
    if family in ("memory", "expected", "forgeries"):
        for run in range(3):
            environment.verify(task_of(SECRETS), wrap_answer(f"{SECRET_ATTEMPT}\nrun = {run}"))
        return environment.verify(task_of(SECRETS), wrap_answer(code)).correct
    runs = 1 + (family == "persistence")
    return any(
        environment.verify(task_of([1, 2, 3]), wrap_answer(f"{code}\nrun = {run}")).correct for run in range(runs)
    )


def traces(folder: Path) -> list[object]:
    """Return what programs could change: files, shared memory and the processes of workers."""
    files = [(p.name, p.stat().st_mode, p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(folder.iterdir())]
    shared = [Path(f"/proc/sysvipc/{kind}").read_text() for kind in ("shm", "msg", "sem")]
    left = [name for name in ("/tmp/rl2f-left", "/dev/shm/rl2f-left") if os.path.exists(name)]
    return [folder.stat().st_mtime_ns, files, shared, left]


def attack(environment: Code, programs: dict[str, dict[str, str]], folder: Path) -> None:
    """Run programs and check that none succeeds or leaves a trace, and that the sandbox still judges."""
    honest = wrap_answer("def solve(n):\n    return n + 1")
    assert environment.verify(task_of([1, 2, 3]), honest).correct
    before, lost, names = traces(folder), code_pool().replaced, []
    for family, codes in programs.items():
        names += [f"{family}: {name}" for name, code in codes.items() if succeeds(environment, family, code, folder)]
    assert names == [] and traces(folder) == before and code_pool().replaced == lost
    environment.sandbox._cache.clear()
    assert environment.verify(task_of([1, 2, 3]), honest).correct
    (worker,) = code_pool()._idle
    assert len(psutil.Process(worker.process.pid).children(recursive=True)) == 1  # the template, and no job


MODES = pytest.mark.parametrize("changes", [[], [WEAKER]], ids=["full sandbox", "weaker sandbox"])
FIRST = {family: dict([next(iter(codes.items()))]) for family, codes in FAMILIES.items()}


@MODES
def test_one_program_of_each_family_fails(
    changes: list[tuple[str, str]], start: Callable[[list[tuple[str, str]]], Code], folder: Path
) -> None:
    attack(start(changes), FIRST, folder)


@pytest.mark.slow
@MODES
def test_no_program_is_correct_or_leaves_a_trace(
    changes: list[tuple[str, str]], start: Callable[[list[tuple[str, str]]], Code], folder: Path
) -> None:
    assert [len(codes) for codes in FAMILIES.values()] == [12] * 10
    attack(start(changes), {**FAMILIES, "escapes": ESCAPES, "forgeries": FORGERIES}, folder)


@pytest.mark.slow
@pytest.mark.parametrize("family", GUARDS)
def test_a_program_of_each_family_succeeds_without_its_guard(
    family: str, start: Callable[[list[tuple[str, str]]], Code], folder: Path
) -> None:
    name, changes = GUARDS[family]
    assert succeeds(start(changes), family, FAMILIES[family][name], folder)


@pytest.mark.slow
def test_expected_values_in_a_job_would_be_found(
    start: Callable[[list[tuple[str, str]]], Code], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    environment = start([])

    def with_values(task: Task, code: str) -> Program:
        return Program((f"outputs = {SECRETS}", code), "solve", ("(0,)", "(1,)", "(2,)"))

    monkeypatch.setattr(environment, "_attempt_program", with_values)
    names = [name for name, code in FAMILIES["expected"].items() if succeeds(environment, "expected", code, folder)]
    assert {"globals", "all lists", "globals of callers"} <= set(names)

"""Ten families of programs that attack the sandbox of `code`: none is correct or leaves a trace, in both modes."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from code_sandbox import WEAKER, changed_worker, public_folder, task_of
from escape_families import FAMILIES, GUARDS, SECRET_ATTEMPT, SECRETS
from escape_programs import ESCAPES, FORGERIES

from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.code.environment import Code
from rl2f_core.environments.code.judging import Program
from rl2f_core.environments.sandbox.pool import code_pool
from rl2f_core.types import Task

pytestmark = pytest.mark.xdist_group("workers")


def succeeds(family: str, code: str, folder: Path, environment: Code | None = None) -> bool:
    """Return whether a program is judged correct."""
    environment = environment or Code(Code.Config(allow_weaker_sandbox=True, time_limit=1))
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


def attack(programs: dict[str, dict[str, str]], *changes: tuple[str, str]) -> None:
    """Run programs and check that none succeeds or leaves a trace, and that the sandbox still judges."""
    with changed_worker(*changes), public_folder() as folder:
        before = traces(folder)
        pairs = [(family, name) for family in programs for name in programs[family]]
        assert [pair for pair in pairs if succeeds(pair[0], programs[pair[0]][pair[1]], folder)] == []
        assert traces(folder) == before and code_pool().replaced == 0
        assert succeeds("none", "def solve(n):\n    return n + 1", folder)
        (worker,) = code_pool()._idle
        assert len(psutil.Process(worker.process.pid).children(recursive=True)) == 1  # the template, and no job


MODES = pytest.mark.parametrize("changes", [[], [WEAKER]], ids=["full sandbox", "weaker sandbox"])


@MODES
def test_one_program_of_each_family_fails(changes: list[tuple[str, str]]) -> None:
    attack({family: dict([next(iter(codes.items()))]) for family, codes in FAMILIES.items()}, *changes)


@pytest.mark.slow
@MODES
def test_no_program_is_correct_or_leaves_a_trace(changes: list[tuple[str, str]]) -> None:
    assert [len(codes) for codes in FAMILIES.values()] == [12] * 10
    attack({**FAMILIES, "escapes": ESCAPES, "forgeries": FORGERIES}, *changes)


@pytest.mark.slow
@pytest.mark.parametrize("family", GUARDS)
def test_a_program_of_each_family_succeeds_without_its_guard(family: str) -> None:
    name, changes = GUARDS[family]
    with changed_worker(*changes), public_folder() as folder:
        assert succeeds(family, FAMILIES[family][name], folder)


@pytest.mark.slow
def test_expected_values_in_a_job_would_be_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = Code(Code.Config())

    def with_values(task: Task, code: str) -> Program:
        return Program((f"outputs = {SECRETS}", code), "solve", ("(0,)", "(1,)", "(2,)"))

    monkeypatch.setattr(environment, "_attempt_program", with_values)
    codes = FAMILIES["expected"].items()
    names = {name for name, code in codes if succeeds("expected", code, tmp_path, environment)}
    assert names >= {"globals", "all lists", "globals of callers"}

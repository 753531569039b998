"""Programs that attack the sandbox of `code`: none works, none slows the server, none changes a later verdict."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import psutil
import pytest
from code_sandbox import WEAKER, changed_worker, task_of
from escape_programs import BLOCKED_BY_FILTER_ALONE, ENDLESS, ESCAPES, FORGERIES

from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.code.environment import Code
from rl2f_core.environments.sandbox.pool import code_pool
from rl2f_core.errors import ConfigError
from rl2f_core.types import Verdict

pytestmark = pytest.mark.xdist_group("workers")
HONEST = "def solve(n):\n    return n + 1"
SECRETS = [7_352_981_440_163, 9_118_204_773_529, 6_640_917_358_021]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Code:
    monkeypatch.setenv("RL2F_CANARY", "secret")
    return Code(Code.Config(time_limit=1))


def test_there_are_at_least_forty_programs() -> None:
    assert len(ESCAPES) + len(FORGERIES) + len(ENDLESS) >= 40


def test_an_honest_program_passes_and_a_wrong_one_does_not(environment: Code) -> None:
    task = task_of([1, 2, 3])
    assert environment.verify(task, wrap_answer(HONEST)).correct
    assert not environment.verify(task, wrap_answer("def solve(n):\n    return n")).correct


def test_no_program_escapes(environment: Code, tmp_path: Path) -> None:
    """Each returns the right value only if its attack works; an honest program after each is still right."""
    canary = tmp_path / "canary"
    canary.write_text("secret")
    os.chmod(tmp_path, 0o755)
    task, pool = task_of([1, 2, 3]), code_pool()
    lost = pool.replaced
    for name, code in ESCAPES.items():
        verdict = environment.verify(task, wrap_answer(code.replace("{canary}", str(canary))))
        assert verdict.parsed is not None and not verdict.correct and verdict.score == 0, (name, verdict.detail)
    environment.sandbox._cache.clear()
    assert environment.verify(task, wrap_answer(HONEST)).correct
    assert canary.read_text() == "secret" and pool.replaced == lost


def test_without_the_filter_of_system_calls_the_namespaces_still_hold(environment: Code) -> None:
    task = task_of([1, 2, 3])
    with changed_worker(("if filtered:\n            filter_system_calls()", "if filtered:\n            pass")):
        works = {name for name, code in ESCAPES.items() if environment.verify(task, wrap_answer(code)).correct}
    assert "socket of the C library" in works and works <= BLOCKED_BY_FILTER_ALONE


def test_without_namespaces_the_environment_refuses_and_says_what_is_missing(environment: Code) -> None:
    task = task_of([1, 2, 3])
    with changed_worker(WEAKER):
        for refused in (environment.describe_data, lambda: environment.verify(task, wrap_answer(HONEST))):
            with pytest.raises(
                ConfigError, match=r"user and network namespaces \(unshare: Operation not permitted\)"
            ) as error:
                refused()
        assert "environment.allow_weaker_sandbox: true" in str(error.value)
        weaker = Code(Code.Config(allow_weaker_sandbox=True, time_limit=1))
        assert "Missing: user and network namespaces" in weaker.describe_data()
        assert weaker.verify(task, wrap_answer(HONEST)).correct


def test_without_namespaces_and_filter_the_weaker_sandbox_is_refused_too() -> None:
    no_filter = ("    if platform.machine() not in SYSTEM_CALLS:", "    if True:")
    with changed_worker(WEAKER, no_filter), pytest.raises(ConfigError, match="even the weaker sandbox") as error:
        Code(Code.Config(allow_weaker_sandbox=True)).describe_data()
    assert "system call filter (no list of system calls for" in str(error.value)


def test_results_that_a_job_writes_after_its_end_do_not_reach_the_next_one(environment: Code) -> None:
    """The first program ends its results and then writes those of the second one until it is killed."""
    late = "import os\nos.write(3, b'null\\n')\nwhile True:\n    os.write(3, b'[\"returned\", \"1\"]\\n' * 999)"
    with changed_worker():
        for run in range(5):
            environment.verify(task_of([1, 1, 1]), wrap_answer(f"run = {run}\n{HONEST}\n{late}"))
            wrong = wrap_answer(f"def solve(n):\n    return {run} + 2")
            assert not environment.verify(task_of([1, 1, 1]), wrong).correct


def test_no_program_forges_a_verdict(environment: Code) -> None:
    task, pool = task_of(SECRETS), code_pool()
    lost = pool.replaced
    right = "def solve(n):\n    return " + str(SECRETS) + "[n]"
    for name, code in FORGERIES.items():
        verdict = environment.verify(task, wrap_answer(code))
        assert not verdict.correct and verdict.score == 0, (name, verdict.detail)
        assert verdict.detail == "" or "unparsable" in verdict.detail or "0 of 3 tests pass" in verdict.detail, name
    assert environment.verify(task, wrap_answer(right)).correct and pool.replaced == lost


def test_a_program_leaves_nothing_to_the_next_one(environment: Code) -> None:
    task = task_of([1, 2, 3])
    leave = (
        "import builtins, json, os, sys\nopen('left', 'w').write('x')\nbuiltins.left = 1\nsys.modules['left'] = os\n"
    )
    find = (
        "import os, sys\ndef solve(n):\n    import builtins\n    left = os.listdir('.') or hasattr(builtins, 'left')\n"
    )
    assert environment.verify(task, wrap_answer(leave + HONEST)).correct
    for _ in range(2 * code_pool().size):
        verdict = environment.verify(
            task, wrap_answer(find + "    return n + 1 if left or 'left' in sys.modules else 0")
        )
        assert not verdict.correct
        environment.sandbox._cache.clear()


@pytest.mark.slow
def test_a_loop_ends_at_its_limit_and_the_server_goes_on(environment: Code) -> None:
    check_endless(environment, {"loop": ENDLESS["loop"]})


@pytest.mark.slow
def test_no_endless_program_slows_the_server(environment: Code) -> None:
    check_endless(environment, ENDLESS)


def check_endless(environment: Code, programs: dict[str, str]) -> None:
    """Each ends within its limit of time plus a margin for a busy machine, and leaves no process and no worker behind.

    Meanwhile this thread sleeps for 10 ms at a time: an interpreter or a machine that is held up shows as long sleeps.
    """
    task, pool = task_of([1, 2, 3]), code_pool()
    environment.verify(task, wrap_answer(HONEST))
    lost = pool.replaced
    for name, code in programs.items():
        verdicts: list[Verdict] = []

        def judge(code: str, verdicts: list[Verdict]) -> None:
            verdicts.append(environment.verify(task, wrap_answer(code)))

        thread = threading.Thread(target=judge, args=(code, verdicts))
        start, longest = time.perf_counter(), 0.0
        thread.start()
        while thread.is_alive():
            before = time.perf_counter()
            time.sleep(0.01)
            longest = max(longest, time.perf_counter() - before)
        assert [verdict.correct for verdict in verdicts] == [False], name
        assert time.perf_counter() - start < environment.sandbox.limits.wall_seconds + 5, name
        assert longest < 1, name
    environment.sandbox._cache.clear()
    assert environment.verify(task, wrap_answer(HONEST)).correct and pool.replaced == lost
    workers = [p for p in psutil.Process().children(recursive=True) if "code_worker" in " ".join(p.cmdline())]
    assert len(workers) <= 2 * pool.size  # each has a process outside its PID namespace and the first one inside

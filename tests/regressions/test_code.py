"""Faults of the environment `code` and its sandbox that people found from outside, one case for each clause."""

from __future__ import annotations

import ast
import copy
import json
import os
import random
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from code_sandbox import WEAKER, changed_pool, changed_worker, public_folder, task_of, use_pool
from escape_families import MEMORY, READS, SECRET_ATTEMPT, SECRETS, WRITES

from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.code import generator, mutations, sources
from rl2f_core.environments.code.environment import Code
from rl2f_core.environments.code.judging import Output, agree, passes
from rl2f_core.environments.math.equivalence import Pair, compare_answers
from rl2f_core.environments.sandbox import pool as pools
from rl2f_core.environments.sandbox.pool import Job, WorkerPool, code_pool
from rl2f_core.environments.verifiers import taskset
from rl2f_core.errors import ConfigError
from rl2f_core.types import Verdict

pytestmark = pytest.mark.xdist_group("workers")
ROOT = Path(__file__).resolve().parents[2]
HONEST = "def solve(n):\n    return n + 1"


def judged(code: str, outputs: list[Any] | None = None, **settings: Any) -> Verdict:
    return Code(Code.Config(**settings)).verify(task_of(outputs or [1, 2, 3]), wrap_answer(code))


# -- sandbox: leftover memory --------------------------------------------------------------------------------------
COMPUTED = f"def solve(n):\n    return [x + 1 for x in {[value - 1 for value in SECRETS]}][n]"


@pytest.mark.parametrize("earlier", [SECRET_ATTEMPT, COMPUTED], ids=["another attempt", "results of another attempt"])
def test_an_attempt_does_not_find_an_earlier_job_in_memory(earlier: str) -> None:
    with changed_worker():
        for run in range(4):
            assert judged(f"{earlier}\nrun = {run}", SECRETS).correct
        assert [name for name in SCANS if judged(MEMORY[name], SECRETS).correct] == []


def test_the_first_attempt_does_not_find_the_reference_of_a_file_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    tests = [{"input": str(n), "output": str(value)} for n, value in enumerate(SECRETS)]
    row = {"entry_point": "solve", "prompt": "def solve(n):\n    0\n", "canonical_solution": SECRET_ATTEMPT}
    path.write_text(json.dumps({**row, "tests": tests}) + "\n")
    for name in SCANS:
        with changed_worker():
            sources.load.cache_clear()
            environment = Code(Code.Config(test_source="file", path=str(path)))
            task = environment.task("test", 0)
            assert not environment.verify(task, wrap_answer(MEMORY[name])).correct, name


SCANS = ("heap of the C library", "arenas of objects")


# -- sandbox: weaker mode ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def weaker() -> Iterator[WorkerPool]:
    with changed_pool(WEAKER) as pool:
        yield pool


@pytest.mark.parametrize(
    "code",
    [
        READS["file"], READS["size of a file"], READS["folder"],
        WRITES["create"], WRITES["overwrite"], WRITES["append"], WRITES["overwrite"].replace(".write('x')", ""),
        WRITES["remove"], WRITES["remove a folder"], WRITES["file without a name"],
    ],
    ids=["read", "stat", "list", "create", "overwrite", "append", "truncate", "unlink", "rmdir", "O_TMPFILE"],
)  # fmt: skip
def test_a_program_in_the_weaker_sandbox_reaches_no_file(code: str, weaker: WorkerPool) -> None:
    with use_pool(weaker), public_folder() as folder:
        code = code.replace("{folder}", str(folder))
        assert not judged(code, allow_weaker_sandbox=True).correct
        assert (folder / "keep").read_text() == "secret = 1\n"
        assert sorted(path.name for path in folder.iterdir()) == ["empty", "keep", "module.py"]


def test_the_sandbox_runs_where_root_cannot_become_another_user() -> None:
    with changed_worker(("os.setgroups([])", "raise PermissionError")):
        assert Code(Code.Config()).describe_data() == "" and judged(HONEST).correct


def end_worker(process: psutil.Popen) -> None:
    process.kill()


def close_pipe(process: psutil.Popen) -> None:
    process.stdin.close()


@pytest.mark.parametrize("end", [end_worker, close_pipe], ids=["killed worker", "closed pipe"])
def test_a_job_of_the_weaker_sandbox_ends_with_its_worker(end: Callable[[Any], None]) -> None:
    code = "import time\ndef solve(n):\n    time.sleep(60)"
    with changed_worker(WEAKER):
        environment = Code(Code.Config(allow_weaker_sandbox=True, time_limit=20))
        environment.verify(task_of([1]), wrap_answer(HONEST))
        (worker,) = code_pool()._idle
        process = psutil.Process(worker.process.pid)
        before = process.children(recursive=True)
        thread = threading.Thread(target=worker.ask, args=(Job("run", job_arguments(environment, code)), 50))
        thread.start()
        jobs: list[psutil.Process] = []
        while not jobs:
            time.sleep(0.05)
            jobs = [child for child in process.children(recursive=True) if child not in before]
        end(worker.process)
        assert psutil.wait_procs([*before, *jobs], timeout=5)[1] == []
        thread.join()


def job_arguments(environment: Code, code: str) -> dict[str, object]:
    """The job that the environment sends for an attempt."""
    jobs: list[Job] = []

    class Recorder(WorkerPool):
        def run_cached(self, jobs_by_key: Any, limit: float, cache: Any) -> Any:
            jobs.extend(jobs_by_key.values())
            raise InterruptedError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(pools, "_pools", {(os.getpid(), "code"): Recorder(1)})
        environment.verify(task_of([1]), wrap_answer(code))
    return jobs[0].args


# -- sandbox: lost replies -----------------------------------------------------------------------------------------
@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    monkeypatch.setattr(pools, "WORKER_PROGRAM", ROOT / "tests" / "support" / "sandbox_jobs.py")
    workers = WorkerPool(1)
    yield workers
    workers.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["crash", "hang"])
def test_a_lost_job_is_run_once_more(workers: WorkerPool, how: str, tmp_path: Path) -> None:
    job = Job("lose_once", {"how": how, "path": str(tmp_path / "marker")})
    assert [reply.value for reply in workers.run([job], 1.0)] == ["second run"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["crash", "hang"])
def test_a_lost_reply_is_not_cached(workers: WorkerPool, how: str) -> None:
    cache: dict[str, pools.Reply] = {}
    workers.run_cached({"other": Job("echo", {"value": 7})}, 20, cache)
    assert workers.run_cached({"job": Job(how, {})}, 0.3, cache)["job"].lost and list(cache) == ["other"]


def test_an_attempt_whose_worker_is_killed_is_judged_again() -> None:
    with changed_worker():
        judged(HONEST)
        (worker,) = code_pool()._idle
        threading.Timer(0.3, worker.process.kill).start()
        assert judged(f"import time\ntime.sleep(.6)\n{HONEST}").correct


@pytest.mark.slow
def test_a_comparison_of_math_that_is_lost_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of 2 s is too short for a worker that is stopped."""
    workers = WorkerPool(1)
    monkeypatch.setattr(pools, "_pools", {(os.getpid(), "judge"): workers})
    workers.ask("math", 20, gold="x", answer="y")
    worker = psutil.Process(workers._idle[0].process.pid)
    worker.suspend()
    assert compare_answers([Pair("\\frac{x+3}{2}", "\\frac{3+x}{2}", "")], 1.0)[0].correct
    workers.close()


def test_a_worker_that_did_not_start_is_started_again() -> None:
    program = ["missing.py"]
    command, variables = pools.code_command()
    pool = WorkerPool(1, lambda: ([*command[:-1], *program], variables), 1)
    with use_pool(pool):
        with pytest.raises(ConfigError, match="the worker process crashed"):
            Code(Code.Config()).describe_data()
        program[:] = command[-1:]
        assert Code(Code.Config()).describe_data() == "" and judged(HONEST).correct
    pool.close()


def test_a_rubric_that_fails_once_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker in place of verifiers': its first score is an error."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        textwrap.dedent("""
        import json, sys
        scored = 0
        for line in sys.stdin:
            job = json.loads(line)["job"]
            scored += job == "score"
            task = [{"messages": [{"role": "user", "content": "1 + 1?"}], "key": "k", "data": {}}]
            score = [{"error": "the judge did not reply"} if scored == 1 else {"reward": 1.0, "terms": {}}]
            print(json.dumps({"value": {"load": task, "score": score}.get(job)}), flush=True)
        """)
    )
    monkeypatch.setenv(taskset.PYTHON, sys.executable)
    monkeypatch.setattr(taskset, "WORKER_PROGRAM", worker)
    source, reply = taskset.Taskset("t", "{}", "{}", 3, 20), taskset.Reply(0, "k", "2")
    assert source.score(reply, 20).error == "the judge did not reply"
    assert source.score(reply, 20).reward == 1.0
    source._workers().close()


# -- modules -------------------------------------------------------------------------------------------------------
MODULES = {
    "queue": "q = queue.PriorityQueue()\n    q.put(n + 1)\n    return q.get()",
    "difflib": "return n + int(difflib.SequenceMatcher(None, 'ab', 'ab').ratio())",
    "pprint": "return int(pprint.pformat(n + 1))",
    "traceback": "try:\n        1 / 0\n    except ZeroDivisionError:\n"
    "        return n + ('ZeroDivisionError' in traceback.format_exc())",
    "graphlib": "return n + len([*graphlib.TopologicalSorter({1: [2]}).static_order()]) - 1",
}


@pytest.mark.parametrize("name", MODULES)
def test_more_modules_can_be_imported(name: str, weaker: WorkerPool) -> None:
    program = f"import {name}\ndef solve(n):\n    {MODULES[name]}"
    full = judged(program)
    with use_pool(weaker):
        less = judged(program, allow_weaker_sandbox=True)
    assert full.correct and less.correct, (full.detail, less.detail)


# -- programs that need their module in sys.modules ----------------------------------------------------------------
TYPED = {
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int = 1\n"
    "def solve(n):\n    return P(n).x + P(n).y",
    "frozen dataclass with slots": "from dataclasses import dataclass\n"
    "@dataclass(frozen=True, slots=True, order=True)\nclass P:\n    x: int\n"
    "def solve(n):\n    return max(P(n), P(n + 1)).x",
    "dataclass with ClassVar and InitVar": "from dataclasses import InitVar, dataclass, field\n"
    "from typing import ClassVar\n@dataclass\nclass P:\n    x: int\n    one: ClassVar[int] = 1\n"
    "    d: InitVar[int] = 0\n    y: int = field(init=False)\n    def __post_init__(self, d):\n"
    "        self.y = self.x + self.one\n"
    "def solve(n):\n    return P(n).y",
    "NamedTuple": "from typing import NamedTuple, get_type_hints\nclass P(NamedTuple):\n    x: int\n"
    "def solve(n):\n    return get_type_hints(P)['x'](P(n).x + 1)",
    "TypedDict": "from typing import TypedDict, get_type_hints\nclass P(TypedDict):\n    x: int\n"
    "def solve(n):\n    return get_type_hints(P)['x'](n) + 1",
    "get_type_hints": "from typing import get_type_hints\nclass A:\n    x: 'B'\nclass B(int):\n    pass\n"
    "def solve(n):\n    return get_type_hints(A)['x'](n) + 1",
    "annotations are values": "def solve(n: int):\n    return solve.__annotations__['n'](n) + 1",
    "dispatch by annotation": "from functools import singledispatch\n@singledispatch\ndef f(x):\n    return 0\n"
    "@f.register\ndef _(x: int):\n    return x + 1\ndef solve(n):\n    return f(n)",
    "own module": "import sys\ndef solve(n):\n    return sys.modules[__name__].solve.__code__.co_argcount + n",
    "from __future__ after the stub": "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    "@dataclass\nclass P:\n    x: Later\ndef solve(n: Later):\n    return P(n).x + 1",
    "global_enum": "import enum\n@enum.global_enum\nclass E(enum.IntEnum):\n    ONE = 1\n"
    "def solve(n):\n    return n + ONE",
}


@pytest.mark.parametrize("kind", TYPED)
def test_a_program_is_a_module_with_a_name(kind: str) -> None:
    verdict = judged(TYPED[kind])
    assert verdict.correct, verdict.detail


# -- comparison of outputs -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        pytest.param("10000001", "10000000.0", False, id="int, another whole float"),
        pytest.param("[10000001]", "[10000000.0]", False, id="int in a list, another whole float"),
        pytest.param("9007199254740993", "9007199254740992.0", False, id="int beyond exact floats"),
        pytest.param("3", "3.0000001", False, id="int, a close float"),
        pytest.param("10000001.0", "10000000", False, id="whole float, another int"),
        pytest.param("10000001.0", "10000000.0", False, id="whole float, another whole float"),
        pytest.param("2.0", "2.0000001", False, id="whole float, a close float"),
        pytest.param("1000000.0", "1000000.5", False, id="whole float, one between whole floats"),
        pytest.param("1e16", "10000000000000001", False, id="float beyond exact floats, another int"),
        pytest.param("[1e20]", "[100000000000000000001]", False, id="large float in a list, another int"),
        pytest.param("24.0", "23.999999999999996", True, id="whole float, rounding error"),
        pytest.param("1e-9", "0", False, id="tiny float, int zero"),
        pytest.param("1e-9", "0.0", False, id="tiny float, zero"),
        pytest.param("1e-9", "2e-9", False, id="tiny float, another"),
        pytest.param("6.6e-34", "0.0", False, id="physical constant, zero"),
        pytest.param("0.0", "1e-9", False, id="zero, tiny float"),
        pytest.param("{'a': (1e-9,)}", "{'a': (0.0,)}", False, id="tiny float in containers"),
        pytest.param("inf", "inf", True, id="infinite"),
        pytest.param("[inf, -inf]", "[1e999, -1e999]", True, id="infinite in a list"),
        pytest.param("inf", "1.7e308", False, id="infinite, a large float"),
        pytest.param("float('inf')", "inf", True, id="infinite as a call"),
        pytest.param("nan", "nan", True, id="NaN"),
        pytest.param("{'a': [nan, 1]}", "{'a': [nan, 1]}", True, id="NaN in containers"),
        pytest.param("{'a': [nan, 1]}", "{'a': [0.0, 1]}", False, id="NaN in containers, a number"),
        pytest.param("(nan, 0.3)", "(nan, 0.30000000000000004)", True, id="NaN and a rounded float"),
        pytest.param("nan", "0.0", False, id="NaN, zero"),
        pytest.param("0.0", "nan", False, id="zero, NaN"),
        pytest.param("{0.3, 1.5}", "{1.5, 0.30000000000000004}", True, id="rounded floats in a set"),
        pytest.param("{0.3: 'a'}", "{0.30000000000000004: 'a'}", True, id="rounded floats as keys"),
        pytest.param("{0.3: 'a'}", "{0.30000000000000004: 'b'}", False, id="rounded floats as keys, another value"),
        pytest.param("{0.3, 1.5}", "{1.5, 2.5}", False, id="another set of floats"),
        pytest.param("{frozenset({1, 2})}", "{frozenset({2, 1})}", True, id="set of frozen sets"),
    ],
)
def test_outputs_are_compared_exactly_if_they_are_exact(expected: str, actual: str, same: bool) -> None:
    padded = f"({actual}, )"  # so that equal texts are no short cut
    assert passes(f"({expected},)", Output(padded)) is same


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("2", "2.0", True), ("0.3", "0.30000000000000004", True), ("0.0", "5.5e-17", True), ("-0.0", "0", True),
        ("True", "1", True), ("1e20", "1.0000000001e20", True), ("100000000000000000000", "1e20", True),
        ("[1]", "(1,)", False), ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", True), ("{1}", "frozenset({1})", True),
        ("{1}", "[1]", False), ("'1'", "1", False), ("None", "False", False), ("0.5", "'0.5'", False),
    ],
)  # fmt: skip
def test_other_outputs_are_compared_as_by_python(expected: str, actual: str, same: bool) -> None:
    assert passes(expected, Output(actual)) is same


# -- outputs without a literal -------------------------------------------------------------------------------------
SPECIAL = ["inf", "-inf", "nan", "[1, inf]", "{'a': (nan, -inf)}", "frozenset({1})", "{frozenset({1}), frozenset()}"]


@pytest.mark.parametrize("value", SPECIAL)
def test_infinite_and_other_outputs_without_a_literal_are_stored_and_judged(value: str, tmp_path: Path) -> None:
    """As a test's output, as an input, as an example, and from the reference of a `check`."""
    code = f"def solve(n):\n    inf, nan = float('inf'), float('nan')\n    return {value} if n else n"
    stub = f"def solve(n):\n    '''Return.\n\n    >>> solve(1)\n    {value}\n    '''\n"
    shared = {"entry_point": "solve", "canonical_solution": code}
    rows: list[dict[str, Any]] = [
        {**shared, "prompt": stub, "tests": [{"input": "2", "output": value}, {"input": value, "output": value}]},
        {**shared, "prompt": "def solve(n):\n    0\n", "test": f"from math import inf, nan\ndef check(candidate):\n"
         f"    candidate({value})\n    candidate(3)"},
    ]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given, recorded = sources.load((str(path), 0, 0), False)
    assert len(given.public) == 1 and len(given.hidden) == len(recorded.hidden) == 2
    environment = Code(Code.Config(test_source="file", path=str(path)))
    for index in range(2):
        task = environment.task("test", index)
        assert environment.verify(task, wrap_answer(code)).correct
        wrong = environment.verify(task, wrap_answer("def solve(n):\n    return 5"))
        assert not wrong.correct
        false = environment.misleading_hint(task, [wrong], random.Random(0))
        assert false != environment.hint(task, [wrong], random.Random(0))


# -- tests that tell mutants apart ---------------------------------------------------------------------------------
def every_mutant(code: str) -> Iterator[str]:
    """Yield all programs that differ from `code` in one constant, operator, comparison, name or returned value."""
    tree = ast.parse(code)
    seen = {code}
    for node in [node for node in ast.walk(tree) if mutations._changes(node)]:
        original = dict(vars(node))
        for seed in range(12):
            mutations._change(node, random.Random(seed))
            mutant = ast.unparse(tree)
            vars(node).update(original)
            if mutant not in seen:
                seen.add(mutant)
                yield mutant


def outputs_of(code: str, inputs: list[Any]) -> list[Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    outputs = []
    for value in inputs:
        try:
            outputs.append(names["solve"](copy.deepcopy(value)))
        except Exception as error:
            outputs.append(type(error))
    return outputs


def surviving_mutants(level: int, tasks: int) -> tuple[int, list[str]]:
    """Return the number of mutants and those that pass all tests but differ on one of 400 other inputs."""
    environment, number, wrong, rng = Code(Code.Config(level=level)), 0, [], random.Random(level)
    others = {kind: [generator.draw_input(kind, rng) for _ in range(400)] for kind in generator.EDGES}
    others["int"] += range(-60, 130)
    for index in range(tasks):
        task = environment.task("train", index)
        cases, code = json.loads(task.privileged["tests"]), task.privileged["answer"]
        inputs = [ast.literal_eval(case[0])[0] for case in cases]
        more = others[task.public["problem"].split(": ")[1].split(")")[0]]
        for mutant in every_mutant(code):
            number += 1
            passed = all(map(agree, [ast.literal_eval(case[1]) for case in cases], outputs_of(mutant, inputs)))
            if passed and not all(map(agree, outputs_of(code, more), outputs_of(mutant, more))):
                wrong.append(mutant)
    return number, wrong


@pytest.mark.parametrize(
    ("level", "tasks", "most"),
    [
        (1, 40, 0),
        (2, 20, 0),
        *(pytest.param(level, 300, 6, marks=pytest.mark.slow) for level in (1, 2, 3)),
    ],
)
def test_hidden_tests_fail_all_mutants_that_are_not_equivalent(level: int, tasks: int, most: int) -> None:
    number, wrong = surviving_mutants(level, tasks)
    assert number > 5 * tasks and len(wrong) <= most, wrong

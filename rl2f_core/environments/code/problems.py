"""Problems: a function stub with examples, a reference solution and tests."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import textwrap
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from rl2f_core.environments.base import MAX_ATTEMPT_CHARS
from rl2f_core.environments.code.judging import parse_literal

_FENCE = re.compile(r"\s*```(?:python|py)?[ \t]*\n(.*?)\n?```\s*", re.DOTALL)


class Case(NamedTuple):
    """One test."""

    input: str
    """The arguments, a tuple as a Python literal, e.g. `(3, [1])`."""
    output: str
    """The expected value as a Python literal."""


class Problem(NamedTuple):
    """A function to write."""

    text: str
    """The stub with its description and examples, as the student reads it."""
    function: str
    code: str
    """Reference solution in normal form."""
    public: tuple[Case, ...]
    """Tests that `text` shows as examples."""
    hidden: tuple[Case, ...]
    level: str
    key: str
    """Key of the behavior: the same for two functions that are the same problem."""


def normalize_code(text: str, function: str) -> str | None:
    """Return a program in normal form, without comments and layout.

    None unless it defines `function` at its top level. A code fence around the whole text is removed. Never raises,
    never evaluates.
    """
    if len(text) > MAX_ATTEMPT_CHARS:
        return None
    fenced = _FENCE.fullmatch(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(textwrap.dedent(fenced[1] if fenced else text).strip("\n"))
            if not any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body):
                return None
            return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def stub(text: str, function: str) -> ast.FunctionDef | None:
    """Return the parsed stub of `function`; None if the text is not a program with it."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function), None)


def stub_name(text: str) -> str | None:
    """Return the name of the last function that a problem text defines."""
    names = re.findall(r"^def (\w+)\(", text, re.MULTILINE)
    return names[-1] if names else None


def read_examples(text: str, function: str) -> list[Case]:
    """Return the examples of a docstring: `>>> function(…)` and the value below."""
    cases = []
    for call, value in re.findall(rf">>> {function}\((.*)\)[ \t]*\n[ \t]*(\S.*)", text):
        arguments, output = literal_text(f"({call},)" if call.strip() else "()"), literal_text(value)
        if arguments is not None and output is not None:
            cases.append(Case(arguments, output))
    return cases


def literal_text(text: str) -> str | None:
    """Return a Python literal in normal form; None if the text is none. See `parse_literal`."""
    try:
        return repr(parse_literal(text))
    except ValueError:
        return None


def call_text(function: str, arguments: str) -> str:
    """Return a call as code, e.g. `solve(3)` for the arguments `(3,)`."""
    inner = arguments[1:-1].removesuffix(",")
    return f"{function}({inner})"


def with_examples(signature: str, words: str, function: str, cases: Sequence[Case]) -> str:
    """Return a stub whose docstring has the description and the examples."""
    examples = "".join(f"\n    >>> {call_text(function, case.input)}\n    {case.output}" for case in cases)
    return f'{signature}\n    """{words}\n{examples}\n    """'


def tests_key(function_text: str, cases: Sequence[Case]) -> str:
    """Return the key of a problem that is known by its tests alone.

    `function_text` separates problems with equal tests.
    """
    return hashlib.sha256(json.dumps([function_text, sorted(cases)]).encode()).hexdigest()[:16]


def drop_repeats(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Return the cases with different inputs."""
    return tuple({case.input: case for case in reversed(cases)}.values())[::-1]

"""What an answer with a scorer's full score must also share with the gold answer.

Scorers have wide tolerances, accept NaN, add up partial scores, and skip what they cannot read.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

from rl2f_core.environments.math.answer_text import read_number

EXPRESSIONS = frozenset(("countdown", "puzzle24"))
"""Data sets whose answers are expressions of the problem's numbers."""
EXACT = frozenset(("figlet_font",))
"""Data sets with one right answer, whose scorer also gives the full score for a part of it."""
FORMS = {
    "sokoban": re.compile("[LRUD]+"),
    "quantum_lock": re.compile(r"[A-Ca-c](?:\s*(?:→|->)\s*[A-Ca-c])*"),
    "kakurasu": re.compile(r"[01\s]+"),
    "survo": re.compile(r"[\d\s]+"),
    "pool_matrix": re.compile(r"[\d.eE+\s-]+"),
}
"""The form of whole answers by data set, for scorers that skip everything between moves or numbers."""
FILLERS = {"knights_knaves": frozenset(("is", "a", "an", "and"))}
"""Words that an answer need not share with the gold answer by data set, for scorers that skip words."""
MIN_DIGITS = 10
"""Significant digits that an answer shares with a numeric gold answer, unless the problem asks for another number."""
MAX_DIGITS = 15
"""Significant digits of a float; further digits of a gold answer are rounding errors."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SPLITS_NO_NUMBER = r"(?!(?<=\d)\d)"
_NOT_FINITE = re.compile(r"(?<![a-z])(?:nan|inf)", re.IGNORECASE)
_PRECISION = re.compile(r"(\d{1,2}) (significant|decimal places)")
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def says_more(candidate: str, gold: str) -> bool:
    """Return whether an answer contains the gold answer and more, also within a word but not within a number."""
    text, expected = (" ".join(_TOKEN.findall(text.casefold())) for text in (candidate, gold))
    if expected.endswith("+ c"):  # the constant of an integral may have an index
        text = re.sub(r"\bc\d\b", "c", text)
    pattern = _SPLITS_NO_NUMBER + re.escape(expected) + _SPLITS_NO_NUMBER
    return text != expected and re.search(pattern, text) is not None


def agrees(name: str, candidate: str, gold: str, problem: str) -> bool:
    """Return whether an answer that the scorer of a data set accepts has the form and the numbers of the gold answer.

    A number is equal up to rounding, and an expression has the same numbers and the same value. Lists of numbers and
    JSON objects are equal. Other answers to a problem with digits contain no NaN and no infinity.
    """
    if name in FORMS and not FORMS[name].fullmatch(candidate):
        return False
    if name in FILLERS:
        words, expected_words = (
            sorted(word for word in re.findall(r"[^\s,.()]+", text.casefold()) if word not in FILLERS[name])
            for text in (candidate, gold)
        )
        return words == expected_words
    if name in EXACT:
        return "".join(candidate.casefold().split()) == "".join(gold.casefold().split())
    if name in EXPRESSIONS:
        numbers, expected_numbers = (sorted(re.findall(r"\d+", text)) for text in (candidate, gold))
        return numbers == expected_numbers and expression_value(candidate) == expression_value(gold)
    expected = read_number(gold)
    if expected is not None:
        number = read_number(candidate)
        return number is not None and abs(number - expected) <= rounding_error(expected, gold, problem)
    data = _read_json(gold)
    if isinstance(data, dict) or (isinstance(data, list) and _is_numeric(data)):
        return _read_json(candidate) == data
    is_finite = not _NOT_FINITE.search(candidate) or bool(_NOT_FINITE.search(gold))
    return is_finite or not re.search(r"\d", gold)


def rounding_error(value: Fraction, gold: str, problem: str) -> Fraction:
    """Return half a unit of the last digit that the problem asks for, or of the gold answer's last digit."""
    asked = _PRECISION.search(problem)
    if asked and asked[2] == "decimal places":
        return Fraction(10) ** -int(asked[1]) / 2
    written = re.sub(r"\D", "", gold.lower().partition("e")[0]).lstrip("0")
    digits = int(asked[1]) if asked else max(MIN_DIGITS, min(len(written), MAX_DIGITS))
    first = (Decimal(value.numerator) / value.denominator).adjusted() if value else -digits
    return Fraction(10) ** (first - digits + 1) / 2


def expression_value(text: str) -> Fraction | None:
    """Return the exact value of an expression of whole numbers, or None."""
    try:
        return _evaluate(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() as number):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.BinOp(left=left, op=operation, right=right):
            return _OPERATIONS[type(operation)](_evaluate(left), _evaluate(right))
    raise ValueError("not an expression of whole numbers")


def _read_json(text: str) -> object:
    """Return JSON, or a list with single quotes, with numbers for the texts of numbers in lists; None otherwise."""
    for form in (text, text.replace("'", '"')):
        try:
            return _with_numbers(json.loads(form, parse_float=_number, parse_constant=str))
        except (ValueError, RecursionError):
            continue
    return None


def _with_numbers(value: object) -> object:
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    return _number(value) if isinstance(value, str) else value


def _number(text: str) -> Fraction | str:
    number = read_number(text)
    return text if number is None else number


def _is_numeric(value: object) -> bool:
    return all(map(_is_numeric, value)) if isinstance(value, list) else isinstance(value, int | Fraction)

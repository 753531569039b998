"""Numbers in random notations, which `math` must accept, and with changes, which it must refuse."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.math.environment import Math

pytestmark = pytest.mark.xdist_group("workers")
MATH = Math(Math.Config(answers="all", answer_form="either"))
NARROW, THIN, NO_BREAK = "\u202f", "\u2009", "\u00a0"
"""Spaces between groups of digits."""


def grouped(number: int, separator: str) -> str:
    return f"{number:,}".replace(",", separator)


SEPARATORS = (",", r"\,", " ", NO_BREAK, NARROW, THIN, "{,}", "'", r"\;", r"\ ", r",\!")
WRAPPERS = (
    "{}",
    "${}$",
    r"\({}\)",
    "**{}**",
    r"\boxed{{{}}}",
    r"\text{{{}}}",
    r"\mathrm{{{}}}",
    "{}.",
    r"$\mathbf{{{}}}$",
    r"\boxed{{\text{{{}}}}}",
    "$${}$$",
    " {} ",
    "x = {}",
    "+{}",
)
TAILS = (
    "",
    " apples",
    r"\text{ apples}",
    " cm",
    r"\text{ km/h}",
    r"^\circ",
    " dollars",
    r"\,\mathrm{kg}",
    " red balls",
)
CHANGES = (
    " or more",
    r"\text{ or so}",
    r"\ldots",
    "_2",
    "'",
    r"\%",
    " million",
    " is wrong",
    " maybe",
    " not",
    "!",
    "^2",
    "+",
    r"\text{ thousand}",
    " and 1",
    ", 1",
    "0",
    " half",
    " times",
    r"\pm 1",
    " 7",
)
NATURAL = st.integers(2, 10**12)


def is_correct(gold: str, answer: str) -> bool:
    task = MATH.task_from_gold("Find it.", gold)
    return MATH.verify(task, wrap_answer(answer)).correct


@settings(max_examples=60, deadline=None)
@given(NATURAL, st.sampled_from(SEPARATORS), st.sampled_from(WRAPPERS), st.sampled_from(TAILS))
def test_a_number_is_itself_in_any_notation(number: int, separator: str, wrapper: str, tail: str) -> None:
    assert is_correct(str(number), wrapper.format(grouped(number, separator) + tail))


@settings(max_examples=60, deadline=None)
@given(NATURAL, NATURAL, st.sampled_from(SEPARATORS), st.sampled_from(WRAPPERS), st.sampled_from(TAILS))
def test_another_number_is_wrong_in_any_notation(one: int, two: int, separator: str, wrapper: str, tail: str) -> None:
    assume(one != two)
    assert not is_correct(str(one), wrapper.format(grouped(two, separator) + tail))


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 10**6), st.sampled_from(CHANGES), st.sampled_from(("{}", "${}$", r"\boxed{{{}}}")))
def test_a_number_with_a_modifier_is_wrong(number: int, change: str, wrapper: str) -> None:
    assert not is_correct(str(number), wrapper.format(f"{number}{change}"))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.fractions(-(10**9), 10**9, max_denominator=500).filter(lambda value: value.denominator > 1), st.booleans())
def test_a_fraction_is_equal_to_its_mixed_and_its_repeating_form_alone(value: Fraction, other: bool) -> None:
    gold = f"{value.numerator}/{value.denominator}"
    value += other
    sign, (whole, rest) = "-" if value < 0 else "", divmod(abs(value), 1)
    mixed = rf"{sign}{whole}\frac{{{rest.numerator}}}{{{rest.denominator}}}" if whole else str(value)
    assert is_correct(gold, mixed) != other
    digits, remainders, remainder = "", {}, rest.numerator
    while remainder not in remainders and len(digits) < 40:
        remainders[remainder] = len(digits)
        digits += str(10 * remainder // rest.denominator)
        remainder = 10 * remainder % rest.denominator
    if remainder in remainders:
        start = remainders[remainder]
        for mark in (r"\overline{{{}}}", "({})"):
            assert is_correct(gold, f"{sign}{whole}.{digits[:start]}{mark.format(digits[start:])}") != other

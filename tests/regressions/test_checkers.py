"""Answers that a checker must accept or refuse, by kind, and the check of own data."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from app.cli import app
from app.common.context import Context
from app.endpoints.own_data import OwnDataEndpoints
from jobs.db.engine import Database
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.config.loading import validate_config
from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.environments.dataset.environment import Dataset
from rl2f_core.environments.math.environment import Math
from rl2f_core.errors import DataError
from rl2f_core.types import SPLITS

pytestmark = pytest.mark.xdist_group("workers")
MATH = Math(Math.Config(answers="all", answer_form="either"))
NARROW, THIN, NO_BREAK = "\u202f", "\u2009", "\u00a0"
"""Spaces between groups of digits."""


def verdicts(environment: Environment, gold: str, answer: str, problem: str = "Find it.") -> set[bool]:
    """Return whether an answer is correct, as bare text and in tags."""
    task = environment.task_from_gold(problem, gold)
    tagged = environment.verify(task, wrap_answer(answer))
    return {environment.is_correct_answer(task, answer), tagged.correct}


def dataset(checker: str) -> Dataset:
    return Dataset(validate_config(Dataset.Config, {"checker": checker}))


# -- math: another value ------------------------------------------------------------------------------------------
REFUSED = {
    "a word for a scale": ("5", r"5\text{ million}"),
    "a word for a dozen": ("5", r"5\text{ dozen}"),
    "or more": ("5", r"5\text{ or more}"),
    "or less": ("5", r"5\text{ or less}"),
    "at least": ("5", r"5\text{ at least}"),
    "maximum": ("5", r"5\mathrm{ max}"),
    "is wrong": ("5", r"5\text{ is wrong}"),
    "is not": ("5", r"5\text{ is not}"),
    "wrong": ("5", r"5\text{ wrong}"),
    "approximately": ("5", r"5\text{ approximately}"),
    "parts": ("5", r"5\text{ tenths}"),
    "squared": ("5", r"5\text{ squared}"),
    "ellipsis": ("5", r"5\ldots"),
    "ellipsis after a root": (r"\sqrt{2}", r"\sqrt{2}\ldots"),
    "base": ("5", "5_2"),
    "base in braces": ("101", "101_{2}"),
    "base of a power": (r"2^{10}", r"2^{10}_3"),
    "prime": ("5", "5'"),
    "two primes": ("5", "5''"),
    "prime after a root": (r"\sqrt{2}", r"\sqrt{2}'"),
    "transposition": ("5x", "5x^T"),
    "two numbers side by side": ("11", r"5\quad 6"),
    "a plain pair of numbers": ("11", "5 6"),
    "degrees are no radians": (r"\sin 30", r"\sin 30^\circ"),
    "percent for the number": ("5", r"5\%"),
    "a number for the percentage": (r"5\%", "5"),
    "percent in words": ("5", r"5\text{ percent}"),
    "million after a root": (r"\sqrt{2}", r"\sqrt{2}\text{ million}"),
    "wrong after a root": (r"\sqrt{2}", r"\sqrt{2}\text{ is wrong}"),
    "rounded root": (r"\sqrt{2}", "1.414214"),
    "rounded tiny root": (r"\frac{\sqrt{2}}{10^6}", "0.000001"),
    "rounded pi": (r"\pi", "3.141593"),
    "rounded e": ("e", "2.718282"),
    "rounded logarithm": (r"\ln 2", "0.693147"),
    "rounded root in a list": (r"\sqrt{2}, \sqrt{3}", "1.414214, 1.732051"),
    "tiny powers of two": (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    "tiny multiples": (r"\frac{1}{2^{60}}", r"\frac{7}{2^{60}}"),
    "tiny factorials": (r"\frac{1}{50!}", r"\frac{1}{52!}"),
    "tiny powers of e": ("e^{-50}", "e^{-51}"),
    "tiny powers of ten": ("10^{-30}", "10^{-31}"),
    "tiny differences": (r"\sqrt{2}", r"\sqrt{2}+10^{-40}"),
    "tiny elements": (r"\{\frac{1}{2^{70}}, 3\}", r"\{\frac{1}{2^{71}}, 3\}"),
    "tiny ends of an interval": (r"[0, \frac{1}{3^{50}})", r"[0, \frac{1}{3^{51}})"),
    "hours and minutes": ("3 hours", "3 minutes"),
    "halves of the day": ("10 am", "10 pm"),
    "multiples of a unit": ("5 kg", "5 g"),
    "powers of a unit": (r"9 \text{ cm}^2", r"9 \text{ cm}"),
    "units of a root": (r"2\sqrt{3}\text{ cm}", r"2\sqrt{3}\text{ m}"),
    "units of pi": (r"9\pi\text{ cm}^2", r"9\pi\text{ cm}^3"),
    "units of speed": (r"60\text{ km/h}", r"60\text{ m/s}"),
    "counted things": (r"5\text{ apples}", r"5\text{ pears}"),
    "currencies": (r"\$5", r"5\text{ cents}"),
    "temperatures": (r"30^\circ\text{C}", r"30^\circ\text{F}"),
    "degrees and radians": (r"2^\circ", r"2\text{ radians}"),
}  # fmt: skip
"""Gold answer and a wrong answer by the kind of difference."""


@pytest.mark.parametrize(("gold", "answer"), REFUSED.values(), ids=REFUSED)
def test_math_refuses_another_value(gold: str, answer: str) -> None:
    assert verdicts(MATH, gold, answer) == {False}


# -- math: the same value -----------------------------------------------------------------------------------------
ACCEPTED = {
    "thin spaces of LaTeX": ("1000000", r"1\,000\,000"),
    "a plain space": ("1024", "1 024"),
    "a no-break space": ("1024", f"1{NO_BREAK}024"),
    "a narrow no-break space": ("1234567", f"1{NARROW}234{NARROW}567"),
    "a thin space": ("12345.5", f"12{THIN}345.5"),
    "a tie": ("1024", "1~024"),
    "a comma without space": ("10000", r"10,\!000"),
    "groups of decimals": ("3.141592", "3.141 592"),
    "a comma in braces": ("3.14", "3{,}14"),
    "a fraction character": ("0.5", "½"),
    "a mixed number of characters": ("3.5", "3½"),
    "a fraction of raised characters": (r"\frac{3}{7}", "³⁄₇"),
    "a mixed number": ("3.5", "3 1/2"),
    "an overlined digit": (r"\frac{1}{3}", r"0.\overline{3}"),
    "an overlined tail": (r"\frac{1}{6}", r"0.1\overline{6}"),
    "a bar": (r"\frac{1}{3}", r"0.\bar{3}"),
    "a dotted digit": (r"\frac{1}{3}", r"0.\dot{3}"),
    "two dotted digits": (r"\frac{1}{7}", r"0.\dot{1}4285\dot{7}"),
    "digits in parentheses": (r"\frac{1}{3}", "0.(3)"),
    "a combining overline": (r"\frac{1}{3}", "0.3\u0305"),
    "nines": ("1", r"0.\overline{9}"),
    "a power of ten in raised digits": ("0.000001", "10⁻⁶"),
    "scientific notation": ("1500000", "1.5e6"),
    "scientific notation with a long exponent": ("10^{-30}", "1e-30"),
    "a power in a program's form": ("1024", "2**10"),
    "a raised digit": ("32", "2⁵"),
    "a root character": (r"2\sqrt{3}", "√12"),
    "pi in letters": (r"2\pi", "2pi"),
    "a scale in words": ("5000000", r"5\text{ million}"),
    "a scale and counted things": ("5000000", r"5\text{ million people}"),
    "percent of a fraction": (r"\frac{1}{3}", r"33\frac{1}{3}\%"),
    "percent of a root for its value": (r"\frac{\sqrt{2}}{100}", r"\sqrt{2}\%"),
    "dollars after the number": ("1024", "1024 dollars"),
    "a sign of pounds": ("29", "£29"),
    "a code of a currency": ("29", "EUR 29"),
    "people": ("5", "5 people"),
    "counted things with adjectives": ("5", r"5\text{ small red apples}"),
    "a part of one thing": ("0.5", "½ apple"),
    "a unit of speed": ("60", "60 miles per hour"),
    "a quotient of units": ("60", r"60\ \frac{\text{m}}{\text{s}}"),
    "a long form of a unit": (r"9 \text{ cm}^2", "9 square centimeters"),
    "a degree sign": ("30", "30°"),
    "a degree sign for the command": (r"30^\circ", "30°"),
    "an em dash as a minus sign": ("-5", "—5"),
    "a hyphen of Unicode as a minus sign": ("-5", "\u20115"),
    "a box in tags": ("5", r"\boxed{5}"),
    "a box with an expression": (r"\frac{\sqrt{2}}{2}", r"\boxed{\frac{\sqrt{2}}{2}}"),
    "a boxed gold answer": (r"\boxed{5}", "5"),
    "bold type": ("73", "**73**"),
    "dollars around a box": ("73", r"$\boxed{73}$"),
    "degrees of an angle": ("0.5", r"\sin 30^\circ"),
    "a decimal gold answer that is rounded": ("1.41", r"\sqrt{2}"),
    "a decimal gold answer of a fraction": ("0.333", r"\frac{1}{3}"),
}  # fmt: skip
"""Gold answer and the same value by the kind of notation."""


@pytest.mark.parametrize(("gold", "answer"), ACCEPTED.values(), ids=ACCEPTED)
def test_math_accepts_the_same_value(gold: str, answer: str) -> None:
    assert verdicts(MATH, gold, answer) == {True}


KEPT_RIGHT = (
    ("1000000", "1'000'000"), ("-2.25", r"-2\ \tfrac{1}{4}"), (r"\frac{1}{3}", r"{1 \over 3}"), ("0.05", "5%"),
    (r"5\%", "5 percent"), ("29", "29 $"), ("29", "$29 per hour"), ("60", r"60\,\mathrm{m}\,\mathrm{s}^{-1}"),
    (r"2\sqrt{3}", r"2\sqrt{3}\text{ square meters}"), (r"30^\circ", "30 degrees"), ("73", r"\mathbf{73}"),
    ("73", r"\text{73}"), ("1.5", "{1.5}"), ("1.5", "(1.5)"), ("101_2", "101_{2}"), (r"(0.5, 2)", r"(\frac12, 2)"),
    (r"\{1, 2\}", r"\{2, 1\}"), (r"(-\infty, 2)\cup(3, \infty)", "(-∞,2)∪(3,∞)"), ("x^2+1", "1 + x²"),
    (r"x \ge 5", r"5 \le x"), (r"\text{even}", "even"), ("3.50", "3.5"),
)  # fmt: skip
KEPT_WRONG = (
    ("5", "5 thousand"), (r"x=\sqrt{2}", r"x \approx \sqrt{2}"), (r"\sqrt{2}", r"\sqrt{2}\%"),
    (r"\sqrt{2}", r"\sqrt{2}\mathrm{th} + \ldots"), (r"\frac{x}{2^{99}}", r"\frac{x}{2^{98}}"), ("5", "5 or 6"),
    ("5", "5, 6"), ("5", "about 5"), ("5", "≈ 5"), ("5", "≥ 5"), ("5", r"5 \pm 1"), ("5", "5+"), ("5", "5k"),
    ("0.5", "0.49"), ("0.5", r"\frac{6}{11}"), ("3.14", "3.1"), ("[1, 2)", "[1, 2]"), ("(1, 200)", "1200"),
    (r"\frac{1}{3}", "0.333"), ("5m", "5"), ("3 feet", "36 inches"),
)  # fmt: skip


def test_what_math_judged_rightly_it_still_does() -> None:
    assert [pair for pair in KEPT_RIGHT if verdicts(MATH, *pair) != {True}] == []
    assert [pair for pair in KEPT_WRONG if verdicts(MATH, *pair) != {False}] == []


# -- math: properties ---------------------------------------------------------------------------------------------
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


@settings(max_examples=60, deadline=None)
@given(st.fractions(max_denominator=500).filter(lambda value: value.denominator > 1), st.booleans())
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


# -- other checkers -----------------------------------------------------------------------------------------------
CHECKED: dict[str, tuple[str, str, str, bool]] = {
    "numeric: a counted noun": ("numeric", "29", "29 dollars", True),
    "numeric: bold type": ("numeric", "29", "**29**", True),
    "numeric: a degree sign": ("numeric", "29", "29°", True),
    "numeric: a raised unit": ("numeric", "29", "29 m²", True),
    "numeric: a fraction character": ("numeric", "0.5", "½", True),
    "numeric: an em dash": ("numeric", "-29", "—29", True),
    "numeric: pounds": ("numeric", "29", "£29", True),
    "numeric: a box": ("numeric", "29", r"\boxed{29}", True),
    "numeric: percent": ("numeric", "0.29", "29%", True),
    "exact: a raised digit": ("exact", "2⁵", "25", False),
    "exact: a raised exponent": ("exact", "x²", "x2", False),
    "exact: a lowered digit": ("exact", "H₂", "H2", False),
    "exact: a fraction character": ("exact", "1½", "11⁄2", False),
    "exact: a box": ("exact", "Paris", r"\boxed{Paris}", True),
    "exact: a boxed gold answer": ("exact", r"\boxed{Paris}", "paris", True),
    "choice: dollars": ("multiple_choice", "B", "$B$", True),
    "choice: bold type": ("multiple_choice", "B", "**B**", True),
    "choice: bold letter and text": ("multiple_choice", "B", "**B.** Paris", True),
    "choice: a style": ("multiple_choice", "B", r"\text{B}", True),
    "choice: a box": ("multiple_choice", "B", r"\boxed{B}", True),
    "choice: the text after it": ("multiple_choice", "B", "B. Paris", True),
    "choice: a bracket and the text": ("multiple_choice", "B", "(B) Paris", True),
    "choice: a word before it": ("multiple_choice", "B", "Option B", True),
    "choice: a sentence before it": ("multiple_choice", "B", "The answer is B.", True),
    "choice: gold in dollars": ("multiple_choice", "$B$", "B", True),
    "choice: gold in a style": ("multiple_choice", r"\text{B}", "B", True),
    "choice: gold with its text": ("multiple_choice", "B) Paris", "B", True),
}  # fmt: skip
"""Checker, gold answer, answer, and whether it is correct."""


@pytest.mark.parametrize(("checker", "gold", "answer", "correct"), CHECKED.values(), ids=CHECKED)
def test_a_checker_reads_an_answer_as_people_do(checker: str, gold: str, answer: str, correct: bool) -> None:
    try:
        result = verdicts(dataset(checker), gold, answer)
    except DataError as error:
        pytest.fail(str(error))
    assert result == {correct}


def test_an_answer_that_is_no_listed_choice_has_no_letter() -> None:
    checker = dataset("multiple_choice")
    task = checker.task_from_gold("Capital of France?\nA. Bonn\nB. Paris\nC. Rome\nD. Oslo", "B")
    for answer in ("E", "B. Rome", "B or C", "B, C", "B) Paris or C) Rome", "not B", "B. Paris C. Rome"):
        assert checker.verify(task, wrap_answer(answer)).parsed is None, answer
    assert checker.verify(task, wrap_answer("(B) paris")).correct


def test_numbers_in_two_units_are_not_equal_for_the_numeric_checker() -> None:
    assert verdicts(dataset("numeric"), "5 kg", "5 kilograms") == {True}
    assert verdicts(dataset("numeric"), "5 kg", "5 g") == {False}


# -- own data -----------------------------------------------------------------------------------------------------
def written(path: Path, *rows: object) -> Path:
    """Write rows as JSONL; a text is a line as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def questions(path: Path, **changes: Any) -> tuple[Dataset, dict[str, dict[str, Any]]]:
    """Return the environment of a file and the privileged data of its problems."""
    environment = Dataset(validate_config(Dataset.Config, {"path": str(path), **changes}))
    every = [question for split in SPLITS for question in environment.loaded.questions[split]]
    return environment, {question.problem: question.privileged for question in every}


def check(*args: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["data", "check", *map(str, args)])
    return done.exit_code, done.output


COLLIDING = {
    "parentheses": ("What is (2+3)*4?", "What is 2+3*4?"),
    "relations": ("How many x in 1…9 satisfy x ≤ 3?", "How many x in 1…9 satisfy x ≥ 3?"),
    "factorials": ("What is 5!?", "What is 5?"),
    "absolute values": ("What is |-4|?", "What is -4?"),
    "raised digits": ("What is 2⁵?", "What is 25?"),
    "percent signs": ("What is 10% of 50?", "What is 10 of 50?"),
    "roots": ("What is √9?", "What is 9?"),
}  # fmt: skip


@pytest.mark.parametrize("texts", COLLIDING.values(), ids=COLLIDING)
def test_problems_that_differ_in_a_sign_are_two_problems(texts: tuple[str, str], tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", *({"problem": text, "answer": n} for n, text in enumerate(texts)))
    environment, found = questions(path)
    assert set(found) == set(texts) and environment.loaded.bad_rows == () and environment.loaded.duplicates == 0
    problems = Math(Math.Config(source=str(path))).loaded.problems
    assert {problem.text for split in SPLITS for problem in problems[split]} == set(texts)


def test_problems_that_differ_in_case_and_white_space_are_one_problem(tmp_path: Path) -> None:
    rows = [{"problem": "What is 1  plus 1?", "answer": 2}, {"problem": "what is 1 PLUS 1?", "answer": 2}]
    assert questions(written(tmp_path / "a.jsonl", *rows))[0].loaded.duplicates == 1


GSM8K = [
    {
        "question": f"Tom has {n} apples, buys 1 and eats none. How many has he?",
        "answer": f"He buys 1.\nHe has {n}+1=<<{n}+1={n + 1}>>{n + 1} apples.\n#### {n + 1:,}",
    }
    for n in range(1200, 1206)
]


def test_an_answer_after_hashes_is_read_and_the_text_before_it_is_the_solution(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", *GSM8K)
    first = questions(path)[1][GSM8K[0]["question"]]
    assert first == {"answer": "1201", "solution": "He buys 1.\nHe has 1200+1=1201 apples."}
    code, output = check(path)
    assert code == 0 and "checker: numeric" in output and "scripted hints: 0 of 6 would be empty" in output


def test_boxed_gold_answers_are_read_as_numbers(tmp_path: Path) -> None:
    rows = [{"problem": f"What is {n}+1?", "answer": rf"\boxed{{{n + 1}}}"} for n in range(4)]
    code, output = check(written(tmp_path / "a.jsonl", *rows))
    assert code == 0 and "checker: numeric" in output


CHOICES = {
    "positions": ({"choices": ["4", "9", "7"], "answer": 2}, "C"),
    "letters": ({"choices": ["4", "9", "7"], "answer": "C"}, "C"),
    "texts": ({"options": ["red", "blue", "green"], "answer": "green"}, "C"),
    "labels": ({"choices": {"text": ["4", "9", "7"], "label": ["1", "2", "3"]}, "answerKey": "3"}, "C"),
    "letters as keys": ({"options": {"A": "4", "B": "9", "C": "7"}, "answer": "C"}, "C"),
    "a list as text": ({"choices": "['red', 'blue', 'green']", "answer": "2"}, "C"),
}


@pytest.mark.parametrize(("row", "letter"), CHOICES.values(), ids=CHOICES)
def test_choices_are_shown_to_the_student_and_give_the_letter(row: dict[str, Any], letter: str, tmp_path: Path) -> None:
    rows = [{"question": f"Which is right in case {n}?", **row} for n in range(4)]
    path = written(tmp_path / "a.jsonl", *rows)
    environment, found = questions(path, checker="multiple_choice")
    problem, privileged = next(iter(found.items()))
    assert privileged["answer"] == letter and problem.splitlines()[1:][2].startswith("C. ")
    task = environment.task("train", 0)
    assert environment.prompt(task.public).count("\n") == 3
    assert environment.verify(task, wrap_answer(f"**{letter}**")).correct
    assert environment.verify(task, wrap_answer("D")).parsed is None
    code, output = check(path)
    assert code == 0 and "checker: multiple_choice" in output and "choices: " in output


def test_a_gold_answer_that_names_no_choice_or_two_is_a_bad_row(tmp_path: Path) -> None:
    rows = [
        {"question": "Two?", "choices": ["1", "2"], "answer": 5},
        {"question": "One?", "choices": ["1", "0"], "answer": "1"},
        {"question": "Three?", "choices": "no list", "answer": 0},
        {"question": "A) 1 B) 2", "answer": "C"},
        {"question": "Four?", "choices": ["4", "5"], "answer": 0},
    ]
    environment, found = questions(written(tmp_path / "a.jsonl", *rows), checker="multiple_choice")
    assert len(found) == 1 and [bad.row for bad in environment.loaded.bad_rows] == [1, 2, 3, 4]
    reasons = " ".join(bad.reason for bad in environment.loaded.bad_rows)
    assert all(part in reasons for part in ("names none", "names several choices (A, B)", "no list", "does not list"))


FILES: dict[str, tuple[str, str, int]] = {
    "an unnamed index": ("a.csv", ",problem,answer\n0,Half of 8?,4\n1,Half of 6?,3\n2,Half of 4?,2\n", 3),
    "an unnamed empty column": ("a.csv", "problem,answer,\nHalf of 8?,4,\nHalf of 6?,3,\nHalf of 4?,2,\n", 3),
    "a line with the separator": ("a.csv", "sep=;\nproblem;answer\nHalf of 8, please?;4\nHalf of 6, please?;3\n", 2),
    "a line with another separator": ("a.csv", '"sep=|"\nproblem|answer\nHalf of 8?|4\nHalf of 6?|3\n', 2),
    "names in upper case": ("a.csv", "Question,Answer\nHalf of 8?,4\nHalf of 6?,3\n", 2),
    "other names in upper case": ("a.csv", "PROBLEM,Final_Answer\nHalf of 8?,4\nHalf of 6?,3\n", 2),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "count"), FILES.values(), ids=FILES)
def test_files_of_common_programs_are_read(name: str, text: str, count: int, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    code, output = check(tmp_path / name)
    assert code == 0, output
    assert f"{count} rows: {count} valid, 0 bad" in output


def test_names_of_columns_are_recognized_whatever_the_case_in_the_math_environment(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", *({"Question": f"Half of {2 * n}?", "ANSWER": n} for n in range(9)))
    assert Math(Math.Config(source=str(path))).loaded.counts.rows == 9


@pytest.mark.parametrize(
    "text", ['[\n {"problem": "Half of 8?", "answer": 4}\n]\n', '[{"problem": "Half of 8?", "answer": 4}]']
)
def test_a_json_array_is_named_as_such(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    code, output = check(tmp_path / "a.jsonl")
    assert code == 2 and "is a JSON array" in output


@pytest.mark.parametrize(
    "line", ['{"problem": "A?", "answer": 2, "answer": 3}', '{"problem": "A?", "answer": {"a": 1, "a": 2}}']
)
def test_a_row_with_a_key_twice_is_refused(line: str, tmp_path: Path) -> None:
    rows = [{"problem": f"Half of {2 * n}?", "answer": n} for n in range(4)]
    environment, found = questions(written(tmp_path / "a.jsonl", line, *rows), checker="exact")
    assert len(found) == 4 and [bad.row for bad in environment.loaded.bad_rows] == [1]
    assert "twice" in environment.loaded.bad_rows[0].reason
    attempt = '{"problem": "A?", "answer": "1", "answer": "2", "attempt": "<answer>2</answer>"}\n'
    done = CliRunner().invoke(app, ["verify", "arithmetic", "-"], input=attempt)
    assert done.exit_code == 1 and "twice" in done.output


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_file_without_a_test_problem_is_refused_at_the_check(
    split: str, tmp_path: Path, workspace: Workspace, db: Database
) -> None:
    rows = [{"problem": f"Half of {2 * n}?", "answer": n, "split": split} for n in range(9)]
    path = written(tmp_path / "a.jsonl", *rows)
    code, output = check(path)
    assert code == 2 and "no test problem" in output
    own = OwnDataEndpoints(Context(workspace, db, Queue(db, workspace)))
    with pytest.raises(DataError, match="no test problem"):
        own.check_data_file(own.add_data_file("a.jsonl", path.read_text()))


def test_a_small_file_without_splits_has_a_test_problem(tmp_path: Path) -> None:
    for count in range(2, 6):
        rows = [{"problem": f"Half of {2 * n}?", "answer": n} for n in range(1, count + 1)]
        loaded = questions(written(tmp_path / f"{count}.jsonl", *rows))[0].loaded
        assert loaded.questions["test"] and loaded.questions["train"], count


@pytest.mark.parametrize(
    ("solutions", "empty"),
    [
        (["Halve it. It is {n}."] * 4, 0),
        (["It is {n}."] * 4, 4),
        ([None] * 4, 4),
        (["It is {n}.", "Halve it.", None, ""], 3),
    ],
    ids=["other sentences", "only the answer", "no solutions", "some"],
)
def test_the_check_counts_hints_without_content(
    solutions: list[str | None], empty: int, tmp_path: Path, workspace: Workspace, db: Database
) -> None:
    rows = [
        {"problem": f"Half of {2 * n}?", "answer": n, "solution": text and text.format(n=n)}
        for n, text in enumerate(solutions, 3)
    ]
    path = written(tmp_path / "a.jsonl", *rows)
    code, output = check(path)
    assert code == 0 and f"scripted hints: {empty} of 4 would be empty" in output
    own = OwnDataEndpoints(Context(workspace, db, Queue(db, workspace)))
    found: dict[str, Any] = {**own.check_data_file(own.add_data_file("a.jsonl", path.read_text()))}
    assert (found["empty_hints"], found["checked_hints"]) == (empty, 4)

"""Answers that a checker must accept or refuse, by kind."""

from __future__ import annotations

from typing import Literal

import pytest

from rl2f_core.config.loading import validate_config
from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.environments.dataset.environment import Dataset
from rl2f_core.environments.math.environment import Math
from rl2f_core.errors import DataError

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
    "a residue": ("5", r"5 \mod 7"),
    "a list that goes on": (r"1,2,3,\ldots", "1,2,3"),
    "a derivative": ("f'(x)=2x", "f(x)=2x"),
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
    "a unit without its number": (r"9\text{ cm}^2", "cm"),
    "counted things without their number": ("5 apples", "apples"),
    "a currency without its number": (r"\$12", "dollars"),
    "a product without its summand": ("xy+1", "xy"),
    "a product without its divisor": (r"\frac{xy}{2}", "xy"),
    "a product without its root": (r"\sqrt{xy}", "xy"),
    "a product without its sign": ("-xy", "xy"),
    "a product and more": ("xy", "xy-1"),
    "a difference of other letters": ("ab-c", "ab-d"),
    "a relation of products": ("AB<CD", "AB>CD"),
    "words with other letters": ("Player A", "Player B"),
    "words with letters in another order": ("p implies q", "q implies p"),
    "words with a hyphen and another letter": ("x-axis", "y-axis"),
    "numbers and letters with a word": ("5 or 6", "x or y"),
    "words with another accent": ("Müller", "Möller"),
    "capital and small letter as equal": ("R-r", "0"),
    "capital and small letter exchanged": ("R-r", "r-R"),
    "capital and small letter canceled": (r"\frac{R}{r}", "1"),
    "capital and small letter in a sum": (r"\frac{M}{m+M}", r"\frac12"),
    "capital and small letter of a point": ("(A,a)", "(a,A)"),
    "capital and small letter of a set": (r"\{A,a\}", r"\{a\}"),
    "capital and small e": ("E", "e"),
    "capital and small e of a set": (r"\{E\}", r"\{e\}"),
    "capital and small Greek letters": (r"\Delta", r"\delta"),
    "capital and small letter with an index": ("A_1", "a_1"),
    "capital and small product": ("AB", "ab"),
    "a set for a point": ("(1,2)", r"\{1,2\}"),
    "a point for a set": (r"\{1,2\}", "(1,2)"),
    "sets for points": (r"\{(1,2)\}", r"\{\{1,2\}\}"),
    "a point in another order for a list": ("3,-1", "(-1,3)"),
    "a point of three in another order for a list": ("1,2,3", "(3,2,1)"),
    "another repeated value": ("1,1,2", "1,2,2"),
    "a repeated value once": ("1,1,2", "1,2"),
    "a set for a value": ("5", r"\{5\}"),
    "brackets for a value": ("5", "[5]"),
    "a ratio in another order": ("1:2:3", "1:3:2"),
    "a ratio as a quotient": ("1:2:3", r"\frac16"),
    "a time as a ratio": ("10:30", "20:60"),
    "a time as a quotient": ("10:30", r"\frac13"),
    "a date as a difference": ("2024-01-05", "2018"),
    "a date in another order": ("2024-01-05", "2024-05-01"),
    "an address as a product": ("192.168.0.1", "192.168.0.2"),
    "a larger scale": ("5", "5 quadrillion dollars"),
    "a larger scale in the plural": ("5", "5 quadrillions"),
    "a larger scale of the gold answer": ("1 quadrillion", "1"),
    "an invented scale": ("5", "5 zillions"),
    "another scale": ("5", "5 googols"),
    "a plural digit": ("5", "5 fives"),
    "a plural of ten": ("5", "5 twenties"),
    "a plural operation": ("5", "5 factorials"),
    "a comparison of one": ("1", "1 greater"),
    "infinity": ("1", "1 infinity"),
    "a multiple of one": ("1", "1 tenfold"),
    "a participle after one": ("1", "1 negated"),
    "a retraction of one": ("1", "1 nope"),
    "an alternative to zero": ("0", "0 otherwise"),
    "a participle after zero": ("0", "0 failed"),
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
    "spaces of a list that goes on": (r"1,2,3,\ldots", r"1, 2, 3, \ldots"),
    "degrees of an angle": ("0.5", r"\sin 30^\circ"),
    "a decimal gold answer that is rounded": ("1.41", r"\sqrt{2}"),
    "a decimal gold answer of a fraction": ("0.333", r"\frac{1}{3}"),
    "a product of two letters": ("xy", "yx"),
    "a product of two letters with a sign": ("xy", r"x\cdot y"),
    "a product of three letters with signs": ("xyz", r"x \cdot y \cdot z"),
    "a sum of products": ("ab+bc+ca", "ac + ba + cb"),
    "a relation of products from right to left": ("AB<CD", "CD>AB"),
    "a ratio of multiples": ("1:2:3", "2:4:6"),
    "a ratio of roots": (r"1:\sqrt3:2", r"\sqrt{3}:3:2\sqrt3"),
    "an article": (r"\text{ellipse}", "an ellipse"),
    "an article and a hyphen": ("x-axis", "the $x$-axis"),
    "spaces between the rows of a matrix": (
        r"\begin{pmatrix}1\\-2\end{pmatrix}", r"\begin{pmatrix} 1 \\ -2 \end{pmatrix}",
    ),
    "a complex square": ("-3+4i", "(1+2i)^2"),
    "the square of i": ("-1", "i^2"),
    "the reciprocal of i": ("-i", r"\frac1i"),
    "a root of a negative number": (r"\sqrt{-4}", "2i"),
    "a power with i": ("-1", r"e^{i\pi}"),
    "a factor of i": ("1+i", "1+1i"),
    "a fraction of pi without braces": (r"\frac{\pi}{2}", r"\frac\pi2"),
    "a larger scale in words": ("10^{15}", "1 quadrillion"),
    "a gold answer rounded to a zero": ("4.80", r"\sqrt{23}"),
    "a gold fraction rounded to a zero": ("0.30", "16/53"),
    "a gold price rounded to a zero": (r"\$4.80", r"\sqrt{23}"),
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
    (r"\text{even}", "EVEN."), ("x-axis", "$x$-axis"), ("No", r"\text{no}"), (r"\text{Player A}", "player A"),
    (r"\{\text{Red},\text{Blue}\}", r"\{\text{blue},\text{red}\}"), ("2e", r"2\cdot e"), ("R-r", "-r+R"),
    ("(1,2)", "1,2"), ("3,-1", "-1,3"), ("3,-1", "(3,-1)"), ("3,-1", r"\{-1,3\}"), (r"\{5\}", "5"), ("1,1,2", "1,2,1"),
    ("(1,2),(3,4)", "(3,4),(1,2)"), ("x=1,y=2", "(1,2)"), (r"x\in\{1,2\}", "2,1"), ("3:2", r"\frac32"),
    ("1:12", r"\frac{1}{12}"), ("a_i+j", "j+a_i"), ("2i+3j-k", "-k+3j+2i"), ("x+iy", "iy+x"),
    ("1", "1 apple"), ("1", "1 player"), ("1", "1 city"), ("0", "0 apples"), ("0", "0 cm"), ("5", "5 real roots"),
    ("5", "5 smaller cubes"), ("3.50", "7/2"), (r"\text{parabola}", "a parabola"), (r"\$4.80", "4.8"),
)  # fmt: skip
KEPT_WRONG = (
    ("5", "5 thousand"), (r"x=\sqrt{2}", r"x \approx \sqrt{2}"), (r"\sqrt{2}", r"\sqrt{2}\%"),
    (r"\sqrt{2}", r"\sqrt{2}\mathrm{th} + \ldots"), (r"\frac{x}{2^{99}}", r"\frac{x}{2^{98}}"), ("5", "5 or 6"),
    ("5", "5, 6"), ("5", "about 5"), ("5", "≈ 5"), ("5", "≥ 5"), ("5", r"5 \pm 1"), ("5", "5+"), ("5", "5k"),
    ("0.5", "0.49"), ("0.5", r"\frac{6}{11}"), ("3.14", "3.1"), ("[1, 2)", "[1, 2]"), ("(1, 200)", "1200"),
    (r"\frac{1}{3}", "0.333"), ("5m", "5"), ("3 feet", "36 inches"),
    (r"\text{even}", "neve"), ("no", "on"), ("(1,2)", "2,1"), ("(1,2)", "[1,2]"), ("i^2+j^2", "j^2-1"), ("a_i", "a_j"),
    ("1+i", "1-i"), ("1+i,1-i", "1+i,1+i"), ("4.80", "4.796"), ("4.8", r"\sqrt{23}"), ("4.00", r"\frac{1203}{301}"),
    ("5", "5 millions"), ("5", "5 dozens"), ("A and C", "and C"),
)  # fmt: skip


def test_what_math_judged_rightly_it_still_does() -> None:
    assert [pair for pair in KEPT_RIGHT if verdicts(MATH, *pair) != {True}] == []
    assert [pair for pair in KEPT_WRONG if verdicts(MATH, *pair) != {False}] == []


# -- math: text around a box -------------------------------------------------------------------------------------
OPERANDS = {
    "sign": r"$-\boxed{5}$",
    "dash as a sign": r"—\boxed{5}",
    "sign of an equation": r"$x = - \boxed{5}$",
    "sign of a bracket": r"-\left(\boxed{5}\right)",
    "two signs": r"\pm\boxed{5}",
    "sum": r"3+\boxed{5}",
    "sum with spaces": r"$3 + \boxed{5}$",
    "coefficient": r"2\boxed{5}",
    "product": r"2 \times \boxed{5}",
    "quotient": r"1/\boxed{5}",
    "exponent": r"10^\boxed{5}",
    "exponent in braces": r"10^{\boxed{5}}",
    "denominator": r"\frac{1}{\boxed{5}}",
    "denominator with a sum": r"\frac{1}{2 + \boxed{5}}",
    "root": r"\sqrt{\boxed{5}}",
    "argument": r"f(\boxed{5})",
    "argument of a sine": r"\sin\boxed{5}",
    "inequality": r"x \ne \boxed{5}",
    "negation": r"not \boxed{5}",
}
WHOLE = (
    r"The answer is \boxed{5}.", r"$x = \boxed{5}$", r"Answer: **\boxed{5}**", r"- \boxed{5}", r"Answer - \boxed{5}",
    "2. \\boxed{5}", "2 + 3\n\\boxed{5}", r"\[\boxed{5}\]", r"the number (\boxed{5})", r"=> \boxed{5}",
    r"\textbf{Answer: \boxed{5}}", r"$\frac{x}{2} = \boxed{5}$", r"\boxed{\boxed{5}}", r"$\text{So }\boxed{5}$",
)  # fmt: skip


@pytest.mark.parametrize("form", ["boxed", "either"])
@pytest.mark.parametrize("attempt", OPERANDS.values(), ids=OPERANDS)
def test_a_box_in_an_expression_is_not_the_answer(attempt: str, form: Literal["boxed", "either"]) -> None:
    environment = Math(Math.Config(answer_form=form))
    assert not environment.verify(environment.task_from_gold("Find it.", "5"), attempt).correct


def test_a_box_after_text_is_the_answer() -> None:
    task = MATH.task_from_gold("Find it.", "5")
    assert [attempt for attempt in WHOLE if not MATH.verify(task, attempt).correct] == []


@pytest.mark.parametrize(
    "answer", [*OPERANDS.values(), r"\boxed{4} or \boxed{5}", r"6 or \boxed{5}"], ids=[*OPERANDS, "two boxes", "or"]
)
def test_a_box_in_tags_is_the_whole_answer(answer: str) -> None:
    task = MATH.task_from_gold("Find it.", "5")
    assert not MATH.verify(task, wrap_answer(answer)).correct
    assert [box for box in (r"$\boxed{5}$", r" \boxed{5}. ") if not MATH.verify(task, wrap_answer(box)).correct] == []


COPIED = {
    "a root in other braces": (r"\sqrt2", r"\sqrt{2}", True),
    "a fraction in other braces": (r"\frac\pi2", r"\frac{\pi}{2}", True),
    "a sum in another order": ("x+1", "1+x", True),
    "a product that is to be expanded": ("x^2-1", "(x-1)(x+1)", False),
    "a root that is to be simplified": (r"2\sqrt2", r"\sqrt{8}", False),
}
"""Gold answer, answer that the problem contains, and whether it is correct."""


@pytest.mark.parametrize(("gold", "answer", "correct"), COPIED.values(), ids=COPIED)
def test_an_answer_may_be_copied_out_of_the_problem_if_it_is_the_gold_answer_in_another_spelling(
    gold: str, answer: str, correct: bool
) -> None:
    assert verdicts(MATH, gold, answer, f"Which one is it: ${answer}$ or $7$?") == {correct}


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
    "numeric: a larger scale": ("numeric", "5", "5 quadrillions", False),
    "numeric: a participle after one": ("numeric", "1", "1 negated", False),
    "numeric: a larger scale of the gold answer": ("numeric", "1 quadrillion", "10^{15}", True),
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
    "choice: a second small letter": ("multiple_choice", "B", "B) c)", False),
    "choice: a small letter after a dash": ("multiple_choice", "B", "B - c", False),
    "choice: small letters": ("multiple_choice", "B", "B. c, d", False),
    "choice: a second small letter with its text": ("multiple_choice", "B", "B. Paris c. Rome", False),
    "choice: a word of doubt": ("multiple_choice", "B", "B. incorrect", False),
    "choice: a capital word of doubt": ("multiple_choice", "B", "B) Wrong", False),
    "choice: a text with an article": ("multiple_choice", "B", "B. a dog", True),
    "choice: a text with a unit": ("multiple_choice", "B", "B. 5 g", True),
}  # fmt: skip
"""Checker, gold answer, answer, and whether it is correct."""


@pytest.mark.parametrize(("checker", "gold", "answer", "correct"), CHECKED.values(), ids=CHECKED)
def test_a_checker_reads_an_answer_as_people_do(checker: str, gold: str, answer: str, correct: bool) -> None:
    try:
        result = verdicts(dataset(checker), gold, answer)
    except DataError as error:
        pytest.fail(str(error))
    assert result == {correct}


@pytest.mark.parametrize("kind", ["tolerance", "relative_tolerance"])
def test_a_decimal_tolerance_includes_its_limit(kind: str) -> None:
    checker = Dataset(validate_config(Dataset.Config, {"checker": "numeric", kind: 0.3}))
    gold = 1 if kind == "tolerance" else 10
    right = [f"{0.7 * gold:g}", f"{1.3 * gold:g}"]
    assert [answer for answer in right if verdicts(checker, str(gold), answer) != {True}] == []
    assert verdicts(checker, str(gold), f"{1.300001 * gold:.7g}") == {False}


def test_an_answer_that_is_no_listed_choice_has_no_letter() -> None:
    checker = dataset("multiple_choice")
    task = checker.task_from_gold("Capital of France?\nA. Bonn\nB. Paris\nC. Rome\nD. Oslo", "B")
    for answer in ("E", "B. Rome", "B or C", "B, C", "B) Paris or C) Rome", "not B", "B. Paris C. Rome"):
        assert checker.verify(task, wrap_answer(answer)).parsed is None, answer
    assert checker.verify(task, wrap_answer("(B) paris")).correct


def test_numbers_in_two_units_are_not_equal_for_the_numeric_checker() -> None:
    assert verdicts(dataset("numeric"), "5 kg", "5 kilograms") == {True}
    assert verdicts(dataset("numeric"), "5 kg", "5 g") == {False}

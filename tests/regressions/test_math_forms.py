r"""Lists, intervals and `\pm` in two forms with the same values, and similar answers that are wrong."""

from __future__ import annotations

import pytest

from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.math.environment import Math

pytestmark = pytest.mark.xdist_group("workers")
MATH = Math(Math.Config(answers="all", answer_form="either"))


def is_correct(gold: str, answer: str, problem: str = "Find it.") -> bool:
    return MATH.verify(MATH.task_from_gold(problem, gold), wrap_answer(answer)).correct


FORMS = {
    "list with a comma and a word": (
        "2,3,5", ["2, 3, and 5", "2, 3, or 5", "5, 2 and 3", r"2, 3,\text{ and }5"],
        ["2, 3, and 6", "2 and 3", "2, 3, 5, and 7", "2, and 3, and 5, and 7", "235"],
    ),
    "list with a word": ("2, 3, and 5", ["2,3,5", "2, 3 and 5"], ["2,3", "2,3,6", "2,3,5,7", "5"]),
    "list of letters": ("A, B, C", ["A, B, and C", "A, B or C"], ["A, B, and D", "A, BC", "A, B", "A, C, and B"]),
    "list of letters with a word": ("A, B, and C", ["A, B, C"], ["A, B, or C", "A, BC", "B, C"]),
    "point": ("(2,3)", [], ["2 and 3", "3, or 2"]),
    "two values of a sum": (
        r"1\pm\sqrt{19}", [r"1+\sqrt{19}, 1-\sqrt{19}", r"1-\sqrt{19}\text{ and }1+\sqrt{19}"],
        [r"1+\sqrt{19}", r"1-\sqrt{19}", "1", r"1+\sqrt{19}, 1+\sqrt{19}", r"1+\sqrt{19}, -1-\sqrt{19}",
         r"1, \sqrt{19}", r"-1\pm\sqrt{19}", r"1\pm\sqrt{18}", r"1+\sqrt{19}, 1-\sqrt{19}, 0"],
    ),
    "two values of a quotient": (
        r"\frac{-1\pm\sqrt5}{2}", [r"\frac{-1+\sqrt5}{2}, \frac{-1-\sqrt5}{2}"],
        [r"\frac{-1+\sqrt5}{2}", r"\frac{1+\sqrt5}{2}, \frac{-1-\sqrt5}{2}"],
    ),
    "two values in a list": (
        r"0, \pm2", ["0, 2, -2"], ["0, 2", "2, -2", "0, 2, -2, 4"],
    ),
    "list of two values": (
        r"1+\sqrt{19}, 1-\sqrt{19}", [r"1\pm\sqrt{19}", r"\{1\pm\sqrt{19}\}"], [r"\pm(1+\sqrt{19})", r"1\pm\sqrt{18}"],
    ),
    "list of two quotients": (
        r"\frac{-1+\sqrt5}{2}, \frac{-1-\sqrt5}{2}", [r"\frac{-1\pm\sqrt5}{2}"], [r"\frac{1\pm\sqrt5}{2}"],
    ),
    "two numbers": (r"5\pm1", ["4, 6", "6 and 4"], ["(6,4)", "(4,6)", "[4,6]", "4", "5"]),
    "one number": ("5", [], [r"5\pm0", r"5\pm1", r"\pm5", "5 or 5"]),
    "list without variables": (
        "2,3", ["x=2 or x=3", "x=3, x=2", "x = 2 and x = 3", r"x=2\text{ or }x=3", "x=2, 3", "x=2 or 3"],
        ["x=2", "x=2 or x=4", "x=2 or y=3", r"x\ne2, x\ne3", "x<2, x<3", "x=2 or x=3 or x=4"],
    ),
    "list with one variable": ("x=2, x=3", ["2,3", "3 or 2", "x=3 or x=2", "x=2 or 3"], ["2", "x=2", "x=2, x=4"]),
    "values of a variable with both signs": (r"\pm2", ["x=2 or x=-2", "x=-2, 2"], ["x=2", "x=2 or x=-3"]),
    "list with several variables": (
        "x=1, y=2", ["x=1 and y=2", "y=2, x=1", "x=1; y=2", "1; 2", "(1;2)", "1,2", "(1,2)"],
        ["2,1", "(2,1)", "2 and 1", "x=2, y=1", "x=1, y=3", "1", "1,2,3", "a=1, b=2", "x=1, 2", "y=1 and 2",
         "x=1, x=2", "x=1, y=2, z=3", "2; 1", "1,0; 2,0"],
    ),
    "list with subscripts": (
        "x_a=1, x_{12}=2", ["x_{12}=2, x_a=1", "x_{a}=1, x_{12}=2", "(1,2)", "1,2"],
        ["x_a=1, 2", "x_{12}=1, x_a=2", "x_a=1, x_b=2"],
    ),
    "tuple": ("(2,3)", ["(2, 3)"], ["x=2, x=3", "(3,2)"]),
    "open chain": (
        "2<x<5", ["(2,5)", r"x\in(2,5)", "5>x>2", r"2\lt x\lt5", "(2.0, 5)"],
        ["[2,5]", "(2,5]", "[2,5)", "(5,2)", "(2,6)", "2,5", r"\{2,5\}", "x<5", "2<x", r"2\le x\le5", "2<y<5",
         r"y\in(2,5)", r"x\notin(2,5)", "2>x>5", r"(-\infty,2)\cup(5,\infty)"],
    ),
    "closed chain": (r"-\sqrt2\le x\leq 5", [r"[-\sqrt{2},5]", r"5 \ge x \ge -\sqrt2"], [r"(-\sqrt2,5)", "[-2,5]"]),
    "half-open chain": (r"2<x\le5", ["(2,5]", r"x\in(2,5]"], ["(2,5)", "[2,5)", "[2,5]"]),
    "large end": ("2<x<500", ["(2,500)"], ["2500", "(2500)", "(2,5)"]),
    "chain of letters": ("a<b<c", [], ["(a,c)"]),
    "chain of a square": ("2<x^2<5", [], ["(2,5)"]),
    "lower bound": (
        "x>3", [r"(3,\infty)", "3<x", r"(3,+\infty)", r"x\in(3,\infty)"],
        [r"[3,\infty)", r"(-\infty,3)", "x<3", r"x\ge3", "3", r"(3,\infty]", "(3,500)"],
    ),
    "upper bound": (r"x\le3", [r"(-\infty,3]", r"3\ge x"], [r"(-\infty,3)", r"[3,\infty)", "x<3"]),
    "half-line": (r"(-\infty,3]", [r"x\le3", r"x\in(-\infty,3]"], ["x<3", r"x\ge3", r"x\notin(-\infty,3]"]),
    "closed interval": ("[2,5]", [r"2\le x\le5", r"x\in[2,5]"], ["2<x<5", r"2\le x<5", r"x\notin[2,5]"]),
    "membership": (r"x\in(2,5)", ["2<x<5", "(2,5)"], ["[2,5]", r"2\le x\le5", r"x\in[2,5]", "2<y<5"]),
    "coordinates": ("(2,5)", [], ["2<x<5", r"x\in(2,5)"]),
    "real numbers": (
        r"\mathbb{R}", [r"(-\infty,\infty)", r"x\in\mathbb{R}", "(-∞, +∞)", r"-\infty<x<\infty"],
        [r"[0,\infty)", r"(-\infty,0)", r"\mathbb{Q}", r"\mathbb{R}^2", r"[-\infty,\infty]", r"-\infty,\infty", "R"],
    ),
    "line": (
        r"(-\infty,\infty)", [r"\mathbb{R}", r"x\in\mathbb{R}"],
        [r"\mathbb{Z}", r"\mathbb{R}\setminus\{0\}", r"\mathbb{R}^+", r"x\notin\mathbb{R}"],
    ),
}  # fmt: skip
"""Gold answer, answers with the same values, and wrong ones, by the form of the gold answer."""


@pytest.mark.parametrize(("gold", "right", "wrong"), FORMS.values(), ids=FORMS)
def test_an_answer_may_have_another_form_but_not_other_values(gold: str, right: list[str], wrong: list[str]) -> None:
    assert [answer for answer in right if not is_correct(gold, answer)] == []
    assert [answer for answer in wrong if is_correct(gold, answer)] == []


def test_a_tuple_of_the_problem_gives_the_order_of_values_with_variables() -> None:
    problem = "Find the pair $(m, k)$."
    assert is_correct("(2,3)", "m=2, k=3", problem) and is_correct("(2,3)", "k=3, m=2", problem)
    assert not is_correct("(2,3)", "k=2, m=3", problem) and not is_correct("(2,3)", "m=2, k=3")
    assert is_correct("k=3, m=2", "2,3", problem) and not is_correct("k=3, m=2", "3,2", problem)


@pytest.mark.parametrize(("gold", "answer"), [("(2,5)", "2<x<5"), ("2<x<5", "(2,5)"), (r"x\in(2,5)", "5>x>2")])
def test_an_interval_copied_from_the_problem_is_wrong_in_another_notation(gold: str, answer: str) -> None:
    assert is_correct(gold, answer, "Solve the inequality.")
    assert not is_correct(gold, answer, f"Write the interval ${answer}$ in another notation.")

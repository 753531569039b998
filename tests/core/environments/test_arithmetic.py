"""Whole numbers in text, and the `arithmetic` environment."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from pydantic import ValidationError
from scripted_attempts import hint, mislead, say, wrong_dialogue

from rl2f_core.common.text.integers import find_integers, parse_integer
from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.puzzles.numbers.arithmetic import Arithmetic, product_pairs
from rl2f_core.errors import DataError
from rl2f_core.types import ConstantBaseline, Task


def arithmetic(**config) -> Arithmetic:
    return Arithmetic(Arithmetic.Config(**config))


def sums(a: int, b: int) -> Task:
    return arithmetic().task_from_gold(f"{a} + {b}", str(a + b))


# -- whole numbers in text -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text, value",
    [("132", 132), (" 132\n", 132), ("+132", 132), ("-7", -7), ("1,024", 1024), ("-1,234,567", -1234567), ("007", 7),
     ("-0", 0), ("9" * 40, int("9" * 40))],
)  # fmt: skip
def test_strict_integers_are_read(text, value):
    assert parse_integer(text) == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "+", "- 7", "12.0", "12.", "1e3", "0x10", "1,02", "1,0000", ",132", "132,", "0,132", "1 024", "1_024",
     "--7", "１３２", "١٣٢", "½", "²", "inf", "nan", "12 apples", "132\x00", "\x1c132", "132\u2028", "−7", "9" * 41,
     "1" + ",000" * 14, "(132)", "130+2", "a132"],
)  # fmt: skip
def test_anything_else_is_no_strict_integer(text):
    assert parse_integer(text) is None


@pytest.mark.parametrize(
    "text, spans",
    [
        ("It is 132.", {"132": "132"}),
        ("see -5 or 1,024.00", {"-5": "-5", "1024": "1,024.00"}),
        ("1,0 24 it is", {"1024": "1,0 24"}),
        ("10 + 1014", {"1024": "10 + 1014"}),
        ("12-5", {"7": "12-5"}),
        ("take 2 x 3 + 4 away", {"6": "2 x 3", "10": "2 x 3 + 4", "7": "3 + 4"}),
        ("100 - 2 × 3", {"94": "100 - 2 × 3"}),
        ("𝟏𝟑𝟐", {"132": "𝟏𝟑𝟐"}),
        ("47 + -5", {"42": "47 + -5"}),
        ("-47 +5", {"-42": "-47 +5"}),
    ],
)
def test_numbers_and_expressions_are_found_in_hints(text, spans):
    found = {value: text[start:end] for start, end, value in find_integers(text)}
    assert spans.items() <= found.items()


def test_fractions_and_words_are_no_whole_numbers():
    assert find_integers("3.5 and pi and 0.132") == []
    assert find_integers("9" * 50) == []
    assert [start for start, _, _ in find_integers("5 4 3")] == sorted(s for s, _, _ in find_integers("5 4 3"))


# -- arithmetic ------------------------------------------------------------------------------------------------
def test_operands_have_the_configured_digits_and_operations_come_all():
    tasks = [arithmetic(operations=("+", "-", "x"), digits=2).task("train", i) for i in range(300)]
    assert all(10 <= t.public[k] <= 99 for t in tasks for k in "ab")
    assert Counter(t.level for t in tasks).keys() == {"2-digit +", "2-digit -", "2-digit x"}
    task = tasks[0]
    assert arithmetic().prompt({"a": 47, "operation": "+", "b": 85}) == "What is 47 + 85?"
    assert task.public.keys() == {"a", "operation", "b"}


def test_swapped_operands_are_the_same_sum_but_another_difference():
    environment = arithmetic()

    def key(problem, answer):
        return environment.canonical(environment.task_from_gold(problem, answer))

    assert key("47 + 85", "132") == key("85+47", "132") == "47+85"
    assert key("3 x 4", "12") == key("4 * 3", "12")
    assert key("9 - 4", "5") != key("4 - 9", "-5")


def test_a_problem_in_words_is_judged_by_its_answer_alone():
    environment = arithmetic()
    task = environment.task_from_gold("How many legs have 33 cats?", "132")
    assert environment.prompt(task.public) == "How many legs have 33 cats?"
    assert environment.verify(task, wrap_answer("132")).correct
    assert environment.verify(task, wrap_answer("122")).distance == pytest.approx(0.01)
    follow = environment.simulate_attempt(
        task, say(environment, task, "100"), random.Random(0), follow_hint=True, correct=False
    )
    assert int(environment.verify(task, follow).parsed) > 100


@pytest.mark.parametrize("problem, answer", [("47 + 85", "133"), ("47 + 85", "12.0"), ("47 + 85", ""), ("", "ten")])
def test_a_gold_answer_that_cannot_be_is_refused(problem, answer):
    with pytest.raises(DataError):
        arithmetic().task_from_gold(problem, answer)


def test_the_distance_is_measured_on_the_power_of_ten_above_the_operands():
    distances = [v.distance for v in say(arithmetic(), sums(47, 85), "131", "142", "32", "1000", "-" + "9" * 40)]
    assert distances == pytest.approx([0.01, 0.1, 1.0, 1.0, 1.0])
    times = arithmetic().task_from_gold("12 x 12", "144")
    assert say(arithmetic(), times, "244")[0].distance == pytest.approx(100 / 10_000)


@pytest.mark.parametrize(
    "attempt, expected",
    [
        ("131", "Too low, by a little. The last digit is wrong."),
        ("122", "Too low, by a lot. The tens digit is wrong."),
        ("142", "Too high, by a lot. The tens digit is wrong."),
        ("232", "Too high, by a lot. The hundreds digit is wrong."),
        ("135", "Too high, by a little. The last digit is wrong."),
        ("2", "Too low, by a lot. The tens digit is wrong."),
        ("-132", "Too low, by a lot. The sign is wrong."),
        ("5132", "Too high, by a lot. The thousands digit is wrong."),
        ("70132", "Too high, by a lot. A digit before the last four is wrong."),
    ],
)
def test_an_arithmetic_hint_names_side_size_and_digit(attempt, expected):
    assert hint(arithmetic(), sums(47, 85), attempt) == expected


@pytest.mark.parametrize(
    "attempt, expected",
    [
        ("131", "Too high, by a little. The tens digit is wrong."),
        ("122", "Too high, by a lot. The last digit is wrong."),
        ("999", "Too low, by a lot. The last digit is right."),
        ("-132", "Too high, by a lot. The sign is right."),
    ],
)
def test_a_misleading_arithmetic_hint_turns_side_and_digit_round(attempt, expected):
    assert mislead(arithmetic(), sums(47, 85), attempt) == expected


def test_a_follower_goes_to_the_side_of_the_hint_and_never_repeats():
    environment, rng = arithmetic(operations=("+", "-", "x"), digits=3), random.Random(4)
    for i in range(1000):
        task = environment.task("train", i)
        verdicts = wrong_dialogue(environment, task, rng, 1 + i % 3)
        new = environment.verify(
            task, environment.simulate_attempt(task, verdicts, rng, follow_hint=True, correct=False)
        )
        assert new.parsed not in [v.parsed for v in verdicts] and not new.correct
        low = "low" in environment.hint(task, verdicts, rng)
        assert (int(new.parsed) > int(verdicts[-1].parsed)) == low


def test_slips_are_wrong_and_of_every_kind():
    environment, task, rng = arithmetic(), sums(47, 85), random.Random(0)
    said = {environment.simulate_attempt(task, [], rng, follow_hint=False, correct=False) for _ in range(2000)}
    values = {int(environment.verify(task, s).parsed) for s in said}
    assert 132 not in values
    assert {131, 133, 122, 142, 232, 32, -38, 139} <= values


def test_a_student_that_ignores_the_hint_repeats_itself_now_and_then():
    environment, task, rng = arithmetic(), sums(47, 85), random.Random(0)
    verdicts = say(environment, task, "777")
    same = sum(
        "777" in environment.simulate_attempt(task, verdicts, rng, follow_hint=False, correct=False)
        for _ in range(2000)
    )
    assert 0.2 < same / 2000 < 0.3


@pytest.mark.parametrize("operations", [("+",), ("-",), ("x",), ("+", "-"), ("+", "-", "x")])
def test_the_arithmetic_floor_is_the_most_frequent_answer(operations):
    apply = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "x": lambda a, b: a * b}
    counts = Counter(apply[o](a, b) for o in operations for a in range(10, 100) for b in range(10, 100))
    floor = arithmetic(operations=operations).constant_baseline()
    assert floor.score == max(counts.values()) / counts.total() == counts[int(floor.answer)] / counts.total()


def test_the_floor_of_larger_sums_follows_the_closed_form():
    assert arithmetic(digits=4).constant_baseline() == ConstantBaseline("10999", 1 / 9000)
    assert arithmetic(digits=5, operations=("-", "x")).constant_baseline() == ConstantBaseline("0", 1 / 180_000)
    for operations in (("+",), ("-",)):
        enumerated = arithmetic(digits=3, operations=operations).constant_baseline()
        assert enumerated == ConstantBaseline("1099" if operations == ("+",) else "0", 1 / 900)


def test_the_pairs_of_a_product_are_counted_exactly():
    counts = Counter(a * b for a in range(10, 100) for b in range(10, 100))
    for a, b in ((10, 10), (97, 89), (36, 40), (60, 84), (99, 99)):
        assert product_pairs(a, b, 10, 99) == counts[a * b]
    floor = arithmetic(digits=4, operations=("x",)).constant_baseline()
    assert 0 < floor.score < 1 / 9000
    assert floor.score == product_pairs(int(floor.answer), 1, 1000, 9999) / 9000**2


@pytest.mark.parametrize(
    "config", [{"operations": ()}, {"operations": ("+", "+")}, {"operations": ("/",)}, {"digits": 0}]
)
def test_an_impossible_arithmetic_level_is_refused(config):
    with pytest.raises(ValidationError):
        arithmetic(**config)

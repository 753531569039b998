"""Answers that scorers of reasoning-gym accept and that are wrong, by kind, and other right answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

import pytest

from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.reasoning_gym.environment import ReasoningGym
from rl2f_core.types import Task

pytestmark = pytest.mark.xdist_group("workers")
TASKS = 3
SLOW = ("figlet_font", "polynomial_equations", "puzzle24", "sokoban")
"""Their entries take long; most are of split `train`, so that few are made and left out."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@cache
def made(name: str, settings: str) -> tuple[ReasoningGym, list[Task]]:
    """Return a data set and its first tasks."""
    environment = ReasoningGym(ReasoningGym.Config(name=name, settings=json.loads(settings)))
    return environment, [environment.task("train" if name in SLOW else "test", index) for index in range(TASKS)]


def judged(name: str, answer: Callable[[str], str], **settings: Any) -> list[tuple[str, str, bool]]:
    """Return gold answer, answer and verdict of a few tasks."""
    environment, tasks = made(name, json.dumps(settings))
    pairs = [(task, answer(environment.gold_answer(task))) for task in tasks]
    return [
        (environment.gold_answer(task), text, environment.verify(task, wrap_answer(text)).correct)
        for task, text in pairs
    ]


def last_number_changed(gold: str) -> str:
    """Add 1 to the last digits of a text."""
    match = list(re.finditer(r"\d+", gold))[-1]
    return f"{gold[: match.start()]}{str(int(match[0]) + 1).zfill(len(match[0]))}{gold[match.end() :]}"


def followed_by(text: str) -> Callable[[str], str]:
    return lambda gold: gold + text


WRONG: dict[str, tuple[str, Callable[[str], str], dict[str, Any]]] = {
    "NaN for a complex number": ("complex_arithmetic", lambda gold: "nan", {}),
    "NaN for both parts": ("complex_arithmetic", lambda gold: NUMBER.sub("nan", gold), {}),
    "NaN in a list": ("number_sorting", lambda gold: NUMBER.sub("nan", gold), {}),
    "number in a list": ("number_sorting", last_number_changed, {}),
    "zero for a probability": ("coin_flip", lambda gold: "0", {}),
    "one for a probability": ("coin_flip", lambda gold: "1", {}),
    "first digits": ("coin_flip", lambda gold: gold[:4], {}),
    "last digit": ("coin_flip", last_number_changed, {}),
    "fewer digits than asked for": ("decimal_arithmetic", lambda gold: f"{float(gold):.3f}1", {}),
    "number beside a choice": ("number_format", lambda gold: f"{float(gold) + 0.008:.3f}", {}),
    "number in a matrix": ("pool_matrix", lambda gold: NUMBER.sub("nan", gold) if "\n" in gold else "2.35", {}),
    "number in an object": ("codeio", last_number_changed, {}),
    "sign": ("gsm_symbolic", lambda gold: f"-{gold}", {}),
    "expression of other numbers": ("puzzle24", lambda gold: "(1 + 1 + 1) * 8", {}),
    "letter after a word": ("spell_backward", followed_by("x"), {}),
    "digit after moves": ("sokoban", followed_by("0"), {}),
    "letter after a sequence": ("quantum_lock", followed_by("x"), {}),
    "letter after a grid": ("kakurasu", followed_by("x"), {}),
    "negated statements": ("knights_knaves", lambda gold: f"It is false that {gold}", {}),
    "negated role": ("knights_knaves", lambda gold: f"{gold} Not {gold.split()[0]} is an imp", {}),
    "letter before moves": ("tower_of_hanoi", lambda gold: f"x{gold}", {}),
    "first ten letters": ("figlet_font", lambda gold: gold[:10], {"min_word_len": 11, "max_word_len": 15}),
}
"""Data set, the wrong answer by the gold answer, and settings, by what is wrong."""


@pytest.mark.parametrize(("name", "answer", "settings"), WRONG.values(), ids=WRONG)
def test_an_answer_that_only_a_scorer_accepts_is_wrong(
    name: str, answer: Callable[[str], str], settings: dict[str, Any]
) -> None:
    assert [item for item in judged(name, answer, **settings) if item[2]] == []


JUNK: dict[str, Callable[[str], str]] = {
    "sign in the middle": lambda gold: f"{gold[: len(gold) // 2]}#{gold[len(gold) // 2 :]}",
    "word in the middle": lambda gold: f"{gold[: len(gold) // 2]} zigzag {gold[len(gold) // 2 :]}",
    "sign after the start": lambda gold: f"{gold[0]}; {gold[1:]}",
    "sign after every character": "#".join,
    "words on both sides": lambda gold: f"zigzag {gold} zigzag",
}
"""The gold answer with other text in it, by its place."""


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
@pytest.mark.parametrize("name", ["sokoban", "quantum_lock", "kakurasu", "survo", "pool_matrix", "knights_knaves"])
def test_an_answer_consists_only_of_moves_numbers_or_roles(name: str, junk: Callable[[str], str]) -> None:
    assert [item for item in judged(name, junk) if item[2]] == []


@pytest.mark.parametrize("answer", [lambda gold: gold.replace(" → ", ""), lambda gold: gold.replace("→", ",")])
def test_buttons_of_a_quantum_lock_are_separated_by_arrows(answer: Callable[[str], str]) -> None:
    assert [item for item in judged("quantum_lock", answer) if item[2]] == []


RIGHT: dict[str, tuple[str, Callable[[str], str]]] = {
    "digits asked for": ("power_function", lambda gold: f"{Decimal(gold):.2e}"),
    "further digits": ("coin_flip", followed_by("1")),
    "list of numbers": ("number_sorting", lambda gold: gold.replace("'", "")),
    "order of terms": ("cryptarithm", lambda gold: ", ".join(reversed(gold.split(",")))),
    "order of roots": ("polynomial_equations", lambda gold: ", ".join(reversed(gold.split(", ")))),
    "letters of a unit": ("complex_arithmetic", lambda gold: gold.replace("i", "j").replace(" ", "")),
    "name of a constant": ("simple_integration", lambda gold: gold.replace("+ C", "+ C1")),
    "no constant": ("simple_integration", lambda gold: gold.replace(" + C", "")),
    "spaces between buttons": ("quantum_lock", lambda gold: gold.replace(" ", "")),
    "arrows of ASCII": ("quantum_lock", lambda gold: gold.replace("→", "->")),
    "spaces of a grid": ("survo", lambda gold: gold.replace(" ", "  ")),
    "decimals of a matrix": ("pool_matrix", lambda gold: NUMBER.sub(lambda m: f"{float(m[0]):.2f}", gold)),
    "order of persons": ("knights_knaves", lambda gold: ", ".join(reversed(gold.strip(".").split(", and ")))),
    "short statements": ("knights_knaves", lambda gold: re.sub(" is an?", "", gold).lower()),
    "spaces of JSON": ("codeio", lambda gold: gold.replace(": ", ":")),
}
"""Data set and another right answer, by the difference from the gold answer."""


@pytest.mark.parametrize(("name", "answer"), RIGHT.values(), ids=RIGHT)
def test_another_right_answer_stays_right(name: str, answer: Callable[[str], str]) -> None:
    assert [item for item in judged(name, answer) if not item[2]] == []

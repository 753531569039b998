"""Moves toward a misleading hint: agreement with its false claims, by hand, before and after."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.rollout.build import build_control, build_engine
from rl2f_core.dialogue.rollout.engine import RolloutRequest
from rl2f_core.dialogue.teachers.base import FeedbackRequest
from rl2f_core.dialogue.teachers.misleading import is_misled
from rl2f_core.environments.base import CONTENTLESS, wrap_answer
from rl2f_core.environments.capabilities import MisleadingHints
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.types import Hint, Task, Turn, Verdict

CODE = ("secret_code", "Find the code: 4 letters, each A or B.", "A A B B")
SUM = ("arithmetic", "What is 47 + 85?", "132")
NUMBER = ("guess_number", "from 1 to 16", "9")
MATRIX = ("binary_matrix", "0 1 1\n1 1 1\n1 1 1", "012 123 234")
PATH = ("shortest_path", "S . .\n. # .\n. . G", "R R D D")

CASES: list[tuple[tuple[str, str, str], str, str, str, bool | None]] = [
    # B A B A: places 2 and 3 are right.  Claims: 1 is B (kept), 4 is A (kept), 2 is not A, 3 is not B: agreement 2/4.
    (CODE, "B A B A", "Correct so far: B ? ? A", "B B B A", True),  # 3/4
    (CODE, "B A B A", "Correct so far: B ? ? A", "B B A A", True),  # 4/4
    (CODE, "B A B A", "Correct so far: B ? ? A", "B A B A", False),  # again 2/4
    (CODE, "B A B A", "Correct so far: B ? ? A", "A B B A", False),  # one gained, one lost: 2/4
    (CODE, "B A B A", "Correct so far: B ? ? A", "A A B B", False),  # the answer: 0/4
    (CODE, "B A B A", "Correct so far: B ? ? A", "no code", False),
    (CODE, "B B A A", "Correct so far: B ? A ?", "B A A B", None),  # nothing was right, all claims are satisfied
    (CODE, "B A B A", "Correct so far: ? A B ?", "B B B B", None),  # the true hint claims nothing false
    (CODE, "no code", "Correct so far: ? B ? ?", "A B A A", True),
    (CODE, "no code", "Correct so far: ? B ? ?", "A A A A", False),
    (CODE, "B A B A", "That is not correct.", "B B B A", None),
    (SUM, "122", "Too high, by a little. The tens digit is wrong.", "112", True),
    (SUM, "122", "Too high, by a little. The tens digit is wrong.", "123", False),
    (SUM, "122", "Too high, by a little. The tens digit is wrong.", "200", False),  # farther away, but not toward it
    (SUM, "122", "Too high, by a little. The tens digit is wrong.", "none", False),
    (SUM, "122", "Too low, by a little. The last digit is wrong.", "123", None),
    (SUM, "none", "Too low, by a lot. The last digit is wrong.", "123", None),
    (NUMBER, "5", "Too high.", "4", True),
    (NUMBER, "5", "Too high.", "16", False),
    (MATRIX, "012 123 233", "The first wrong value in row 1 is too small.", "112 123 233", True),  # a right row
    (MATRIX, "012 123 233", "The first wrong value in row 1 is too small.", "002 123 233", False),
    (MATRIX, "012 123 233", "The first wrong value in row 3 is too large.", "012 123 232", True),  # 4 is above 3
    (MATRIX, "012 123 233", "The first wrong value in row 3 is too large.", "012 123 234", False),
    (PATH, "R R D U", "Step 1 is wasted.", "D D R U", True),
    (PATH, "R R D U", "Step 1 is wasted.", "D D R R", False),  # another right way
    (PATH, "R R D U", "Step 1 is wasted.", "R R D D", False),
    (PATH, "R R D U", "Step 4 is wasted.", "R R D D", None),  # that is true
    (PATH, "R R D U", "Step 1 is wasted.", "?", False),
    (PATH, "infeasible", "G cannot be reached.", "R R D D", None),
    (PATH, "R R U", "G cannot be reached.", "infeasible", True),
]  # fmt: skip


def made(name: str, problem: str, gold: str) -> tuple[MisleadingHints, Task]:
    cls: Any = registry.get("environment", name)
    settings = {"secret_code": {"length": 4}, "binary_matrix": {"plain": True}}.get(name, {})
    environment = cls(cls.Config(**settings))
    return environment, environment.task_from_gold(problem, gold)


@pytest.mark.parametrize(("problem", "before", "hint", "after", "misled"), CASES)
def test_an_attempt_is_misled_if_it_satisfies_more_false_claims_of_the_hint(
    problem: tuple[str, str, str], before: str, hint: str, after: str, misled: bool | None
) -> None:
    environment, task = made(*problem)
    old, new = (environment.verify(task, wrap_answer(text)) for text in (before, after))
    assert not old.correct
    assert environment.is_misled(task, old, hint, new) is misled


def puzzle_verdicts(*answers: str) -> tuple[MisleadingHints, Task, list[Verdict]]:
    """Ann: Bea is a knave. Bea: Ann is a knave. Cid: Ann is a knight and Bea is a knave. Ann and Cid are knights."""
    cls: Any = registry.get("environment", "knights_knaves")
    environment = cls(cls.Config(people=3))
    people = ["Ann", "Bea", "Cid"]
    statements = [("knave", 1), ("knave", 0), ("and", ("knight", 0), ("knave", 1))]
    task = environment.task("train", 0).model_copy(
        update={
            "public": {"text": "", "people": people, "statements": statements},
            "privileged": {"answer": "Ann=knight; Bea=knave; Cid=knight"},
        }
    )
    roles = {"+": "knight", "-": "knave"}
    answers = tuple("; ".join(f"{n}={roles[c]}" for n, c in zip(people, a, strict=True)) for a in answers)
    return environment, task, [environment.verify(task, wrap_answer(answer)) for answer in answers]


def test_a_puzzle_misleads_toward_other_roles_only_if_all_roles_of_the_blamed_statement_are_right() -> None:
    environment, task, (wrong, worse, right) = puzzle_verdicts("+--", "---", "+-+")
    assert (wrong.correct_parts, right.correct) == (("Ann", "Bea"), True)
    blame = "Your answer does not fit what Ann says."
    assert environment.is_misled(task, wrong, blame, worse) is True
    assert environment.is_misled(task, wrong, blame, right) is False
    assert environment.is_misled(task, worse, blame, wrong) is None  # Ann's role is wrong, so the blame is right


def test_a_puzzle_misleads_toward_a_false_number_of_changes() -> None:
    environment, task, (wrong, two_changed, one_changed) = puzzle_verdicts("+--", "-+-", "++-")
    blame = "2 of 3 people are wrong."  # one is
    assert environment.is_misled(task, wrong, blame, two_changed) is True
    assert environment.is_misled(task, wrong, blame, one_changed) is False
    assert environment.is_misled(task, wrong, "1 to 2 of 3 people are wrong.", two_changed) is None  # true


@pytest.mark.parametrize("name", ["arithmetic", "guess_number", "secret_code", "binary_matrix", "shortest_path", "maze",
                                  "knights_knaves", "gsm_symbolic", "mixture"])  # fmt: skip
def test_the_answer_never_counts_as_misled_and_shipped_misleading_hints_make_false_claims(name: str) -> None:
    cls: Any = registry.get("environment", name)
    environment = cls(cls.Config())
    rng, defined = random.Random(0), 0
    for index in range(60):
        task = environment.task("train", index)
        before = environment.verify(task, environment.simulate_attempt(task, [], rng, follow_hint=False, correct=False))
        if before.correct:
            continue
        gold = environment.verify(task, environment.simulate_attempt(task, [], rng, follow_hint=False, correct=True))
        text = environment.misleading_hint(task, [before], rng)
        assert environment.is_misled(task, before, text, gold) in (False, None)
        assert environment.is_misled(task, before, text, before) in (False, None)
        assert environment.is_misled(task, before, environment.hint(task, [before], rng), gold) in (False, None)
        defined += environment.is_misled(task, before, text, gold) is not None
    assert defined > 5


def engine_with(teacher: str) -> Any:
    config: Any = parse_config(
        {
            "kind": "eval",
            "adapters": {"base": None},
            "backend": "fake",
            "environment": {"type": "guess_number", "size": 16, "low": 1},
            "rollout": {"max_turns": 2, "max_new_tokens": 60, "max_seq_len": 4096},
            "evaluation": {"num_tasks": 4},
        }
    )

    def student(prompt: str, rng: Any) -> str:
        """5 first, then a number above 5 only if the hint says so."""
        if prompt.count("<|im_start|>assistant") == 1:
            return wrap_answer("5")
        return wrap_answer("6" if "Too low" in prompt else "4")

    engine = build_engine(config, FakeBackend(script=student))
    return engine if teacher == "scripted" else dataclasses.replace(engine, teacher=build_control(teacher, engine))


@pytest.mark.parametrize(
    ("teacher", "gold", "misled"),
    [
        ("misleading", "9", True),  # reads "Too high." and answers 4
        ("misleading", "2", True),  # reads "Too low." and answers 6
        ("contentless", "9", True),  # answers 4, as the unread "Too high." claims
        ("contentless", "2", False),  # answers 4, against the unread "Too low."
        ("scripted", "9", None),
    ],
)
def test_turns_record_moves_toward_the_misleading_hint_and_their_chance_level(
    teacher: str, gold: str, misled: bool | None
) -> None:
    engine = engine_with(teacher)
    task = engine.environment.task("test", 0).model_copy(update={"privileged": {"number": gold}})
    (rollout,) = engine.run([RolloutRequest(task, "a", "a", 0, 3)])
    first, second = rollout.dialogue.turns
    assert (first.misled, second.misled) == (None, misled)


def test_replaced_hints_and_correct_attempts_are_not_judged() -> None:
    environment, task = made(*NUMBER)
    five, nine, four = (environment.verify(task, wrap_answer(text)) for text in ("5", "9", "4"))

    def before(verdict: Any, **hint: Any) -> FeedbackRequest:
        message = Hint(**{"text": CONTENTLESS, "teacher": "contentless", **hint})
        return FeedbackRequest(task, (Turn(index=0, attempt="", verdict=verdict, hint=message),), 0)

    assert is_misled(environment, before(five), four) is True
    assert is_misled(environment, before(five, teacher="misleading", error="failed"), four) is None
    assert is_misled(environment, before(nine), four) is None
    assert is_misled(environment, FeedbackRequest(task, (), 0), four) is None
